"""Lag of the event loop: the one number that reveals a callback that is too slow.

A callback that computes for 50 ms holds up every request and every heartbeat of the node for as long. The
log's tick comes twenty times a second anyway, and tells it by being late: its delay is that of a
request that comes at a random moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from strandline.node.admin.held_loop import HeldLoop
from strandline.node.level_zero.measures import Histogram
from strandline.node.raft.ticker import TickWatch

BOUNDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Ticks(Protocol):
    """The log's timer."""

    watch: TickWatch | None


class LoopLag:
    """Measures from `start` to `stop`; `clock` is seconds that never go backward.

    The loop's own time would not do: it stands still while callbacks run.
    """

    def __init__(self, ticks: Ticks, clock: Callable[[], float]) -> None:
        self.seconds = Histogram(BOUNDS)
        self.held = HeldLoop(clock)
        """Attribution of the lag to parts."""
        self._ticks = ticks
        self._clock = clock
        self._due: float | None = None

    def start(self) -> None:
        """Measure until `stop`."""
        self.held.start()
        self._ticks.watch = self

    def stop(self) -> None:
        """Stop measuring."""
        if self._ticks.watch is self:
            self._ticks.watch = None
            self.held.stop()

    def planned(self, seconds: float) -> None:
        """See TickWatch."""
        self._due = self._clock() + seconds
        self.held.due(self._due)

    def ticked(self) -> None:
        """See TickWatch."""
        if self._due is not None:
            # A timer may be early by what the loop rounds away, up to a millisecond.
            self.seconds.add(max(self._clock() - self._due, 0.0))
