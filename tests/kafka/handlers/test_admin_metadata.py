"""Metadata in every version: what is there, what is not, what is created, and what a fenced node changes."""

from __future__ import annotations

import asyncio
import gc
import random
import uuid
import weakref
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.controller.client import Unavailable
from strandline.node.controller.leaders import Leader
from strandline.node.kafka.handlers.authorization import NOT_ASKED
from strandline.node.kafka.handlers.topic_metadata import (
    Breath,
    encoded,
    encoded_topics,
    partition_answer,
    topic_answer,
    with_topics,
)
from strandline.node.kafka.wire.apis import ApiKey
from strandline.node.kafka.wire.response_encoder import encode
from strandline.node.kafka.wire.response_types import response_types
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_commands import CreateTopic, DeleteTopic
from strandline.statemachine.controller.controller_state import DEFAULT_LISTENER
from tests.kafka.handlers.fake_cluster import CLUSTER, TERM, Cluster
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.wire.sent_bytes import sent_bytes
from tests.runtime.jumping_loop import run

METADATA = ApiKey.METADATA
VERSIONS = range(14)


def named(*names: str | None, **fields: Any) -> dict[str, Any]:
    return {"topics": [{"name": name} for name in names], **fields}


def with_ids(*ids: bytes) -> dict[str, Any]:
    return {"topics": [{"name": None, "topic_id": uuid.UUID(bytes=topic_id)} for topic_id in ids]}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_tells_nodes_topics_and_leaders(version: int) -> None:
    async def test() -> None:
        node = FakeNode()
        topic = node.cluster.create("t", 3)
        node.controller.hear()
        answer = await node.ask(METADATA, version, **named("t"))
        nodes = [(broker.node_id, broker.host, broker.port) for broker in answer.brokers]
        assert nodes == [(1, "n1", 9001), (2, "n2", 9002), (3, "n3", 9003)]
        if version >= 1:
            assert answer.controller_id == 1
        if version >= 2:
            assert answer.cluster_id == CLUSTER
        (found,) = answer.topics
        assert (found.error_code, found.name) == (ErrorCode.none, "t")
        if version >= 10:
            assert found.topic_id.bytes == topic.topic_id
        for number, partition in enumerate(found.partitions):
            replicas = topic.partitions[number].replicas
            assert (partition.error_code, partition.partition_index) == (ErrorCode.none, number)
            assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (
                replicas[0],
                replicas,
                replicas,
            )
            assert getattr(partition, "leader_epoch", TERM) == TERM
            assert getattr(partition, "offline_replicas", ()) == ()

    run(test)


@pytest.mark.parametrize("version", VERSIONS)
def test_all_topics_are_null_and_in_version_0_an_empty_list(version: int) -> None:
    async def test() -> None:
        node = FakeNode()
        for name in "ba":
            node.cluster.create(name)
        node.controller.hear()
        everything = await node.ask(METADATA, version, topics=[] if version == 0 else None)
        assert [topic.name for topic in everything.topics] == ["b", "a"]
        if version > 0:
            assert (await node.ask(METADATA, version, topics=[])).topics == ()
        assert node.controller.submitted == []

    run(test)


@pytest.mark.parametrize("version", [12, 13])
def test_topics_are_found_by_id_and_an_unknown_id_says_so(version: int) -> None:
    async def test() -> None:
        node = FakeNode()
        topic = node.cluster.create("t")
        node.controller.hear()
        known, unknown = (
            await node.ask(METADATA, version, **with_ids(topic.topic_id, b"x" * 16, topic.topic_id))
        ).topics
        assert (known.error_code, known.name, known.topic_id.bytes) == (ErrorCode.none, "t", topic.topic_id)
        assert (unknown.error_code, unknown.name) == (ErrorCode.unknown_topic_id, None)
        assert unknown.topic_id.bytes == b"x" * 16
        assert node.controller.submitted == []

    run(test)


@pytest.mark.parametrize("version", [10, 11])
def test_ids_and_null_names_are_invalid_before_version_12(version: int) -> None:
    async def test() -> None:
        node = FakeNode()
        topic = node.cluster.create("t")
        node.controller.hear()
        for asked in (with_ids(topic.topic_id), named(None)):
            (answer,) = (await node.ask(METADATA, version, **asked)).topics
            assert answer.error_code == ErrorCode.invalid_request
            assert answer.partitions == ()

    run(test)


def test_a_topic_that_is_named_twice_is_told_once() -> None:
    async def test() -> None:
        node = FakeNode()
        node.cluster.create("t")
        node.controller.hear()
        assert len((await node.ask(METADATA, **named("t", "t"))).topics) == 1

    run(test)


# Topics that are not there.


@pytest.mark.parametrize("version", VERSIONS)
def test_an_unknown_topic_is_created_with_the_configured_counts(version: int) -> None:
    async def test() -> None:
        node = FakeNode(partitions=5, replication_factor=2)
        (topic,) = (await node.ask(METADATA, version, **named("new"))).topics
        assert topic.error_code == ErrorCode.none
        assert [len(partition.replica_nodes) for partition in topic.partitions] == [2] * 5
        assert all(partition.error_code == ErrorCode.none for partition in topic.partitions)
        assert node.cluster.leader.topic("new")

    run(test)


@pytest.mark.parametrize("allowed", [{}, {"auto_create": False}])
def test_no_topic_is_created_when_the_client_or_the_configuration_forbids_it(allowed: Any) -> None:
    async def test() -> None:
        node = FakeNode(**allowed)
        asked = named("new", allow_auto_topic_creation=bool(allowed))
        (topic,) = (await node.ask(METADATA, **asked)).topics
        assert (topic.error_code, topic.name) == (ErrorCode.unknown_topic_or_partition, "new")
        assert node.controller.submitted == []

    run(test)


@pytest.mark.parametrize("auto_create", [True, False])
@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "x" * 250])
def test_a_name_that_no_topic_may_have_is_invalid_and_reaches_no_log(name: str, auto_create: bool) -> None:
    async def test() -> None:
        node = FakeNode(auto_create=auto_create)
        (topic,) = (await node.ask(METADATA, **named(name))).topics
        assert (topic.error_code, topic.name) == (ErrorCode.invalid_topic_exception, name)
        assert node.controller.submitted == []

    run(test)


def test_a_name_that_collides_in_metrics_is_invalid() -> None:
    async def test() -> None:
        node = FakeNode()
        node.cluster.create("a.b")
        node.controller.hear()
        (topic,) = (await node.ask(METADATA, **named("a_b"))).topics
        assert topic.error_code == ErrorCode.invalid_topic_exception

    run(test)


def test_the_broker_s_own_topics_are_not_created_for_whoever_names_them() -> None:
    async def test() -> None:
        node = FakeNode()
        (topic,) = (await node.ask(METADATA, **named("__consumer_offsets"))).topics
        assert (topic.error_code, topic.is_internal) == (ErrorCode.unknown_topic_or_partition, True)
        assert node.controller.submitted == []

    run(test)


def test_a_new_topic_without_leaders_says_so_after_a_short_wait() -> None:
    async def test() -> None:
        node = FakeNode()
        node.leaders.nobody = True
        begun = node.loop.time()
        (topic,) = (await node.ask(METADATA, **named("new"))).topics
        assert 0.9 < node.loop.time() - begun < 1.3
        assert topic.error_code == ErrorCode.none
        for partition in topic.partitions:
            assert partition.error_code == ErrorCode.leader_not_available
            assert (partition.leader_id, partition.leader_epoch) == (-1, -1)
            assert len(partition.isr_nodes) == 3

    run(test)


def test_a_new_topic_s_first_answer_waits_for_its_leaders() -> None:
    async def test() -> None:
        node = FakeNode()
        node.leaders.nobody = True
        begun = node.loop.time()
        node.loop.call_later(0.2, setattr, node.leaders, "nobody", False)
        (topic,) = (await node.ask(METADATA, **named("new"))).topics
        assert [partition.error_code for partition in topic.partitions] == [ErrorCode.none] * 2
        assert node.loop.time() - begun < 0.35

    run(test)


@pytest.mark.parametrize("unknown", [True, False])
def test_while_the_controller_does_not_answer_a_new_topic_is_not_refused(unknown: bool) -> None:
    async def test() -> None:
        node = FakeNode()
        node.controller.down = Unavailable("no leader", unknown)
        (topic,) = (await node.ask(METADATA, **named("new"))).topics
        assert (topic.error_code, topic.partitions) == (ErrorCode.leader_not_available, ())

    run(test)


def test_a_new_topic_that_the_cluster_cannot_hold_now_is_unknown() -> None:
    async def test() -> None:
        node = FakeNode()
        node.cluster.fence(3)
        (topic,) = (await node.ask(METADATA, **named("new"))).topics
        assert topic.error_code == ErrorCode.unknown_topic_or_partition
        node.cluster.revive(3)
        (topic,) = (await node.ask(METADATA, **named("new"))).topics
        assert topic.error_code == ErrorCode.none

    run(test)


def test_a_topic_that_another_created_first_is_told_as_it_is() -> None:
    async def test() -> None:
        node = FakeNode()
        there = node.cluster.create("t", 1, 1)  # This node has not heard of it.
        assert node.controller.machine.topic("t") is None
        (topic,) = (await node.ask(METADATA, **named("t"))).topics
        assert (topic.error_code, topic.topic_id.bytes) == (ErrorCode.none, there.topic_id)
        assert len(topic.partitions) == 1

    run(test)


def test_known_unknown_and_invalid_names_come_in_the_order_asked() -> None:
    async def test() -> None:
        node = FakeNode()
        node.cluster.create("t")
        node.controller.hear()
        topics = (await node.ask(METADATA, **named("!", "new", "t"))).topics
        assert [(topic.name, topic.error_code) for topic in topics] == [
            ("!", ErrorCode.invalid_topic_exception),
            ("new", ErrorCode.none),
            ("t", ErrorCode.none),
        ]
        assert [type(command) for command in node.controller.submitted] == [CreateTopic]

    run(test)


def test_many_new_topics_do_not_outlast_the_limit() -> None:
    async def test() -> None:
        node = FakeNode()

        async def slow(command: Any, timeout: float) -> Unavailable:  # noqa: ASYNC109
            node.controller.submitted.append(command)
            await asyncio.sleep(timeout)
            return Unavailable("too slow", True)

        node.controller.submit = slow  # type: ignore[method-assign]
        begun = node.loop.time()
        names = [f"t{number}" for number in range(300)]
        topics = (await node.ask(METADATA, **named(*names))).topics
        assert {topic.error_code for topic in topics} == {ErrorCode.leader_not_available}
        assert node.loop.time() - begun < 6.5
        assert len(node.controller.submitted) == 64

    run(test)


# Nodes that are not alive.


def test_a_fenced_node_is_no_broker_and_its_replicas_are_offline_and_not_in_sync() -> None:
    async def test() -> None:
        node = FakeNode()
        node.cluster.create("t", 1, 3)
        node.cluster.fence(2)
        node.controller.hear()
        group = node.cluster.leader.topics[0].partitions[0].group
        node.leaders.others[group] = Leader(3, 9)
        answer = await node.ask(METADATA, **named("t"))
        assert [broker.node_id for broker in answer.brokers] == [1, 3]
        (partition,) = answer.topics[0].partitions
        assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (ErrorCode.none, 3, 9)
        assert sorted(partition.replica_nodes) == [1, 2, 3]
        assert sorted(partition.isr_nodes) == [1, 3]
        assert partition.offline_replicas == (2,)

    run(test)


def test_a_leader_that_is_fenced_is_none_to_a_client() -> None:
    async def test() -> None:
        node = FakeNode()
        topic = node.cluster.create("t", 1, 3)
        node.leaders.others[topic.partitions[0].group] = Leader(2, 9)
        node.cluster.fence(2)
        node.controller.hear()
        (partition,) = (await node.ask(METADATA, **named("t"))).topics[0].partitions
        assert (partition.error_code, partition.leader_id) == (ErrorCode.leader_not_available, -1)
        node.cluster.revive(2)
        node.controller.hear()
        (partition,) = (await node.ask(METADATA, **named("t"))).topics[0].partitions
        assert (partition.error_code, partition.leader_id) == (ErrorCode.none, 2)

    run(test)


def test_version_0_leaves_offline_replicas_out_and_says_so() -> None:
    async def test() -> None:
        node = FakeNode()
        topic = node.cluster.create("t", 1, 3)
        node.leaders.others[topic.partitions[0].group] = Leader(1, 9)
        node.cluster.fence(3)
        node.controller.hear()
        (partition,) = (await node.ask(METADATA, 0, **named("t"))).topics[0].partitions
        assert partition.error_code == ErrorCode.replica_not_available
        assert sorted(partition.replica_nodes) == [1, 2]

    run(test)


def test_the_controller_is_its_leader_and_while_that_is_fenced_the_node_that_is_asked() -> None:
    async def test() -> None:
        cluster = Cluster()
        node = FakeNode(cluster, 3)
        assert (await node.ask(METADATA, topics=[])).controller_id == 1
        cluster.fence(1)
        node.controller.hear()
        assert (await node.ask(METADATA, topics=[])).controller_id == 3
        cluster.fence(3)
        node.controller.hear()
        assert (await node.ask(METADATA, topics=[])).controller_id == 2
        cluster.fence(2)
        node.controller.hear()
        assert (await node.ask(METADATA, topics=[])).controller_id == -1

    run(test)


def test_clients_are_not_sent_to_a_controller_that_nobody_hears_any_more() -> None:
    """Without a majority the log goes on naming the last leader, and no node is fenced."""

    async def test() -> None:
        node = FakeNode(Cluster(), 3)
        node.controller.leader = None
        assert node.controller.machine.leader == 1
        assert (await node.ask(METADATA, topics=[])).controller_id == 3
        node.controller.leader = 2
        assert (await node.ask(METADATA, topics=[])).controller_id == 2

    run(test)


def test_a_node_that_moved_is_told_where_it_is_now() -> None:
    async def test() -> None:
        node = FakeNode()
        node.cluster.register(2, port=9999)
        node.controller.hear()
        answer = await node.ask(METADATA, topics=[])
        assert [broker.port for broker in answer.brokers] == [9001, 9999, 9003]

    run(test)


@pytest.mark.parametrize("version", [8, 9, 10, 11, 12, 13])
def test_authorized_operations_are_all_when_asked_for_and_absent_otherwise(version: int) -> None:
    async def test() -> None:
        node = FakeNode()
        node.cluster.create("t")
        node.controller.hear()
        plain = await node.ask(METADATA, version, **named("t"))
        assert plain.topics[0].topic_authorized_operations == -(2**31)
        assert getattr(plain, "cluster_authorized_operations", -(2**31)) == -(2**31)
        both = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
        asked = await node.ask(METADATA, version, **named("t"), **both)
        assert asked.topics[0].topic_authorized_operations == 3576
        assert getattr(asked, "cluster_authorized_operations", 8096) == 8096
        absent = await node.ask(METADATA, version, **named("absent"), **both, allow_auto_topic_creation=False)
        assert absent.topics[0].error_code is ErrorCode.unknown_topic_or_partition
        assert absent.topics[0].topic_authorized_operations == 3576, "as Kafka has it"

    run(test)


# What is kept encoded.


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("count", [0, 1, 200])
def test_spliced_topics_are_the_bytes_of_the_whole_response(version: int, count: int) -> None:
    async def test() -> None:
        node = FakeNode()
        a = response_types(METADATA, version)
        topics = [node.cluster.create(f"t{number}", 1) for number in range(count)]
        live = frozenset({1, 2})
        made = tuple(
            replace(
                topic_answer(a, topic, True),
                partitions=(partition_answer(a, version, 0, topic.partitions[0], Leader(1, 5), live),),
            )
            for topic in topics
        )
        rest = {
            "throttle_time": _none(),
            "brokers": (),
            "cluster_id": "ä",
            "controller_id": 1,
            "cluster_authorized_operations": 77,
            "error_code": ErrorCode.rebootstrap_required,
        }
        whole = sent_bytes(encode(a.MetadataResponse(topics=made, **rest), b""))
        spliced = with_topics(a.MetadataResponse(topics=(), **rest), [encoded(topic) for topic in made])
        assert sent_bytes(spliced.parts) == whole

    run(test)


def _none() -> Any:
    from datetime import timedelta

    return timedelta(0)


def test_what_is_kept_never_differs_from_what_would_be_made() -> None:
    """Random changes of leaders, nodes and topics, and after each the answer against one made anew."""

    async def test() -> None:
        rng = random.Random(5)
        node = FakeNode()
        kept = encoded_topics(node.controller.machine, DEFAULT_LISTENER)
        assert kept is encoded_topics(node.controller.machine, DEFAULT_LISTENER)
        names = [f"t{number}" for number in range(6)]
        for step in range(400):
            cluster = node.cluster
            fenced = [one for one in cluster.leader.nodes.values() if one.fenced]
            match rng.randrange(5):
                case 0 if not fenced:
                    cluster.fence(rng.choice((1, 2, 3)))
                case 1 if fenced:
                    cluster.revive(fenced[0].node)
                case 2 if not fenced and not cluster.leader.topic(name := rng.choice(names)):
                    cluster.create(name + "", rng.choice((1, 3)))
                    cluster.leader.topic(name)
                case 3 if cluster.leader.topics and rng.random() < 0.3:
                    topic = rng.choice(cluster.leader.topics)
                    cluster.apply(DeleteTopic(topic.topic_id))
                    names[names.index(topic.name)] = f"{topic.name[:2]}{step}"
                case 4 if cluster.leader.topics:
                    group = rng.choice(rng.choice(cluster.leader.topics).partitions).group
                    node.leaders.others[group] = rng.choice((None, Leader(rng.choice((1, 2, 3)), step)))
            node.controller.hear()
            machine = node.controller.machine
            live = frozenset(one.node for one in machine.nodes.values() if not one.fenced)
            for version in (0, 9, 13):
                a = response_types(METADATA, version)
                for topic in machine.topics:
                    leaders = [node.leaders.leader_of(partition.group) for partition in topic.partitions]
                    entity = replace(
                        topic_answer(a, topic, False),
                        partitions=tuple(
                            partition_answer(a, version, number, partition, leader, live)
                            for number, (partition, leader) in enumerate(
                                zip(topic.partitions, leaders, strict=True)
                            )
                        ),
                    )
                    leader_of = node.leaders.leader_of
                    told = await kept.encode(a, version, topic, leader_of, False, Breath())
                    assert told == encoded(entity)
            assert len(kept._kept) <= 3 * len(machine.topics) + 3

    run(test)


def test_an_answer_is_not_made_again_while_nothing_changes() -> None:
    async def test() -> None:
        node = FakeNode()
        topic = node.cluster.create("t", 5)
        node.controller.hear()
        kept = encoded_topics(node.controller.machine, DEFAULT_LISTENER)
        a = response_types(METADATA, 13)
        leader_of = node.leaders.leader_of

        async def encode() -> bytes:
            return await kept.encode(a, 13, topic_of(node), leader_of, NOT_ASKED, Breath())

        first = await encode()
        assert await encode() is first
        node.leaders.others[topic.partitions[4].group] = Leader(2, 99)
        assert await encode() is not first

    run(test)


def test_what_is_kept_does_not_keep_its_replica() -> None:
    machine = Controller(lambda index, state: None)
    encoded_topics(machine, DEFAULT_LISTENER)
    there = weakref.ref(machine)
    del machine
    gc.collect()
    assert there() is None


def topic_of(node: FakeNode) -> Any:
    return node.controller.machine.topics[0]


def test_nodes_in_one_process_keep_nothing_of_each_other() -> None:
    async def test() -> None:
        cluster = Cluster()
        one, two = FakeNode(cluster, 1), FakeNode(cluster, 2)
        cluster.create("t", 1)
        one.controller.hear(), two.controller.hear()
        two.leaders.nobody = True
        answers = [(await node.ask(METADATA, **named("t"))).topics[0].partitions[0] for node in (one, two)]
        assert [partition.error_code for partition in answers] == [
            ErrorCode.none,
            ErrorCode.leader_not_available,
        ]

    run(test)
