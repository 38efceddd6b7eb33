"""DescribeQuorum: the controller's group by its leader, through any node."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.raft.configuration import Configuration
from strandline.node.raft.rules.progress import NEVER, Progress
from strandline.node.rpc import CallFailed
from tests.kafka.handlers.fake_cluster import Cluster
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.handlers.fake_partition import NOW
from tests.runtime.jumping_loop import run

QUORUM = ApiKey.DESCRIBE_QUORUM
WHOLE = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]


def group(leader: bool) -> Any:
    """Node 1's view of voters 1, 2, 3 and learner 4: 2 is level, 3 lacks ten entries, 4 never answered."""
    progress = {node: Progress(1) for node in (2, 3, 4)}
    progress[2].match, progress[3].match = 40, 30
    acked = {2: 99.75, 3: 98.0, 4: NEVER}
    return SimpleNamespace(
        is_ready=leader,
        configuration=Configuration(7, (1, 2, 3), (4,)),
        term=5,
        commit=39,
        journal=SimpleNamespace(last=40),
        progress=progress,
        lease=SimpleNamespace(acked_at=lambda node: acked[node]),
        host=SimpleNamespace(now=lambda: 100.0, folder_of=lambda node: 0 if node == 4 else 70 + node),
    )


def cluster_of(*, leads: bool = True) -> tuple[FakeNode, FakeNode]:
    """Nodes 1 and 2, of which the first leads the controller."""
    cluster = Cluster()
    nodes = FakeNode(cluster, 1), FakeNode(cluster, 2)
    for node, leading in zip(nodes, (leads, False), strict=True):
        node.controller.group = group(leading)
    return nodes


@pytest.mark.parametrize("version", range(APIS[QUORUM].last + 1))
@pytest.mark.parametrize("asked", [0, 1], ids=["the leader", "another node"])
def test_the_leaders_view_through_any_node(asked: int, version: int) -> None:
    async def test() -> None:
        answer = await cluster_of()[asked].ask(QUORUM, version, topics=WHOLE)
        assert answer.error_code is ErrorCode.none
        ((topic,), (told,)) = answer.topics, answer.topics[0].partitions
        assert (topic.topic_name, told.partition_index, told.error_code) == (WHOLE[0]["topic_name"], 0, 0)
        assert (told.leader_id, told.leader_epoch, told.high_watermark) == (1, 5, 40)
        ends = [(one.replica_id, one.log_end_offset) for one in (*told.current_voters, *told.observers)]
        assert ends == [(1, 41), (2, 41), (3, 31), (4, -1)]
        if version >= 1:
            times = [
                (one.last_fetch_timestamp, one.last_caught_up_timestamp)
                for one in (*told.current_voters, *told.observers)
            ]
            assert times == [(-1, NOW), (NOW - 250, NOW - 250), (NOW - 2000, -1), (-1, -1)]
        if version >= 2:
            folders = [one.replica_directory_id for one in (*told.current_voters, *told.observers)]
            assert folders == [UUID(int=71), UUID(int=72), UUID(int=73), None]
            assert [node.node_id for node in answer.nodes] == [1, 2, 3]
            assert {one.name for node in answer.nodes for one in node.listeners} == {"MESH"}

    run(test)


@pytest.mark.parametrize("trouble", ["none leads", "it does not lead any more", "no answer"])
def test_without_a_leader_clients_ask_again(trouble: str) -> None:
    async def test() -> None:
        node = cluster_of(leads=trouble != "it does not lead any more")[1]
        if trouble == "none leads":
            node.controller.leader = None
        if trouble == "no answer":
            node.calls.failure = CallFailed("node 1 is not connected", unknown=False)
        answer = await node.ask(QUORUM, topics=WHOLE)
        assert answer.error_code is ErrorCode.not_leader_or_follower
        assert "no leader that answers" in answer.error_message
        assert answer.topics == answer.nodes == ()

    run(test)


@pytest.mark.parametrize(
    "asked", [[], [{"topic_name": "birds", "partitions": [{"partition_index": 0}]}],
              [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 1}]}]],
)  # fmt: skip
def test_no_other_topic_has_a_quorum(asked: Any) -> None:
    async def test() -> None:
        answer = await cluster_of()[0].ask(QUORUM, topics=asked)
        assert answer.error_code is ErrorCode.none
        codes = [part.error_code for topic in answer.topics for part in topic.partitions]
        assert codes == [ErrorCode.unknown_topic_or_partition] * len(asked)
        await asyncio.sleep(0)

    run(test)
