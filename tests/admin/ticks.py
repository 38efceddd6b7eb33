"""The log's timer, as far as the measure of the loop's lag goes by it."""

from __future__ import annotations

import asyncio
from typing import Final

from strandline.node.raft.ticker import TickWatch

TICK_SECONDS: Final = 0.1


class Ticks:
    """Ticks on the running loop until the loop ends."""

    def __init__(self) -> None:
        self.watch: TickWatch | None = None
        self._loop = asyncio.get_running_loop()
        self._plan()

    def _plan(self) -> None:
        self._loop.call_later(TICK_SECONDS, self._tick)
        if self.watch is not None:
            self.watch.planned(TICK_SECONDS)

    def _tick(self) -> None:
        if self.watch is not None:
            self.watch.ticked()
        self._plan()
