"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, of topics and of brokers."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.controller.client import Unavailable
from strandline.node.kafka.handlers.setting_answers import DEFAULTS, broker_settings
from strandline.node.kafka.wire.apis import ApiKey
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_commands import DeleteTopic
from strandline.statemachine.controller.topic_config import SETTINGS
from tests.kafka.handlers.configs import (
    ALTER,
    APPEND,
    BROKER,
    DESCRIBE,
    GROUP,
    INCREMENTAL,
    LOGGER,
    METRICS,
    SET,
    SUBTRACT,
    TOPIC,
    UNSET,
    alter,
    change,
    describe,
    resource,
)
from tests.kafka.handlers.fake_cluster import config
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.wire.entities import versions
from tests.runtime.jumping_loop import run


def with_topic(**configs: str) -> FakeNode:
    node = FakeNode()
    node.cluster.create("t", 2, 3, **configs)
    node.controller.hear()
    return node


# DescribeConfigs.


@pytest.mark.parametrize("version", versions(DESCRIBE))
def test_a_topic_s_configs_with_their_sources_types_and_synonyms(version: int) -> None:
    async def test() -> None:
        node = with_topic(retention_ms="5000")
        (result,) = await describe(node, resource(TOPIC, "t"), version=version, include_synonyms=True)
        assert (result.error_code, result.error_message) == (ErrorCode.none, None)
        assert (result.resource_type, result.resource_name) == (TOPIC, "t")
        told = {one.name: one for one in result.configs}
        assert list(told) == list(SETTINGS)
        changed, plain = told["retention.ms"], told["cleanup.policy"]
        assert (changed.value, changed.config_source, plain.value, plain.config_source) == (
            "5000",
            1,
            "delete",
            5,
        )
        assert [(one.name, one.value, one.source) for one in changed.synonyms] == [
            ("retention.ms", "5000", 1),
            ("log.retention.hours", "168", 5),
        ]
        assert [(one.name, one.source) for one in plain.synonyms] == [("log.cleanup.policy", 5)]
        assert not any(one.read_only or one.is_sensitive for one in result.configs)
        if version >= 3:
            types = {one.config_type for one in result.configs}
            assert types == {1, 2, 3, 5, 6, 7}
            assert (changed.config_type, plain.config_type) == (5, 7)

    run(test)


def test_synonyms_are_told_to_those_who_ask() -> None:
    async def test() -> None:
        node = with_topic(retention_ms="5000")
        for asked in (resource(TOPIC, "t"), resource(BROKER, "1")):
            (result,) = await describe(node, asked)
            assert all(one.synonyms == () for one in result.configs)

    run(test)


def test_a_node_that_is_behind_catches_up_before_it_tells_a_topic_s_configs() -> None:
    async def test() -> None:
        node = with_topic()
        node.cluster.create("late", 1, 3, retention_ms="7")
        (result,) = await describe(node, resource(TOPIC, "late", configuration_keys=["retention.ms"]))
        assert [one.value for one in result.configs] == ["7"]
        node.controller.down = Unavailable("no leader is known", False)
        node.cluster.create("later", 1, 3)
        known, unknown = await describe(node, resource(TOPIC, "late"), resource(TOPIC, "later"))
        assert (known.error_code, unknown.error_code) == (0, ErrorCode.unknown_topic_or_partition)

    run(test)


def test_only_the_names_that_are_asked_for_are_told_and_no_names_are_all() -> None:
    async def test() -> None:
        node = with_topic()
        names = ["segment.ms", "no.such", "retention.ms"]
        (result,) = await describe(node, resource(TOPIC, "t", configuration_keys=names))
        assert [one.name for one in result.configs] == ["retention.ms", "segment.ms"]
        (result,) = await describe(node, resource(TOPIC, "t", configuration_keys=[]))
        assert len(result.configs) == len(SETTINGS)
        (result,) = await describe(node, resource(BROKER, "1", configuration_keys=["num.partitions"]))
        assert [(one.name, one.value) for one in result.configs] == [("num.partitions", "2")]

    run(test)


@pytest.mark.parametrize("version", versions(DESCRIBE))
def test_a_broker_tells_what_is_configured_and_that_it_is_read_only(version: int) -> None:
    async def test() -> None:
        node = FakeNode(node_id=2, auto_create=False)
        (result,) = await describe(node, resource(BROKER, "2"), version=version, include_synonyms=True)
        told = {one.name: (one.value, one.config_source) for one in result.configs}
        assert told["num.partitions"] == ("2", 4)
        assert told["default.replication.factor"] == ("3", 4)
        assert told["auto.create.topics.enable"] == ("false", 4)
        assert (told["broker.id"], told["node.id"]) == (("2", 4), ("2", 4))
        assert told["message.max.bytes"] == ("1048588", 5)
        assert told["log.roll.hours"] == ("168", 5)
        assert told["compression.type"] == ("producer", 5)
        assert told["min.insync.replicas"] == ("1", 5)
        assert (
            told["offsets.topic.num.partitions"] == told["transaction.state.log.num.partitions"] == ("16", 4)
        )
        assert told["transaction.state.log.replication.factor"] == ("3", 4)
        assert told["offsets.retention.minutes"] == ("10080", 4)
        assert told["group.max.session.timeout.ms"] == ("1800000", 4)
        assert told["transaction.max.timeout.ms"] == ("900000", 4)
        assert all(one.read_only and not one.is_sensitive for one in result.configs)
        assert all(
            [(same.name, same.value, same.source) for same in one.synonyms]
            == [(one.name, one.value, one.config_source)]
            for one in result.configs
        )

    run(test)


def test_every_topic_config_has_a_broker_config_of_its_own() -> None:
    names = [one.name for one in DEFAULTS.values()]
    assert list(DEFAULTS) == list(SETTINGS)
    assert len(set(names)) == len(names)
    assert not {"cleanup.policy", "retention.ms", "segment.bytes"} & set(names)
    own = [one.name for one in broker_settings(config(), Controller(lambda index, captured: None))]
    assert len(set(own)) == len(own)
    assert own == sorted(own)


def test_configs_that_hold_for_all_brokers_are_none() -> None:
    async def test() -> None:
        (result,) = await describe(FakeNode(), resource(BROKER, ""))
        assert (result.error_code, result.configs) == (ErrorCode.none, ())

    run(test)


@pytest.mark.parametrize(
    ("kind", "name", "code", "words"),
    [
        (TOPIC, "no", ErrorCode.unknown_topic_or_partition, None),
        (TOPIC, "a b", ErrorCode.invalid_topic_exception, "Topic name is invalid"),
        (BROKER, "2", ErrorCode.invalid_request, "Unexpected broker id, expected 1 or empty string"),
        (BROKER, "one", ErrorCode.invalid_request, "must be an integer, but it is: one"),
        (LOGGER, "1", ErrorCode.invalid_request, "it is log.level in its file"),
        (METRICS, "m", ErrorCode.invalid_request, "Client metrics (KIP-714) are not supported"),
        (GROUP, "", ErrorCode.invalid_request, "Group name must not be empty"),
        (0, "x", ErrorCode.invalid_request, "Unsupported resource type: 0"),
    ],
)
def test_what_cannot_be_described_says_why_and_the_rest_is(
    kind: int, name: str, code: ErrorCode, words: str | None
) -> None:
    async def test() -> None:
        bad, good = await describe(with_topic(), resource(kind, name), resource(TOPIC, "t"))
        assert (bad.error_code, bad.configs) == (code, ())
        assert (bad.resource_type, bad.resource_name) == (kind, name)
        assert bad.error_message is None if words is None else words in bad.error_message
        assert good.error_code == ErrorCode.none
        assert good.configs

    run(test)


# Changing.


def of_topic(*changes: dict[str, Any], name: str = "t") -> dict[str, Any]:
    return resource(TOPIC, name, configs=changes)


def configs_of(node: FakeNode) -> dict[str, str]:
    return dict(node.cluster.leader.topics[0].configs)


@pytest.mark.parametrize("version", versions(ALTER))
def test_alter_configs_replaces_all_of_a_topic_s_configs(version: int) -> None:
    async def test() -> None:
        node = with_topic(retention_ms="5000", segment_ms="7")
        asked = of_topic(change(SET, "retention.ms", "6000"))
        (answer,) = await alter(node, asked, key=ALTER, version=version, validate_only=True)
        assert (answer.error_code, configs_of(node)["segment.ms"]) == (ErrorCode.none, "7")
        assert node.controller.submitted == []
        (answer,) = await alter(node, asked, key=ALTER, version=version)
        assert (answer.error_code, answer.error_message) == (ErrorCode.none, None)
        assert (answer.resource_type, answer.resource_name) == (TOPIC, "t")
        assert configs_of(node) == {"retention.ms": "6000"}

    run(test)


@pytest.mark.parametrize("version", versions(INCREMENTAL))
def test_incremental_alter_configs_changes_what_is_named(version: int) -> None:
    async def test() -> None:
        node = with_topic(retention_ms="5000", segment_ms="7")
        asked = of_topic(
            change(SET, "retention.ms", "6000"),
            change(UNSET, "segment.ms", None),
            change(APPEND, "cleanup.policy", "compact"),
        )
        (answer,) = await alter(node, asked, version=version, validate_only=True)
        assert (answer.error_code, configs_of(node)["segment.ms"]) == (ErrorCode.none, "7")
        (answer,) = await alter(node, asked, version=version)
        assert answer.error_code == ErrorCode.none
        assert configs_of(node) == {"retention.ms": "6000", "cleanup.policy": "delete,compact"}
        (answer,) = await alter(node, of_topic(change(SUBTRACT, "cleanup.policy", "delete")), version=version)
        assert configs_of(node)["cleanup.policy"] == "compact"

    run(test)


REFUSED = [
    (of_topic(change(SET, "retention.ms", "x")), ErrorCode.invalid_config, "Not a number of type LONG"),
    (of_topic(change(SET, "no.such", "x")), ErrorCode.invalid_config, "Unknown topic config name"),
    (of_topic(change(SET, "a", None), change(SET, "b", None)), ErrorCode.invalid_request, "for : a, b"),
    (of_topic(change(SET, "a", "1"), change(SET, "a", "2")), ErrorCode.invalid_request, "duplicate config"),
    (of_topic(name="no"), ErrorCode.unknown_topic_or_partition, "does not host"),
    (resource(BROKER, "1", configs=[change(SET, "a", "1")]), ErrorCode.invalid_request, "edit its file"),
    (resource(BROKER, "", configs=[]), ErrorCode.invalid_request, "edit its file"),
    (resource(LOGGER, "1", configs=[]), ErrorCode.invalid_request, "it is log.level in its file"),
    (resource(METRICS, "m", configs=[]), ErrorCode.invalid_request, "Client metrics (KIP-714) are not"),
    (resource(GROUP, "", configs=[]), ErrorCode.invalid_request, "Default group resources are not allowed."),
    (resource(0, "g", configs=[]), ErrorCode.invalid_request, "Unsupported resource type: 0"),
]


@pytest.mark.parametrize("key", [ALTER, INCREMENTAL])
@pytest.mark.parametrize(("asked", "code", "words"), REFUSED)
def test_changes_that_kafka_refuses_are_refused_and_the_rest_is_made(
    key: ApiKey, asked: dict[str, Any], code: ErrorCode, words: str
) -> None:
    async def test() -> None:
        node = with_topic(segment_ms="7")
        node.cluster.create("u")
        good = of_topic(change(SET, "retention.ms", "1"), name="u")
        for validate_only in (True, False):
            bad, fine = await alter(node, asked, good, key=key, validate_only=validate_only)
            assert (bad.error_code, fine.error_code) == (code, ErrorCode.none)
            assert words in bad.error_message
            assert (bad.resource_type, bad.resource_name) == (asked["resource_type"], asked["resource_name"])
        assert configs_of(node) == {"segment.ms": "7"}
        assert node.cluster.leader.topics[1].configs == {"retention.ms": "1"}

    run(test)


def test_an_operation_that_does_not_exist_is_refused_and_no_other_is_taken_for_it() -> None:
    async def test() -> None:
        node = with_topic()
        (answer,) = await alter(node, of_topic(change(4, "retention.ms", "1")))
        assert answer.error_code == ErrorCode.invalid_request
        assert answer.error_message == "Unknown operations type 4"
        (answer,) = await alter(node, of_topic(change(APPEND, "retention.ms", "1")))
        assert answer.error_code == ErrorCode.invalid_config

    run(test)


@pytest.mark.parametrize("key", [ALTER, INCREMENTAL])
def test_a_resource_that_is_named_twice_is_not_changed(key: ApiKey) -> None:
    async def test() -> None:
        node = with_topic()
        once = of_topic(change(SET, "retention.ms", "1"))
        answers = await alter(node, once, once, resource(BROKER, "t", configs=[]), key=key)
        assert [one.error_message for one in answers[:2]] == ["Each resource must appear at most once."] * 2
        assert [one.error_code for one in answers] == [ErrorCode.invalid_request] * 3
        assert configs_of(node) == {}

    run(test)


@pytest.mark.parametrize("key", [ALTER, INCREMENTAL])
@pytest.mark.parametrize("unknown", [True, False])
def test_a_change_without_an_answer_is_a_timeout(key: ApiKey, unknown: bool) -> None:
    async def test() -> None:
        node = with_topic()
        node.controller.down = Unavailable("no leader is known", unknown)
        node.controller.reads_though_down = True
        asked = of_topic(change(SET, "retention.ms", "1"))
        (answer,) = await alter(node, asked, key=key)
        assert answer.error_code == ErrorCode.request_timed_out
        assert ("may have been carried out" in answer.error_message) is unknown

    run(test)


def test_a_topic_that_goes_while_it_is_changed_is_unknown() -> None:
    async def test() -> None:
        node = with_topic()
        node.cluster.apply(DeleteTopic(node.cluster.leader.topics[0].topic_id))
        (answer,) = await alter(node, of_topic(change(SET, "retention.ms", "1")))
        assert answer.error_code == ErrorCode.unknown_topic_or_partition

    run(test)


def test_a_topic_that_this_node_has_not_heard_of_is_changed() -> None:
    async def test() -> None:
        node = FakeNode()
        node.cluster.create("t")
        (answer,) = await alter(node, of_topic(change(SET, "retention.ms", "1")))
        assert (answer.error_code, configs_of(node)) == (ErrorCode.none, {"retention.ms": "1"})

    run(test)
