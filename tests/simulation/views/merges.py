"""Merges of runs beside the steps: each is done at once, and known to be over some virtual time later."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from tests.simulation.world import World


class SimMerges(Executor):
    """A thread for merges."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng("merges")

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        made = fn(*args, **kwargs)
        self._world.call_later(self._rng.uniform(0.0, 0.3), future.set_result, made)
        return future
