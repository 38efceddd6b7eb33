"""Configs of groups through real frames, and ListConfigResources."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.controller.client import Unavailable
from strandline.node.kafka.wire.apis import ApiKey
from tests.kafka.handlers.configs import (
    ALTER,
    BROKER,
    DESCRIBE,
    GROUP,
    INCREMENTAL,
    LOGGER,
    METRICS,
    SET,
    TOPIC,
    UNSET,
    alter,
    change,
    describe,
    resource,
)
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.wire.entities import versions
from tests.runtime.jumping_loop import run

SESSION, INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
LIST = ApiKey.LIST_CONFIG_RESOURCES


def of_group(*changes: dict[str, Any], name: str = "g") -> dict[str, Any]:
    return resource(GROUP, name, configs=changes)


@pytest.mark.parametrize("version", versions(DESCRIBE))
def test_a_group_s_configs_are_told_whether_or_not_it_is_there(version: int) -> None:
    async def test() -> None:
        node = FakeNode()
        (answer,) = await alter(node, of_group(change(SET, SESSION, "50000")))
        assert (answer.error_code, answer.error_message) == (ErrorCode.none, None)
        (result,) = await describe(node, resource(GROUP, "g"), version=version, include_synonyms=True)
        told = [
            (one.name, one.value, one.config_source, one.read_only, one.is_sensitive)
            for one in result.configs
        ]
        assert told == [(INTERVAL, "5000", 4, False, False), (SESSION, "50000", 8, False, False)]
        assert [(one.name, one.value, one.source) for one in result.configs[1].synonyms] == [
            (SESSION, "50000", 8),
            (f"group.{SESSION}", "45000", 4),
        ]
        (other,) = await describe(node, resource(GROUP, "h", configuration_keys=[SESSION]), version=version)
        assert [(one.name, one.value, one.config_source) for one in other.configs] == [(SESSION, "45000", 4)]

    run(test)


@pytest.mark.parametrize("key", [ALTER, INCREMENTAL])
def test_both_requests_change_a_group_and_validate(key: ApiKey) -> None:
    async def test() -> None:
        node = FakeNode()
        asked = of_group(change(SET, SESSION, "50000"), change(SET, INTERVAL, "7000"))
        for validate_only in (True, False):
            (answer,) = await alter(node, asked, key=key, validate_only=validate_only)
            assert answer.error_code is ErrorCode.none
            expected = {} if validate_only else {INTERVAL: "7000", SESSION: "50000"}
            assert node.controller.machine.group_configs("g") == expected
        last = of_group(change(SET, SESSION, "50000"), *[change(UNSET, INTERVAL, None)][: key == INCREMENTAL])
        await alter(node, last, key=key)
        assert node.controller.machine.group_configs("g") == {SESSION: "50000"}

    run(test)


@pytest.mark.parametrize("key", [ALTER, INCREMENTAL])
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (SESSION, "44999", "greater than or equal to group.consumer.min.session.timeout.ms, 45000"),
        (SESSION, "60001", "less than or equal to group.consumer.max.session.timeout.ms, 60000"),
        (INTERVAL, "4999", "greater than or equal to group.consumer.min.heartbeat.interval.ms, 5000"),
        (INTERVAL, "15001", "less than or equal to group.consumer.max.heartbeat.interval.ms, 15000"),
        (SESSION, "long", "Not a number of type INT"),
        ("no.such", "1", "Unknown group config name: no.such"),
    ],
)
def test_what_brokers_do_not_allow_is_refused(key: ApiKey, name: str, value: str, words: str) -> None:
    async def test() -> None:
        node = FakeNode()
        good = of_group(change(SET, SESSION, "60000"), name="h")
        for validate_only in (True, False):
            bad, fine = await alter(
                node, of_group(change(SET, name, value)), good, key=key, validate_only=validate_only
            )
            assert (bad.error_code, fine.error_code) == (ErrorCode.invalid_config, ErrorCode.none)
            assert words in bad.error_message
        assert node.controller.machine.configured_groups == ("h",)

    run(test)


def test_brokers_tell_what_they_allow() -> None:
    async def test() -> None:
        (result,) = await describe(FakeNode(), resource(BROKER, "1"))
        told = {one.name: one.value for one in result.configs}
        for name, limits in ((SESSION, ("45000", "60000")), (INTERVAL, ("5000", "15000"))):
            word = name.removeprefix("consumer.")
            assert (told[f"group.consumer.min.{word}"], told[f"group.consumer.max.{word}"]) == limits

    run(test)


def test_a_change_without_an_answer_is_a_timeout() -> None:
    async def test() -> None:
        node = FakeNode()
        node.controller.down = Unavailable("no leader is known", True)
        (answer,) = await alter(node, of_group(change(SET, SESSION, "50000")))
        assert answer.error_code is ErrorCode.request_timed_out
        assert "may have been carried out" in answer.error_message

    run(test)


def test_resources_are_listed_by_kind() -> None:
    async def test() -> None:
        node = FakeNode()
        node.cluster.create("t")
        await alter(node, of_group(change(SET, SESSION, "50000")))

        async def listed(*kinds: int) -> list[tuple[int, str]]:
            answer = await node.ask(LIST, 1, resource_types=kinds)
            assert answer.error_code is ErrorCode.none
            return [(one.resource_type, one.resource_name) for one in answer.config_resources]

        brokers = [(BROKER, "1"), (BROKER, "2"), (BROKER, "3")]
        assert await listed() == [(TOPIC, "t"), *brokers, (GROUP, "g")]
        assert await listed(GROUP, BROKER, GROUP) == [(GROUP, "g"), *brokers]
        assert await listed(METRICS, LOGGER) == []
        assert (await node.ask(LIST, 0)).config_resources == ()
        answer = await node.ask(LIST, 1, resource_types=[GROUP, 3])
        assert (answer.error_code, answer.config_resources) == (ErrorCode.unsupported_version, ())

    run(test)
