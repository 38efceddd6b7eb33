"""The configs of a topic: Kafka's names, types, defaults and limits (those of Kafka 4.1).

All of Kafka's names are known. Some have no effect here, and some are taken at their defaults only, because
tools that manage topics set them; docs/controller.md says which.
"""

from __future__ import annotations

from strandline.statemachine.controller.settings import (
    LONG_MAX,
    Configs,
    Setting,
    Table,
    boolean_setting,
    choice_setting,
    choices_setting,
    default_only,
    int_setting,
    list_setting,
    long_setting,
    ratio_setting,
)


def _gzip_level(name: str) -> Setting[int]:
    in_range = int_setting(name, -1, -1, 9).parse

    def parse(text: str) -> int:
        if (level := in_range(text)) == 0:
            raise ValueError("Value must be between 1 and 9 or equal to -1")
        return level

    return Setting(name, -1, parse, "INT")


_UNTIERED = "Every record is in the object store, so there is no tiered storage to govern"
_UNTHROTTLED = "There are no replication quotas: replicas are the log, which does not hold the records"
DAY = 24 * 60 * 60 * 1000
CLEANUP_POLICY = choices_setting("cleanup.policy", ("delete",), "compact", "delete")
COMPRESSION_TYPE = choice_setting(
    "compression.type", "producer", "uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"
)
COMPRESSION_GZIP_LEVEL = _gzip_level("compression.gzip.level")
COMPRESSION_LZ4_LEVEL = int_setting("compression.lz4.level", 9, 1, 17)
COMPRESSION_ZSTD_LEVEL = int_setting("compression.zstd.level", 3, -131072, 22)
DELETE_RETENTION_MS = long_setting("delete.retention.ms", DAY, 0)
FILE_DELETE_DELAY_MS = long_setting("file.delete.delay.ms", 60_000, 0)
FLUSH_MESSAGES = long_setting("flush.messages", LONG_MAX, 1)
FLUSH_MS = long_setting("flush.ms", LONG_MAX, 0)
FOLLOWER_REPLICATION_THROTTLED_REPLICAS = default_only(
    list_setting("follower.replication.throttled.replicas"), _UNTHROTTLED
)
INDEX_INTERVAL_BYTES = int_setting("index.interval.bytes", 4096, 0)
LEADER_REPLICATION_THROTTLED_REPLICAS = default_only(
    list_setting("leader.replication.throttled.replicas"), _UNTHROTTLED
)
LOCAL_RETENTION_BYTES = default_only(long_setting("local.retention.bytes", -2, -2), _UNTIERED)
LOCAL_RETENTION_MS = default_only(long_setting("local.retention.ms", -2, -2), _UNTIERED)
MAX_COMPACTION_LAG_MS = long_setting("max.compaction.lag.ms", LONG_MAX, 1)
MAX_MESSAGE_BYTES = int_setting("max.message.bytes", 1024 * 1024 + 12, 0)
MESSAGE_TIMESTAMP_AFTER_MAX_MS = long_setting("message.timestamp.after.max.ms", 60 * 60 * 1000, 0)
MESSAGE_TIMESTAMP_BEFORE_MAX_MS = long_setting("message.timestamp.before.max.ms", LONG_MAX, 0)
MESSAGE_TIMESTAMP_TYPE = choice_setting("message.timestamp.type", "CreateTime", "CreateTime", "LogAppendTime")
MIN_CLEANABLE_DIRTY_RATIO = ratio_setting("min.cleanable.dirty.ratio", 0.5)
MIN_COMPACTION_LAG_MS = long_setting("min.compaction.lag.ms", 0, 0)
MIN_INSYNC_REPLICAS = int_setting("min.insync.replicas", 1, 1)
PREALLOCATE = boolean_setting("preallocate", False)
REMOTE_LOG_COPY_DISABLE = default_only(boolean_setting("remote.log.copy.disable", False), _UNTIERED)
REMOTE_LOG_DELETE_ON_DISABLE = default_only(boolean_setting("remote.log.delete.on.disable", False), _UNTIERED)
REMOTE_STORAGE_ENABLE = default_only(boolean_setting("remote.storage.enable", False), _UNTIERED)
RETENTION_BYTES = long_setting("retention.bytes", -1, -LONG_MAX - 1)
RETENTION_MS = long_setting("retention.ms", 7 * DAY, -1)
SEGMENT_BYTES = int_setting("segment.bytes", 1024 * 1024 * 1024, 1024 * 1024)
SEGMENT_INDEX_BYTES = int_setting("segment.index.bytes", 10 * 1024 * 1024, 4)
SEGMENT_JITTER_MS = long_setting("segment.jitter.ms", 0, 0)
SEGMENT_MS = long_setting("segment.ms", 7 * DAY, 1)
UNCLEAN_LEADER_ELECTION_ENABLE = boolean_setting("unclean.leader.election.enable", False)


def _conflict(configs: Configs) -> str | None:
    shortest, longest = MIN_COMPACTION_LAG_MS.of(configs), MAX_COMPACTION_LAG_MS.of(configs)
    if shortest <= longest:
        return None
    return (
        f"conflict topic config setting min.compaction.lag.ms ({shortest}) > "
        f"max.compaction.lag.ms ({longest})"
    )


TABLE = Table("topic", [one for one in globals().values() if isinstance(one, Setting)], _conflict)
SETTINGS = TABLE.settings
"""Every config by name, in the order of the names."""
