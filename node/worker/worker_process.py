"""A worker's end of the link to its node: a process that does one job at a time, and ends with the node.

It runs at a lower priority than the node, has a store client of its own, and ends at once when its standard
input closes: what it was making has no name yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import stat
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, BinaryIO, Final, NoReturn, Protocol

from strandline.node.objectstore.opening import StorePlace, open_store
from strandline.node.objectstore.retries import RetryPolicy
from strandline.node.objectstore.store import NotDone, ObjectStore
from strandline.node.raft.disk import RealDisk
from strandline.node.raft.disk_pace import HALF, PacedReads
from strandline.node.runtime.allocator import give_back_memory, keep_freed_memory
from strandline.node.runtime.disk_threads import DiskThreads, NodeLoop
from strandline.node.worker.standing_back import stand_back_for_good
from strandline.node.worker.worker_frames import (
    LENGTH,
    MISUNDERSTOOD,
    BadFrame,
    framed,
    length_of,
    message_of,
)

log = logging.getLogger(__name__)

OOM_SCORE_ADJ: Final = 1000
"""The highest there is (proc(5)): as if the process had all memory of the machine, or of its cgroup."""
STORE_THREADS: Final = 12
"""More than gets and puts under way."""
REST_SECONDS: Final = 2.0
"""Without a job for this long, free memory goes back to the system: it is what the largest job has taken."""
POLICY: Final = RetryPolicy(attempt_seconds=60.0, total_seconds=180.0)
"""Long limits, because these objects are large and no client waits for them."""


class Jobs(Protocol):
    """The jobs of one kind of worker."""

    def take(self, message: list[Any]) -> Coroutine[Any, Any, list[Any]] | None:
        """A job, which gives its answer; None for a message that a later one belongs to.

        Raises BadFrame for a kind that there is not. A job raises ValueError for what it refuses to do.
        """


MakeJobs = Callable[[ObjectStore, list[Any], asyncio.AbstractEventLoop], Jobs]
"""Of the store and the settings that the node told."""


class CpuSeconds:
    """Processor time of this process since it was last asked for, in seconds."""

    def __init__(self) -> None:
        self._told = 0.0

    def take(self) -> float:
        spent = time.process_time()
        since, self._told = spent - self._told, spent
        return since


def serve(make_jobs: MakeJobs, niceness: int) -> int:
    """Serve the node at the other end of standard input and output until it goes away; the exit code."""
    if not (stat.S_ISFIFO(mode := os.fstat(0).st_mode) or stat.S_ISSOCK(mode)):
        print("this is started by a node, which talks to it by its standard input", file=sys.stderr)
        return 2
    stand_back_for_good(niceness)
    _go_first()
    # An interrupt at a terminal also goes to the node's children; the node ends them in its own order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    keep_freed_memory(large=True)
    # What prints must not get between the frames.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with asyncio.Runner(loop_factory=NodeLoop) as runner:
        runner.run(_serve(answers, make_jobs))
    return 0


def _go_first() -> None:
    """Let the kernel take this process before any other when memory runs out, and not the node.

    The node does the job that was under way again, and nothing else is lost. Any process may ask for this.
    """
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(OOM_SCORE_ADJ))


async def _serve(answers: BinaryIO, make_jobs: MakeJobs) -> None:
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: _Worker(answers, make_jobs, loop), sys.stdin.buffer)
    await loop.create_future()


class _Worker(asyncio.Protocol):
    """One end of the pipes: takes the node's frames as they come, does its jobs one after the other."""

    def __init__(self, answers: BinaryIO, make_jobs: MakeJobs, loop: asyncio.AbstractEventLoop) -> None:
        self._answers = answers
        self._make_jobs = make_jobs
        self._loop = loop
        self._received = bytearray()
        self._jobs: Jobs | None = None
        self._job: asyncio.Task[None] | None = None
        self._rest: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        if self._rest is not None:
            self._rest.cancel()
        self._received += data
        try:
            while len(self._received) >= LENGTH.size:
                end = LENGTH.size + length_of(self._received[: LENGTH.size])
                if len(self._received) < end:
                    break
                message = message_of(bytes(self._received[LENGTH.size : end]))
                del self._received[:end]
                self._take(message)
        except (BadFrame, LookupError, TypeError, ValueError) as error:
            _end(MISUNDERSTOOD, f"the node sent what makes no sense: {type(error).__name__}: {error}")

    def connection_lost(self, error: Exception | None) -> NoReturn:
        """The node is gone, or wants this process to go."""
        _end(0)

    def _take(self, message: list[Any]) -> None:
        if message[0] == "start":
            self._start(*message[1:])
            return
        if self._jobs is None or (self._job is not None and not self._job.done()):
            raise BadFrame(f"{message[0]} before there is a store, or while a job is under way")
        job = self._jobs.take(message)
        if job is not None:
            self._job = self._loop.create_task(self._do(job))

    def _start(self, url: str, options: dict[str, str], owner: str, settings: list[Any]) -> None:
        system = random.SystemRandom()
        try:
            store = open_store(
                StorePlace(url, options, owner),
                POLICY,
                loop=self._loop,
                # What is lifted, consumers that are behind read next.
                disk=RealDisk(keep_cached=True, pace=HALF, reads=PacedReads()),
                executor=DiskThreads(STORE_THREADS, "store"),
                rng=random.Random(system.getrandbits(256)),
                make=False,  # a new folder would stand in the way of one that is brought back
            )
        except NotDone as error:
            self._answer(["refused", str(error)])
            return
        self._jobs = self._make_jobs(store, settings, self._loop)
        self._answer(["ready"])

    async def _do(self, job: Coroutine[Any, Any, list[Any]]) -> None:
        try:
            try:
                answer = await job
            except ValueError as error:
                answer = ["invalid", str(error)]
            self._rest = self._loop.call_later(REST_SECONDS, give_back_memory)
            self._answer(answer)
        except Exception:
            # The node would wait for an answer for as long as any job may take.
            log.exception("a job failed in a way that was not foreseen")
            _end(4)

    def _answer(self, message: list[Any]) -> None:
        try:
            self._answers.write(framed(message))
            self._answers.flush()
        except OSError:
            _end(0)


def _end(code: int, why: str = "") -> NoReturn:
    """End at once, whatever threads still wait for a disk."""
    if why:
        log.error("%s", why)
    os._exit(code)
