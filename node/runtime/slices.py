"""Intervals of a node's looks at all its partitions for new work.

Most looks find nothing. So that thousands of idle partitions cost no more than hundreds do, the time between
two looks grows with their number; and a look is cut into slices, so that nothing else waits for all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

LOOKED_AT: Final = 500
"""Partitions that may be looked at in the least time between two looks."""
SLICE: Final = 256
"""Partitions in one turn of the loop: about a millisecond."""


def look_seconds(least: float, partitions: int) -> float:
    """Seconds until the next look at this many partitions; `least` where they are few."""
    return least * max(1.0, partitions / LOOKED_AT)


async def in_slices(items: Iterable[T], size: int = SLICE) -> AsyncIterator[T]:
    """Each of the items there are now, with a turn of the loop after each slice; some may be gone by then."""
    for number, item in enumerate([*items], 1):
        yield item
        if number % size == 0:
            await asyncio.sleep(0)
