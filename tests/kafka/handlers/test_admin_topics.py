"""CreateTopics, DeleteTopics and CreatePartitions: every rule, and what an unknown outcome is told as."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.controller.client import Unavailable
from strandline.node.kafka.wire.apis import ApiKey
from strandline.statemachine.controller.controller_commands import Command, CreateTopic, DeleteTopic
from strandline.statemachine.controller.topic_config import SETTINGS
from tests.kafka.handlers.fake_cluster import Cluster
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.wire.entities import versions
from tests.runtime.jumping_loop import run

CREATE, DELETE, GROW = ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS
TEN_SECONDS = timedelta(seconds=10)


def topic(name: str, partitions: int = 1, replicas: int = 3, **more: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": replicas, **more}


def placed(*replicas: tuple[int, tuple[int, ...]]) -> list[dict[str, Any]]:
    return [{"partition_index": index, "broker_ids": nodes} for index, nodes in replicas]


async def create(node: FakeNode, *topics: dict[str, Any], version: int | None = None, **more: Any) -> Any:
    answer = await node.ask(CREATE, version, topics=topics, **{"timeout": TEN_SECONDS, **more})
    return answer.topics


def codes(results: Any) -> list[ErrorCode]:
    return [result.error_code for result in results]


# CreateTopics.


@pytest.mark.parametrize("version", versions(CREATE))
def test_a_topic_is_created_as_asked_in_every_version(version: int) -> None:
    async def test() -> None:
        node = FakeNode()
        configs = [{"name": "retention.ms", "value": " 5000"}]
        (made,) = await create(node, topic("t", 4, 2, configs=configs), version=version)
        assert (made.error_code, made.error_message, made.name) == (ErrorCode.none, None, "t")
        there = node.cluster.leader.topic("t")
        assert there is not None
        assert (len(there.partitions), there.replication_factor) == (4, 2)
        assert there.configs == {"retention.ms": "5000"}
        if version >= 5:
            assert (made.num_partitions, made.replication_factor) == (4, 2)
            told = {config.name: (config.value, config.config_source) for config in made.configs}
            assert list(told) == list(SETTINGS)
            assert told["retention.ms"] == ("5000", 1)
            assert told["cleanup.policy"] == ("delete", 5)
            assert not any(config.read_only or config.is_sensitive for config in made.configs)
        if version >= 7:
            assert made.topic_id.bytes == there.topic_id

    run(test)


@pytest.mark.parametrize("version", versions(CREATE))
def test_validate_only_gives_the_same_answer_and_creates_nothing(version: int) -> None:
    async def test() -> None:
        node = FakeNode()
        asked = [topic("t", 4, 2), topic("!"), topic("wide", 1, 4)]
        good, bad_name, wide = await create(node, *asked, version=version, validate_only=True)
        assert good.error_code == ErrorCode.none
        assert bad_name.error_code == ErrorCode.invalid_topic_exception
        assert wide.error_code == ErrorCode.invalid_replication_factor
        if version >= 5:
            assert (good.num_partitions, good.replication_factor) == (4, 2)
            assert (wide.num_partitions, wide.replication_factor, wide.configs) == (-1, -1, ())
        assert node.controller.submitted == []
        assert node.cluster.leader.topics == ()

    run(test)


def test_counts_of_minus_one_are_the_configured_ones() -> None:
    async def test() -> None:
        node = FakeNode(partitions=5, replication_factor=2)
        (made,) = await create(node, topic("t", -1, -1))
        assert (made.num_partitions, made.replication_factor) == (5, 2)

    run(test)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (topic("", 1, 1), ErrorCode.invalid_topic_exception),
        (topic("t", 0, 1), ErrorCode.invalid_partitions),
        (topic("t", -2, 1), ErrorCode.invalid_partitions),
        (topic("t", 1, 0), ErrorCode.invalid_replication_factor),
        (topic("t", 1, 4), ErrorCode.invalid_replication_factor),
        (topic("t", configs=[{"name": "no.such", "value": "1"}]), ErrorCode.invalid_config),
        (topic("t", configs=[{"name": "retention.ms", "value": None}]), ErrorCode.invalid_config),
        (topic("t", 1, -1, assignments=placed((0, (1,)))), ErrorCode.invalid_request),
        (topic("t", -1, -1, assignments=placed((0, (1, 9)))), ErrorCode.invalid_replica_assignment),
        (topic("t", -1, -1, assignments=placed((0, (1, 1)))), ErrorCode.invalid_replica_assignment),
        (topic("t", -1, -1, assignments=placed((0, ()))), ErrorCode.invalid_replica_assignment),
        (topic("t", -1, -1, assignments=placed((0, (1,)), (0, (2,)))), ErrorCode.invalid_replica_assignment),
        (topic("t", -1, -1, assignments=placed((0, (1,)), (2, (2,)))), ErrorCode.invalid_replica_assignment),
    ],
)
def test_what_kafka_refuses_is_refused_with_its_code_and_a_reason(
    asked: dict[str, Any], code: ErrorCode
) -> None:
    async def test() -> None:
        node = FakeNode()
        for validate_only in (True, False):
            (made,) = await create(node, asked, validate_only=validate_only)
            assert made.error_code == code
            assert made.error_message
            assert (made.num_partitions, made.replication_factor, made.configs) == (-1, -1, ())
        assert node.cluster.leader.topics == ()

    run(test)


def test_assignments_are_taken_by_their_partition_s_number() -> None:
    async def test() -> None:
        node = FakeNode()
        given = placed((1, (2, 3)), (0, (3, 1)))
        (made,) = await create(node, topic("t", -1, -1, assignments=given))
        assert (made.error_code, made.num_partitions, made.replication_factor) == (ErrorCode.none, 2, 2)
        there = node.cluster.leader.topic("t")
        assert there is not None
        assert [partition.replicas for partition in there.partitions] == [(3, 1), (2, 3)]

    run(test)


def test_a_name_given_twice_is_refused_once_and_the_others_are_created() -> None:
    async def test() -> None:
        node = FakeNode()
        results = await create(node, topic("a"), topic("b"), topic("a"))
        assert [(result.name, result.error_code) for result in results] == [
            ("a", ErrorCode.invalid_request),
            ("b", ErrorCode.none),
        ]
        assert results[0].error_message == "Duplicate topic name."
        assert node.cluster.leader.topic("a") is None

    run(test)


def test_an_existing_topic_is_refused_also_when_this_node_has_not_heard_of_it() -> None:
    async def test() -> None:
        node = FakeNode()
        node.cluster.create("t")
        (made,) = await create(node, topic("t"))
        assert made.error_code == ErrorCode.topic_already_exists
        (made,) = await create(node, topic("t"))
        assert made.error_code == ErrorCode.topic_already_exists

    run(test)


@pytest.mark.parametrize("defaults", [True, False])
def test_a_request_for_more_partitions_than_kafka_creates_at_once_is_refused_whole(defaults: bool) -> None:
    async def test() -> None:
        node = FakeNode(partitions=5_000)
        count = -1 if defaults else 5_000
        results = await create(node, topic("a", count, 1), topic("b", count, 1), topic("c", 1, 1))
        assert codes(results) == [ErrorCode.policy_violation] * 3
        assert node.controller.submitted == []
        assert codes(await create(node, topic("a", count, 1), topic("b", count, 1))) == [ErrorCode.none] * 2

    run(test)


def test_topics_are_proposed_in_the_order_of_the_request() -> None:
    async def test() -> None:
        node = FakeNode()
        names = [f"t{number}" for number in range(150)]
        results = await create(node, *(topic(name) for name in names))
        assert [result.name for result in results] == names
        assert set(codes(results)) == {ErrorCode.none}
        assert [there.name for there in node.cluster.leader.topics] == names
        assert len({there.topic_id for there in node.cluster.leader.topics}) == 150

    run(test)


@pytest.mark.parametrize("unknown", [True, False])
@pytest.mark.parametrize("version", versions(CREATE))
def test_no_answer_from_the_controller_is_a_timeout_that_says_what_is_known(
    version: int, unknown: bool
) -> None:
    async def test() -> None:
        node = FakeNode()
        node.controller.down = Unavailable("no leader is known", unknown)
        (made,) = await create(node, topic("t"), version=version)
        assert made.error_code == ErrorCode.request_timed_out
        assert ("may have been carried out" in made.error_message) is unknown
        assert ("nothing was changed" in made.error_message) is not unknown

    run(test)


def test_a_creation_whose_outcome_is_unknown_is_never_a_refusal() -> None:
    async def test() -> None:
        node = FakeNode()
        node.controller.lose_answers = True
        (made,) = await create(node, topic("t"))
        assert made.error_code == ErrorCode.request_timed_out
        assert node.cluster.leader.topic("t") is not None

    run(test)


def test_a_retry_of_a_creation_gives_the_topic() -> None:
    async def test() -> None:
        node = FakeNode()
        node.controller.attempts = 3
        (made,) = await create(node, topic("t", 2))
        assert (made.error_code, made.num_partitions) == (ErrorCode.none, 2)
        assert len(node.cluster.leader.topics) == 1

    run(test)


def test_a_topic_that_is_deleted_between_two_attempts_was_created() -> None:
    async def test() -> None:
        node = FakeNode()
        node.controller.attempts = 2

        def delete(command: Command) -> None:
            if isinstance(command, CreateTopic) and node.cluster.leader.topic("t"):
                node.cluster.apply(DeleteTopic(command.topic_id))

        node.controller.after_attempt = delete
        (made,) = await create(node, topic("t"))
        assert (made.error_code, made.num_partitions) == (ErrorCode.none, -1)

    run(test)


def test_the_answer_waits_for_leaders_but_not_for_long() -> None:
    async def test() -> None:
        node = FakeNode()
        node.leaders.nobody = True
        begun = node.loop.time()
        assert codes(await create(node, topic("a"))) == [ErrorCode.none]
        assert 0.9 < node.loop.time() - begun < 1.3
        node.loop.call_later(0.1, setattr, node.leaders, "nobody", False)
        begun = node.loop.time()
        await create(node, topic("b"))
        assert 0.09 < node.loop.time() - begun < 0.25

    run(test)


def test_the_wait_for_leaders_ends_with_the_request_s_timeout() -> None:
    async def test() -> None:
        node = FakeNode()
        node.leaders.nobody = True
        begun = node.loop.time()
        for timeout in (timedelta(milliseconds=50), timedelta(0), timedelta(milliseconds=-1)):
            assert codes(await create(node, topic(f"t{timeout.microseconds}"), timeout=timeout))
        assert node.loop.time() - begun < 0.1

    run(test)


# DeleteTopics.


async def delete(node: FakeNode, *wanted: str | uuid.UUID, version: int = 6) -> Any:
    topics = [
        {"name": one, "topic_id": None} if isinstance(one, str) else {"name": None, "topic_id": one}
        for one in wanted
    ]
    answer = await node.ask(DELETE, version, topics=topics, topic_names=wanted, timeout=TEN_SECONDS)
    return answer.responses


@pytest.mark.parametrize("version", versions(DELETE))
def test_topics_are_deleted_by_name_in_every_version(version: int) -> None:
    async def test() -> None:
        node = FakeNode()
        there = node.cluster.create("a")
        node.cluster.create("kept")
        node.controller.hear()
        gone, unknown = await delete(node, "a", "no", version=version)
        assert (gone.name, gone.error_code) == ("a", ErrorCode.none)
        assert (unknown.name, unknown.error_code) == ("no", ErrorCode.unknown_topic_or_partition)
        if version >= 6:
            assert gone.topic_id.bytes == there.topic_id
            assert unknown.topic_id is None
        assert [left.name for left in node.cluster.leader.topics] == ["kept"]

    run(test)


def test_topics_are_deleted_by_id() -> None:
    async def test() -> None:
        node = FakeNode()
        topic_id = uuid.UUID(bytes=node.cluster.create("t").topic_id)
        node.controller.hear()
        gone, unknown = await delete(node, topic_id, uuid.UUID(int=5))
        assert (gone.name, gone.topic_id, gone.error_code) == ("t", topic_id, ErrorCode.none)
        assert (unknown.name, unknown.topic_id) == (None, uuid.UUID(int=5))
        assert unknown.error_code == ErrorCode.unknown_topic_id
        assert node.cluster.leader.topics == ()

    run(test)


def test_a_topic_that_this_node_has_not_heard_of_is_found_and_deleted() -> None:
    async def test() -> None:
        node = FakeNode()
        node.cluster.create("t")
        assert node.controller.machine.topic("t") is None
        assert codes(await delete(node, "t")) == [ErrorCode.none]
        topic_id = uuid.UUID(bytes=node.cluster.create("u").topic_id)
        assert codes(await delete(node, topic_id)) == [ErrorCode.none]

    run(test)


def test_a_deletion_that_names_a_topic_in_two_ways_is_invalid() -> None:
    async def test() -> None:
        node = FakeNode()
        topic_id = uuid.UUID(bytes=node.cluster.create("t").topic_id)
        node.controller.hear()
        by_name, by_id = await delete(node, "t", topic_id)
        assert (by_name.error_code, by_id.error_code) == (ErrorCode.invalid_request, ErrorCode.none)
        for wanted, message in (
            ({"name": "t", "topic_id": topic_id}, "You may not specify both topic name and topic id."),
            ({"name": None, "topic_id": None}, "Neither topic name nor id were specified."),
        ):
            (answer,) = (await node.ask(DELETE, 6, topics=[wanted], timeout=TEN_SECONDS)).responses
            assert (answer.error_code, answer.error_message) == (ErrorCode.invalid_request, message)

    run(test)


def test_what_is_named_twice_is_deleted_not_at_all() -> None:
    async def test() -> None:
        node = FakeNode()
        a, b = node.cluster.create("a"), node.cluster.create("b")
        node.controller.hear()
        assert codes(await delete(node, "a", "a")) == [ErrorCode.invalid_request]
        twice = uuid.UUID(bytes=b.topic_id)
        assert codes(await delete(node, twice, twice)) == [ErrorCode.invalid_request]
        assert [left.topic_id for left in node.cluster.leader.topics] == [a.topic_id, b.topic_id]

    run(test)


def test_a_retried_deletion_succeeds() -> None:
    async def test() -> None:
        node = FakeNode()
        node.cluster.create("t")
        node.controller.hear()
        node.controller.attempts = 2
        assert codes(await delete(node, "t")) == [ErrorCode.none]

    run(test)


def test_a_deletion_by_name_means_the_topic_that_has_the_name_now() -> None:
    """The name was taken anew and this node had not heard: what is answered must be true of the new one."""

    async def test() -> None:
        node = FakeNode()
        old = node.cluster.create("t")
        node.controller.hear()
        node.cluster.apply(DeleteTopic(old.topic_id))
        node.cluster.apply(CreateTopic(b"n" * 16, "t", 1, 1, None, (), node.cluster.leader.applied_index))
        (answer,) = await delete(node, "t")
        assert (answer.error_code, answer.topic_id.bytes) == (ErrorCode.none, b"n" * 16)
        assert node.cluster.leader.topic("t") is None

    run(test)


def test_a_deletion_that_another_was_faster_with_is_of_an_unknown_topic() -> None:
    async def test() -> None:
        node = FakeNode()
        for wanted, code in (
            ("t", ErrorCode.unknown_topic_or_partition),
            (None, ErrorCode.unknown_topic_id),
        ):
            topic_id = node.cluster.create(f"t{wanted}").topic_id
            node.controller.hear()
            node.cluster.apply(DeleteTopic(topic_id))
            assert codes(await delete(node, f"t{wanted}" if wanted else uuid.UUID(bytes=topic_id))) == [code]

    run(test)


@pytest.mark.parametrize("known_here", [True, False])
def test_a_deletion_without_an_answer_is_a_timeout_never_an_unknown_topic(known_here: bool) -> None:
    async def test() -> None:
        node = FakeNode()
        topic_id = uuid.UUID(bytes=node.cluster.create("t").topic_id)
        if known_here:
            node.controller.hear()
        node.controller.down = Unavailable("no leader is known", True)
        node.controller.reads_though_down = known_here
        for wanted in ("t", topic_id):
            (answer,) = await delete(node, wanted)
            assert answer.error_code == ErrorCode.request_timed_out
            assert ("may have been carried out" in answer.error_message) is known_here

    run(test)


# CreatePartitions.


def test_a_name_means_the_topic_it_has_now_not_the_one_this_node_still_knows() -> None:
    async def test() -> None:
        node = FakeNode()
        old = node.cluster.create("t")
        node.controller.hear()
        node.cluster.apply(DeleteTopic(old.topic_id))
        new = node.cluster.create("t")
        (result,) = await grow(node, to("t", 3))
        assert result.error_code == ErrorCode.none
        grown = node.controller.machine.topic_by_id(new.topic_id)
        assert grown is not None
        assert len(grown.partitions) == 3

    run(test)


async def grow(node: FakeNode, *topics: dict[str, Any], version: int = 3, validate_only: bool = False) -> Any:
    fields = {"topics": topics, "timeout": TEN_SECONDS, "validate_only": validate_only}
    return (await node.ask(GROW, version, **fields)).results


def to(name: str, count: int, *replicas: tuple[int, ...]) -> dict[str, Any]:
    given = [{"broker_ids": nodes} for nodes in replicas] or None
    return {"name": name, "count": count, "assignments": given}


@pytest.mark.parametrize("version", versions(GROW))
def test_a_topic_grows_in_every_version(version: int) -> None:
    async def test() -> None:
        node = FakeNode()
        node.cluster.create("t", 2, 1)
        node.controller.hear()
        (checked,) = await grow(node, to("t", 4), version=version, validate_only=True)
        assert (checked.error_code, len(node.cluster.leader.topics[0].partitions)) == (ErrorCode.none, 2)
        (grown,) = await grow(node, to("t", 4, (3,), (2,)), version=version)
        assert (grown.name, grown.error_code, grown.error_message) == ("t", ErrorCode.none, None)
        assert [one.replicas for one in node.cluster.leader.topics[0].partitions[2:]] == [(3,), (2,)]

    run(test)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (to("no", 4), ErrorCode.unknown_topic_or_partition),
        (to("t", 2), ErrorCode.invalid_partitions),
        (to("t", 1), ErrorCode.invalid_partitions),
        (to("t", -1), ErrorCode.invalid_partitions),
        (to("t", 10_001), ErrorCode.policy_violation),
        (to("t", 4, (1,)), ErrorCode.invalid_replica_assignment),
        (to("t", 3, (9,)), ErrorCode.invalid_replica_assignment),
        (to("t", 3, (1, 2)), ErrorCode.invalid_replica_assignment),
    ],
)
def test_growth_that_kafka_refuses_is_refused(asked: dict[str, Any], code: ErrorCode) -> None:
    async def test() -> None:
        node = FakeNode()
        node.cluster.create("t", 2, 1)
        node.controller.hear()
        for validate_only in (True, False):
            (answer,) = await grow(node, asked, validate_only=validate_only)
            assert answer.error_code == code
            assert answer.error_message
        assert len(node.cluster.leader.topics[0].partitions) == 2

    run(test)


def test_a_topic_that_is_named_twice_does_not_grow() -> None:
    async def test() -> None:
        node = FakeNode()
        node.cluster.create("t", 2, 1)
        assert codes(await grow(node, to("t", 3), to("t", 4))) == [ErrorCode.invalid_request]
        assert len(node.cluster.leader.topics[0].partitions) == 2

    run(test)


def test_a_retried_growth_succeeds_but_growth_to_what_is_there_is_refused() -> None:
    async def test() -> None:
        node = FakeNode()
        node.cluster.create("t", 2, 1)
        node.controller.hear()
        node.controller.attempts = 2
        assert codes(await grow(node, to("t", 4))) == [ErrorCode.none]
        assert codes(await grow(node, to("t", 4))) == [ErrorCode.invalid_partitions]

    run(test)


def test_a_topic_that_goes_while_it_grows_is_unknown() -> None:
    async def test() -> None:
        node = FakeNode()
        there = node.cluster.create("t", 2, 1)
        node.controller.hear()
        node.cluster.apply(DeleteTopic(there.topic_id))
        assert codes(await grow(node, to("t", 4))) == [ErrorCode.unknown_topic_or_partition]

    run(test)


def test_growth_without_an_answer_is_a_timeout() -> None:
    async def test() -> None:
        node = FakeNode(Cluster())
        node.cluster.create("t", 2, 1)
        node.controller.hear()
        node.controller.lose_answers = True
        (answer,) = await grow(node, to("t", 4))
        assert answer.error_code == ErrorCode.request_timed_out
        assert len(node.cluster.leader.topics[0].partitions) == 4

    run(test)
