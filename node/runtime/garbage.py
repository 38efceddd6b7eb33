"""Collects a node's garbage without looking at all objects each time, as nearly all of them live on.

A full collection looks at every object there is: half a second with ten thousand partitions, in which the
loop does nothing else, again and again while partitions come. So objects that will stay are set aside
(`gc.freeze`). Once many of them have gone, a collection looks at everything, and sets it aside again.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Final

LOOK_SECONDS: Final = 0.2
"""Time from a group's coming or going to the look at how many did."""
CAME: Final = 128
"""Number of new groups that makes it worth setting all objects aside again."""
GONE: Final = 256
GONE_SHARE: Final = 0.25
"""Groups that went since, whose memory is wanted back: this many, and this share of those that are left."""


class Garbage:
    """One per process. `groups()` gives how many groups are here, and how many have ever come."""

    def __init__(self, groups: Callable[[], tuple[int, int]], loop: asyncio.AbstractEventLoop) -> None:
        self._groups = groups
        self._loop = loop
        self._came = self._gone = 0
        self._timer: asyncio.TimerHandle | None = None

    def changed(self) -> None:
        """A group has come, or gone: look soon. Nothing looks where none does."""
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._due)

    def _due(self) -> None:
        self._timer = None
        self.look()

    def look(self) -> None:
        """Set aside, or collect, if it is time."""
        here, came = self._groups()
        gone = came - here
        if gone - self._gone >= max(GONE, GONE_SHARE * here):
            gc.unfreeze()
            gc.collect()
        elif came - self._came < CAME:
            return
        gc.freeze()
        self._came, self._gone = came, gone
