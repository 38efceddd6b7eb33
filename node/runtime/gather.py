"""Work on many items, a bounded number of them at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE: Final = 64
"""Items under way at the same time: what one caller costs the others."""


async def gather_bounded(items: Iterable[T], work: Callable[[T], Coroutine[None, None, R]]) -> list[R]:
    """The results of `work` in the order of `items`, AT_ONCE of them at a time, begun in that order."""
    waiting = list(items)
    results: list[R] = []
    for first in range(0, len(waiting), AT_ONCE):
        results += await asyncio.gather(*map(work, waiting[first : first + AT_ONCE]))
    return results
