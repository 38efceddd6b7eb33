"""The configs of a topic: Kafka's names, types, defaults and limits (those of Kafka 4.1).

Values are kept as text in one canonical form, because that is what Kafka's protocol carries and because
equal settings must give equal snapshots. Only what differs from the default is kept. All names that a
client may set on Kafka without tiered storage or replication quotas are known; docs/controller.md says
which of them have no effect here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from statemachine.controller_commands import ConfigChange, ConfigOperation, Refused
from statemachine.kafka_errors import KafkaError

T = TypeVar("T")
Configs = Mapping[str, str]
"""What a topic sets itself, by name, in the order of the names; values are canonical."""


class InvalidConfig(ValueError):
    """A value that Kafka does not accept; the text is Kafka's own."""


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """One config: how its text is read, written and what it is when nothing is set."""

    name: str
    default: T
    parse: Callable[[str], T]
    """Raises ValueError, whose text completes "Invalid value ... for configuration ...: "."""
    type: str

    def of(self, configs: Configs) -> T:
        """The value in force for a topic with these configs."""
        text = configs.get(self.name)
        return self.default if text is None else self.parse(text)

    def canonical(self, text: str) -> str:
        """The one way to write what `text` says; raises InvalidConfig."""
        try:
            return self.text(self.parse(text if self.type == "STRING" else text.strip()))
        except ValueError as error:
            raise InvalidConfig(f"Invalid value {text} for configuration {self.name}: {error}") from None

    @staticmethod
    def text(value: object) -> str:
        """A value as Kafka writes it."""
        if isinstance(value, bool):
            return "true" if value else "false"
        return ",".join(value) if isinstance(value, tuple) else str(value)


_WHOLE = re.compile(r"[+-]?[0-9]{1,20}")
_DECIMAL = re.compile(r"[+-]?([0-9]{1,20}\.?[0-9]{0,20}|\.[0-9]{1,20})([eE][+-]?[0-9]{1,3})?")
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1


def _within(value: float, low: float, high: float) -> None:
    if value < low:
        raise ValueError(f"Value must be at least {low}")
    if value > high:
        raise ValueError(f"Value must be no more than {high}")


def _number(name: str, default: int, kind: str, largest: int, low: int, high: int) -> Setting[int]:
    def parse(text: str) -> int:
        if not _WHOLE.fullmatch(text) or not -largest - 1 <= (value := int(text)) <= largest:
            raise ValueError(f"Not a number of type {kind}")
        _within(value, low, high)
        return value

    return Setting(name, default, parse, kind)


def _int(name: str, default: int, low: int, high: int = _INT_MAX) -> Setting[int]:
    return _number(name, default, "INT", _INT_MAX, low, high)


def _long(name: str, default: int, low: int) -> Setting[int]:
    return _number(name, default, "LONG", _LONG_MAX, low, _LONG_MAX)


def _ratio(name: str, default: float) -> Setting[float]:
    def parse(text: str) -> float:
        if not _DECIMAL.fullmatch(text):
            raise ValueError("Not a number of type DOUBLE")
        _within(float(text), 0, 1)
        return abs(float(text))  # -0.0 is 0.0

    return Setting(name, default, parse, "DOUBLE")


def _boolean(name: str, default: bool) -> Setting[bool]:
    def parse(text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ValueError("Expected value to be either true or false")
        return text.lower() == "true"

    return Setting(name, default, parse, "BOOLEAN")


def _choice(name: str, default: str, *valid: str) -> Setting[str]:
    def parse(text: str) -> str:
        if text not in valid:
            raise ValueError(f"String must be one of: {', '.join(valid)}")
        return text

    return Setting(name, default, parse, "STRING")


def _choices(name: str, default: tuple[str, ...], *valid: str) -> Setting[tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        values = tuple(part.strip() for part in text.split(",")) if text else ()
        if not set(values) <= set(valid):
            raise ValueError(f"String must be one of: {', '.join(valid)}")
        if len(set(values)) != len(values):
            raise ValueError("values must not be duplicated")
        return values

    return Setting(name, default, parse, "LIST")


def _gzip_level(name: str) -> Setting[int]:
    in_range = _int(name, -1, -1, 9).parse

    def parse(text: str) -> int:
        if (level := in_range(text)) == 0:
            raise ValueError("Value must be between 1 and 9 or equal to -1")
        return level

    return Setting(name, -1, parse, "INT")


DAY = 24 * 60 * 60 * 1000
CLEANUP_POLICY = _choices("cleanup.policy", ("delete",), "compact", "delete")
COMPRESSION_TYPE = _choice(
    "compression.type", "producer", "uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"
)
COMPRESSION_GZIP_LEVEL = _gzip_level("compression.gzip.level")
COMPRESSION_LZ4_LEVEL = _int("compression.lz4.level", 9, 1, 17)
COMPRESSION_ZSTD_LEVEL = _int("compression.zstd.level", 3, -131072, 22)
DELETE_RETENTION_MS = _long("delete.retention.ms", DAY, 0)
FILE_DELETE_DELAY_MS = _long("file.delete.delay.ms", 60_000, 0)
FLUSH_MESSAGES = _long("flush.messages", _LONG_MAX, 1)
FLUSH_MS = _long("flush.ms", _LONG_MAX, 0)
INDEX_INTERVAL_BYTES = _int("index.interval.bytes", 4096, 0)
MAX_COMPACTION_LAG_MS = _long("max.compaction.lag.ms", _LONG_MAX, 1)
MAX_MESSAGE_BYTES = _int("max.message.bytes", 1024 * 1024 + 12, 0)
MESSAGE_TIMESTAMP_AFTER_MAX_MS = _long("message.timestamp.after.max.ms", 60 * 60 * 1000, 0)
MESSAGE_TIMESTAMP_BEFORE_MAX_MS = _long("message.timestamp.before.max.ms", _LONG_MAX, 0)
MESSAGE_TIMESTAMP_TYPE = _choice("message.timestamp.type", "CreateTime", "CreateTime", "LogAppendTime")
MIN_CLEANABLE_DIRTY_RATIO = _ratio("min.cleanable.dirty.ratio", 0.5)
MIN_COMPACTION_LAG_MS = _long("min.compaction.lag.ms", 0, 0)
MIN_INSYNC_REPLICAS = _int("min.insync.replicas", 1, 1)
PREALLOCATE = _boolean("preallocate", False)
RETENTION_BYTES = _long("retention.bytes", -1, -_LONG_MAX - 1)
RETENTION_MS = _long("retention.ms", 7 * DAY, -1)
SEGMENT_BYTES = _int("segment.bytes", 1024 * 1024 * 1024, 1024 * 1024)
SEGMENT_INDEX_BYTES = _int("segment.index.bytes", 10 * 1024 * 1024, 4)
SEGMENT_JITTER_MS = _long("segment.jitter.ms", 0, 0)
SEGMENT_MS = _long("segment.ms", 7 * DAY, 1)
UNCLEAN_LEADER_ELECTION_ENABLE = _boolean("unclean.leader.election.enable", False)

SETTINGS: Mapping[str, Setting[object]] = dict(
    sorted((value.name, value) for value in globals().values() if isinstance(value, Setting))
)
"""Every config by name, in the order of the names."""


def from_pairs(pairs: Iterable[tuple[str, str | None]]) -> Configs | Refused:
    """Configs as CreateTopics and AlterConfigs give them; a name that is repeated counts as given last."""
    wanted = dict(pairs)
    if nulls := sorted(name for name, value in wanted.items() if value is None):
        names = ", ".join(nulls)
        return Refused(KafkaError.INVALID_CONFIG, f"Null value not supported for topic configs: {names}")
    return _checked({name: value for name, value in wanted.items() if value is not None})


def changed(configs: Configs, changes: Sequence[ConfigChange]) -> Configs | Refused:
    """Configs after IncrementalAlterConfigs: all changes or none."""
    names = [change.name for change in changes]
    if len(set(names)) != len(names):
        return Refused(KafkaError.INVALID_REQUEST, "Error due to duplicate config keys")
    result = dict(configs)
    for operation, name, value in changes:
        if operation is ConfigOperation.DELETE:
            result.pop(name, None)
        elif value is None:
            return Refused(KafkaError.INVALID_REQUEST, f"Null value not supported for : {name}")
        elif operation is ConfigOperation.SET:
            result[name] = value
        else:
            setting = SETTINGS.get(name)
            if setting is None or setting.type != "LIST":
                reason = f"Can't {operation.name} to key {name} because its type is not LIST."
                return Refused(KafkaError.INVALID_CONFIG, reason)
            result[name] = _combined(operation, setting.text(setting.of(configs)), value)
    return _checked(result)


def _combined(operation: ConfigOperation, present: str, given: str) -> str:
    values = [part for part in present.split(",") if part]
    for part in map(str.strip, given.split(",")):
        if operation is ConfigOperation.APPEND and part not in values:
            values.append(part)
        elif operation is ConfigOperation.SUBTRACT and part in values:
            values.remove(part)
    return ",".join(values)


def _checked(configs: Configs) -> Configs | Refused:
    try:
        canonical = {name: _setting(name).canonical(configs[name]) for name in sorted(configs)}
    except InvalidConfig as error:
        return Refused(KafkaError.INVALID_CONFIG, str(error))
    shortest, longest = MIN_COMPACTION_LAG_MS.of(canonical), MAX_COMPACTION_LAG_MS.of(canonical)
    if shortest > longest:
        reason = (
            f"conflict topic config setting min.compaction.lag.ms ({shortest}) > "
            f"max.compaction.lag.ms ({longest})"
        )
        return Refused(KafkaError.INVALID_CONFIG, reason)
    return canonical


def _setting(name: str) -> Setting[object]:
    setting = SETTINGS.get(name)
    if setting is None:
        raise InvalidConfig(f"Unknown topic config name: {name}")
    return setting
