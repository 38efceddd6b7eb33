"""Start, loop and end of the parts that look at the controller's state now and then."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod

from strandline.node.runtime.rounds import next_round


class PeriodicPart(ABC):
    """A part of a node that looks whether there is something to do, from `start` to `close`."""

    def __init__(self, seconds: float, retried: str, *, loop: asyncio.AbstractEventLoop) -> None:
        """`seconds` lie between two looks; `retried` is the log's line about a look that failed, which the
        next one makes up for."""
        self._seconds = seconds
        self._retried = retried
        self._loop = loop
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look now and then from now on; the first time after a pause."""
        self._task = self._loop.create_task(self._run())

    def close(self) -> None:
        """Stop, also amid a look. What the controller's log has of the work goes on elsewhere."""
        if self._task is not None:
            self._task.cancel()

    @abstractmethod
    async def _look(self) -> None:
        """Do what is due now."""

    async def _run(self) -> None:
        while True:
            await next_round(self._seconds)
            try:
                await self._look()
            except Exception:
                logging.getLogger(type(self).__module__).exception("%s", self._retried)
