"""Worker processes of a test: a loop as a node's, and whether a process still lives."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from strandline.node.level_one.worker_builder import WorkerBuilder
from strandline.node.runtime.disk_threads import NodeLoop

T = TypeVar("T")
MADE: list[WorkerBuilder] = []
"""Those of the test that runs: `run` ends them."""


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """On a loop like a node's; workers are ended whatever happens, as the loop would wait for them."""

    async def bounded() -> T:
        try:
            return await asyncio.wait_for(coroutine, 50)
        finally:
            while MADE:
                await MADE.pop().close()

    with asyncio.Runner(loop_factory=NodeLoop) as runner:
        return runner.run(bounded())


def alive(process_id: int | None) -> bool:
    if process_id is None:
        return False
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def stands_back(process_id: int | None, niceness: int) -> bool:
    """Whether a worker lets the processes of all sessions go first, as far as this system can."""
    assert process_id is not None
    nice = min(19, os.getpriority(os.PRIO_PROCESS, 0) + niceness)
    stands = os.getpriority(os.PRIO_PROCESS, process_id) == nice and os.getsid(process_id) == process_id
    if hasattr(os, "SCHED_BATCH"):
        stands &= os.sched_getscheduler(process_id) == os.SCHED_BATCH
    autogroup = Path(f"/proc/{process_id}/autogroup")
    if autogroup.exists():
        # Empty where the worker is in a control group: then its niceness counts within that.
        told = autogroup.read_text().split()
        stands &= not told or told[-1] == str(nice)
    return stands


async def gone(process_id: int) -> None:
    await until(lambda: not alive(process_id))


async def until(true: Callable[[], object]) -> None:
    while not true():  # noqa: ASYNC110, what it waits for tells nobody
        await asyncio.sleep(0.02)
