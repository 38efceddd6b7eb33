"""Errors of keys and tokens; importable without the libraries that read these, which cost a node 9 MB."""

from __future__ import annotations


class KeySetError(Exception):
    """The keys cannot be had; one line with cause and cure."""


class BadToken(Exception):
    """A token that proves nothing; the text is for the node's log."""
