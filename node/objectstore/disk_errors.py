"""Says an operator what a disk's error means: its cause, and its cure."""

from __future__ import annotations

import errno
from typing import Final


def describe(error: OSError) -> str:
    """The error and its place, without Python's decoration."""
    return f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}"


BRING_BACK: Final = "mount it again, or correct storage.url; the node goes on by itself"
"""The cure of a missing folder."""
_CURES: Final = {
    errno.ENOSPC: "make room there; the node goes on by itself",
    errno.EDQUOT: "raise the quota, or make room there; the node goes on by itself",
    errno.EACCES: "let the node's user write there; the node goes on by itself",
    errno.EPERM: "let the node's user write there; the node goes on by itself",
    errno.EROFS: "mount it so that it can be written; the node goes on by itself",
    errno.ENOENT: BRING_BACK,
}


def cure(error: OSError) -> str:
    """The cure for an operator; empty if none is known."""
    return _CURES.get(error.errno or 0, "")
