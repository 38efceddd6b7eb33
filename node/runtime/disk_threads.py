"""Blocking work off the loop, at a third of what an executor of the standard library costs.

Every batch needs four such jobs on its way: a put, and a write of the log on three nodes. An executor gives
each two futures, three locks and a look at the job's signature, which together were an eighth of all that the
loop did. Here a job is one entry of a queue, and its end one callback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar, cast

import uvloop

T = TypeVar("T")

_Job = tuple[Callable[..., Any], tuple[Any, ...], asyncio.Future[Any]]


class DiskThreads(Executor):
    """Up to `count` threads for the jobs of one loop, begun as they are needed; jobs start in order.

    An executor by name, so that a simulated one can take its place: give it to `NodeLoop.run_in_executor`.
    The threads are daemons: a process that stops in order has waited for its jobs, and a crash may come at
    any moment.
    """

    def __init__(self, count: int, name: str) -> None:
        if count < 1:
            raise ValueError(f"{count} threads do no work")
        self.under_way = 0
        """Jobs that wait for a thread or have one."""
        self.threads = 0
        """Threads begun so far."""
        self._count = count
        self._name = name
        self._jobs: SimpleQueue[_Job] = SimpleQueue()

    def run(self, loop: asyncio.AbstractEventLoop, job: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Do a job. Cancelling its future gives up the result; a job that has begun is done all the same."""
        future: asyncio.Future[T] = loop.create_future()
        self.under_way += 1
        if self.threads < min(self.under_way, self._count):
            self.threads += 1
            Thread(target=self._work, args=(loop,), name=f"{self._name}-{self.threads}", daemon=True).start()
        self._jobs.put((job, args, future))
        return future

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        ended = self._ended
        while True:
            job, args, future = self._jobs.get()
            result, error = None, None
            try:
                if not future.cancelled():
                    result = job(*args)
            except BaseException as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(ended, future, result, error)
            except RuntimeError:
                return  # The loop is closed, and with it the caller.
            del job, args, future, result, error

    def _ended(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self.under_way -= 1
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


class NodeLoop(uvloop.Loop):
    """The loop of a node: uvloop's, which knows DiskThreads."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        if isinstance(executor, DiskThreads):
            return executor.run(self, func, *args)
        # uvloop's stub says coroutine; it gives a future, as asyncio's loops do.
        return cast(asyncio.Future[T], super().run_in_executor(executor, func, *args))
