"""Files of a node's snapshots, one for each group: written under a temporary name, synced, then renamed.

All functions here block and run off the loop. A file is complete once it has its final name, so a crash at
any step leaves the old snapshot, the new one, or both.
"""

from __future__ import annotations

import os

from strandline.node.raft.disk import Disk, DiskFile
from strandline.snapshot.document import SnapshotDamaged, SnapshotDocument, SnapshotTooNew, decode

_SUFFIX = ".snapshot"
_INCOMING = ".incoming"
_WRITING = ".writing"


class SnapshotStore:
    """The snapshot files below one folder. Names hold the group and the log index."""

    def __init__(self, disk: Disk, folder: str, cluster: str) -> None:
        self._disk = disk
        self.folder = folder
        self._cluster = cluster
        disk.mkdir(folder)
        for name in disk.listdir(folder):
            if name.endswith((_INCOMING, _WRITING)):
                disk.unlink(self._path(name))
        # A killed process may leave a name that is visible and not durable; visible names are relied on here.
        disk.sync_dir(folder)

    def save(self, document: SnapshotDocument) -> None:
        """Make a snapshot durable; raises OSError, and leaves the earlier snapshot then."""
        head, state = document.parts()
        name = self._name(document.group, document.index)
        writing = self._path(name + _WRITING)
        self._discard(writing)
        file = self._disk.open(writing, create=True)
        try:
            file.pwrite(head, 0)
            file.pwrite(state, len(head))
            file.datasync()
        except OSError:
            file.close()
            self._discard(writing)
            raise
        file.close()
        self._disk.rename(writing, self._path(name))
        self._disk.sync_dir(self.folder)

    def indices(self) -> dict[int, list[int]]:
        """For every group the indices it has snapshots of, ascending."""
        found: dict[int, list[int]] = {}
        for name in self._disk.listdir(self.folder):
            if name.endswith(_SUFFIX):
                group, _, index = name[: -len(_SUFFIX)].partition("-")
                if group.isdecimal() and index.isdecimal():
                    found.setdefault(int(group), []).append(int(index))
        return {group: sorted(indices) for group, indices in found.items()}

    def load(self, group: int, index: int) -> SnapshotDocument:
        """Read and check one snapshot; raises SnapshotDamaged, SnapshotTooNew or OSError, naming the file."""
        path = self._path(self._name(group, index))
        try:
            document = decode(self._disk.read(path))
        except (SnapshotDamaged, SnapshotTooNew) as error:
            raise type(error)(f"{path}: {error}") from error
        self.check(document, group, index, path)
        return document

    def check(self, document: SnapshotDocument, group: int, index: int, path: str) -> None:
        """Raise SnapshotDamaged unless the document is this cluster's, this group's and of this index."""
        if (document.cluster, document.group, document.index) != (self._cluster, group, index):
            raise SnapshotDamaged(
                f"{path}: holds cluster {document.cluster!r}, group {document.group}, index {document.index}:"
                f" expected {self._cluster!r}, {group}, {index}; the file was moved or renamed"
            )

    def open(self, group: int, index: int) -> DiskFile:
        """The file of one snapshot, to be sent; stays readable when a newer snapshot replaces it."""
        return self._disk.open(self._path(self._name(group, index)))

    def open_incoming(self, group: int) -> DiskFile:
        """An empty file for a snapshot that arrives in chunks."""
        path = self._incoming(group)
        self._discard(path)
        return self._disk.open(path, create=True)

    def adopt_incoming(self, file: DiskFile, group: int, index: int) -> SnapshotDocument:
        """Check the file that arrived, make it durable under its final name, and return it.

        Raises SnapshotDamaged or SnapshotTooNew; the file is then gone and nothing else has changed.
        """
        path = self._incoming(group)
        try:
            file.datasync()
            data = file.pread(file.size(), 0)
        finally:
            file.close()
        try:
            document = decode(data)
            self.check(document, group, index, path)
        except (SnapshotDamaged, SnapshotTooNew):
            self._discard(path)
            raise
        self._disk.rename(path, self._path(self._name(group, index)))
        self._disk.sync_dir(self.folder)
        return document

    def discard_incoming(self, file: DiskFile, group: int) -> None:
        """Drop the part that arrived so far."""
        file.close()
        self._discard(self._incoming(group))

    def drop(self, group: int, below: int | None) -> None:
        """Delete a group's snapshots of an index below `below`, or all."""
        for index in self.indices().get(group, []):
            if below is None or index < below:
                self._disk.unlink(self._path(self._name(group, index)))

    def _discard(self, path: str) -> None:
        if self._disk.exists(path):
            self._disk.unlink(path)

    def _incoming(self, group: int) -> str:
        return self._path(f"{group}{_INCOMING}")

    def _name(self, group: int, index: int) -> str:
        return f"{group}-{index:020d}{_SUFFIX}"

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)
