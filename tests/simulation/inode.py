"""The bytes of one simulated file, and what a power cut leaves of them.

A file has its live bytes (the page cache) and its durable bytes; writes since the last sync are kept in
order. A power cut keeps an arbitrary part of those writes, within what real disks do: it may tear a
write, leave garbage in the sector in flight, or keep later sectors and lose earlier ones. It never harms a
byte that was synced and not written since.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.disk import SimDisk

SECTOR = 512
PAGE = 4096


class Inode:
    """The bytes of one file, whatever its names are."""

    __slots__ = ("dirty", "durable", "live", "number", "sectors_lost")

    def __init__(self, number: int) -> None:
        self.number = number
        self.live = bytearray()
        self.durable = bytearray()
        self.dirty: list[tuple[int, bytes]] = []
        self.sectors_lost = False

    def check_sectors(self, name: str) -> None:
        """Raises OSError if the disk does not give these bytes back any more."""
        if self.sectors_lost:
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    def write(self, offset: int, data: bytes) -> None:
        place(self.live, offset, data)
        self.dirty.append((offset, data))

    def sync(self) -> int:
        """Make all writes durable; returns how many bytes that were."""
        total = 0
        for offset, data in self.dirty:
            place(self.durable, offset, data)
            total += len(data)
        self.dirty.clear()
        return total

    def lose_power(self, rng: random.Random, reorders: bool) -> None:
        """Keep a part of the unsynced writes: none, all, a torn prefix, or (`reorders`) any sectors."""
        total = sum(len(data) for _, data in self.dirty)
        fate = rng.randrange(5 if reorders else 4)
        if fate == 0:
            self.dirty.clear()
        elif fate == 1:
            self.sync()
        elif fate == 4:
            self._keep_sectors(rng, SECTOR if total <= 64 * 1024 else PAGE)
        else:
            self._keep_prefix(rng, rng.randint(0, total))
        self.dirty.clear()
        self.live = bytearray(self.durable)

    def _keep_prefix(self, rng: random.Random, room: int) -> None:
        for offset, data in self.dirty:
            kept = data[:room]
            room -= len(kept)
            if kept and len(kept) < len(data) and rng.random() < 0.5:
                # The sector in flight holds garbage, but only in the bytes this write was about to change.
                start = max(0, (offset + len(kept) - 1) // SECTOR * SECTOR - offset)
                kept = kept[:start] + rng.randbytes(len(kept) - start)
            place(self.durable, offset, kept)

    def _keep_sectors(self, rng: random.Random, unit: int) -> None:
        for offset, data in self.dirty:
            at = offset
            while at < offset + len(data):
                end = min((at // unit + 1) * unit, offset + len(data))
                if rng.random() < 0.5:
                    place(self.durable, at, data[at - offset : end - offset])
                at = end


def place(target: bytearray, offset: int, data: bytes) -> None:
    if not data:
        return
    if offset > len(target):
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data


class SimFile:
    """An open file. It goes stale with a crash: closing it then does nothing, anything else is EBADF."""

    __slots__ = ("_closed", "_disk", "_epoch", "_inode", "_name")

    def __init__(self, disk: SimDisk, inode: Inode, name: str) -> None:
        self._disk = disk
        self._inode = inode
        self._name = name
        self._epoch = disk.epoch
        self._closed = False

    def _check(self) -> None:
        if self._closed or self._epoch != self._disk.epoch:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._name)

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._check()
        self._disk.write("pwrite", self._name, self._inode, offset, bytes(data))

    def pread(self, size: int, offset: int) -> bytes:
        self._check()
        self._disk.begin("pread", self._name)
        self._inode.check_sectors(self._name)
        return bytes(self._inode.live[offset : offset + size])

    def pread_into(self, memory: memoryview, offset: int) -> int:
        data = self.pread(len(memory), offset)
        memory[: len(data)] = data
        return len(data)

    def preallocate(self, size: int) -> None:
        self._check()
        self._disk.write("preallocate", self._name, self._inode, 0, bytes(size))

    def datasync(self) -> None:
        self._check()
        self._disk.sync(self._name, self._inode)

    def overwrite_durably(self, data: bytes, offset: int) -> bool:
        return False

    def write_durably(self, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        # As on a disk, the bytes get there one part after the other, and a crash may come between any two.
        offset = 0
        for part in parts:
            self.pwrite(part, offset)
            offset += len(part)
        self.datasync()

    def is_deleted(self) -> bool:
        return False

    def forget_cached(self) -> None:
        self._check()

    def descriptor(self) -> int | None:
        return None

    def size(self) -> int:
        self._check()
        return len(self._inode.live)

    def close(self) -> None:
        self._closed = True
