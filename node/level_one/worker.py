"""The process that builds a node's level-one objects, so that the node's loop is free for its clients.

It runs at a lower priority than the node, has a store client of its own, does one job at a time for its
parent, and ends at once when its standard input closes: an unfinished object has no name yet, and an object
that lands late is never used. `python -m strandline.node.level_one.worker` starts it.
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
from dataclasses import astuple
from typing import Any, BinaryIO, Final, NoReturn

from strandline.node.level_one.builder import BuilderConfig, Built, Merge, Output, StoreBuilder
from strandline.node.level_one.builder_measures import BuilderMeasures
from strandline.node.level_one.frames import (
    LENGTH,
    BadFrame,
    OutputsGathering,
    framed,
    length_of,
    merge_of,
    message_of,
    plain,
)
from strandline.node.objectstore.opening import StorePlace, open_store
from strandline.node.objectstore.retries import RetryPolicy
from strandline.node.objectstore.store import NotDone
from strandline.node.raft.disk import RealDisk
from strandline.node.runtime.allocator import keep_freed_memory
from strandline.node.runtime.disk_threads import DiskThreads, NodeLoop

log = logging.getLogger(__name__)

NICENESS: Final = 5
"""Niceness that gives a third of the node's own share of a busy processor. Moving records to level one takes
a fifth to a quarter of the time of producing them; with much less, level zero would grow while a machine is
busy."""
OOM_SCORE_ADJ: Final = 1000
"""The highest there is (proc(5)): as if the process had all memory of the machine, or of its cgroup."""
STORE_THREADS: Final = 12
"""More than gets and puts under way."""
POLICY: Final = RetryPolicy(attempt_seconds=60.0, total_seconds=180.0)
"""Long limits, because these objects are large and no client waits for them."""


def main() -> int:
    """Serve the node at the other end of standard input and output until it goes away."""
    if not (stat.S_ISFIFO(mode := os.fstat(0).st_mode) or stat.S_ISSOCK(mode)):
        print("this is started by a node, which talks to it by its standard input", file=sys.stderr)
        return 2
    os.nice(NICENESS)
    _go_first()
    # An interrupt at a terminal also goes to the node's children; the node ends them in its own order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    keep_freed_memory(large=True)
    # What prints must not get between the frames.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with asyncio.Runner(loop_factory=NodeLoop) as runner:
        runner.run(_serve(answers))
    return 0


def _go_first() -> None:
    """Let the kernel take this process before any other when memory runs out, and not the node.

    The node does the job that was under way again, and nothing else is lost. Any process may ask for this.
    """
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(OOM_SCORE_ADJ))


async def _serve(answers: BinaryIO) -> None:
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: _Worker(answers, loop), sys.stdin.buffer)
    await loop.create_future()


class _Worker(asyncio.Protocol):
    """One end of the pipes: takes the node's frames as they come, does its jobs one after the other."""

    def __init__(self, answers: BinaryIO, loop: asyncio.AbstractEventLoop) -> None:
        self._answers = answers
        self._loop = loop
        self._received = bytearray()
        self._builder: StoreBuilder | None = None
        self._job: asyncio.Task[None] | None = None
        self._asked = OutputsGathering()
        self._cpu_seconds = 0.0
        """Of this process, as far as they were told."""

    def data_received(self, data: bytes) -> None:
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
            _end(3, f"the node sent what makes no sense: {type(error).__name__}: {error}")

    def connection_lost(self, error: Exception | None) -> NoReturn:
        """The node is gone, or wants this process to go."""
        _end(0)

    def _take(self, message: list[Any]) -> None:
        kind = message[0]
        if kind == "start":
            self._start(*message[1:])
        elif kind == "output":
            self._asked.output(message)
        elif kind == "extents":
            self._asked.extents(message)
        elif self._builder is None or (self._job is not None and not self._job.done()):
            raise BadFrame(f"{kind} before there is a store, or while a job is under way")
        elif kind == "build":
            asked, self._asked = self._asked, OutputsGathering()
            self._job = self._loop.create_task(self._build(self._builder, asked.outputs))
        elif kind == "merge":
            self._job = self._loop.create_task(self._merge(self._builder, merge_of(message)))
        else:
            raise BadFrame(f"there is no {kind!r}")

    def _start(self, url: str, options: dict[str, str], owner: str, config: list[int]) -> None:
        system = random.SystemRandom()
        try:
            store = open_store(
                StorePlace(url, options, owner),
                POLICY,
                loop=self._loop,
                disk=RealDisk(),
                executor=DiskThreads(STORE_THREADS, "store"),
                rng=random.Random(system.getrandbits(256)),
                make=False,  # a new folder would stand in the way of one that is brought back
            )
        except NotDone as error:
            self._answer(["refused", str(error)])
            return
        self._builder = StoreBuilder(store, BuilderConfig(*config), loop=self._loop)
        self._answer(["ready"])

    async def _build(self, builder: StoreBuilder, outputs: list[Output]) -> None:
        try:
            results = await builder.build(outputs)
        except ValueError as error:
            self._answer(["invalid", str(error)])
            return
        self._done(builder, results)

    async def _merge(self, builder: StoreBuilder, merge: Merge) -> None:
        try:
            result = await builder.merge(merge)
        except ValueError as error:
            self._answer(["invalid", str(error)])
            return
        self._done(builder, [result])

    def _done(self, builder: StoreBuilder, results: list[Built]) -> None:
        measures, builder.measures = builder.measures, BuilderMeasures()
        spent = time.process_time()
        measures.cpu_seconds, self._cpu_seconds = spent - self._cpu_seconds, spent
        self._answer(["built", [plain(result) for result in results], astuple(measures)])

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


if __name__ == "__main__":
    sys.exit(main())
