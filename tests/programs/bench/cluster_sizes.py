"""What the controller's state costs in clusters of 3 to 100 nodes and 1,000 to 100,000 partitions.

`scripts/bench sizes` builds the state machine of each size from commands, in one process, and measures what
nodes do with it. Nothing else of a cluster runs, and times are of the processor. Replicas are three, racks as
many as nodes up to five; topics have 100 partitions.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from strandline.node.controller.leaders import Leader
from strandline.node.gc import collectable_epochs
from strandline.node.kafka.handlers.authorization import NOT_ASKED
from strandline.node.kafka.handlers.topic_metadata import Breath, EncodedTopics
from strandline.node.kafka.wire.apis import ApiKey
from strandline.node.kafka.wire.response_types import response_types
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_commands import (
    FenceNode,
    Heartbeat,
    SetBalancing,
    SetDraining,
)
from strandline.statemachine.controller.controller_state import Topic
from tests.statemachine.controller_harness import Log, registration

SIZES: Final = (
    (3, 1_000), (3, 10_000), (3, 100_000), (10, 10_000), (30, 30_000), (100, 1_000), (100, 10_000),
    (100, 100_000),
)  # fmt: skip
TINY: Final = ((3, 200), (10, 200))
OF_TOPIC: Final = 100
REPLICAS: Final = 3
LEVEL: Final = 6
RACKS: Final = 5
METADATA_VERSION: Final = 12
TELLS: Final = 64
"""Moves under way that a drain begins at most."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table: what is measured, in which unit, and by what it is found in the results."""

    title: str
    key: str
    unit: str


FIGURES: Final = (
    Figure("placing a topic of 100 partitions", "place", "ms"),
    Figure("state in memory", "memory", "MB"),
    Figure("snapshot", "snapshot_bytes", "MB"),
    Figure("snapshot, to make", "snapshot", "ms"),
    Figure("restart: snapshot, to load", "restore", "ms"),
    Figure("full Metadata answer", "metadata_bytes", "MB"),
    Figure("the same, first time", "metadata_first", "ms"),
    Figure("the same, again", "metadata_again", "ms"),
    Figure("loss of a node: entry, to apply", "fence", "ms"),
    Figure("loss of a node: groups that elect", "elections", ""),
    Figure("loss of a node: elections' messages", "election_messages", ""),
    Figure("loss of a node: full Metadata answer", "metadata_lost", "ms"),
    Figure("leaders told, a node, every 5 s", "led_bytes", "MB"),
    Figure("M: all that is known, to one node", "gossip_bytes", "MB"),
    Figure("M: the same, to read", "gossip_read", "ms"),
    Figure("M: worked out from the table", "gossip_minimum", "ms"),
    Figure("heartbeats to the controller, a second", "heartbeats", ""),
    Figure("a drain's next 64 moves", "drain", "ms"),
    Figure("balancer: next step, an empty node came", "balance", "ms"),
    Figure("balancer: nodes are even", "balance_even", "ms"),
)


def measured(nodes: int, partitions: int) -> dict[str, float]:
    """The figures of one size."""
    log = _cluster(nodes, partitions)
    machine, found = log.machine, dict[str, float]()
    found["place"] = _once(lambda: _create(log, partitions))
    found |= _state(machine) | _metadata(log) | _gossip(machine, nodes)
    found |= _plans(log, nodes)
    return found


def _cluster(nodes: int, partitions: int) -> Log:
    log = Log(nodes=nodes, level=LEVEL, racks=[f"rack {node % min(RACKS, nodes)}" for node in range(nodes)])
    for number in range(1, partitions // OF_TOPIC + 1):
        _create(log, number)
    return log


def _create(log: Log, number: int) -> None:
    made = log.do(log.creation(number, partitions=OF_TOPIC, replication_factor=REPLICAS))
    assert isinstance(made, Topic), made


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Result and processor milliseconds: the best of three."""
    best = float("inf")
    result = None
    for _ in range(3):
        gc.collect()
        began = time.process_time()
        result = work()
        best = min(best, 1000 * (time.process_time() - began))
        if best > 2_000:
            break
    return result, best


def _once(work: Callable[[], Any]) -> float:
    gc.collect()
    began = time.process_time()
    work()
    return 1000 * (time.process_time() - began)


def _state(machine: Controller) -> dict[str, float]:
    state, made = _timed(machine.snapshot)
    _, read = _timed(lambda: Controller(lambda index, captured: None).restore(state))
    gc.collect()
    tracemalloc.start()
    other = Controller(lambda index, captured: None)
    other.restore(state)
    gc.collect()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return {"memory": size / 1e6, "snapshot_bytes": len(state) / 1e6, "snapshot": made, "restore": read}


def _metadata(log: Log) -> dict[str, float]:
    """A node's answers before and after a node is lost, whose groups have other leaders then."""
    machine, lost = log.machine, 2
    kept = EncodedTopics(machine, "kafka")
    a = response_types(ApiKey.METADATA, METADATA_VERSION)
    leaders = {
        part.group: Leader(part.replicas[0], 7) for topic in machine.topics for part in topic.partitions
    }
    answer = _once(lambda: asyncio.run(_answer(kept, a, machine, leaders)))
    sizes = asyncio.run(_answer(kept, a, machine, leaders))
    again = _once(lambda: asyncio.run(_answer(kept, a, machine, leaders)))
    fence = _once(lambda: log.do(FenceNode(lost, machine.nodes[lost].heard_index, 0)))
    led = [group for group, leader in leaders.items() if leader.node == lost]
    for topic in machine.topics:
        for part in topic.partitions:
            if part.replicas[0] == lost:
                leaders[part.group] = Leader(part.replicas[1], 8)
    after = _once(lambda: asyncio.run(_answer(kept, a, machine, leaders)))
    log.do(Heartbeat(lost, machine.nodes[lost].boot_id, 0))
    return {
        "metadata_bytes": sizes / 1e6, "metadata_first": answer, "metadata_again": again, "fence": fence,
        "metadata_lost": after, "elections": len(led),
        # Of each group both followers: a pre-vote and a vote are asked for and answered by the other one.
        "election_messages": 2 * 2 * (REPLICAS - 1) * len(led),
    }  # fmt: skip


async def _answer(kept: EncodedTopics, a: Any, machine: Controller, leaders: dict[int, Leader]) -> int:
    breath, size = Breath(), 0
    for topic in machine.topics:
        size += len(await kept.encode(a, METADATA_VERSION, topic, leaders.get, NOT_ASKED, breath))
    return size


def _gossip(machine: Controller, nodes: int) -> dict[str, float]:
    groups = [part.group for topic in machine.topics for part in topic.partitions]
    rows = [[group, 7, 100_000] for group in groups]
    frames = [
        msgpack.packb([1_700_000_000_000, rows[first : first + collectable_epochs.ROWS]])
        for first in range(0, len(rows), collectable_epochs.ROWS)
    ]
    table: dict[int, collectable_epochs.ReportedEpoch] = {}

    def read() -> None:
        for frame in frames:
            _, told = msgpack.unpackb(frame)
            assert all(map(collectable_epochs._is_row, told))
            for group, term, value in told:
                known = table.get(group)
                if known is None or value > known.value:
                    table[group] = collectable_epochs.ReportedEpoch(value, term, 0.0)

    def minimum() -> int:
        return min(
            max(part.creation_epoch - 1, table[part.group].value)
            for topic in machine.topics
            for part in topic.partitions
        )

    _, seconds = _timed(read)
    _, worked_out = _timed(minimum)
    led = [(group, 7) for group in groups[:: max(nodes, 1)]]
    return {
        "gossip_bytes": sum(map(len, frames)) / 1e6, "gossip_read": seconds, "gossip_minimum": worked_out,
        "led_bytes": (nodes - 1) * len(msgpack.packb([True, led])) / 1e6, "heartbeats": 2 * nodes,
    }  # fmt: skip


def _plans(log: Log, nodes: int) -> dict[str, float]:
    machine = log.machine
    log.do(SetBalancing(True))
    _, even = _timed(machine.balance().step)
    log.do(SetDraining(1, True))
    _, drain = _timed(lambda: machine.drain_moves(TELLS))
    log.do(SetDraining(1, False))
    log.do(registration(nodes + 1, levels=(1, LEVEL), rack="rack 0"))
    _, step = _timed(machine.balance().step)
    return {"balance_even": even, "drain": drain, "balance": step}


def table(results: dict[str, dict[str, float]]) -> str:
    """The figures as a table in Markdown."""
    heads = [size.replace(" nodes, ", " / ").replace(" partitions", "") for size in results]
    lines = [f"| nodes / partitions | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for figure in FIGURES:
        cells = [f"{found[figure.key]:,.{_digits(found[figure.key])}f}" for found in results.values()]
        unit = f", {figure.unit}" if figure.unit else ""
        lines.append(f"| {figure.title}{unit} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _digits(value: float) -> int:
    return 0 if value >= 100 or value == int(value) else 1 if value >= 1 else 3


def main(arguments: list[str]) -> int:
    """Measure all sizes; about a minute."""
    parser = argparse.ArgumentParser(prog="scripts/bench sizes", description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="two small sizes, to see that it works")
    parser.add_argument("--json", action="store_true", help="the figures as JSON, not as a table")
    asked = parser.parse_args(arguments)
    results = {
        f"{nodes:,} nodes, {partitions:,} partitions": measured(nodes, partitions)
        for nodes, partitions in (TINY if asked.tiny else SIZES)
    }
    print(json.dumps(results, indent=1) if asked.json else table(results))
    return 0
