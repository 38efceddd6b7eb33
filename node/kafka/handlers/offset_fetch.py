"""OffsetFetch: the committed offsets of groups, for named partitions or for all.

A consumer goes on from these offsets, so only a leader that has just proved its leadership answers. It also
knows the newest state of the topics, so it withholds no offset, and gives none of a deleted topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import TOPIC_REFUSED, may_with_topic
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.kafka.handlers.group_coordinators import group_coordinator
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.runtime.gather import gather_bounded
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.groups.group_state import Group
from strandline.statemachine.groups.offsets import CommittedOffset, Offsets
from strandline.statemachine.kafka_errors import KafkaError

CATCH_UP_SECONDS: Final = 2.0
"""Time limit for catching up with the controller when it is unclear whether a topic still exists."""
_FIRST_WITH_GROUPS: Final = 8
_FIRST_WITH_GROUP_ERROR: Final = 2
_NOTHING: Final = CommittedOffset(-1, -1, "", 0, 0, 0)


class _Asked(NamedTuple):
    """One group of a request, the same in all versions; without topics: all of them."""

    group_id: str
    member_id: str | None
    member_epoch: int
    topics: Sequence[Any] | None


class _Partition(NamedTuple):
    number: int
    code: ErrorCode
    offset: CommittedOffset = _NOTHING


class _Topic(NamedTuple):
    name: str
    partitions: list[_Partition]


class _Fetched(NamedTuple):
    code: ErrorCode
    topics: list[_Topic]


async def offset_fetch(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """The answer; version 8 and later ask for many groups, each of which has its own error."""
    payload, version = request.payload, request.header.api_version
    if version >= _FIRST_WITH_GROUPS:
        asked = [
            _Asked(
                one.group_id,
                getattr(one, "member_id", None),
                getattr(one, "member_epoch", -1),
                one.topics,
            )
            for one in payload.groups
        ]
    else:
        asked = [_Asked(payload.group_id, None, -1, payload.topics)]
    stable = getattr(payload, "require_stable", False)

    async def fetch(one: _Asked) -> _Fetched:
        return await _fetch(context, request, one, stable)

    fetched = await gather_bounded(asked, fetch)
    if version >= _FIRST_WITH_GROUPS:
        groups = tuple(
            a.OffsetFetchResponseGroup(
                group_id=one.group_id,
                error_code=answer.code,
                topics=tuple(
                    a.OffsetFetchResponseTopics(
                        name=topic.name,
                        partitions=_partitions(a.OffsetFetchResponsePartitions, topic),
                    )
                    for topic in answer.topics
                ),
            )
            for one, answer in zip(asked, fetched, strict=True)
        )
        return a.OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=groups)
    (answer,) = fetched
    topics = answer.topics
    if version < _FIRST_WITH_GROUP_ERROR and answer.code is not ErrorCode.none:
        topics = [
            _Topic(one.name, [_Partition(number, answer.code) for number in one.partition_indexes])
            for one in asked[0].topics or ()
        ]
    return a.OffsetFetchResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            a.OffsetFetchResponseTopic(
                name=topic.name, partitions=_partitions(a.OffsetFetchResponsePartition, topic)
            )
            for topic in topics
        ),
        error_code=answer.code,
    )


def _partitions(make: Callable[..., Any], topic: _Topic) -> tuple[Any, ...]:
    return tuple(
        make(
            partition_index=one.number,
            committed_offset=one.offset.offset,
            committed_leader_epoch=one.offset.leader_epoch,
            metadata=one.offset.metadata,
            error_code=one.code,
        )
        for one in topic.partitions
    )


async def _fetch(context: BrokerContext, request: Request, asked: _Asked, stable: bool) -> _Fetched:
    coordinator = group_coordinator(context, request, Operation.DESCRIBE, asked.group_id, may_be_empty=True)
    if isinstance(coordinator, KafkaError):
        return _Fetched(code_of(coordinator), [])
    if not await coordinator.confirm():
        return _Fetched(ErrorCode.not_coordinator, [])
    machine = context.controller.machine

    def shown(name: str) -> bool:
        return may_with_topic(context, request, Operation.DESCRIBE, name, quiet=True)

    group = coordinator.machine.groups.get(asked.group_id)
    if group is not None and not _agree(context, group, asked.topics):
        if not await context.controller.catch_up(CATCH_UP_SECONDS):
            return _Fetched(ErrorCode.coordinator_load_in_progress, [])
        group = coordinator.machine.groups.get(asked.group_id)
    if group is not None and group.membership is not None:
        refusal = group.membership.refuse_fetch(asked.member_id, asked.member_epoch)
        if refusal is not None:
            return _Fetched(code_of(refusal), [])
    offsets = Offsets() if group is None else group.offsets
    if asked.topics is None:
        present = [machine.topic_by_id(topic_id) for topic_id in offsets.committed]
        return _Fetched(
            ErrorCode.none,
            [
                _Topic(
                    topic.name,
                    _rows(offsets, topic, offsets.committed[topic.topic_id], stable),
                )
                for topic in present
                if topic is not None and shown(topic.name)
            ],
        )
    found = []
    for one in asked.topics:
        topic = machine.topic(one.name)
        if not may_with_topic(context, request, Operation.DESCRIBE, one.name):
            rows = [_Partition(number, TOPIC_REFUSED) for number in one.partition_indexes]
        elif topic is not None:
            rows = _rows(offsets, topic, one.partition_indexes, stable)
        else:  # There is no offset under a name that was never heard of.
            rows = [_Partition(number, ErrorCode.none) for number in one.partition_indexes]
        found.append(_Topic(one.name, rows))
    return _Fetched(ErrorCode.none, found)


def _agree(context: BrokerContext, group: Group, topics: Sequence[Any] | None) -> bool:
    """Whether this node knows all topics of the request that the group has offsets of.

    It may not know one: the topic was deleted, or deleted and created again, and its offsets are about to go;
    or it was created, and this node lags behind the controller.
    """
    machine, names = context.controller.machine, group.offsets.names
    if topics is None:
        return all(machine.topic_by_id(topic_id) is not None for topic_id in names)
    asked = {one.name: None for one in topics}
    return all(machine.topic_by_id(topic_id) is not None for topic_id, name in names.items() if name in asked)


def _rows(
    offsets: Offsets, topic: Topic, numbers: Sequence[int] | Mapping[int, Any], stable: bool
) -> list[_Partition]:
    rows = []
    for number in numbers:
        if stable and offsets.is_pending(topic.topic_id, number):
            rows.append(_Partition(number, ErrorCode.unstable_offset_commit))
        else:
            rows.append(_Partition(number, ErrorCode.none, offsets.get(topic.topic_id, number) or _NOTHING))
    return rows
