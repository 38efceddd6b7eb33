"""Topic configs: Kafka's names, defaults, limits and error texts."""

from __future__ import annotations

import re

import pytest

from strandline.statemachine.controller import topic_config
from strandline.statemachine.controller.controller_commands import ConfigChange, ConfigOperation
from strandline.statemachine.controller.settings import Configs, Setting
from strandline.statemachine.controller.topic_config import SETTINGS, TABLE
from strandline.statemachine.kafka_errors import KafkaError, Refused
from tests import ROOT

SET, DELETE = ConfigOperation.SET, ConfigOperation.DELETE
APPEND, SUBTRACT = ConfigOperation.APPEND, ConfigOperation.SUBTRACT

KAFKA_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


def accepted(*pairs: tuple[str, str | None]) -> Configs:
    result = TABLE.from_pairs(pairs)
    assert not isinstance(result, Refused), result
    return result


def after(configs: Configs, *changes: tuple[ConfigOperation, str, str | None]) -> Configs | Refused:
    return TABLE.changed(configs, [ConfigChange(*change) for change in changes])


def test_names_and_defaults_are_those_of_kafka() -> None:
    assert {name: setting.text(setting.of({})) for name, setting in SETTINGS.items()} == KAFKA_DEFAULTS
    assert list(SETTINGS) == sorted(SETTINGS)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_default_is_valid_and_canonical(name: str) -> None:
    setting = SETTINGS[name]
    text = setting.text(setting.default)
    assert setting.canonical(text) == text
    assert setting.parse(text) == setting.default
    assert type(setting.parse(text)) is type(setting.default)


@pytest.mark.parametrize(
    ("name", "text", "canonical"),
    [
        ("retention.ms", " +100 ", "100"),
        ("retention.ms", "-1", "-1"),
        ("retention.bytes", "-9223372036854775808", "-9223372036854775808"),
        ("max.message.bytes", "0", "0"),
        ("max.message.bytes", "2147483647", "2147483647"),
        ("segment.bytes", "1048576", "1048576"),
        ("min.cleanable.dirty.ratio", "0", "0.0"),
        ("min.cleanable.dirty.ratio", "-0", "0.0"),
        ("min.cleanable.dirty.ratio", "1e-1", "0.1"),
        ("preallocate", "TRUE", "true"),
        ("cleanup.policy", " compact , delete", "compact,delete"),
        ("cleanup.policy", "", ""),
        ("compression.type", "zstd", "zstd"),
        ("compression.gzip.level", "-1", "-1"),
        ("compression.gzip.level", "9", "9"),
        ("compression.zstd.level", "-131072", "-131072"),
        ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
    ],
)
def test_values_are_kept_in_one_form(name: str, text: str, canonical: str) -> None:
    assert accepted((name, text)) == {name: canonical}
    assert accepted((name, canonical)) == {name: canonical}


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("retention.ms", "-2", "Value must be at least -1"),
        ("retention.ms", "9223372036854775808", "Not a number of type LONG"),
        ("retention.ms", "1_000", "Not a number of type LONG"),
        ("retention.ms", "\N{ARABIC-INDIC DIGIT FIVE}", "Not a number of type LONG"),
        ("retention.ms", "", "Not a number of type LONG"),
        ("retention.ms", "9" * 5000, "Not a number of type LONG"),
        ("max.message.bytes", "-1", "Value must be at least 0"),
        ("max.message.bytes", "2147483648", "Not a number of type INT"),
        ("segment.bytes", "1048575", "Value must be at least 1048576"),
        ("min.insync.replicas", "0", "Value must be at least 1"),
        ("max.compaction.lag.ms", "0", "Value must be at least 1"),
        ("min.cleanable.dirty.ratio", "1.1", "Value must be no more than 1"),
        ("min.cleanable.dirty.ratio", "-0.1", "Value must be at least 0"),
        ("min.cleanable.dirty.ratio", "nan", "Not a number of type DOUBLE"),
        ("min.cleanable.dirty.ratio", "inf", "Not a number of type DOUBLE"),
        ("preallocate", "yes", "Expected value to be either true or false"),
        ("cleanup.policy", "compact,never", "String must be one of: compact, delete"),
        ("cleanup.policy", "delete,,", "String must be one of: compact, delete"),
        ("cleanup.policy", "delete,delete", "values must not be duplicated"),
        (
            "compression.type",
            "brotli",
            "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        (
            "compression.type",
            " gzip",
            "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        ("compression.gzip.level", "0", "Value must be between 1 and 9 or equal to -1"),
        ("compression.gzip.level", "10", "Value must be no more than 9"),
        ("compression.lz4.level", "18", "Value must be no more than 17"),
        ("message.timestamp.type", "createtime", "String must be one of: CreateTime, LogAppendTime"),
    ],
)
def test_bad_values_are_refused_with_kafkas_text(name: str, text: str, reason: str) -> None:
    message = f"Invalid value {text} for configuration {name}: {reason}"
    assert TABLE.from_pairs([(name, text)]) == Refused(KafkaError.INVALID_CONFIG, message)


@pytest.mark.parametrize(
    "name", ["nonsense", "", "Retention.ms", "message.format.version", "message.downconversion.enable"]
)
def test_unknown_names_are_refused(name: str) -> None:
    refusal = Refused(KafkaError.INVALID_CONFIG, f"Unknown topic config name: {name}")
    assert TABLE.from_pairs([(name, "1")]) == refusal
    assert after({}, (SET, name, "1")) == refusal


UNTIERED = "Every record is in the object store, so there is no tiered storage to govern"
UNTHROTTLED = "There are no replication quotas: replicas are the log, which does not hold the records"


@pytest.mark.parametrize(
    ("name", "default", "other", "reason"),
    [
        ("remote.storage.enable", "FALSE", "true", UNTIERED),
        ("remote.log.copy.disable", "false", "true", UNTIERED),
        ("remote.log.delete.on.disable", "false", "true", UNTIERED),
        ("local.retention.ms", "-2", "1000", UNTIERED),
        ("local.retention.bytes", " -2", "-1", UNTIERED),
        ("leader.replication.throttled.replicas", "", "*", UNTHROTTLED),
        ("follower.replication.throttled.replicas", "", "0:1,1:2", UNTHROTTLED),
        ("remote.storage.enable", "false", "yes", "Expected value to be either true or false"),
        ("local.retention.ms", "-2", "-3", "Value must be at least -2"),
    ],
)
def test_what_tools_set_to_the_default_is_taken_and_anything_else_refused_with_the_reason(
    name: str, default: str, other: str, reason: str
) -> None:
    assert accepted((name, default)) == {name: KAFKA_DEFAULTS[name]}
    message = f"Invalid value {other} for configuration {name}: {reason}"
    assert TABLE.from_pairs([(name, other)]) == Refused(KafkaError.INVALID_CONFIG, message)
    assert after({}, (SET, name, other)) == Refused(KafkaError.INVALID_CONFIG, message)


def test_the_page_says_of_every_config_whether_it_is_in_force() -> None:
    """In force are those that something outside of topic_config reads."""
    page = (ROOT / "docs" / "controller.md").read_text()
    page = page[page.index("\n## Configs") : page.index("\n## What a node derives")]
    in_force, idle, default_only = page.split("**Taken")
    row = re.compile(r"^[|] `([a-z0-9.]+)` [|] .* [|] (?:`([^`]*)`|empty) [|]", re.MULTILINE)
    told = [dict(row.findall(part)) for part in (in_force, idle, default_only)]
    assert {name: text for part in told for name, text in part.items()} == KAFKA_DEFAULTS
    assert sum(map(len, told)) == len(SETTINGS) == 33

    code = [
        path.read_text()
        for package in ("node", "statemachine")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "topic_config.py"
    ]
    names = {value.name: name for name, value in vars(topic_config).items() if isinstance(value, Setting)}
    used = {name for name, word in names.items() if any(re.search(rf"\b{word}\b", text) for text in code)}
    assert used == set(told[0])

    others = {"BOOLEAN": "true", "LONG": "7", "LIST": "x"}
    refused = {
        name
        for name in told[2]
        if isinstance(TABLE.from_pairs([(name, others[SETTINGS[name].type])]), Refused)
        and isinstance(TABLE.from_pairs([(name, told[2][name])]), dict)
    }
    assert refused == set(told[2])


def test_values_are_read_with_their_types() -> None:
    configs = accepted(("cleanup.policy", "compact,delete"), ("retention.ms", "5"), ("preallocate", "true"))
    assert topic_config.CLEANUP_POLICY.of(configs) == ("compact", "delete")
    assert topic_config.RETENTION_MS.of(configs) == 5
    assert topic_config.PREALLOCATE.of(configs) is True
    assert topic_config.MAX_MESSAGE_BYTES.of(configs) == 1048588


def test_configs_are_in_the_order_of_their_names_however_they_were_set() -> None:
    one = accepted(("segment.ms", "1"), ("cleanup.policy", "compact"))
    other = after(accepted(("cleanup.policy", "compact")), (SET, "segment.ms", "1"))
    assert not isinstance(other, Refused)
    assert list(one.items()) == list(other.items()) == [("cleanup.policy", "compact"), ("segment.ms", "1")]


def test_a_name_given_twice_counts_as_given_last_when_a_topic_is_created() -> None:
    assert accepted(("retention.ms", "1"), ("retention.ms", "2")) == {"retention.ms": "2"}


def test_null_is_no_value() -> None:
    message = "Null value not supported for topic configs: preallocate, segment.ms"
    pairs = [("segment.ms", None), ("preallocate", None)]
    assert TABLE.from_pairs(pairs) == Refused(KafkaError.INVALID_CONFIG, message)


def test_compaction_lags_must_not_conflict() -> None:
    conflict = TABLE.from_pairs([("min.compaction.lag.ms", "11"), ("max.compaction.lag.ms", "10")])
    message = "conflict topic config setting min.compaction.lag.ms (11) > max.compaction.lag.ms (10)"
    assert conflict == Refused(KafkaError.INVALID_CONFIG, message)
    longest = accepted(("max.compaction.lag.ms", "10"))
    assert after(longest, (SET, "min.compaction.lag.ms", "11")) == conflict
    assert not isinstance(after(longest, (SET, "min.compaction.lag.ms", "10")), Refused)


def test_deleting_gives_the_default_back_and_may_name_anything() -> None:
    configs = accepted(("retention.ms", "5"))
    assert after(configs, (DELETE, "retention.ms", None), (DELETE, "nonsense", None)) == {}


@pytest.mark.parametrize(
    ("present", "operation", "given", "expected"),
    [
        ("compact", APPEND, "delete", "compact,delete"),
        ("compact", APPEND, "compact", "compact"),
        (None, APPEND, "compact", "delete,compact"),
        ("compact,delete", SUBTRACT, "delete", "compact"),
        ("compact", SUBTRACT, "delete", "compact"),
        (None, SUBTRACT, "delete", ""),
    ],
)
def test_lists_are_appended_to_and_subtracted_from(
    present: str | None, operation: ConfigOperation, given: str, expected: str
) -> None:
    configs = {} if present is None else {"cleanup.policy": present}
    assert after(configs, (operation, "cleanup.policy", given)) == {"cleanup.policy": expected}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            (APPEND, "retention.ms", "1"),
            KafkaError.INVALID_CONFIG,
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        (
            (SUBTRACT, "nonsense", "1"),
            KafkaError.INVALID_CONFIG,
            "Can't SUBTRACT to key nonsense because its type is not LIST.",
        ),
        (
            (SET, "retention.ms", None),
            KafkaError.INVALID_REQUEST,
            "Null value not supported for : retention.ms",
        ),
        (
            (APPEND, "cleanup.policy", "never"),
            KafkaError.INVALID_CONFIG,
            "Invalid value delete,never for configuration cleanup.policy: "
            "String must be one of: compact, delete",
        ),
    ],
)
def test_changes_that_cannot_be_are_refused(
    change: tuple[ConfigOperation, str, str | None], error: KafkaError, message: str
) -> None:
    assert after({}, (SET, "segment.ms", "7"), change) == Refused(error, message)


def test_a_config_is_changed_once_in_a_request() -> None:
    refusal = Refused(KafkaError.INVALID_REQUEST, "Error due to duplicate config keys")
    assert after({}, (SET, "segment.ms", "7"), (DELETE, "segment.ms", None)) == refusal
