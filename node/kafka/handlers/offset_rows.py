"""Selects the offsets of a commit that may be committed, and builds the answers to all of them.

OffsetCommit and TxnOffsetCommit share these checks, as in Kafka's broker: an offset of an unknown partition,
or with too much metadata, is refused alone; the rest is committed by one command, and shares its outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from strandline.node.coordinator.replica import NotDone
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.leading import NO_LEADER_EPOCH, topic_of
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.groups.group_commands import PartitionOffset, Refused, TopicOffsets

MAX_METADATA_BYTES: Final = 4096
"""Kafka's offset.metadata.max.bytes, its default."""


class OffsetRows(NamedTuple):
    """The offsets of one request: those to commit, and those that are refused at once."""

    offsets: list[TopicOffsets]
    codes: list[list[ErrorCode]]
    """For each topic and partition of the request, in its order; NONE where it is to be committed."""

    def answer(self, topic: int, partition: int, outcome: ErrorCode) -> ErrorCode:
        """The code for a partition, by its place and its topic's, when the command came to `outcome`."""
        code = self.codes[topic][partition]
        return outcome if code is ErrorCode.none else code


def judge(context: BrokerContext, topics: Sequence[Any]) -> OffsetRows:
    """Sort the offsets of a request's topics."""
    rows = OffsetRows([], [])
    for asked in topics:
        topic = topic_of(context, asked.name, None)
        codes = [_refusal(topic, one) for one in asked.partitions]
        rows.codes.append(codes)
        taken = [
            PartitionOffset(
                one.partition_index,
                one.committed_offset,
                getattr(one, "committed_leader_epoch", NO_LEADER_EPOCH),
                one.committed_metadata or "",
            )
            for one, code in zip(asked.partitions, codes, strict=True)
            if code is ErrorCode.none
        ]
        if taken and isinstance(topic, Topic):
            rows.offsets.append(TopicOffsets(topic.topic_id, topic.name, taken))
    return rows


def _refusal(topic: Topic | ErrorCode, asked: Any) -> ErrorCode:
    if isinstance(topic, ErrorCode):
        return topic
    if not 0 <= asked.partition_index < len(topic.partitions):
        return ErrorCode.unknown_topic_or_partition
    if len((asked.committed_metadata or "").encode()) > MAX_METADATA_BYTES:
        return ErrorCode.offset_metadata_too_large
    return ErrorCode.none


def outcome(result: Any | NotDone) -> ErrorCode:
    """The error code for the client of a command on offsets, from the command's result."""
    if isinstance(result, NotDone):
        too_large = result.code is ErrorCode.message_too_large
        return ErrorCode.invalid_commit_offset_size if too_large else result.code
    return ErrorCode(int(result.code)) if isinstance(result, Refused) else ErrorCode.none
