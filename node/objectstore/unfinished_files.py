"""The files of one process that are no objects yet, in folders of which no listing of the store knows.

They lie in folders for each process, so what a crash left there is swept without a walk through the store;
and in several, far apart on the disk (block_groups.py), as an object keeps the place on the disk at
which its file was made.
"""

from __future__ import annotations

import posixpath
from contextlib import suppress
from typing import Final, Protocol

from strandline.node.raft.disk import Disk

PARTIAL: Final = ".partial"
"""Folder of unfinished files; no key begins with a dot, so it is no part of any listing."""
LOCK: Final = ".lock"
"""Behind the name of a process's folder: the file that it has locked."""
APART: Final = ".apart"
"""Ends the name of the folder that has a process's many. They are not in the folder of its own name: there
earlier releases remove all that is, as files, and would not start for a folder."""
FOLDERS: Final = 64
"""With as many, a group has few of the files that were deleted lately: a hundred of the last five minutes' if
twenty a second are deleted."""
FILES_EACH: Final = 256
"""Files that are made one after the other in a folder: a new folder has to be made and synced once."""


class ObjectDisk(Disk, Protocol):
    """A `Disk` whose folders can go again."""

    def rmdir(self, path: str) -> None:
        """Remove an empty folder; OSError(ENOTEMPTY) when it is not."""

    def spread(self, path: str) -> None:
        """Have the folders that are made in this one from now on lie apart, where the disk can do that."""


class UnfinishedFiles:
    """Those of the process that is called `owner` among all that share the store at `root`. All block."""

    def __init__(self, disk: ObjectDisk, root: str, owner: str) -> None:
        self.folder = posixpath.join(root, PARTIAL, owner)
        """It says that the process has been here, and has the unfinished files of earlier releases."""
        self._apart = self.folder + APART
        self._disk = disk
        self._shared = posixpath.join(root, PARTIAL)
        self._there: set[str] = set()
        """Folders that this process has found or made."""

    def open(self) -> None:
        """Remove what was left here. Raises OSError."""
        self._disk.mkdir(self._apart)
        for path in (self._shared, self._apart):
            self._disk.spread(path)
        for name in self._disk.listdir(self._apart):
            self._empty(posixpath.join(self._apart, name))
        for name in self._disk.listdir(self.folder):
            path = posixpath.join(self.folder, name)
            try:
                self._empty(path)
            except NotADirectoryError:
                self._disk.unlink(path)
            else:
                self._disk.rmdir(path)

    def _empty(self, folder: str) -> None:
        for name in self._disk.listdir(folder):
            self._disk.unlink(posixpath.join(folder, name))

    def path(self, number: int) -> str:
        """Path of the file of this number, which is used once. Raises OSError."""
        folder = posixpath.join(self._apart, f"{number // FILES_EACH % FOLDERS:02d}")
        if folder not in self._there:
            # Where the whole store is gone this raises: a new folder would be in its way when it comes back.
            self._disk.listdir(self.folder)
            self._disk.mkdir(folder)
            self._there.add(folder)
        return posixpath.join(folder, str(number))

    def remove(self, path: str) -> None:
        """Remove a file that became no object, if it is there."""
        with suppress(OSError):
            self._disk.unlink(path)
        # Should it be the folder that is gone, the next file finds that out.
        self._there.discard(posixpath.dirname(path))
