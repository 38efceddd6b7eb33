"""One command at a time starts and stops the nodes of a local cluster's folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from strandline.cluster.failure import CommandFailed

_LOCK: Final = "cluster.lock"
_LOCK_SECONDS: Final = 120.0
_TOLD_SECONDS: Final = 2.0
"""A wait for this long is told: the other command may take minutes, as one that restarts all nodes."""
_POLL_SECONDS: Final = 0.03


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock while the block lasts; CommandFailed when another command keeps it too long."""
    began, told = time.monotonic(), False
    while (lock := _locked(folder / _LOCK)) is None:
        waited = time.monotonic() - began
        if not told and waited >= _TOLD_SECONDS:
            from strandline.cluster.output import warn  # not for a program without the extra of a node

            warn(f"another command is at work on {folder}: waiting for it, for {_LOCK_SECONDS:g} s at most")
            told = True
        if waited >= _LOCK_SECONDS:
            raise CommandFailed(
                f"another command has been at work on {folder} for {_LOCK_SECONDS:g} s",
                "wait for it, or end it, and try again",
            )
        time.sleep(_POLL_SECONDS)
    with lock:
        yield


@contextlib.contextmanager
def new_folder(folder: Path, keeps: str) -> Iterator[None]:
    """Make the folder if it is missing, and lock it; it goes again unless the block puts `keeps` there."""
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with alone(folder):
        try:
            yield
        finally:
            if not (folder / keeps).exists():
                with contextlib.suppress(OSError):  # not empty, or gone
                    (folder / _LOCK).unlink()
                    for each in made:
                        each.rmdir()


def _locked(path: Path) -> IO[str] | None:
    """The lock's file when this process has it now."""
    lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A command that made nothing removes the lock file; a lock on the removed file excludes no process.
        if os.fstat(lock.fileno()).st_ino == path.stat().st_ino:
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    lock.close()
    return None
