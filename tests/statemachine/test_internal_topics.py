"""The internal topics in the controller, and which of their partitions has a key."""

from __future__ import annotations

import pytest

from strandline.statemachine.controller.controller_commands import (
    AdvanceClusterEpoch,
    AlterTopicConfigs,
    ConfigChange,
    ConfigOperation,
    CreateInternalTopic,
    CreatePartitions,
    DeleteTopic,
    FenceNode,
    ReplaceTopicConfigs,
)
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.internal_topics import (
    GROUPS_TOPIC,
    TRANSACTIONS_TOPIC,
    coordinator_kind,
    coordinator_of,
)
from strandline.statemachine.kafka_errors import KafkaError
from tests.statemachine.controller_harness import Log, topic_id

INVALID = KafkaError.INVALID_TOPIC_EXCEPTION


def internal(
    number: int, name: str = GROUPS_TOPIC, partitions: int = 4, replicas: int = 3
) -> CreateInternalTopic:
    return CreateInternalTopic(topic_id(number), name, partitions, replicas)


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        ("", 0),
        ("hello", 99162322),
        ("group-1", 293427299),
        ("console-consumer-12345", 158455506),
        ("my-transactional-id", 959806496),  # -959806496
        ("é", 233),
        ("😀", 1772899),  # two UTF-16 code units
        ("polygenelubricants", 0),  # the lowest of all, of which Java's Math.abs is itself
    ],
)
def test_a_key_is_where_kafka_has_it(key: str, hashed: int) -> None:
    """The numbers are Java's: `Utils.abs(key.hashCode())`."""
    for partitions in (1, 16, 50, 1000):
        assert coordinator_of(key, partitions) == hashed % partitions
    assert coordinator_of(key, 2**31) == hashed


def test_a_lone_surrogate_has_a_place_too() -> None:
    assert coordinator_of("\ud83d", 2**31) == 0xD83D


def test_what_a_topic_replicates() -> None:
    assert coordinator_kind(GROUPS_TOPIC) == "groups"
    assert coordinator_kind(TRANSACTIONS_TOPIC) == "transactions"
    assert coordinator_kind("flights") is None


def test_the_first_who_needs_it_creates_it_and_the_others_get_it() -> None:
    log = Log(nodes=3)
    log.do(AdvanceClusterEpoch(7))
    made = log.topic(internal(1))
    assert (made.name, made.topic_id, len(made.partitions), made.replication_factor) == (
        GROUPS_TOPIC,
        topic_id(1),
        4,
        3,
    )
    assert (made.creation_epoch, made.version, dict(made.configs)) == (7, log.index, {})
    # Preferred leaders are spread over the nodes.
    assert {partition.replicas[0] for partition in made.partitions} == {1, 2, 3}
    version = log.machine.version
    # Another node, with another id, in another configuration; and the first one, once more.
    for again in (internal(2, partitions=9, replicas=1), internal(1)):
        assert log.do(again) is made
    assert log.machine.version == version
    other = log.topic(internal(3, TRANSACTIONS_TOPIC))
    assert [partition.group for partition in other.partitions] == [5, 6, 7, 8]


def test_it_is_hosted_like_any_topic_and_survives_a_snapshot() -> None:
    log = Log(nodes=3)
    log.topic(internal(1, partitions=2, replicas=2))
    twin = Log()
    twin.machine.restore(log.machine.snapshot())
    for machine in (log.machine, twin.machine):
        wanted = [place for node in (1, 2, 3) for place in machine.group_changes(node, ()).create]
        assert sorted(place.group for place in wanted) == [1, 1, 2, 2]
        assert {coordinator_kind(place.topic) for place in wanted} == {"groups"}
    assert twin.machine.snapshot() == log.machine.snapshot()


def test_it_is_refused_while_too_few_nodes_are_alive() -> None:
    log = Log(nodes=3)
    log.do(FenceNode(3, log.machine.nodes[3].heard_index, 0))
    error, message = log.refused(internal(1))
    assert error is KafkaError.INVALID_REPLICATION_FACTOR
    assert "only 2 broker(s)" in message
    assert log.machine.topic(GROUPS_TOPIC) is None


def test_an_id_that_was_given_is_not_given_again() -> None:
    log = Log(nodes=3)
    log.topic(log.creation(1))
    assert log.refused(internal(1))[0] is KafkaError.INCONSISTENT_TOPIC_ID
    log.do(DeleteTopic(topic_id(1)))
    assert log.refused(internal(1))[0] is KafkaError.INCONSISTENT_TOPIC_ID


def test_users_neither_delete_nor_change_nor_grow_it() -> None:
    log = Log(nodes=3)
    made = log.topic(internal(1))
    change = ConfigChange(ConfigOperation.SET, "retention.ms", "5")
    for command in (
        DeleteTopic(made.topic_id),
        CreatePartitions(made.topic_id, 5, None),
        AlterTopicConfigs(made.topic_id, (change,)),
        ReplaceTopicConfigs(made.topic_id, (("retention.ms", "5"),)),
    ):
        error, message = log.refused(command)
        assert error is INVALID
        assert "is internal" in message
    assert log.machine.topic(GROUPS_TOPIC) is made


@pytest.mark.parametrize(
    "name",
    [GROUPS_TOPIC, TRANSACTIONS_TOPIC, "__consumer.offsets", "__transaction.state", "_.consumer_offsets"],
)
def test_users_create_none_of_its_name_before_or_after(name: str) -> None:
    log = Log(nodes=3)
    assert log.refused(log.creation(1, name))[0] is INVALID
    for number, internal_name in ((2, GROUPS_TOPIC), (3, TRANSACTIONS_TOPIC)):
        assert isinstance(log.do(internal(number, internal_name)), Topic)
    assert log.refused(log.creation(4, name))[0] is INVALID
