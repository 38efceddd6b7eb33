"""The error for what no node of this version sends."""

from __future__ import annotations


class BadMessage(Exception):
    """A peer sent what no node of this version sends; its connection ends, nothing else."""
