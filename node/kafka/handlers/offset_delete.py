"""OffsetDelete: forget offsets of a group, of topics that none of its members is subscribed to (KIP-496)."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import GROUP_REFUSED, may_with_group
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.kafka.handlers.group_coordinators import group_coordinator
from strandline.node.kafka.handlers.leading import topic_of
from strandline.node.kafka.handlers.offset_rows import outcome_code
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.groups.group_commands import OffsetsDeleted
from strandline.statemachine.kafka_errors import KafkaError


async def offset_delete(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Delete offsets, also missing ones; answers when that is done. No topics if the group fails."""
    payload = request.payload
    found = [(one, topic_of(context, request, Operation.READ, one.name, None)) for one in payload.topics]
    wanted = [
        (topic.topic_id, topic.name, [partition.partition_index for partition in one.partitions])
        for one, topic in found
        if isinstance(topic, Topic)
    ]
    code, subscribed = await _delete(context, request, wanted)
    answered = found if code is ErrorCode.none else []
    return a.OffsetDeleteResponse(
        error_code=code,
        throttle_time=NO_THROTTLE,
        topics=tuple(
            a.OffsetDeleteResponseTopic(
                name=one.name,
                partitions=tuple(
                    a.OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=_code(topic, partition.partition_index, subscribed),
                    )
                    for partition in one.partitions
                ),
            )
            for one, topic in answered
        ),
    )


def _code(topic: Topic | ErrorCode, number: int, subscribed: list[bytes]) -> ErrorCode:
    if isinstance(topic, ErrorCode):
        return topic
    if not 0 <= number < len(topic.partitions):
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.group_subscribed_to_topic if topic.topic_id in subscribed else ErrorCode.none


async def _delete(
    context: BrokerContext, request: Request, wanted: list[tuple[bytes, str, list[int]]]
) -> tuple[ErrorCode, list[bytes]]:
    group_id = request.payload.group_id
    if not may_with_group(context, request, Operation.DELETE, group_id):
        return GROUP_REFUSED, []
    if not wanted:
        return ErrorCode.none, []
    coordinator = group_coordinator(context, request, Operation.DELETE, group_id)
    if isinstance(coordinator, KafkaError):
        return code_of(coordinator), []
    done = await coordinator.delete_offsets(group_id, wanted)
    return (ErrorCode.none, done.subscribed) if isinstance(done, OffsetsDeleted) else (outcome_code(done), [])
