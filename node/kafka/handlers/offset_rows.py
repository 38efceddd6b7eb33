"""Checks the offsets of a commit one by one, and builds the answers to all of them.

OffsetCommit and TxnOffsetCommit share these checks, as in Kafka's broker: an offset of an unknown partition,
or with too much metadata, is refused alone; the rest is committed by one command, and shares its outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.kafka.handlers.leading import NO_LEADER_EPOCH, topic_of
from strandline.node.kafka.wire.handler import Request
from strandline.node.refusal import Refusal
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.groups.group_commands import PartitionOffset, TopicOffsets
from strandline.statemachine.kafka_errors import KafkaError, Refused

MAX_METADATA_BYTES: Final = 4096
"""Kafka's offset.metadata.max.bytes, its default."""


class OffsetRows(NamedTuple):
    """The offsets of one request: those to commit, and those that are refused at once."""

    topics: Sequence[Any]
    """The topics of the request."""
    offsets: list[TopicOffsets]
    codes: list[list[ErrorCode]]
    """For each topic and partition of the request, in its order; NONE where it is to be committed."""

    def answers(
        self, outcome: ErrorCode, topic_type: Callable[..., Any], partition_type: Callable[..., Any]
    ) -> tuple[Any, ...]:
        """The topics of the response; `outcome`: the code of the offsets that were to be committed."""
        return tuple(
            topic_type(
                name=topic.name,
                partitions=tuple(
                    partition_type(
                        partition_index=one.partition_index,
                        error_code=outcome if code is ErrorCode.none else code,
                    )
                    for one, code in zip(topic.partitions, codes, strict=True)
                ),
            )
            for topic, codes in zip(self.topics, self.codes, strict=True)
        )


def unchecked_offsets(topics: Sequence[Any]) -> OffsetRows:
    """The offsets of a request that is refused as a whole."""
    return OffsetRows(topics, [], [[ErrorCode.none for _ in topic.partitions] for topic in topics])


def check_offsets(context: BrokerContext, request: Request, topics: Sequence[Any]) -> OffsetRows:
    """Check every offset of a request's topics by itself."""
    rows = OffsetRows(topics, [], [])
    for asked in topics:
        topic = topic_of(context, request, Operation.READ, asked.name, None)
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


def outcome_code(result: Any) -> ErrorCode:
    """The error code for the client of a command on offsets, from the command's result."""
    if isinstance(result, Refusal) and result.reason is KafkaError.MESSAGE_TOO_LARGE:
        return ErrorCode.invalid_commit_offset_size
    return code_of(result) if isinstance(result, Refusal | Refused) else ErrorCode.none
