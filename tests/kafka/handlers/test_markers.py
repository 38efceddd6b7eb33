"""The ends of transactions as they reach a node: from coordinators by the mesh, from operators by Kafka."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.coordinator.table import Coordinators
from strandline.node.kafka.wire.apis import ApiKey
from strandline.node.partition import transaction_markers
from strandline.node.partition.transaction_markers import ANSWER_SECONDS, MAX_MARKERS, METHOD, MarkerAnswer
from strandline.node.refusal import Reason, Refusal
from strandline.node.rpc import CallFailed
from strandline.statemachine.kafka_errors import KafkaError
from strandline.statemachine.partition.producer_state import OpenTransaction
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.handlers.fetch_answers import P, Q, batch, made
from tests.kafka.wire.batches import build
from tests.runtime.jumping_loop import simulated

DONE, AGAIN, GONE = MarkerAnswer.DONE, MarkerAnswer.AGAIN, MarkerAnswer.GONE
UNKNOWN_GROUP = 10_000


class FakeGroups:
    """A GroupCoordinator that says what a test tells it to."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.answer: bool | Refusal = True

    async def end_transaction(self, *marker: Any) -> bool | Refusal:
        self.heard.append(marker)
        return self.answer


class MarkedNode(FakeNode):
    """Coordinates groups in one of its partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = FakeGroups()
        self.coordinated = -1
        self.coordinators = cast(
            Coordinators,
            SimpleNamespace(
                groups_by_raft_group=lambda group: self.groups if group == self.coordinated else None
            ),
        )
        transaction_markers.serve(self.context)

    def group(self, number: int = 0) -> int:
        topic = self.controller.machine.topic("t")
        assert topic is not None
        return topic.partitions[number].group

    async def mark(self, *markers: Any) -> Any:
        return await self.calls.call(1, METHOD, [list(one) for one in markers], 1.0)


def marked(partitions: int = 1) -> MarkedNode:
    node = MarkedNode()
    node.topic(partitions=partitions)
    return node


# From coordinators.


@simulated
async def test_each_marker_is_answered_in_its_place() -> None:
    node = marked(3)
    node.coordinated = UNKNOWN_GROUP + 1
    for number in range(2):
        node.partition(number=number).write(batch(), transaction=2)
    node.partition(number=1).execution = Refusal(Reason.UNDECIDED, "who knows")
    answers = await node.mark(
        (node.group(1), P, 0, 2, True, 5),
        (node.group(0), P, 0, 2, False, 5),
        (node.coordinated, P, 0, 2, True, 5),
        (UNKNOWN_GROUP, P, 0, 2, True, 5),
    )
    assert answers == [AGAIN, DONE, DONE, AGAIN]
    assert all(type(one) is int for one in answers), "msgpack takes no enums"
    assert node.partition(number=0).last_stable_offset == 2
    assert node.partition(number=0).machine.aborted_between(0, 9) != []
    assert node.partition(number=1).last_stable_offset == 0
    assert node.groups.heard == [(P, 0, 2, True, 5)]


@simulated
async def test_markers_of_one_call_are_written_together() -> None:
    node = marked(4)
    loop = asyncio.get_running_loop()
    started = loop.time()
    answers = await node.mark(*((node.group(number), P, 0, 1, True, 5) for number in range(4)))
    assert answers == [DONE] * 4
    assert loop.time() - started < 0.002, "one takes a millisecond here"


@simulated
async def test_a_deleted_topic_is_gone_and_one_nobody_has_heard_of_is_not() -> None:
    node = marked()
    group = node.group()
    node.delete("t")
    assert await node.mark((group, P, 0, 1, True, 5), (UNKNOWN_GROUP, P, 0, 1, True, 5)) == [GONE, AGAIN]


@pytest.mark.parametrize("answer", [True, False])
@simulated
async def test_what_a_group_coordinator_says(answer: bool) -> None:
    node = marked()
    node.coordinated = UNKNOWN_GROUP
    node.groups.answer = answer
    assert await node.mark((UNKNOWN_GROUP, P, 0, 1, True, 5)) == [DONE]
    for reason in (KafkaError.NOT_COORDINATOR, Reason.COORDINATOR_UNDECIDED):
        node.groups.answer = Refusal(reason, "moved")
        assert await node.mark((UNKNOWN_GROUP, P, 0, 1, True, 5)) == [AGAIN]


@pytest.mark.parametrize(
    "bad",
    [
        (P, 0, 1, True, 5),
        (1, P, 0, 0, True, 5),
        (1, P, -1, 1, True, 5),
        (1, P, 1 << 15, 1, True, 5),
        (1, -1, 0, 1, True, 5),
        (1, P, 0, 1, True, -1),
        (1, P, 0, 1, 1, 5),
        (1, P, 0, "1", True, 5),
        "marker",
    ],
)
@simulated
async def test_what_no_replica_would_survive_is_refused_with_all_beside_it(bad: Any) -> None:
    node = marked()
    good = [node.group(), P, 0, 1, True, 5]
    with pytest.raises(CallFailed) as refused:
        await node.calls.call(1, METHOD, [good, list(bad) if isinstance(bad, tuple) else bad], 1.0)
    assert not refused.value.unknown
    assert node.partition().high_watermark == 0


@simulated
async def test_a_partition_without_a_majority_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its marker is in the log of its leader, and is not put there again each time it is said."""
    node = marked(2)
    loop = asyncio.get_running_loop()
    majority = asyncio.Event()
    stuck = node.partition(number=1)
    good = stuck.end_transaction
    written = []

    async def end_transaction(*marker: Any) -> Any:
        written.append(marker)
        await majority.wait()
        return await good(*marker)

    monkeypatch.setattr(stuck, "end_transaction", end_transaction)
    began = loop.time()
    for _ in range(3):
        markers = [(node.group(number), P, 0, 1, True, 5) for number in range(2)]
        assert await node.mark(*markers) == [DONE, AGAIN]
    assert loop.time() - began == pytest.approx(3 * ANSWER_SECONDS, rel=0.1)
    assert len(written) == 1
    majority.set()
    assert await node.mark((node.group(1), P, 0, 1, True, 5)) == [DONE]
    assert len(written) == 1


@simulated
async def test_a_call_is_bounded() -> None:
    node = marked()
    for payload in (7, [[node.group(), P, 0, 1, True, 5]] * (MAX_MARKERS + 1)):
        with pytest.raises(CallFailed):
            await node.calls.call(1, METHOD, payload, 1.0)


# From operators.


async def write(
    node: FakeNode, epoch: int = 0, *, term: int = 3, commit: bool = False, **more: Any
) -> list[Any]:
    marker = {
        "producer_id": P,
        "producer_epoch": epoch,
        "transaction_result": commit,
        "coordinator_epoch": term,
        "topics": [{"name": "t", "partition_indexes": [0]}],
        **more,
    }
    response = await node.ask(ApiKey.WRITE_TXN_MARKERS, markers=[marker])
    (answer,) = response.markers
    assert answer.producer_id == marker["producer_id"]
    return [part.error_code for topic in answer.topics for part in topic.partitions]


@simulated
async def test_a_hanging_transaction_is_ended_by_its_number() -> None:
    node, partition = made()
    partition.write(batch(), transaction=5)
    partition.write(batch(producer=Q), transaction=2)
    assert await write(node) == [ErrorCode.none]
    assert partition.machine.open_transaction(P) is None
    assert partition.machine.open_transaction(Q) == OpenTransaction(2, 1, 0)
    assert [one.producer_id for one in partition.machine.aborted_between(0, 9)] == [P]
    # Its coordinator's own marker, should it come, finds it ended.
    partition.write(batch(1), transaction=6)
    partition.end(P, 0, 5)
    assert partition.machine.open_transaction(P) == OpenTransaction(6, 3, 0)


@simulated
async def test_a_commit_is_a_commit() -> None:
    node, partition = made()
    partition.write(batch(), transaction=5)
    assert await write(node, commit=True) == [ErrorCode.none]
    assert partition.machine.open_transaction(P) is None
    assert partition.machine.aborted_between(0, 9) == []


@simulated
async def test_where_nothing_is_open_nothing_is_written() -> None:
    node, partition = made()
    assert await write(node) == [ErrorCode.none]
    partition.write(batch(), transaction=5)
    partition.end(P, 0, 5)
    end = partition.high_watermark
    assert await write(node) == [ErrorCode.none]
    assert partition.high_watermark == end


@simulated
async def test_older_epochs_end_nothing() -> None:
    node, partition = made()
    partition.write(batch(epoch=4), transaction=5)
    partition.end(P, 4, 5)
    partition.write(batch(1, epoch=4), transaction=6)
    assert await write(node, 3) == [ErrorCode.invalid_producer_epoch]
    assert await write(node, 4, term=2) == [ErrorCode.transaction_coordinator_fenced]
    assert partition.machine.open_transaction(P) is not None
    assert await write(node, 4, term=3) == [ErrorCode.none]
    assert partition.machine.open_transaction(P) is None


@simulated
async def test_what_kafkas_tool_knows_of_a_producer_without_a_marker_is_enough() -> None:
    node, partition = made()
    partition.write(batch(), transaction=1)
    assert await write(node, term=-1) == [ErrorCode.none]
    assert partition.machine.open_transaction(P) is None


@simulated
async def test_who_does_not_lead_or_cannot_prove_it_ends_nothing() -> None:
    node, partition = made()
    partition.write(batch(), transaction=5)
    partition.confirms = False
    assert await write(node) == [ErrorCode.not_leader_or_follower]
    partition.confirms = True
    partition.execution = Refusal(Reason.UNDECIDED, "who knows")
    assert await write(node) == [ErrorCode.not_enough_replicas_after_append]
    partition.resign()
    assert await write(node) == [ErrorCode.not_leader_or_follower]
    unknown = [{"name": "t", "partition_indexes": [4, 0]}, {"name": "no", "partition_indexes": [0]}]
    assert await write(node, topics=unknown) == [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
    ]
    assert partition.machine.open_transaction(P) is not None


# What a partition tells of its producers.


async def described(node: FakeNode, *topics: tuple[str, list[int]]) -> list[Any]:
    asked = [{"name": name, "partition_indexes": numbers} for name, numbers in topics or (("t", [0]),)]
    response = await node.ask(ApiKey.DESCRIBE_PRODUCERS, topics=asked)
    assert [topic.name for topic in response.topics] == [one["name"] for one in asked]
    return [part for topic in response.topics for part in topic.partitions]


@simulated
async def test_producers_are_described() -> None:
    node, partition = made()
    partition.write(build(producer=(3, 1, 0)))
    partition.write(batch(count=3, epoch=2), transaction=1)
    partition.end(P, 2, 1, coordinator_term=8)
    partition.write(batch(3, epoch=2), transaction=2)
    partition.write(batch(producer=Q), transaction=9)
    (part,) = await described(node)
    assert (part.error_code, part.partition_index) == (ErrorCode.none, 0)
    rows = [
        (
            one.producer_id,
            one.producer_epoch,
            one.last_sequence,
            one.coordinator_epoch,
            one.current_txn_start_offset,
        )
        for one in part.active_producers
    ]
    assert rows == [(P, 2, 3, 8, 7), (Q, 0, 0, -1, 8)]
    assert all(one.last_timestamp == partition.machine.time for one in part.active_producers)


@simulated
async def test_any_replica_describes_what_it_knows_of_producers() -> None:
    node, partition = made(2)
    partition.write(batch(), transaction=1)
    partition.resign()
    partition.confirms = False
    first, _ = await described(node, ("t", [0, 1]))
    assert (first.error_code, [one.producer_id for one in first.active_producers]) == (ErrorCode.none, [P])
    assert first.active_producers[0].current_txn_start_offset == 0
    topic = node.controller.machine.topic("t")
    assert topic is not None
    del node.partitions.replicas[topic.topic_id, 1]
    (elsewhere,) = await described(node, ("t", [1]))
    assert elsewhere.error_code is ErrorCode.not_leader_or_follower


@simulated
async def test_producers_are_described_by_a_leader_that_has_proved_it() -> None:
    node, partition = made(2)
    partition.write(batch(), transaction=1)
    partition.confirms = False
    parts = await described(node, ("t", [1, 0, 2]), ("no", [0]))
    assert [(part.partition_index, part.error_code.name) for part in parts] == [
        (1, "none"),
        (0, "not_leader_or_follower"),
        (2, "unknown_topic_or_partition"),
        (0, "unknown_topic_or_partition"),
    ]
    assert not any(part.active_producers for part in parts)
