"""Clients are told the addresses of the listener that they came by, and of no other."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.controller.leaders import Leader
from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.kafka.wire.session import UNNAMED, Session
from strandline.node.refusal import Refusal
from tests.kafka.handlers.fake_node import FakeNode
from tests.runtime.jumping_loop import run

METADATA, FIND = ApiKey.METADATA, ApiKey.FIND_COORDINATOR


def listeners(node: int) -> tuple[tuple[str, str, int], ...]:
    return (("internal", f"in{node}", 1), ("public", f"out{node}", 100 + node))


def named() -> FakeNode:
    """Nodes 1 and 2 have two listeners; 3 was not started again yet, and has the one of [kafka]."""
    node = FakeNode()
    for number in (1, 2):
        node.cluster.register(number, listeners=listeners(number))
    node.controller.hear()
    return node


CASES = [
    (Session("internal"), [(1, "in1", 1), (2, "in2", 1)]),
    (Session("public"), [(1, "out1", 101), (2, "out2", 102)]),
    (UNNAMED, [(3, "n3", 9003)]),
]


@pytest.mark.parametrize(("session", "expected"), CASES)
@pytest.mark.parametrize(("key", "field"), [(METADATA, "node_id"), (ApiKey.DESCRIBE_CLUSTER, "broker_id")])
def test_nodes_are_those_with_the_listener(key: ApiKey, field: str, session: Session, expected: Any) -> None:
    async def test() -> None:
        node = named()
        node.session = session
        for version in range(APIS[key].first, APIS[key].last + 1):
            answer = await node.ask(key, version, topics=())
            assert [(getattr(one, field), one.host, one.port) for one in answer.brokers] == expected

    run(test)


def test_a_leader_without_the_listener_is_none() -> None:
    async def test() -> None:
        node = named()
        topic = node.topic(partitions=1)
        node.leaders.others[topic.partitions[0].group] = Leader(3, 7)
        asked: dict[str, Any] = {"topics": ({"name": "t", "topic_id": None},)}
        for session, code, leader in (
            (Session("public"), ErrorCode.leader_not_available, -1),
            (UNNAMED, ErrorCode.none, 3),
            (Session("public"), ErrorCode.leader_not_available, -1),
        ):
            node.session = session
            (told,) = (await node.ask(METADATA, **asked)).topics
            assert [(one.error_code, one.leader_id) for one in told.partitions] == [(code, leader)]

    run(test)


def test_the_coordinator_and_a_moved_leader_have_the_listener_s_address() -> None:
    async def test() -> None:
        node = named()
        topic = node.topic(partitions=1)
        for session, expected in ((Session("internal"), ("in2", 1)), (Session("public"), ("out2", 102))):
            node.session = session
            node.leaders.others[topic.partitions[0].group] = Leader(2, 7)
            node.partition().resign()
            answer = await node.fetch({0: 0})
            (endpoint,) = answer.node_endpoints
            assert (endpoint.node_id, endpoint.host, endpoint.port) == (2, *expected)
            for key in ("flights", "trains", "boats"):
                (found,) = (await node.ask(FIND, key_type=0, coordinator_keys=(key,))).coordinators
                place = await node.coordinators.group_place(key)
                assert not isinstance(place, Refusal)
                node.leaders.others[place.raft_group] = Leader(2, 7)
                (found,) = (await node.ask(FIND, key_type=0, coordinator_keys=(key,))).coordinators
                assert (found.node_id, found.host, found.port) == (2, *expected)

    run(test)
