"""Folders of a program's own among the temporary files, of which one that is killed leaves none for good.

A program that ends removes its own. One that is killed cannot: the next that makes one removes those whose
program is gone. The system tells that by a lock, which it takes from a program however that ends, and which
no other program of the same number could be taken for.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from typing import Final

from strandline.snapshot.spark.no_spark import NoFolder

PREFIX: Final = "strandline-"
_HELD: Final = "held"
"""File in a folder that its program has locked. A folder that has just been made has none, nor one of a file
system without locks: these are left alone."""


def program_folder(kind: str = "") -> str:
    """Make a folder that only this user may enter, and that is there until this program ends.

    Raises NoFolder.
    """
    _sweep()
    try:
        folder = tempfile.mkdtemp(prefix=f"{PREFIX}{kind}")
    except OSError as error:
        reason = f"no folder can be made among the temporary files ({error.strerror or error})"
        raise NoFolder(
            reason, "make room there, or name a folder in TMPDIR that can be written to"
        ) from error
    _hold(folder)
    atexit.register(_remove, folder, os.getpid())
    return folder


def _hold(folder: str) -> None:
    """Lock a file and only then give it its name: one of that name without a lock has lost its program."""
    path = os.path.join(folder, _HELD)
    with suppress(OSError):
        # The number is never closed: the lock goes with it.
        file = os.open(f"{path}-soon", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        os.rename(f"{path}-soon", path)


def _remove(folder: str, program: int) -> None:
    if os.getpid() == program:  # and in no fork of it
        shutil.rmtree(folder, ignore_errors=True)


def _sweep() -> None:
    """Remove this user's folders whose programs are gone."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                        _remove_left(entry.path)


def _remove_left(folder: str) -> None:
    """Remove a folder unless its program has the lock; raises OSError if it has, or there is none."""
    file = os.open(os.path.join(folder, _HELD), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(file)
