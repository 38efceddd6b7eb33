"""Large files that nothing waits for become durable piece by piece, with rests in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

MAX_PARTS: Final = 1024
"""Buffers that one call takes, Linux' UIO_MAXIOV."""
PIECE_BYTES: Final = 1 << 19
"""A disk whose writes rest makes as many bytes durable at once. Syncs of one file system
wait for each other; docs/measurements.md has what those of a write-ahead log take beside large files."""
MOST_REST_SECONDS: Final = 0.1
"""After a piece that took long, because the disk is slow or its other users have much to do."""


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
