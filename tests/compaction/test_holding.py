"""Holds asked of any node: what a leader answers, and what is made of an answer that does not come."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from strandline.node.compaction.holding import METHOD, Holding, PartitionHold
from strandline.node.controller.leaders import Leader
from strandline.node.rpc import CallFailed
from strandline.statemachine.controller.controller_state import PartitionAssignment, Topic
from strandline.statemachine.partition.holds import MAX_HOLDS, Hold
from strandline.statemachine.partition.level_one import LevelOneExtent
from strandline.statemachine.partition.partition_commands import AdvanceReconciled, Command
from tests.statemachine.partitions import NOW, Replica, placeholder

HOUR = 3_600_000


class Led:
    """A replica that leads; `before` runs in front of each entry, as what another proposer had under way."""

    def __init__(self) -> None:
        self.log = Replica()
        self.log.append(*[placeholder(10) for _ in range(10)])
        self.leads = True
        self.before: list[Any] = []
        self.refuses: Any = None

    @property
    def machine(self) -> Any:
        return self.log.machine

    def reconcile(self, end: int) -> None:
        first = self.machine.extents.first_offset
        extent = LevelOneExtent(first, end, NOW, 1000, 100, 1, first.to_bytes(16, "big"))
        self.log.apply(AdvanceReconciled(first, [extent]))

    async def execute(self, command: Command) -> Any:
        if self.before:
            self.before.pop(0)()
        if self.refuses is not None:
            return self.refuses
        results = self.log.apply(command)
        assert isinstance(results, list)
        return results[-1]


class Node:
    """Calls reach the leader at once, unless `fails` has the reason."""

    def __init__(self) -> None:
        self.calls = self.controller = self.leaders = self.partitions = self
        self.replica: Led | None = Led()
        self.leader: Leader | None = Leader(2, 1)
        self.fails: str | None = None
        self.served: dict[str, Any] = {}

    def serve(self, method: str, handler: Any) -> None:
        self.served[method] = handler

    async def call(self, node: int, method: str, payload: Any, seconds: float) -> Any:
        if self.fails is not None:
            raise CallFailed(self.fails, unknown=True)
        return await self.served[method](1, payload)

    def leader_of(self, group: int) -> Leader | None:
        return self.leader

    def by_group(self, group: int) -> Led | None:
        return self.replica


def topic() -> Topic:
    return Topic(b"t" * 16, "users", (PartitionAssignment(7, (1, 2, 3), 0),), {}, 0, 1)


def hold(node: Node, offset: int | None = None, reader: str = "table") -> PartitionHold:
    [answer] = asyncio.run(Holding(node).hold(topic(), reader, {0: offset}, HOUR))  # type: ignore[arg-type]
    return answer


def led(node: Node) -> Led:
    assert node.replica is not None
    return node.replica


def test_a_first_hold_begins_at_the_last_stable_offset_and_is_renewed_where_it_is() -> None:
    node = Node()
    assert hold(node) == PartitionHold(0, 100, NOW + HOUR)
    led(node).log.append(placeholder(10))
    assert hold(node) == PartitionHold(0, 100, NOW + HOUR)
    assert hold(node, 105) == PartitionHold(0, 105, NOW + HOUR)
    assert led(node).machine.holds.rows() == [Hold("table", 105, NOW + HOUR)]


def test_a_first_hold_is_tried_again_where_level_one_went_past_it_meanwhile() -> None:
    node = Node()
    led(node).reconcile(100)

    def goes_on() -> None:
        led(node).log.append(placeholder(10))
        led(node).reconcile(led(node).machine.next_offset)

    led(node).before = [goes_on]
    assert hold(node) == PartitionHold(0, 110, NOW + HOUR)


def test_an_offset_below_which_records_may_be_gone_is_told_as_lost() -> None:
    node = Node()
    led(node).reconcile(60)
    assert hold(node, 59) == PartitionHold(0, None, None, 60)
    assert hold(node, 60).offset == 60


def test_what_cannot_be_held_says_why() -> None:
    node = Node()
    assert hold(node, 101).error == "the partition ends at 100"
    for number in range(MAX_HOLDS):
        hold(node, 100, f"reader {number}")
    assert hold(node, 100).error == "64 readers hold it already: let one release its hold"


def test_a_release_ends_the_hold_and_is_no_error_without_one() -> None:
    node = Node()
    hold(node)
    for _ in range(2):
        answers = asyncio.run(Holding(node).release(topic(), "table", [0]))  # type: ignore[arg-type]
        assert answers == [PartitionHold(0, None, None)]
        assert len(led(node).machine.holds) == 0


def test_a_leader_that_is_not_there_or_does_not_answer_is_named() -> None:
    node = Node()
    node.fails = "no answer within 5 s"
    assert hold(node).error == "node 2, its leader: no answer within 5 s"
    node.fails = None
    led(node).leads = False
    assert "it does not lead the partition any more" in (hold(node).error or "")
    led(node).leads, led(node).refuses = True, "the entry is of a term before 9"
    assert hold(node).error == "node 2, its leader: the entry is of a term before 9"
    node.replica = None
    assert "it does not lead" in (hold(node).error or "")
    node.leader = None
    assert "no leader is known" in (hold(node).error or "")


@pytest.mark.parametrize(
    "payload", [None, [], [7, "", 0, HOUR], [7, "x" * 250, 0, HOUR], [7, "a", -1, HOUR], [7, "a", 0, 1 << 50]]
)
def test_a_call_that_is_out_of_bounds_is_refused(payload: Any) -> None:
    node = Node()
    Holding(node)  # type: ignore[arg-type]
    with pytest.raises(CallFailed, match="not a group, reader, offset and lease"):
        asyncio.run(node.served[METHOD](1, payload))
