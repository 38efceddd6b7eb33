"""Lag of the event loop: the one number that reveals a callback that is too slow.

A callback that computes for 50 ms holds up every request and every heartbeat of the node for as long. One
timer measures it by being late itself: its delay is that of a request that comes at a random moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from strandline.node.admin.held_loop import HeldLoop
from strandline.node.level_zero.measures import Histogram

INTERVAL: Final = 0.1
"""Seconds between two measures: ten wake-ups a second cost about 0.02 % of a core."""
BOUNDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class LoopLag:
    """Measures from `start` to `stop`; `clock` is seconds that never go backward.

    The loop's own time would not do: it stands still while callbacks run.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self.seconds = Histogram(BOUNDS)
        self.held = HeldLoop(clock)
        """Attribution of the lag to parts."""
        self._loop = loop
        self._clock = clock
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Measure until `stop`."""
        self.held.start()
        self._wind()

    def _wind(self) -> None:
        self._due = self._clock() + INTERVAL
        self.held.due(self._due)
        self._timer = self._loop.call_later(INTERVAL, self._ring)

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.held.stop()

    def _ring(self) -> None:
        # A timer may be early by what the loop rounds away, up to a millisecond.
        self.seconds.add(max(self._clock() - self._due, 0.0))
        self._wind()
