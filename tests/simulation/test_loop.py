"""The simulated event loop and its clock: asyncio as it is, in a time of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.simulation.clock import Clock
from tests.simulation.node import SimNode
from tests.simulation.world import World


@pytest.fixture
def world() -> Iterator[World]:
    with World(1) as world:
        yield world


def run_main(world: World, main: Callable[[SimNode], Awaitable[Any]], until: float | None = None) -> Any:
    """Run a coroutine on a new node and return its result."""
    node = world.add_node(len(world.nodes) + 1)
    results = []

    async def go() -> None:
        results.append(await main(node))

    node.start(lambda node: node.spawn(go()))
    world.run(until)
    world.check()
    return results[0]


# asyncio on a SimLoop.


def test_asyncio_works_unmodified(world: World) -> None:
    async def main(node: SimNode) -> list[Any]:
        loop = asyncio.get_running_loop()
        assert loop is node.loop
        event, queue = asyncio.Event(), asyncio.Queue[int](1)
        seen: list[Any] = []

        async def worker(n: int) -> int:
            await event.wait()
            await asyncio.sleep(n / 10)
            await queue.put(n)
            return n

        tasks = [asyncio.create_task(worker(n)) for n in (3, 1, 2)]
        loop.call_later(1.0, event.set)
        seen.extend([await queue.get() for _ in tasks])
        seen.append(await asyncio.gather(*tasks))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.create_future(), 0.5)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await asyncio.Event().wait()
        async with asyncio.TaskGroup() as group:
            grouped = group.create_task(worker(0))
            assert await queue.get() == 0
        seen.append(await grouped)
        seen.append(await asyncio.wait_for(asyncio.shield(worker(0)), 1.0))
        task = asyncio.create_task(asyncio.sleep(9))
        task.cancel()
        seen.append(await asyncio.gather(task, return_exceptions=True))
        return [*seen[:6], type(seen[6][0]), loop.time()]

    result = run_main(world, main)
    assert result == [1, 2, 3, [3, 1, 2], 0, 0, asyncio.CancelledError, pytest.approx(2.3)]


def test_callbacks_run_by_time_and_then_in_order_of_scheduling(world: World) -> None:
    seen: list[int] = []

    def main(node: SimNode) -> None:
        loop = node.loop
        loop.call_later(0.2, seen.append, 5)
        loop.call_later(0.1, seen.append, 3)
        loop.call_later(0.1, seen.append, 4)
        loop.call_soon(seen.append, 1)
        loop.call_later(-1.0, seen.append, 2)
        loop.call_soon(seen.append, 99).cancel()
        timer = loop.call_later(0.1, seen.append, 99)
        timer.cancel()
        assert timer.cancelled()

    world.add_node(1).start(main)
    world.run()
    assert seen == [1, 2, 3, 4, 5]


def test_what_a_timer_schedules_waits_for_timers_already_due(world: World) -> None:
    seen: list[str] = []

    def main(node: SimNode) -> None:
        node.loop.call_later(0.1, node.loop.call_soon, seen.append, "scheduled by the first")
        node.loop.call_later(0.1, seen.append, "second")

    world.add_node(1).start(main)
    world.run()
    assert seen == ["second", "scheduled by the first"]


def test_cancelled_timers_do_not_pile_up(world: World) -> None:
    node = world.add_node(1)

    def main(node: SimNode) -> None:
        for _ in range(10_000):
            node.loop.call_later(1_000.0, print).cancel()
        assert len(world._heap) < 200

    node.start(main)
    world.run(1.0)
    world.check()


def test_executor_jobs_are_in_order_and_take_time(world: World) -> None:
    async def main(node: SimNode) -> Any:
        loop, moments = node.loop, []

        def job(n: int) -> int:
            assert asyncio._get_running_loop() is None
            assert threading.current_thread() is threading.main_thread()
            moments.append((n, world.now))
            if n == 2:
                raise OSError("two")
            return n

        node.disk.job_seconds = (0.1, 0.2)
        futures = [loop.run_in_executor(node.executor, job, n) for n in range(5)]
        other = loop.run_in_executor(None, job, 9)
        futures[3].cancel()
        loop.call_later(0.01, futures[0].cancel)  # too late: it runs already
        results = await asyncio.gather(*futures, other, return_exceptions=True)
        moments.remove(next(pair for pair in moments if pair[0] == 9))
        assert [n for n, _ in moments] == [0, 1, 2, 4]
        assert sorted(when for _, when in moments) == [when for _, when in moments]
        assert 0.4 < world.now < 0.8
        return [type(result) for result in results]

    assert run_main(world, main) == [asyncio.CancelledError, int, OSError, asyncio.CancelledError, int, int]


# Clocks.


def test_clocks_start_where_they_like_and_drift(world: World) -> None:
    shown: list[float] = []
    fast = world.add_node(1, clock=Clock(offset=50.0, drift=0.1))
    fast.start(lambda node: node.loop.call_later(1.1, lambda: shown.append(node.loop.time())))
    world.run()
    assert world.now == pytest.approx(1.0)
    assert shown[0] >= 51.1
    assert shown[0] == pytest.approx(51.1)
    fast.set_drift(-0.5)
    world.run(2.0)
    assert fast.loop.time() == pytest.approx(51.6)


@pytest.mark.parametrize(("jump", "fires"), [(0.4, 0.6), (5.0, 0.5), (-0.5, 1.5)])
def test_a_jump_moves_timers(world: World, jump: float, fires: float) -> None:
    moments: list[float] = []
    node = world.add_node(1)
    node.start(lambda node: node.loop.call_later(1.0, lambda: moments.append(world.now)))
    world.call_at(0.5, node.jump_clock, jump)
    world.run()
    assert moments == [pytest.approx(fires)]


def test_a_jump_keeps_all_else_in_order(world: World) -> None:
    fired: list[tuple[float, int]] = []
    nodes = [world.add_node(i) for i in (1, 2)]

    def main(node: SimNode) -> None:
        for n in range(40):
            node.loop.call_later(n * 0.1 + 0.05, lambda: fired.append((round(world.now, 2), node.id)))

    for node in nodes:
        node.start(main)
    world.call_at(1.0, nodes[0].jump_clock, 2.0)
    world.run()
    assert [when for when, _ in fired] == sorted(when for when, _ in fired)
    assert [when for when, i in fired if i == 2] == [round(n * 0.1 + 0.05, 2) for n in range(40)]
    assert [when for when, i in fired if i == 1].count(1.0) == 20
    assert max(when for when, i in fired if i == 1) == 1.95


def test_a_timer_put_off_by_a_jump_during_a_pause_waits(world: World) -> None:
    moments: list[float] = []
    node = world.add_node(1)
    node.start(lambda node: node.loop.call_later(1.0, lambda: moments.append(world.now)))
    world.call_at(0.5, node.pause)
    world.call_at(1.5, node.jump_clock, -1.0)
    world.call_at(1.6, node.resume)
    world.run()
    assert moments == [pytest.approx(2.0)]


def test_no_timer_fires_before_its_time_is_shown(world: World) -> None:
    """Else code that waits for the rest of its time would wait for ever at one moment."""
    early: list[float] = []
    node = world.add_node(1, clock=Clock(offset=0.1, drift=1.7e-5))
    rng = world.rng("delays")

    def wait(left: int) -> None:
        when = node.loop.time() + rng.random() * 10 ** -rng.randrange(7)

        def fired() -> None:
            if node.loop.time() < when:
                early.append(when)
            if left:
                wait(left - 1)

        node.loop.call_at(when, fired)

    node.start(lambda _: wait(5_000))
    world.run()
    assert early == []
