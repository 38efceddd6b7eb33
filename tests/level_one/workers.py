"""Worker processes of a test: a loop as a node's, and whether a process still lives."""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from strandline.node.level_one.worker_builder import WorkerBuilder
from strandline.node.runtime.disk_threads import NodeLoop
from strandline.node.worker.standing_back import SCHED_ATTR, SCHED_SETATTR, SLICE_NANOSECONDS

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
        slices = {slice_of(int(task)) for task in os.listdir(f"/proc/{process_id}/task")}
        stands &= slices <= {SLICE_NANOSECONDS, None}
    autogroup = Path(f"/proc/{process_id}/autogroup")
    if autogroup.exists():
        # Empty where the worker is in a control group: then its niceness counts within that.
        told = autogroup.read_text().split()
        stands &= not told or told[-1] == str(nice)
    return stands


def slice_of(task: int) -> int | None:
    """Nanoseconds of the processor that a thread asks for at a time; None where Linux does not tell."""
    release = tuple(map(int, platform.release().split(".")[:2]))
    if release < (6, 12) or platform.machine() not in SCHED_SETATTR:
        return None
    told = ctypes.create_string_buffer(SCHED_ATTR.size)
    number = SCHED_SETATTR[platform.machine()] + 1  # sched_getattr
    assert ctypes.CDLL(None).syscall(ctypes.c_long(number), task, told, SCHED_ATTR.size, 0) == 0
    runtime = SCHED_ATTR.unpack(told.raw)[5]
    assert isinstance(runtime, int)
    return runtime


async def gone(process_id: int) -> None:
    await until(lambda: not alive(process_id))


async def until(true: Callable[[], object]) -> None:
    while not true():  # noqa: ASYNC110, what it waits for tells nobody
        await asyncio.sleep(0.02)
