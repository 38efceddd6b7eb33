"""OffsetForLeaderEpoch: the end of the records of a leader's term (KIP-101, KIP-320).

A consumer asks after a change of leader, to find out whether the records it has read are still there. Only a
node that has just proved its leadership answers: the history at a former leader is too short.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import may_with_cluster
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.leading import check_leader_epoch, led_partition, plain_topic, topic_of
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.runtime.gather import gather_bounded
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.controller.controller_state import Topic


class _Answer(NamedTuple):
    """One partition's answer; an epoch that is not known here has neither epoch nor end offset."""

    code: ErrorCode = ErrorCode.none
    leader_epoch: int = -1
    end_offset: int = -1


async def offset_for_leader_epoch(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """The answer, with an epoch and its end or an error for each partition."""
    ask = request.payload

    # Brokers of Kafka's ask this too, and may ask about every topic.
    any_name = may_with_cluster(context, request, Operation.CLUSTER_ACTION, quiet=True)

    async def look(one: tuple[str, Any]) -> _Answer:
        name, asked = one
        if any_name:
            topic = plain_topic(context, name)
        else:
            topic = topic_of(context, request, Operation.DESCRIBE, name, None)
        return await _answer(context, topic, asked)

    answers = iter(
        await gather_bounded(
            ((topic.topic, asked) for topic in ask.topics for asked in topic.partitions), look
        )
    )
    return a.OffsetForLeaderEpochResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            a.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(_partition(a, asked.partition, next(answers)) for asked in topic.partitions),
            )
            for topic in ask.topics
        ),
    )


def _partition(a: ResponseTypes, number: int, answer: _Answer) -> Any:
    return a.EpochEndOffset(
        error_code=answer.code,
        partition=number,
        leader_epoch=answer.leader_epoch,
        end_offset=answer.end_offset,
    )


async def _answer(context: BrokerContext, topic: Topic | ErrorCode, asked: Any) -> _Answer:
    if isinstance(topic, ErrorCode):
        return _Answer(topic)
    partition = led_partition(context, topic, asked.partition)
    if isinstance(partition, ErrorCode):
        return _Answer(partition)
    code = check_leader_epoch(partition, asked.current_leader_epoch)
    if code is not ErrorCode.none:
        return _Answer(code)
    if not await partition.confirm():
        return _Answer(ErrorCode.not_leader_or_follower)
    end = partition.machine.offset_for_leader_epoch(asked.leader_epoch)
    return _Answer() if end is None else _Answer(ErrorCode.none, end.term, end.end_offset)
