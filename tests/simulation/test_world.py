"""The simulated world: one seed is one run, and nodes pause, crash and start anew as processes do."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.simulation import examples
from tests.simulation.disk import SimCrash
from tests.simulation.node import SimNode
from tests.simulation.world import SimulationFailed, SimulationStuck, World


@pytest.fixture
def world() -> Iterator[World]:
    with World(1) as world:
        yield world


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


def test_the_digest_tells_each_detail_of_an_event() -> None:
    def digest(when: float, node: int, text: str) -> str:
        with World(1) as world:
            world.call_at(when, world.record, node, text)
            world.run()
            return world.digest()

    assert digest(1.0, 1, "a") == digest(1.0, 1, "a")
    assert len({digest(1.0, 1, "a"), digest(1.1, 1, "a"), digest(1.0, 2, "a"), digest(1.0, 1, "b")}) == 4


def test_streams_of_one_world_do_not_influence_each_other() -> None:
    with World(1) as one, World(1) as other:
        one.rng("b").random()
        assert one.rng("a").random() == other.rng("a").random() != other.rng("b").random()


# Runs, and what ends them.


def test_an_exception_in_a_callback_is_a_failure_with_place_and_time(world: World) -> None:
    def main(node: SimNode) -> None:
        node.loop.call_later(0.5, lambda: 1 // 0)
        node.loop.call_later(0.6, world.record, 1, "lives on")

    world.add_node(1).start(main)
    world.run()
    (failure,) = world.failures
    assert (failure.time, failure.node, failure.boot) == (0.5, 1, 1)
    assert "ZeroDivisionError" in failure.traceback
    assert "test_world" in failure.traceback
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


@pytest.mark.parametrize(("kind", "kept"), [("kill", {b"data"}), ("power", {b"data", b"da", b""})])
def test_a_crash_costs_the_node_what_it_costs_its_disk(kind: str, kept: set[bytes]) -> None:
    found = set()
    for seed in range(100):
        with World(seed) as world:
            disk = world.add_node(1).disk
            file = disk.open("a", create=True)
            disk.sync_dir(".")
            file.pwrite(b"da", 0)
            file.pwrite(b"ta", 2)
            world.nodes[1].crash(kind)
            found.add(disk.snapshot()["a"])
    assert found >= kept
    assert (len(found) == 1) == (kind == "kill")


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
