"""An event loop whose waits take no time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any


class _Jumping(selectors.DefaultSelector):
    """Time that passes at once when there is nothing to do but wait."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "everything waits for something that will never be"
        self.now += max(timeout, 0.0)
        return super().select(0)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test on a loop whose waits take no time."""
    selector = _Jumping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    try:
        loop.run_until_complete(asyncio.wait_for(test(), 3600))
        assert asyncio.all_tasks(loop) == set()
    finally:
        loop.close()


def simulated(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        run(lambda: test(*args, **kwargs))

    return wrapper
