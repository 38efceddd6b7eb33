"""Deadlines by key, on the loop that nodes run on and on asyncio's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from strandline.node.coordinator.groups.timers import Timers

LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_deadline_that_is_due_at_once_comes_as_others_do(loop: str) -> None:
    """uvloop makes something else of a delay of nothing: a handle that does not know its time."""
    came: list[str] = []

    async def test() -> None:
        timers = Timers(asyncio.get_running_loop())
        timers.set("now", 0.0, lambda: came.append("now"))
        timers.set("past", -1.0, lambda: came.append("past"))
        timers.set("later", 0.01, lambda: came.append("too early"))
        timers.set("later", 0.0101, lambda: came.append("later"))
        timers.set("sooner", 5.0, lambda: came.append("too late"))
        timers.set("sooner", 0.005, lambda: came.append("sooner"))
        timers.set("never", 0.005, lambda: came.append("never"))
        timers.cancel("never")
        await asyncio.sleep(0.1)
        assert len(timers) == 0

    factory: Callable[[], asyncio.AbstractEventLoop] = LOOPS[loop]
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(test())
    assert sorted(came[:2]) == ["now", "past"]
    assert came[2:] == ["sooner", "later"]
