"""Jobs on the node's threads: what they give, in which order they start, and what their end may not break."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from strandline.node.runtime.disk_threads import DiskThreads, NodeLoop


def on_loop(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await scenario()

    with asyncio.Runner(loop_factory=NodeLoop) as runner:
        runner.run(bounded())


def test_a_job_gives_its_result_or_its_error_and_leaves_the_loop_free() -> None:
    async def scenario() -> None:
        loop, threads = asyncio.get_running_loop(), DiskThreads(2, "test")
        gate = threading.Event()
        waiting = loop.run_in_executor(threads, gate.wait, 10)
        failing = loop.run_in_executor(threads, int, "no number")
        with pytest.raises(ValueError, match="no number"):
            await failing
        assert not waiting.done()
        gate.set()
        assert await waiting is True
        assert threads.under_way == 0

    on_loop(scenario)


def test_threads_begin_as_they_are_needed_and_never_more_than_allowed() -> None:
    async def scenario() -> None:
        loop, threads = asyncio.get_running_loop(), DiskThreads(3, "test")
        for _ in range(5):
            await loop.run_in_executor(threads, int)
        assert threads.threads == 1
        gate = threading.Event()
        jobs = [loop.run_in_executor(threads, gate.wait, 10) for _ in range(8)]
        assert (threads.threads, threads.under_way) == (3, 8)
        gate.set()
        await asyncio.gather(*jobs)
        assert (threads.threads, threads.under_way) == (3, 0)

    on_loop(scenario)


def test_one_thread_does_its_jobs_in_order() -> None:
    async def scenario() -> None:
        loop, threads = asyncio.get_running_loop(), DiskThreads(1, "test")
        done: list[int] = []
        await asyncio.gather(*(loop.run_in_executor(threads, done.append, number) for number in range(200)))
        assert done == [*range(200)]

    on_loop(scenario)


def test_a_cancelled_job_is_not_begun_and_one_that_began_ends_unheard() -> None:
    async def scenario() -> None:
        loop, threads = asyncio.get_running_loop(), DiskThreads(1, "test")
        gate, done = threading.Event(), list[str]()

        def begin() -> None:
            gate.wait(10)
            done.append("begun")

        begun = loop.run_in_executor(threads, begin)
        queued = loop.run_in_executor(threads, done.append, "queued")
        last = loop.run_in_executor(threads, done.append, "last")
        await asyncio.sleep(0.01)
        begun.cancel()
        queued.cancel()
        gate.set()
        await last
        assert done == ["begun", "last"]
        assert threads.under_way == 0

    on_loop(scenario)


def test_a_thread_that_outlives_its_loop_ends_without_a_word() -> None:
    gate = threading.Event()
    threads = DiskThreads(1, "outlives")

    async def scenario() -> None:
        asyncio.get_running_loop().run_in_executor(threads, gate.wait, 10)

    on_loop(scenario)
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "outlives-1")
    gate.set()
    thread.join(10)
    assert not thread.is_alive()


def test_other_executors_work_as_ever() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as pool:
            assert await loop.run_in_executor(pool, abs, -7) == 7
        assert await loop.run_in_executor(None, abs, -8) == 8

    on_loop(scenario)


def test_no_threads_are_refused() -> None:
    with pytest.raises(ValueError, match="0 threads"):
        DiskThreads(0, "none")
