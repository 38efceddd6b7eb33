"""Large files that no client waits for are read and become durable piece by piece.

A write-ahead log on the same disk would wait behind all that was asked of it at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from threading import BoundedSemaphore
from typing import Final, NamedTuple

MAX_PARTS: Final = 1024
"""Buffers that one call takes, Linux' UIO_MAXIOV."""
PIECE_BYTES: Final = 1 << 19
"""A disk whose writes rest makes as many bytes durable at once. Syncs of one file system
wait for each other; docs/measurements.md has what those of a write-ahead log take beside large files."""
MOST_REST_SECONDS: Final = 0.1
"""After a piece that took long, because the disk is slow or its other users have much to do."""

READS_AT_ONCE: Final = 2
"""Pieces that the threads of one process read at the same time."""


class WritePace(NamedTuple):
    """The way in which large files become durable that nothing waits for."""

    piece_bytes: int
    rest: Callable[[float], None]
    """Called between two pieces, with the seconds that the first one took."""


def rest_as_long(took: float) -> None:
    """Leave the disk to others for as long as a piece took."""
    time.sleep(min(took, MOST_REST_SECONDS))


HALF: Final = WritePace(PIECE_BYTES, rest_as_long)
"""Half of the disk's time."""


class Reads:
    """The way in which the files of a disk are read: at once."""

    def begin(self, fd: int) -> None:
        """Take note of a file that was opened."""

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Do `os.pread`, perhaps of less than `size` bytes."""
        return os.pread(fd, size, offset)

    def pread_into(self, fd: int, memory: memoryview, offset: int) -> int:
        """Do `os.preadv` into memory, perhaps into the first part of it only."""
        return os.preadv(fd, [memory], offset)


class PacedReads(Reads):
    """The way in which one process reads files that no client waits for.

    Its threads have READS_AT_ONCE pieces of PIECE_BYTES under way together, and the system reads nothing
    ahead for them. A job of 64 MiB that was asked for at once kept the disk from the logs of all nodes for
    60 ms (docs/measurements.md).
    """

    def __init__(self) -> None:
        self._turns = BoundedSemaphore(READS_AT_ONCE)

    def begin(self, fd: int) -> None:
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):  # advice: a file system that does not take it reads ahead
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        with self._turns:
            return super().pread(fd, min(size, PIECE_BYTES), offset)

    def pread_into(self, fd: int, memory: memoryview, offset: int) -> int:
        with self._turns:
            return super().pread_into(fd, memory[:PIECE_BYTES], offset)


def pieces(parts: Sequence[bytes | bytearray | memoryview], most: int) -> Iterator[list[memoryview]]:
    """The parts in order, in runs of `most` bytes and MAX_PARTS at most."""
    piece: list[memoryview] = []
    size = 0
    for part in parts:
        view = memoryview(part).cast("B")
        while len(view):
            cut, view = view[: most - size], view[most - size :]
            piece.append(cut)
            size += len(cut)
            if size == most or len(piece) == MAX_PARTS:
                yield piece
                piece, size = [], 0
    if piece:
        yield piece
