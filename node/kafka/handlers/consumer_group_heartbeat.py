"""ConsumerGroupHeartbeat: the one request of a KIP-848 group's members, and its answer."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.coordinator.groups.consumer_groups import HeartbeatAnswer
from strandline.node.coordinator.groups.consumer_member import JOINING, LEAVING, MemberHeartbeat
from strandline.node.kafka.handlers.authorization import may_with_group, may_with_topic
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.kafka.handlers.group_coordinators import group_coordinator
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.refusal import Refusal
from strandline.node.runtime.slices import in_slices
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.groups.assignors import ASSIGNORS
from strandline.statemachine.groups.consumer_group_commands import LEFT_FOR_A_WHILE, Assignment
from strandline.statemachine.kafka_errors import KafkaError

MAX_TEXT: Final = 2**15 - 1
"""Characters of an id or a pattern: the limit, in bytes, of a string in Kafka's older versions."""
MAX_TOPICS: Final = 10_000
"""Names that one member may subscribe to."""
NO_CHANGE: Final = -1
_BRINGS_ITS_ID: Final = 1
"""The version from which on a member makes its id itself (KIP-1082)."""


async def consumer_group_heartbeat(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """The member's epoch, and its assignment where that is new to it."""
    payload = request.payload
    if not may_with_group(context, request, Operation.READ, payload.group_id):
        return _refused(a, Refusal(KafkaError.GROUP_AUTHORIZATION_FAILED))
    named = payload.subscribed_topic_names or ()
    async for name in in_slices(named if len(named) <= MAX_TOPICS else ()):  # More are refused below.
        if not may_with_topic(context, request, Operation.DESCRIBE, name):
            return _refused(a, Refusal(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    heartbeat = _heartbeat(context, request)
    if isinstance(heartbeat, Refusal):
        return _refused(a, heartbeat)
    coordinator = group_coordinator(context, request, Operation.READ, payload.group_id)
    if isinstance(coordinator, KafkaError):
        return _refused(a, Refusal(coordinator))
    beat = await coordinator.consumer.heartbeat(payload.group_id, heartbeat)
    return _refused(a, beat) if isinstance(beat, Refusal) else _accepted(a, beat)


def _heartbeat(context: BrokerContext, request: Request) -> MemberHeartbeat | Refusal:
    payload = request.payload
    pattern = getattr(payload, "subscribed_topic_regex", None)
    fault = _fault(payload, pattern, request.header.api_version)
    if fault is not None:
        return Refusal(KafkaError.INVALID_REQUEST, fault)
    assignor = payload.server_assignor
    if assignor is not None and assignor not in ASSIGNORS:
        known = ", ".join(ASSIGNORS)
        reason = f"ServerAssignor {assignor} is not supported. Supported assignors: {known}."
        return Refusal(KafkaError.UNSUPPORTED_ASSIGNOR, reason)
    names, owned, timeout = (
        payload.subscribed_topic_names,
        payload.topic_partitions,
        payload.rebalance_timeout,
    )
    return MemberHeartbeat(
        # Kafka's form of an id: 16 random bytes, in letters.
        member_id=payload.member_id or str(uuid.UUID(bytes=context.rng.randbytes(16), version=4)),
        epoch=payload.member_epoch,
        client_id=request.header.client_id or "",
        client_host=f"/{request.client_host}",  # as Java writes an address without a name
        instance_id=payload.instance_id,
        rack_id=payload.rack_id,
        rebalance_timeout_ms=None if _milliseconds(timeout) == NO_CHANGE else _milliseconds(timeout),
        topics=None if names is None else tuple(sorted(set(names))),
        pattern=pattern,
        assignor=assignor,
        owned=None
        if owned is None
        else frozenset(
            (topic.topic_id.bytes, number)
            for topic in owned
            if topic.topic_id is not None
            for number in topic.partitions
        ),
    )


def _fault(payload: Any, pattern: str | None, version: int) -> str | None:
    """The reason to refuse a request: Kafka's `throwIfConsumerGroupHeartbeatRequestIsInvalid`, or a text or
    list too long for the coordinator; None if it is valid."""
    epoch = payload.member_epoch
    if (version >= _BRINGS_ITS_ID or epoch > JOINING or epoch == LEAVING) and not payload.member_id:
        return "MemberId can't be empty."
    for name, text in (
        ("GroupId", payload.group_id),
        ("InstanceId", payload.instance_id),
        ("RackId", payload.rack_id),
    ):
        if text == "":
            return f"{name} can't be empty."
    for text in (payload.group_id, payload.member_id, payload.instance_id, payload.rack_id, pattern):
        if text is not None and len(text) > MAX_TEXT:
            return f"An id or a pattern is longer than {MAX_TEXT} characters."
    if payload.subscribed_topic_names is not None and len(payload.subscribed_topic_names) > MAX_TOPICS:
        return f"SubscribedTopicNames has more than {MAX_TOPICS} names."
    if epoch == JOINING:
        if _milliseconds(payload.rebalance_timeout) == NO_CHANGE:
            return "RebalanceTimeoutMs must be provided in first request."
        if payload.topic_partitions is None or payload.topic_partitions:
            return "TopicPartitions must be empty when (re-)joining."
        if payload.subscribed_topic_names is None and pattern is None:
            return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    if epoch < LEFT_FOR_A_WHILE:
        return f"MemberEpoch is {epoch}, but must be greater than or equal to {LEFT_FOR_A_WHILE}."
    if epoch == LEFT_FOR_A_WHILE and payload.instance_id is None:
        return "InstanceId can't be null."
    return None


def _milliseconds(timeout: timedelta) -> int:
    return timeout // timedelta(milliseconds=1)


def _accepted(a: ResponseTypes, answer: HeartbeatAnswer) -> Any:
    member_id, epoch, _, assigned = answer.reply
    return a.ConsumerGroupHeartbeatResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        member_id=member_id,
        member_epoch=epoch,
        heartbeat_interval=timedelta(milliseconds=0 if epoch < 0 else round(answer.interval_seconds * 1000)),
        assignment=None if assigned is None else _assignment(a, assigned),
    )


def _assignment(a: ResponseTypes, assigned: Assignment) -> Any:
    return a.Assignment(
        topic_partitions=tuple(
            a.TopicPartitions(topic_id=uuid.UUID(bytes=topic_id), partitions=numbers)
            for topic_id, numbers in assigned
        )
    )


def _refused(a: ResponseTypes, refusal: Refusal) -> Any:
    return a.ConsumerGroupHeartbeatResponse(
        throttle_time=NO_THROTTLE,
        error_code=code_of(refusal),
        error_message=refusal.message or None,
        member_id=None,
        member_epoch=0,
        heartbeat_interval=timedelta(0),
        assignment=None,
    )
