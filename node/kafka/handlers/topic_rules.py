"""The rules that a topic's configs make for its batches: their size, their timestamps, their keys.

Kafka's configs max.message.bytes, message.timestamp.*, cleanup.policy and min.insync.replicas.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from strandline.node.kafka.wire.record_batch import CRC_START, BatchHeader, BatchLimits
from strandline.statemachine.controller.settings import Configs, Setting
from strandline.statemachine.controller.topic_config import (
    CLEANUP_POLICY,
    MAX_MESSAGE_BYTES,
    MESSAGE_TIMESTAMP_AFTER_MAX_MS,
    MESSAGE_TIMESTAMP_BEFORE_MAX_MS,
    MESSAGE_TIMESTAMP_TYPE,
    MIN_INSYNC_REPLICAS,
)

_NO_BOUND_MS: Final = 2**63 - 1
_LOG_APPEND_TIME: Final = 0x08
_ATTRIBUTES: Final = struct.Struct(">h")
_MAX_TIMESTAMP: Final = struct.Struct(">q")
_MAX_TIMESTAMP_AT: Final = 35
_CRC: Final = struct.Struct(">I")


class TopicRules(NamedTuple):
    """Rules for a topic's batches, from its configs; times are milliseconds before and after now."""

    max_batch_bytes: int
    append_time: bool
    before_max: int
    after_max: int
    compacted: bool
    min_in_sync: int


def rules_of(configs: Configs) -> TopicRules:
    """The rules from a topic's configs; equal configs are read once."""
    return _rules(*(configs.get(setting.name) for setting in _SETTINGS)) if configs else _DEFAULTS


_SETTINGS: Final[tuple[Setting[Any], ...]] = (
    MAX_MESSAGE_BYTES,
    MESSAGE_TIMESTAMP_TYPE,
    MESSAGE_TIMESTAMP_BEFORE_MAX_MS,
    MESSAGE_TIMESTAMP_AFTER_MAX_MS,
    CLEANUP_POLICY,
    MIN_INSYNC_REPLICAS,
)


@lru_cache(maxsize=1024)
def _rules(*texts: str | None) -> TopicRules:
    values = [
        setting.default if text is None else setting.parse(text)
        for setting, text in zip(_SETTINGS, texts, strict=True)
    ]
    size, kind, before, after, policy, replicas = values
    return TopicRules(size, kind == "LogAppendTime", before, after, "compact" in policy, replicas)


_DEFAULTS: Final = _rules(*(None for _ in _SETTINGS))


def limits_of(rules: TopicRules, now: int) -> BatchLimits:
    """Bounds on timestamps hold for the client's times only, as in Kafka."""
    earliest = latest = None
    if not rules.append_time:
        earliest = None if rules.before_max == _NO_BOUND_MS else now - rules.before_max
        latest = None if rules.after_max == _NO_BOUND_MS else now + rules.after_max
    return BatchLimits(
        rules.max_batch_bytes,
        earliest_timestamp=earliest,
        latest_timestamp=latest,
        needs_keys=rules.compacted,
    )


def with_append_time(records: bytes, header: BatchHeader, now: int) -> bytes:
    """The batch with the broker's time in place of its records' own, as Kafka writes it.

    The attributes say which time counts, the newest timestamp is that time, and the CRC follows.
    """
    attributes = _ATTRIBUTES.pack(header.attributes | _LOG_APPEND_TIME)
    between = records[CRC_START + _ATTRIBUTES.size : _MAX_TIMESTAMP_AT]
    front = attributes + between + _MAX_TIMESTAMP.pack(now)
    rest = memoryview(records)[CRC_START + len(front) :]
    checksum = _CRC.pack(crc32c(rest, crc32c(front)))
    return b"".join((records[: CRC_START - _CRC.size], checksum, front, rest))
