"""AlterPartitionReassignments and ListPartitionReassignments, in every version."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.controller.client import Unavailable
from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.statemachine.controller.controller_commands import ReplicasMoved
from strandline.statemachine.controller.controller_state import Move
from tests.kafka.handlers.fake_cluster import Cluster
from tests.kafka.handlers.fake_node import FakeNode
from tests.runtime.jumping_loop import run

ALTER, LIST = ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.LIST_PARTITION_REASSIGNMENTS


def asked(name: str, **targets: list[int] | None) -> list[dict[str, Any]]:
    """One topic; a keyword is p<number> with the partition's target."""
    rows = [
        {"partition_index": int(number.removeprefix("p")), "replicas": target}
        for number, target in targets.items()
    ]
    return [{"name": name, "partitions": rows}]


def codes(answer: Any) -> list[ErrorCode]:
    return [row.error_code for topic in answer.responses for row in topic.partitions]


async def moving(node: FakeNode, topics: Any = None) -> dict[tuple[str, int], tuple[Any, Any, Any]]:
    answer = await node.ask(LIST, 0, topics=topics)
    assert answer.error_code is ErrorCode.none
    return {
        (topic.name, row.partition_index): (row.replicas, row.adding_replicas, row.removing_replicas)
        for topic in answer.topics
        for row in topic.partitions
    }


@pytest.mark.parametrize("version", range(APIS[ALTER].last + 1))
def test_a_partition_is_sent_on_its_way_and_listed_until_it_is_there(version: int) -> None:
    async def test() -> None:
        cluster = Cluster()
        made = cluster.create("t", 2, 1)
        node = FakeNode(cluster)
        (before,) = made.partitions[0].replicas
        target = [each for each in (1, 2, 3) if each != before][:1]
        answer = await node.ask(ALTER, version, topics=asked("t", p0=target))
        assert codes(answer) == [ErrorCode.none]
        assert await moving(node) == {("t", 0): ((*target, before), tuple(target), (before,))}
        wanted = [{"name": "t", "partition_indexes": [1]}, {"name": "u", "partition_indexes": [0]}]
        assert await moving(node, wanted) == {}
        wanted[0]["partition_indexes"] = [0, 1]
        assert list(await moving(node, wanted)) == [("t", 0)]
        group = made.partitions[0].group
        move = node.controller.machine.moves[group]
        assert move == Move(tuple(target), (before,), move.since)
        cluster.apply(ReplicasMoved([(group, target, move.since)]))
        assert await moving(node) == {}

    run(test)


def test_each_partition_has_an_answer_of_its_own() -> None:
    async def test() -> None:
        cluster = Cluster()
        cluster.create("t", 3, 2)
        node = FakeNode(cluster)
        answer = await node.ask(ALTER, 1, topics=asked("t", p0=[1, 9], p1=None, p2=[], p7=[1]))
        assert codes(answer) == [
            ErrorCode.invalid_replica_assignment,
            ErrorCode.no_reassignment_in_progress,
            ErrorCode.invalid_replica_assignment,
            ErrorCode.unknown_topic_or_partition,
        ]
        assert all(row.error_message for topic in answer.responses for row in topic.partitions)
        answer = await node.ask(ALTER, 1, topics=asked("u", p0=[1]))
        assert codes(answer) == [ErrorCode.unknown_topic_or_partition]
        twice = [*asked("t", p0=[1, 2]), *asked("t", p0=[2, 3])]
        assert codes(await node.ask(ALTER, 1, topics=twice)) == [ErrorCode.invalid_request] * 2
        assert node.controller.machine.moves == {}

    run(test)


def test_a_request_may_forbid_another_number_of_replicas() -> None:
    async def test() -> None:
        cluster = Cluster()
        cluster.create("t", 1, 2)
        node = FakeNode(cluster)
        topics = asked("t", p0=[1, 2, 3])
        answer = await node.ask(ALTER, 1, topics=topics, allow_replication_factor_change=False)
        assert codes(answer) == [ErrorCode.invalid_replication_factor]
        answer = await node.ask(ALTER, 1, topics=topics)
        assert codes(answer) == [ErrorCode.none]
        answer = await node.ask(ALTER, 1, topics=asked("t", p0=[3, 1]), allow_replication_factor_change=False)
        assert codes(answer) == [ErrorCode.none], "as many as before the move that is under way"

    run(test)


def test_without_a_controller_nothing_is_promised() -> None:
    async def test() -> None:
        cluster = Cluster()
        cluster.create("t", 1, 1)
        node = FakeNode(cluster)
        node.controller.hear()
        node.controller.down = Unavailable("the controller has no leader", False)
        answer = await node.ask(ALTER, 1, topics=asked("t", p0=[1, 2]))
        assert codes(answer) == [ErrorCode.request_timed_out]

    run(test)
