"""ConsumerGroupDescribe: groups of KIP-848, with each member's assignment and target assignment."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.coordinator.groups.consumer_groups import ConsumerGroups
from strandline.node.coordinator.groups.consumer_plan import preferred_assignor
from strandline.node.kafka.handlers.authorization import (
    NOT_ASKED,
    TOPIC_REFUSED,
    may_with_topic,
    operations_of_group,
)
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.kafka.handlers.group_coordinators import group_coordinator
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.groups.consumer_group_commands import NOTHING, Assignment, ConsumerMember
from strandline.statemachine.kafka_errors import KafkaError

_CLASSIC: Final = 0
_CONSUMER: Final = 1
"""Types of members: the protocol that they speak."""
_HIDDEN: Final = "The group uses topics that the client is not authorized to describe."


async def consumer_group_describe(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Each group that was asked for, in that order."""
    return a.ConsumerGroupDescribeResponse(
        throttle_time=NO_THROTTLE,
        groups=tuple(_described(context, request, group_id, a) for group_id in request.payload.group_ids),
    )


def _described(context: BrokerContext, request: Request, group_id: str, a: ResponseTypes) -> Any:
    coordinator = group_coordinator(context, request, Operation.DESCRIBE, group_id, may_be_empty=True)
    if isinstance(coordinator, KafkaError):
        return _nothing(a, group_id, code_of(coordinator), None)
    group = coordinator.consumer.get(group_id)
    if group is None:
        there = group_id in coordinator.machine.groups or coordinator.classic.has_members(group_id)
        reason = f"Group {group_id} is not a consumer group." if there else f"Group {group_id} not found."
        return _nothing(a, group_id, ErrorCode.group_id_not_found, reason)
    members = [member for _, member in sorted(group.members.items())]
    used = {name for member in members for name in _topics(coordinator.consumer, group.targets, member)}
    if not all(may_with_topic(context, request, Operation.DESCRIBE, name) for name in used):
        return _nothing(a, group_id, TOPIC_REFUSED, _HIDDEN)
    return a.DescribedGroup(
        error_code=ErrorCode.none,
        error_message=None,
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.epoch,
        assignor_name=preferred_assignor(members),
        members=tuple(
            _member(a, coordinator.consumer, member, group.targets.get(member.member_id, NOTHING))
            for member in members
        ),
        authorized_operations=operations_of_group(context, request, group_id),
    )


def _topics(
    groups: ConsumerGroups, targets: Mapping[str, Assignment], member: ConsumerMember
) -> Iterator[str]:
    """The topics that an answer would name."""
    yield from member.topics
    for topic_id, _ in (*member.assigned, *targets.get(member.member_id, NOTHING)):
        if (name := groups.topics.name_of(topic_id)) is not None:
            yield name


def _member(a: ResponseTypes, groups: ConsumerGroups, member: ConsumerMember, target: Assignment) -> Any:
    return a.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.topics,
        subscribed_topic_regex=member.pattern or None,
        assignment=_assignment(a, groups, member.assigned),
        target_assignment=_assignment(a, groups, target),
        member_type=_CONSUMER if member.classic is None else _CLASSIC,
    )


def _assignment(a: ResponseTypes, groups: ConsumerGroups, assigned: Assignment) -> Any:
    """Without topics that are gone: they have no name any more."""
    named = ((topic_id, groups.topics.name_of(topic_id), numbers) for topic_id, numbers in assigned)
    return a.Assignment(
        topic_partitions=tuple(
            a.TopicPartitions(topic_id=uuid.UUID(bytes=topic_id), topic_name=name, partitions=numbers)
            for topic_id, name, numbers in named
            if name is not None
        )
    )


def _nothing(a: ResponseTypes, group_id: str, code: ErrorCode, message: str | None) -> Any:
    return a.DescribedGroup(
        error_code=code,
        error_message=message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=(),
        authorized_operations=NOT_ASKED,
    )
