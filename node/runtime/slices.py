"""Long work on the event loop, cut into slices, so that other callbacks run between them.

Most of a node's looks at its partitions find nothing to do. So that thousands of idle partitions cost no more
than hundreds do, the time between two looks grows with their number; and a look is cut into slices.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")

LOOKED_AT: Final = 500
"""Partitions that may be looked at in the least time between two looks."""
SLICE: Final = 256
"""Partitions in one turn of the loop: about a millisecond."""
SLICE_SECONDS: Final = 0.003
"""Time in one turn of the loop of work that is not counted."""


def look_seconds(least: float, partitions: int) -> float:
    """Seconds until the next look at this many partitions; `least` where they are few."""
    return least * max(1.0, partitions / LOOKED_AT)


async def in_slices(items: Iterable[T], size: int = SLICE) -> AsyncIterator[T]:
    """Each of the items there are now, with a turn of the loop after each slice; some may be gone by then."""
    async for slice_ in slices_of(items, size):
        for item in slice_:
            yield item


async def slices_of(items: Iterable[T], size: int = SLICE) -> AsyncIterator[list[T]]:
    """As `in_slices`, a slice at a time: for looks that find nothing to do with most items, where to be given
    each of them would be half of what they cost."""
    for slice_ in cut(items, size):
        yield slice_
        if len(slice_) == size:
            await asyncio.sleep(0)


def cut(items: Iterable[T], size: int = SLICE) -> Iterator[list[T]]:
    """The slices of `slices_of`, where mostly there is one: an asynchronous iterator costs microseconds. The
    loop has its turn by the caller, after each slice that is full."""
    present = [*items]
    for first in range(0, len(present), size):
        yield present[first : first + size]


class Slices:
    """Interruption points of a long loop, by the time that it took; the node may change at each of them."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def breathe(self) -> None:
        """Let the loop run what waits, if this slice is over."""
        if time.perf_counter() - self._since >= SLICE_SECONDS:
            await asyncio.sleep(0)
            self._since = time.perf_counter()
