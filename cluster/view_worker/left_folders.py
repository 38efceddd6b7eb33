"""Removes the folders for unfinished files that processes of views left in a store's folder.

They and a lock each have names that no later process has. A node sweeps its own as it starts, and not these.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from contextlib import suppress
from typing import Final

from strandline.node.objectstore.unfinished_files import APART, LOCK, PARTIAL

LEFT_SECONDS: Final = 3600.0
"""Age of a lock, from its first process on, at which no process is amid its first start any more."""
_PROCESS = re.compile(r"(.+)-\d+-(?:live|next)")
"""A process's name as an owner of unfinished files: its node's, its attempt, and its phase."""


def remove_left_folders(root: str, owner: str) -> None:
    """Remove the folders of other processes of this one's node that are gone. What cannot be removed stays.

    A process that takes up its name at this very moment fails, and is started again by its node.
    """
    own = _PROCESS.fullmatch(owner)
    shared = os.path.join(root, PARTIAL)
    with suppress(OSError):
        for name in os.listdir(shared):
            other = _PROCESS.fullmatch(name.removesuffix(LOCK))
            if own and other and name.endswith(LOCK) and other[1] == own[1] and other[0] != owner:
                with suppress(OSError):
                    _remove(os.path.join(shared, other[0]))


def _remove(folder: str) -> None:
    """Remove a process's folders and its lock; raises OSError if it is there, or may just have begun."""
    lock = os.open(folder + LOCK, os.O_RDWR | os.O_CLOEXEC)
    try:
        if time.time() - os.fstat(lock).st_mtime < LEFT_SECONDS:
            return
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for one in (folder + APART, folder):
            shutil.rmtree(one, ignore_errors=True)
        os.unlink(folder + LOCK)
    finally:
        os.close(lock)
