"""The simulator's queue, loops, clocks and nodes: what every simulated run relies on."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.simulation import examples
from tests.simulation.clock import Clock
from tests.simulation.disk import SimCrash
from tests.simulation.node import SimNode
from tests.simulation.world import SimulationFailed, SimulationStuck, World


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


def note_to(seen: list[Any], value: Any) -> Callable[[SimNode], None]:
    return lambda node: seen.append(value)


# Determinism.


def test_one_seed_is_one_run() -> None:
    first, second = examples.run(7, tracing=True), examples.run(7, tracing=True)
    assert first.trace is not None
    assert len(first.trace) > 100
    assert first.trace == second.trace
    assert first.digest() == second.digest()
    assert first.events == second.events


def test_tracing_does_not_change_the_run() -> None:
    assert examples.run(7, tracing=True).digest() == examples.run(7).digest()


def test_other_seeds_are_other_runs() -> None:
    assert len({examples.run(seed).digest() for seed in range(20)}) == 20


def test_one_seed_is_one_run_in_every_process() -> None:
    outputs = set()
    for hash_seed in ("0", "1", "4242"):
        command = [sys.executable, "-m", "tests.simulation.examples", "1", "2", "3"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=30
        )
        outputs.add(done.stdout)
    assert outputs == {" ".join(examples.run(seed).digest() for seed in (1, 2, 3)) + "\n"}


def test_streams_of_one_world_do_not_influence_each_other() -> None:
    with World(1) as one, World(1) as other:
        one.rng("b").random()
        assert one.rng("a").random() == other.rng("a").random() != other.rng("b").random()


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
        results = await asyncio.gather(*futures, other, return_exceptions=True)
        moments.remove(next(pair for pair in moments if pair[0] == 9))
        assert [n for n, _ in moments] == [0, 1, 2, 4]
        assert sorted(when for _, when in moments) == [when for _, when in moments]
        assert 0.4 < world.now < 0.8
        return [type(result) for result in results]

    assert run_main(world, main) == [int, int, OSError, asyncio.CancelledError, int, int]


def test_an_exception_in_a_callback_is_a_failure_with_place_and_time(world: World) -> None:
    def main(node: SimNode) -> None:
        node.loop.call_later(0.5, lambda: 1 // 0)
        node.loop.call_later(0.6, world.record, 1, "lives on")

    world.add_node(1).start(main)
    world.run()
    (failure,) = world.failures
    assert (failure.time, failure.node, failure.boot) == (0.5, 1, 1)
    assert "ZeroDivisionError" in failure.traceback
    assert "test_simulation_world" in failure.traceback
    assert world.now == 0.6
    with pytest.raises(SimulationFailed, match="seed 1, 1 failures"):
        world.check()


def test_a_task_that_dies_unseen_is_a_failure(world: World) -> None:
    async def die() -> None:
        raise ValueError("unseen")

    def main(node: SimNode) -> None:
        node.spawn(die())

    world.add_node(1).start(main)
    world.run()
    with pytest.raises(SimulationFailed, match="unseen"):
        world.check()


def test_a_scenario_callback_that_raises_ends_the_run(world: World) -> None:
    world.call_at(1.0, lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        world.run()
    world.run(2.0)
    assert world.now == 2.0


def test_endless_callbacks_are_found(world: World) -> None:
    def again(node: SimNode) -> None:
        node.loop.call_soon(again, node)

    world.add_node(1).start(again)
    with pytest.raises(SimulationStuck, match="seed 1"):
        world.run(1.0, max_events=1_000)


def test_run_until_and_stop(world: World) -> None:
    seen: list[float] = []
    world.call_at(0.5, seen.append, 1)
    assert world.run_until(lambda: bool(seen), timeout=1.0)
    assert 0.5 <= world.now <= 0.51
    assert not world.run_until(lambda: len(seen) == 2, timeout=1.0)
    world.call_later(0.5, world.stop)
    world.call_later(0.6, seen.append, 2)
    world.run()
    assert len(seen) == 1
    world.run()
    assert len(seen) == 2


# Pause, crash, restart.


def test_a_paused_node_runs_nothing_and_then_everything_in_order(world: World) -> None:
    seen: list[tuple[int, float]] = []

    def main(node: SimNode) -> None:
        for n in range(5):
            node.loop.call_later(n / 10, lambda n=n: seen.append((n, node.loop.time())))

    node = world.add_node(1)
    node.start(main)
    world.call_at(0.15, node.pause)
    world.call_at(0.35, lambda: node.call(lambda: seen.append((9, node.loop.time()))))
    world.run(0.9)
    assert [n for n, _ in seen] == [0, 1]
    assert node.paused
    world.call_at(1.0, node.resume)
    world.run()
    assert seen == [(0, 0.0), (1, 0.1), (2, 1.0), (3, 1.0), (9, 1.0), (4, 1.0)]


def test_a_paused_node_does_no_disk_work(world: World) -> None:
    node = world.add_node(1)
    moments: list[float] = []
    node.start(lambda node: node.loop.run_in_executor(None, lambda: moments.append(world.now)))
    node.disk.job_seconds = (1.0, 2.0)
    world.run(0.0)
    node.pause()
    world.run(5.0)
    assert moments == []
    node.resume()
    world.run()
    assert moments == [5.0]


def test_jobs_hang_while_the_disk_is_stalled(world: World) -> None:
    node = world.add_node(1)
    moments: list[float] = []

    def main(node: SimNode) -> None:
        for _ in range(2):
            node.loop.run_in_executor(node.executor, lambda: moments.append(world.now))

    node.disk.stall()
    node.start(main)
    world.run(5.0)
    assert moments == []
    node.disk.slow = 100.0
    node.disk.unstall()
    world.run()
    assert moments[0] == 5.0
    assert moments[1] > 5.03


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_a_crashed_node_never_runs_again(world: World, kind: str) -> None:
    seen: list[object] = []
    finalised: list[str] = []

    async def forever(node: SimNode) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            finalised.append("too late to matter")
            node.disk.unlink("file")

    def main(node: SimNode) -> None:
        node.disk.open("file", create=True)
        node.disk.sync_dir(".")
        node.spawn(forever(node))
        node.loop.call_later(1.0, seen.append, node.boot)
        node.loop.run_in_executor(None, seen.append, node.boot)
        node.loop.call_soon(node.crash, kind)
        node.loop.call_soon(seen.append, node.boot)

    node = world.add_node(1)
    node.start(main)
    world.run(2.0)
    first_loop = world.loops[0]
    gc.collect()
    assert seen == []
    assert finalised == []
    assert not node.alive
    first_loop.call_soon(seen.append, 3)
    first_loop.call_later(0.1, seen.append, 3)
    node.start(note_to(seen, "second boot"))
    world.run(3.0)
    gc.collect()
    assert seen == ["second boot"]
    assert node.disk.exists("file")
    assert node.boot == 2
    world.check()
    world.close()
    assert finalised == ["too late to matter"]


def test_a_crash_at_a_disk_operation_ends_the_process_right_there(world: World) -> None:
    seen: list[str] = []

    def job(node: SimNode) -> None:
        file = node.disk.open("a", create=True)
        seen.append("created")
        try:
            file.pwrite(b"x", 0)
        except Exception:
            seen.append("handled as an error")
        finally:
            node.loop.call_soon(seen.append, "scheduled by a dead process")
        seen.append("written")

    async def main(node: SimNode) -> None:
        try:
            await node.loop.run_in_executor(None, job, node)
        finally:
            seen.append("went on")

    node = world.add_node(1)
    node.disk.crash_at(2, "kill")
    node.start(lambda node: node.spawn(main(node)))
    world.run()
    assert not node.alive
    assert seen == ["created"]
    world.check()
    with pytest.raises(SimCrash):
        node.disk.read("a")
    node.start(note_to(seen, "up"))
    world.run()
    assert seen == ["created", "up"]
    assert node.disk.exists("a")


def test_closing_a_world_leaves_no_noise(capfd: pytest.CaptureFixture[str]) -> None:
    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            raise ValueError("never reached")

    async def fail() -> None:
        raise ValueError("nobody looks")

    def main(node: SimNode) -> None:
        node.loop.call_soon(node.spawn, stubborn())
        node.spawn(stubborn())
        node.spawn(fail())
        node.loop.create_future().set_exception(ValueError("nobody looks"))
        node.loop.call_soon(node.spawn, fail())

    with World(1) as world:
        node = world.add_node(1)
        node.start(main)
        world.run()
        node.spawn(fail())  # never gets to run
    del world, node
    gc.collect()
    assert capfd.readouterr() == ("", "")


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
    node = world.add_node(1, clock=Clock(offset=1e6 / 3, drift=1.7e-5))
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
