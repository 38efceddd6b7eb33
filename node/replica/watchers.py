"""Callbacks for a change; many changes in one turn of the loop cause one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class ChangeCount:
    """Changes of many replicas together: a look at all of them finds nothing new while this stands still."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0


class Watchers:
    """Callbacks, called at most once a turn of the loop, in the order in which they came."""

    def __init__(self, loop: asyncio.AbstractEventLoop, what: str) -> None:
        """`what` is watched, in words, for the report of a callback that fails."""
        self._loop = loop
        self._what = what
        self._callbacks: dict[Callable[[], None], None] = {}
        self._waking = False
        self.changes = 0
        """Changes so far."""
        self.counted_in: ChangeCount | None = None
        """The count that includes them; None without one."""

    def __len__(self) -> int:
        return len(self._callbacks)

    def add(self, callback: Callable[[], None]) -> None:
        self._callbacks[callback] = None

    def remove(self, callback: Callable[[], None]) -> None:
        self._callbacks.pop(callback, None)

    def changed(self) -> None:
        """Call all of them, in the next turn of the loop."""
        self.changes += 1
        if self.counted_in is not None:
            self.counted_in.number += 1
        if self._callbacks and not self._waking:
            self._waking = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._waking = False
        for callback in [*self._callbacks]:
            try:
                callback()
            except Exception as error:
                # The others must hear of it all the same: nothing else would wake them.
                message = f"a watcher of {self._what} failed"
                self._loop.call_exception_handler({"message": message, "exception": error})
