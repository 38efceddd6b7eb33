"""The processor time that a coroutine takes of the loop, step by step: KIP-124's request time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any


class TimedSteps:
    """Awaits a coroutine; `seconds` is what its steps took by `clock`, without the time that it waited."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], clock: Callable[[], float]) -> None:
        self._coroutine = coroutine
        self._clock = clock
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = lambda: self._coroutine.send(None)  # noqa: E731
        while True:
            began = self._clock()
            try:
                waits_for = step()
            except StopIteration as end:
                return end.value
            finally:
                self.seconds += self._clock() - began
            try:
                yield waits_for
            except GeneratorExit:
                self._coroutine.close()
                raise
            except BaseException as error:  # a task's cancellation most of all
                thrown = error
                step = lambda: self._coroutine.throw(thrown)  # noqa: B023,E731
            else:
                step = lambda: self._coroutine.send(None)  # noqa: E731
