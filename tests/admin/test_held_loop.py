"""The part of the node that held up its loop is named, with about the time it took."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from typing import Any

from strandline.node.admin.held_loop import MAX_PARTS, OTHER, SYSTEM, HeldLoop, part_of
from strandline.node.admin.loop_lag import LoopLag
from tests.admin.ticks import TICK_SECONDS, Ticks

SLOW = """
class Slow:
    def turn(self):
        inner()

def inner():
    end = clock() + 0.35
    while clock() < end:
        pass
"""


def test_a_callback_that_does_not_end_is_named_by_its_outermost_function() -> None:
    namespace: dict[str, Any] = {"__name__": "strandline.node.raft.host", "clock": time.perf_counter}
    exec(SLOW, namespace)  # a module of the package, as far as a frame can tell

    async def main() -> LoopLag:
        loop = asyncio.get_running_loop()
        lag = LoopLag(Ticks(), time.perf_counter)
        lag.start()
        await asyncio.sleep(0.15)
        loop.call_soon(namespace["Slow"]().turn)
        await asyncio.sleep(0.5)
        lag.stop()
        return lag

    held = asyncio.run(main()).held
    assert max(held.seconds, key=lambda part: held.seconds[part]) == "raft.host.Slow.turn"
    # A tick was due somewhere in the callback's 0.35 s.
    assert 0.1 < held.longest["raft.host.Slow.turn"] < 1.0


def test_where_no_part_of_the_node_runs_the_system_is_named() -> None:
    async def main() -> LoopLag:
        lag = LoopLag(Ticks(), time.perf_counter)
        lag.start()
        await asyncio.sleep(1.5 * TICK_SECONDS)
        time.sleep(0.3)  # noqa: ASYNC251
        await asyncio.sleep(0.15)
        lag.stop()
        return lag

    assert set(asyncio.run(main()).held.seconds) == {SYSTEM}


def test_the_watch_sleeps_once_what_held_the_loop_up_is_over() -> None:
    looks = 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return time.perf_counter()

    async def main() -> int:
        lag = LoopLag(Ticks(), clock)
        lag.start()
        await asyncio.sleep(1.5 * TICK_SECONDS)
        time.sleep(0.3)  # noqa: ASYNC251
        await asyncio.sleep(0.15)
        before = looks
        await asyncio.sleep(1.0)
        lag.stop()
        return looks - before

    assert asyncio.run(main()) < 500, "a watch that does not sleep takes a processor for itself"


def test_time_is_shared_out_as_it_was_seen_and_the_number_of_parts_is_bounded() -> None:
    held = HeldLoop(time.perf_counter)
    held.note(Counter({"a": 3, "b": 1}), 0.4)
    held.note(Counter({"a": 1}), 0.1)
    assert {part: round(seconds, 6) for part, seconds in held.seconds.items()} == {"a": 0.4, "b": 0.1}
    assert {part: round(seconds, 6) for part, seconds in held.longest.items()} == {"a": 0.3, "b": 0.1}
    for number in range(2 * MAX_PARTS):
        held.note(Counter({f"part {number}": 1}), 0.1)
    assert len(held.seconds) == MAX_PARTS + 1
    assert held.longest[OTHER] == 0.1


def test_what_only_brings_the_work_is_not_named_for_it() -> None:
    def called_from(*modules: str) -> str:
        call: Any = lambda: part_of(sys._getframe())  # noqa: E731
        for module in reversed(modules):
            namespace: dict[str, Any] = {"__name__": module, "inner": call}
            exec("def call():\n    return inner()", namespace)
            call = namespace["call"]
        part: str = call()
        return part

    assert (
        called_from(
            "strandline.node.raft.mesh.link", "strandline.node.raft.mesh.mesh", "strandline.node.raft.host"
        )
        == "raft.host.call"
    )
    assert called_from(
        "strandline.node.kafka.wire.connection",
        "strandline.node.kafka.handlers.fetch",
        "strandline.node.partition.lanes",
    ) == ("kafka.handlers.fetch.call")
    assert called_from("strandline.node.raft.mesh.link") == "raft.mesh.link.call"
    assert called_from("asyncio.events") == SYSTEM
