"""Topics and partitions in the controller: what is created, what is refused, what a retry gets."""

from __future__ import annotations

from collections import Counter

import pytest

from strandline.statemachine.controller import controller_state, controller_topics
from strandline.statemachine.controller.controller_commands import (
    DERIVED,
    AdvanceClusterEpoch,
    AlterTopicConfigs,
    ConfigChange,
    ConfigOperation,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    FenceNode,
    ReplaceTopicConfigs,
)
from strandline.statemachine.controller.controller_state import PartitionAssignment, PartitionPlace, Topic
from strandline.statemachine.kafka_errors import KafkaError, Refused
from strandline.statemachine.machine import Corruption
from tests.statemachine.controller_harness import Log, topic_id

SET = ConfigOperation.SET


def fence(log: Log, node: int) -> None:
    log.do(FenceNode(node, log.machine.nodes[node].heard_index, 0))


# Creating.


@pytest.mark.parametrize("given", [False, True])
def test_more_replicas_in_sync_than_there_are_would_refuse_every_record(given: bool) -> None:
    log = Log(nodes=3)
    where = [(1, 2)] if given else None

    def creation(wanted: str) -> CreateTopic:
        configs = [("min.insync.replicas", wanted)]
        return log.creation(1, "flights", replication_factor=2, assignments=where, configs=configs)

    refusal = log.do(creation("3"))
    assert isinstance(refusal, Refused)
    assert refusal.error is KafkaError.INVALID_CONFIG
    assert "the topic's replication factor is 2" in refusal.message
    topic = log.topic(creation("2"))
    for command in (
        AlterTopicConfigs(topic.topic_id, [ConfigChange(SET, "min.insync.replicas", "3")]),
        ReplaceTopicConfigs(topic.topic_id, [("min.insync.replicas", "3")]),
    ):
        assert log.do(command) == refusal
    assert log.machine.topic("flights") == topic


def test_a_topic_is_what_was_asked_for() -> None:
    log = Log(nodes=3)
    log.do(AdvanceClusterEpoch(7))
    configs = [("retention.ms", "5"), ("cleanup.policy", "compact")]
    topic = log.topic(log.creation(1, "flights", partitions=6, replication_factor=2, configs=configs))
    assert (topic.topic_id, topic.name, topic.creation_epoch, topic.version) == (
        topic_id(1),
        "flights",
        7,
        log.index,
    )
    assert topic.configs == {"cleanup.policy": "compact", "retention.ms": "5"}
    assert topic.replication_factor == 2
    assert [partition.group for partition in topic.partitions] == [1, 2, 3, 4, 5, 6]
    assert {partition.creation_epoch for partition in topic.partitions} == {7}
    assert Counter(partition.replicas[0] for partition in topic.partitions) == {1: 2, 2: 2, 3: 2}
    assert Counter(node for partition in topic.partitions for node in partition.replicas) == {
        1: 4,
        2: 4,
        3: 4,
    }


def test_a_topic_is_found_by_name_by_id_and_by_group() -> None:
    log = Log(nodes=1)
    topic = log.topic(log.creation(1, "a", partitions=2))
    machine = log.machine
    assert machine.topic("a") is machine.topic_by_id(topic_id(1)) is topic
    assert machine.topics == (topic,)
    assert machine.place_of(2) == PartitionPlace(topic_id(1), 1)
    assert machine.partition(topic_id(1), 1) == PartitionAssignment(2, (1,), 1)
    assert machine.topic("b") is machine.topic_by_id(topic_id(2)) is None
    assert machine.place_of(3) is None
    assert machine.partition(topic_id(1), 2) is machine.partition(topic_id(1), -1) is None


def test_assignments_that_are_given_are_taken() -> None:
    log = Log(nodes=3)
    topic = log.topic(log.creation(1, assignments=[[3, 1], [2, 3]]))
    assert [partition.replicas for partition in topic.partitions] == [(3, 1), (2, 3)]


def test_only_live_nodes_get_replicas() -> None:
    log = Log(nodes=4)
    fence(log, 2)
    topic = log.topic(log.creation(1, partitions=8, replication_factor=3))
    assert {node for partition in topic.partitions for node in partition.replicas} == {1, 3, 4}


def test_a_later_topic_evens_out_what_an_earlier_one_left() -> None:
    log = Log(nodes=3)
    log.do(log.creation(1))
    log.do(log.creation(2))
    topic = log.topic(log.creation(3))
    assert topic.partitions[0].replicas == (3,)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("x" * 250, f"the length of '{'x' * 250}' is longer than the max allowed length 249"),
        ("a/b", "'a/b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("ü", "'ü' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("a\n", "'a\n' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
    ],
)
def test_names_that_kafka_refuses_are_refused(name: str, reason: str) -> None:
    log = Log(nodes=1)
    refusal = KafkaError.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}"
    assert log.refused(log.creation(1, name)) == refusal


@pytest.mark.parametrize("name", ["x" * 249, "a.b-c_D9", "...", "-"])
def test_names_that_kafka_takes_are_taken(name: str) -> None:
    log = Log(nodes=1)
    assert log.topic(log.creation(1, name)).name == name


def test_a_name_is_taken_once() -> None:
    log = Log(nodes=1)
    log.do(log.creation(1, "a"))
    refusal = KafkaError.TOPIC_ALREADY_EXISTS, "Topic 'a' already exists."
    assert log.refused(log.creation(2, "a")) == refusal


def test_names_that_metrics_cannot_tell_apart_collide_until_one_is_deleted() -> None:
    log = Log(nodes=1)
    log.do(log.creation(1, "a.b_c"))
    refusal = KafkaError.INVALID_TOPIC_EXCEPTION, "Topic 'a_b.c' collides with existing topic: a.b_c"
    assert log.refused(log.creation(2, "a_b.c")) == refusal
    log.do(DeleteTopic(topic_id(1)))
    assert log.topic(log.creation(2, "a_b.c")).name == "a_b.c"


@pytest.mark.parametrize(
    ("partitions", "replication_factor", "error", "message"),
    [
        (
            0,
            1,
            KafkaError.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        ),
        (
            DERIVED,
            1,
            KafkaError.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        ),
        (1, 0, KafkaError.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0."),
        (
            1,
            3,
            KafkaError.INVALID_REPLICATION_FACTOR,
            "Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be "
            "reached because only 2 broker(s) are registered and alive.",
        ),
        (
            10_001,
            1,
            KafkaError.POLICY_VIOLATION,
            "Excessively large number of partitions per request: 10001, a topic may have 10000.",
        ),
    ],
)
def test_counts_that_cannot_be_are_refused(
    partitions: int, replication_factor: int, error: KafkaError, message: str
) -> None:
    log = Log(nodes=3)
    fence(log, 3)
    command = log.creation(1, partitions=partitions, replication_factor=replication_factor)
    assert log.refused(command) == (error, message)


@pytest.mark.parametrize(
    ("assignments", "reason"),
    [
        ([[1], []], "includes an empty replica list."),
        ([[1, 4]], "includes broker 4, but no such broker is registered."),
        ([[-1]], "includes broker -1, but no such broker is registered."),
        ([[1, 3]], "includes broker 3, which is fenced."),
        ([[1, 2, 1]], "includes the broker 1 more than once."),
        (
            [[1, 2], [1]],
            "includes a partition with 1 replica(s), but this is not consistent with previous "
            "partitions, which have 2 replica(s).",
        ),
    ],
)
def test_assignments_that_cannot_be_are_refused(assignments: list[list[int]], reason: str) -> None:
    log = Log(nodes=3)
    fence(log, 3)
    refusal = KafkaError.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment {reason}"
    assert log.refused(log.creation(1, assignments=assignments)) == refusal


def test_no_assignment_at_all_is_refused() -> None:
    log = Log(nodes=1)
    refusal = KafkaError.INVALID_REPLICA_ASSIGNMENT, "No partition was assigned any replica."
    assert log.refused(log.creation(1, assignments=[])) == refusal


def test_more_assignments_than_a_topic_may_have_partitions_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller_topics, "MAX_PARTITIONS", 3)
    log = Log(nodes=1)
    assert log.refused(log.creation(1, assignments=[[1]] * 4))[0] is KafkaError.POLICY_VIOLATION
    log.do(log.creation(1, assignments=[[1]] * 2))
    grow = CreatePartitions(topic_id(1), 4, [[1], [1]])
    assert log.refused(grow)[0] is KafkaError.POLICY_VIOLATION
    assert log.refused(CreatePartitions(topic_id(1), 4, None))[0] is KafkaError.POLICY_VIOLATION
    assert len(log.topic(CreatePartitions(topic_id(1), 3, None)).partitions) == 3


@pytest.mark.parametrize(
    ("partitions", "replication_factor", "what"), [(1, -1, "numPartitions"), (-1, 1, "replication factor")]
)
def test_counts_beside_assignments_are_refused(partitions: int, replication_factor: int, what: str) -> None:
    log = Log(nodes=1)
    command = CreateTopic(topic_id(1), "a", partitions, replication_factor, [[1]], (), log.index)
    refusal = (
        KafkaError.INVALID_REQUEST,
        f"A manual partition assignment was specified, but {what} was not set to -1.",
    )
    assert log.refused(command) == refusal


def test_a_topic_is_not_created_with_a_config_that_is_refused() -> None:
    log = Log(nodes=1)
    refusal = KafkaError.INVALID_CONFIG, "Unknown topic config name: nonsense"
    assert log.refused(log.creation(1, configs=[("nonsense", "1")])) == refusal


# Retries.


def test_a_retried_creation_gets_the_topic_as_it_is_by_then() -> None:
    log = Log(nodes=3)
    command = log.creation(1, partitions=2)
    created = log.topic(command)
    version = log.machine.version
    assert log.topic(command) is created
    grown = log.topic(CreatePartitions(topic_id(1), 3, None))
    assert log.topic(command) is grown
    assert version < log.machine.version == grown.version


def test_an_id_is_not_given_to_two_names() -> None:
    log = Log(nodes=1)
    log.do(log.creation(1, "a"))
    message = f"Topic id {topic_id(1).hex()} is that of topic 'a'; draw another."
    assert log.refused(log.creation(1, "b")) == (KafkaError.INCONSISTENT_TOPIC_ID, message)


def test_a_creation_retried_after_the_deletion_does_not_bring_the_topic_back() -> None:
    log = Log(nodes=1)
    command = log.creation(1, "a")
    log.do(command)
    log.do(DeleteTopic(topic_id(1)))
    message = "Topic 'a' was created under this id and has been deleted since."
    assert log.refused(command) == (KafkaError.UNKNOWN_TOPIC_ID, message)


def test_a_creation_retried_after_its_deletion_is_forgotten_is_refused_and_a_new_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller_state, "REMEMBERED_DELETIONS", 2)
    log = Log(nodes=1)
    late = log.creation(1, "a")
    log.do(late)
    log.do(DeleteTopic(topic_id(1)))
    forgotten = log.index
    for number in (2, 3):
        log.do(log.creation(number))
        log.do(DeleteTopic(topic_id(number)))
    message = "The request to create 'a' is too old to tell from a repeated one; make it again."
    assert log.refused(late) == (KafkaError.REQUEST_TIMED_OUT, message)
    assert log.refused(log.creation(4, "a", made_at=forgotten - 1))[0] is KafkaError.REQUEST_TIMED_OUT
    assert log.refused(log.creation(3, made_at=forgotten))[0] is KafkaError.UNKNOWN_TOPIC_ID
    assert log.topic(log.creation(4, "a", made_at=forgotten)).name == "a"


def test_an_id_drawn_after_its_own_creation_is_corruption() -> None:
    log = Log(nodes=1)
    with pytest.raises(Corruption, match="entry 3: a topic id was drawn at 3, after its own creation"):
        log.do(log.creation(1, made_at=3))


# Growing.


def test_a_topic_grows_by_partitions_of_the_present_epoch() -> None:
    log = Log(nodes=3)
    before = log.topic(log.creation(1, partitions=2, replication_factor=2))
    log.do(log.creation(2))
    log.do(AdvanceClusterEpoch(5))
    topic = log.topic(CreatePartitions(topic_id(1), 4, None))
    assert topic.partitions[:2] == before.partitions
    assert [(new.group, new.creation_epoch) for new in topic.partitions[2:]] == [(4, 5), (5, 5)]
    assert (topic.creation_epoch, topic.version) == (1, log.index)
    assert log.machine.topic_by_id(topic_id(1)) is log.machine.topic("t1") is topic


def test_a_topic_grows_where_it_has_least_itself() -> None:
    log = Log(nodes=3)
    log.do(log.creation(1, assignments=[[1], [2]]))
    log.do(log.creation(2, assignments=[[3]] * 5))
    assert log.topic(CreatePartitions(topic_id(1), 3, None)).partitions[2].replicas == (3,)


def test_new_partitions_take_the_assignments_that_are_given() -> None:
    log = Log(nodes=3)
    log.do(log.creation(1, replication_factor=2))
    topic = log.topic(CreatePartitions(topic_id(1), 3, [[3, 2], [2, 1]]))
    assert [partition.replicas for partition in topic.partitions[1:]] == [(3, 2), (2, 1)]


@pytest.mark.parametrize(
    ("count", "assignments", "error", "message"),
    [
        (2, None, KafkaError.INVALID_PARTITIONS, "Topic already has 2 partition(s)."),
        (
            1,
            None,
            KafkaError.INVALID_PARTITIONS,
            "The topic t1 currently has 2 partition(s); 1 would not be an increase.",
        ),
        (
            4,
            [[1, 2]],
            KafkaError.INVALID_REPLICA_ASSIGNMENT,
            "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
        ),
        (
            3,
            [[1]],
            KafkaError.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment includes a partition with 1 replica(s), but this is not "
            "consistent with previous partitions, which have 2 replica(s).",
        ),
        (
            10_001,
            None,
            KafkaError.POLICY_VIOLATION,
            "Excessively large number of partitions per request: 10001, a topic may have 10000.",
        ),
    ],
)
def test_growth_that_cannot_be_is_refused(
    count: int, assignments: list[list[int]] | None, error: KafkaError, message: str
) -> None:
    log = Log(nodes=2)
    log.do(log.creation(1, partitions=2, replication_factor=2))
    assert log.refused(CreatePartitions(topic_id(1), count, assignments)) == (error, message)


def test_a_topic_does_not_grow_while_too_few_nodes_are_alive() -> None:
    log = Log(nodes=2)
    log.do(log.creation(1, replication_factor=2))
    fence(log, 1)
    error, message = log.refused(CreatePartitions(topic_id(1), 2, None))
    assert error is KafkaError.INVALID_REPLICATION_FACTOR
    assert "only 1 broker(s)" in message


# Deleting, configs, and commands about what is not there.


def test_a_deleted_topic_is_answered_and_its_name_is_free_but_its_groups_are_not() -> None:
    log = Log(nodes=1)
    topic = log.topic(log.creation(1, "a", partitions=2))
    assert log.topic(DeleteTopic(topic_id(1))) is topic
    assert log.machine.version == log.index
    machine = log.machine
    assert (machine.topics, machine.topic("a"), machine.topic_by_id(topic_id(1))) == ((), None, None)
    assert machine.place_of(1) is None
    again = log.topic(log.creation(2, "a"))
    assert again.partitions[0].group == 3


def test_configs_are_altered_and_replaced() -> None:
    log = Log(nodes=1)
    log.do(log.creation(1, configs=[("segment.ms", "7"), ("retention.ms", "5")]))
    altered = log.topic(AlterTopicConfigs(topic_id(1), [ConfigChange(SET, "retention.ms", "6")]))
    assert (altered.configs, altered.version) == ({"retention.ms": "6", "segment.ms": "7"}, log.index)
    replaced = log.topic(ReplaceTopicConfigs(topic_id(1), [("preallocate", "true")]))
    assert (replaced.configs, replaced.version) == ({"preallocate": "true"}, log.index)
    assert log.machine.version == log.index


def test_setting_what_is_set_changes_nothing() -> None:
    log = Log(nodes=1)
    topic = log.topic(log.creation(1, configs=[("retention.ms", "5")]))
    version = log.machine.version
    assert log.topic(AlterTopicConfigs(topic_id(1), [ConfigChange(SET, "retention.ms", " 5")])) is topic
    assert log.topic(ReplaceTopicConfigs(topic_id(1), [("retention.ms", "5")])) is topic
    assert log.machine.version == version


def test_configs_that_are_refused_change_nothing() -> None:
    log = Log(nodes=1)
    log.do(log.creation(1))
    refusal = KafkaError.INVALID_CONFIG, "Unknown topic config name: nonsense"
    changes = [ConfigChange(SET, "retention.ms", "6"), ConfigChange(SET, "nonsense", "1")]
    assert log.refused(AlterTopicConfigs(topic_id(1), changes)) == refusal
    assert log.refused(ReplaceTopicConfigs(topic_id(1), [("nonsense", "1")])) == refusal


@pytest.mark.parametrize(
    "command",
    [
        DeleteTopic(topic_id(9)),
        CreatePartitions(topic_id(9), 2, None),
        AlterTopicConfigs(topic_id(9), ()),
        ReplaceTopicConfigs(topic_id(9), ()),
    ],
)
def test_a_topic_that_is_not_there_is_unknown(
    command: DeleteTopic | CreatePartitions | AlterTopicConfigs | ReplaceTopicConfigs,
) -> None:
    log = Log(nodes=1)
    refusal = KafkaError.UNKNOWN_TOPIC_ID, f"There is no topic with id {topic_id(9).hex()}."
    assert log.refused(command) == refusal


def test_validation_answers_as_apply_would_and_changes_nothing() -> None:
    log = Log(nodes=2)
    command = log.creation(1, partitions=3, replication_factor=2)
    before = log.machine.snapshot()
    validated = log.machine.validate(command)
    refused = log.machine.validate(log.creation(1, "a/b"))
    assert log.machine.snapshot() == before
    assert isinstance(validated, Topic)
    assert log.topic(command) == validated
    assert isinstance(refused, Refused)
    growth = CreatePartitions(topic_id(1), 5, None)
    assert log.machine.validate(growth) == log.do(growth)
