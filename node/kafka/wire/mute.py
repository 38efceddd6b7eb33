"""A connection's time without new requests: the broker answers at once, and then reads nothing (KIP-219)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Mute:
    """Of one connection; `on_end` is called when its time is over."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_end: Callable[[], None]) -> None:
        self._loop = loop
        self._on_end = on_end
        self._timer: asyncio.TimerHandle | None = None
        self.on = False
        """Whether no request may begin."""

    def begin(self, seconds: float) -> None:
        """Begin, or go on for at least so long."""
        until = self._loop.time() + seconds
        if self._timer is not None:
            until = max(until, self._timer.when())
        self.lift()
        self.on = True
        self._timer = self._loop.call_at(until, self._over)

    def lift(self) -> None:
        """End at once, without calling anything."""
        self.on = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        self.lift()
        self._on_end()
