"""The configs of groups: names and values, and the bound on how many groups have any."""

from __future__ import annotations

import pytest

from strandline.statemachine.controller import controller_groups
from strandline.statemachine.controller.controller_commands import (
    AlterGroupConfigs,
    ConfigChange,
    ConfigOperation,
    ReplaceGroupConfigs,
)
from strandline.statemachine.controller.controller_groups import plan
from strandline.statemachine.kafka_errors import KafkaError, Refused

SESSION, INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
SET, DELETE, APPEND = ConfigOperation.SET, ConfigOperation.DELETE, ConfigOperation.APPEND


def altered(*changes: tuple[ConfigOperation, str, str | None], **present: str) -> object:
    before = {"g": {name.replace("_", "."): value for name, value in present.items()}}
    return plan(before, AlterGroupConfigs("g", [ConfigChange(*change) for change in changes]))


def test_a_group_sets_what_it_names() -> None:
    assert altered((SET, SESSION, " +50000")) == {SESSION: "50000"}
    assert altered((SET, INTERVAL, "6000"), consumer_session_timeout_ms="50000") == {
        INTERVAL: "6000",
        SESSION: "50000",
    }
    assert altered((DELETE, SESSION, None), consumer_session_timeout_ms="50000") == {}
    assert plan({"g": {SESSION: "1"}}, ReplaceGroupConfigs("g", [(INTERVAL, "7")])) == {INTERVAL: "7"}


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ((SET, "retention.ms", "1"), KafkaError.INVALID_CONFIG, "Unknown group config name: retention.ms"),
        ((SET, "share.session.timeout.ms", "1"), KafkaError.INVALID_CONFIG, "Unknown group config name"),
        ((SET, SESSION, "x"), KafkaError.INVALID_CONFIG, "Not a number of type INT"),
        ((SET, SESSION, "0"), KafkaError.INVALID_CONFIG, "Value must be at least 1"),
        ((SET, SESSION, "6000"), KafkaError.INVALID_CONFIG, "must be less than consumer.session.timeout.ms"),
        ((APPEND, SESSION, "1"), KafkaError.INVALID_CONFIG, "its type is not LIST"),
        ((SET, SESSION, None), KafkaError.INVALID_REQUEST, "Null value"),
    ],
)
def test_what_kafka_refuses(
    change: tuple[ConfigOperation, str, str | None], error: KafkaError, words: str
) -> None:
    refusal = altered(change, consumer_heartbeat_interval_ms="6000")
    assert isinstance(refusal, Refused)
    assert refusal.error is error
    assert words in refusal.message


def test_so_many_groups_have_configs_and_ids_of_such_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_groups, "MAX_GROUPS", 1)
    present = {"g": {SESSION: "50000"}}
    set_one = [(SESSION, "60000")]
    assert plan(present, ReplaceGroupConfigs("g", set_one)) == {SESSION: "60000"}
    assert plan(present, ReplaceGroupConfigs("h", [])) == {}
    refusal = plan(present, ReplaceGroupConfigs("h", set_one))
    assert isinstance(refusal, Refused)
    assert refusal.error is KafkaError.POLICY_VIOLATION
    assert plan({}, ReplaceGroupConfigs("x" * 255, set_one)) == {SESSION: "60000"}
    for group, words in (("x" * 256, "at most 255 characters"), ("", "Default group resources")):
        refusal = plan({}, ReplaceGroupConfigs(group, set_one))
        assert isinstance(refusal, Refused)
        assert (refusal.error, words in refusal.message) == (KafkaError.INVALID_REQUEST, True)
