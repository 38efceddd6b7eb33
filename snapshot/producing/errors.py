"""The sink's errors."""

from __future__ import annotations


class SinkError(Exception):
    """A write that cannot be done, or not known to be done: one line with the cause and the cure."""


class Unanswered(SinkError):
    """Brokers could not be reached, or gave no final answer in time."""


class Fenced(Exception):
    """A broker does not take this producer's word any more: another has its place, or it took too long."""
