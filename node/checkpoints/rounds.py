"""Doing something for many groups, a bounded number at a time, and again until it worked or time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

MAX_AT_A_TIME: Final = 64
"""Groups for which something is under way: what one caller costs the others."""
CALL_SECONDS: Final = 5.0
"""Time limit for the answer of one group's leader."""
FIRST_PAUSE_SECONDS: Final = 0.05
MAX_PAUSE_SECONDS: Final = 1.0


async def each(items: Iterable[T], do: Callable[[T], Awaitable[None]]) -> None:
    """Do it once for every item, a bounded number at a time; cancelling this cancels them all."""
    todo = iter(items)

    async def work() -> None:
        for item in todo:
            await do(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(MAX_AT_A_TIME):
            group.create_task(work())


async def rounds(
    loop: asyncio.AbstractEventLoop,
    items: Sequence[T],
    once: Callable[[T], Awaitable[None]],
    done: Callable[[T], bool],
    end: float,
) -> None:
    """Try each item that is not done, and again after a pause, until all are or the loop's time is `end`.

    In rounds, so that a group without a leader holds no other up.
    """
    pause = FIRST_PAUSE_SECONDS
    while (left := [item for item in items if not done(item)]) and loop.time() < end:
        try:
            async with asyncio.timeout_at(end):
                await each(left, once)
                if not all(map(done, left)):
                    await asyncio.sleep(pause)
        except TimeoutError:
            return
        pause = min(2 * pause, MAX_PAUSE_SECONDS)
