"""The grid of times at which a node's parts take their turns, so that it wakes once for all of them.

Thirty parts look now and then whether there is something to do. Each by a timer of its own would wake an idle
node as often, and to wake costs more than most looks. Each loop has a grid of its own, from its first pause
on: nodes of one machine do not wake at the same time.
"""

from __future__ import annotations

import asyncio
from typing import Final
from weakref import WeakKeyDictionary

GRID_SECONDS: Final = 0.25
"""Distance of two points of the grid. A shorter pause is what it is."""
_begun: WeakKeyDictionary[asyncio.AbstractEventLoop, float] = WeakKeyDictionary()


def until_round(loop: asyncio.AbstractEventLoop, seconds: float) -> float:
    """Seconds from now to the point of the loop's grid that is nearest to `seconds` from now."""
    if seconds < GRID_SECONDS:
        return seconds
    now = loop.time()
    begun = _begun.setdefault(loop, now)
    return begun + round((now + seconds - begun) / GRID_SECONDS) * GRID_SECONDS - now


async def next_round(seconds: float) -> None:
    """Sleep for about `seconds`, to a point of the grid."""
    await asyncio.sleep(until_round(asyncio.get_running_loop(), seconds))
