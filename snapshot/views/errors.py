"""Errors of views: each ends the step it comes from, and that step has changed nothing."""

from __future__ import annotations


class ViewError(Exception):
    """A step of a view could not be made; `str()` is one line with the cause."""


class ViewInvariant(ViewError):
    """A rule that no input can break is broken: a fault of the program or of its stored state."""


class ViewStopped(ViewError):
    """The data has no answer under ANSI rules: an overflow, a division by zero."""


class ViewLimit(ViewError):
    """A step or a group is larger than its bound, which the message names."""


class RunDamaged(ViewError):
    """A stored run is not what was written: take it from its other copy, or rebuild the state."""
