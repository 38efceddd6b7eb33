"""An event loop whose clock a test turns, for production code that takes its loop as an argument."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable
from typing import Any


class ManualLoop(asyncio.AbstractEventLoop):
    """A loop whose clock a test turns; executor jobs run at once."""

    def __init__(self) -> None:
        self.now = 100.0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = 0

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(self.now + delay, callback, args, self, context)
        self._count += 1
        heapq.heappush(self._timers, (self.now + delay, self._count, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, job: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        try:
            future.set_result(job(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise context.get("exception") or AssertionError(context["message"])

    def run(self) -> None:
        """Run all that is ready."""
        while self._ready:
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()

    def advance(self, seconds: float) -> None:
        """Let time pass, with the timers that fall due."""
        until = self.now + seconds
        self.run()
        while self._timers and self._timers[0][0] <= until:
            self.now, _, handle = heapq.heappop(self._timers)
            if not handle.cancelled():
                handle._run()
            self.run()
        self.now = until


def manual_loop() -> ManualLoop:
    return ManualLoop()  # type: ignore[abstract]
