"""Deadlines by key, made for deadlines that are extended again and again.

A group's members send a heartbeat every few seconds, and each one restarts a session timeout. With a timer of
the loop for each heartbeat, the loop's heap would fill with cancelled timers. Here a later deadline is a
number in a dictionary, and the loop's timer that comes too early looks at it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass


@dataclass(slots=True)
class _Timer:
    deadline: float
    """May be later than the handle's time."""
    at: float
    """The handle's time: uvloop's own cannot say it when there was nothing left to wait for."""
    handle: asyncio.Handle
    callback: Callable[[], None]


class Timers:
    """Callbacks at deadlines, one for each key. Belongs to one loop; in seconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timers: dict[Hashable, _Timer] = {}

    def set(self, key: Hashable, seconds: float, callback: Callable[[], None]) -> None:
        """Call back once, in this many seconds from now; replaces the key's former deadline."""
        deadline = self._loop.time() + seconds
        timer = self._timers.get(key)
        if timer is not None:
            if timer.at <= deadline:
                timer.deadline, timer.callback = deadline, callback
                return
            timer.handle.cancel()
        handle = self._loop.call_later(seconds, self._due, key)
        self._timers[key] = _Timer(deadline, deadline, handle, callback)

    def cancel(self, key: Hashable) -> None:
        """Forget the key's deadline, if there is one."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.handle.cancel()

    def cancel_all(self) -> None:
        """Forget all of them."""
        for timer in self._timers.values():
            timer.handle.cancel()
        self._timers.clear()

    def remaining(self, key: Hashable) -> float | None:
        """Seconds until the key's deadline; None when nothing is set for it."""
        timer = self._timers.get(key)
        return None if timer is None else timer.deadline - self._loop.time()

    def __len__(self) -> int:
        return len(self._timers)

    def _due(self, key: Hashable) -> None:
        timer = self._timers[key]
        if timer.at < timer.deadline:
            timer.at = timer.deadline
            timer.handle = self._loop.call_later(timer.deadline - self._loop.time(), self._due, key)
            return
        del self._timers[key]
        timer.callback()
