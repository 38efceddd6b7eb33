"""DeleteRecords: deletes a partition's records before an offset (KIP-107).

The start offset moves at once, by a command in the partition's log, so an answer holds under every later
leader. The records before it are deleted from storage later, when no reader can need them any more.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE, data_wait
from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.kafka.handlers.leading import led_partition, topic_of
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.partition.partition import Partition
from strandline.node.refusal import Reason, Refusal
from strandline.node.runtime.gather import gather_bounded
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.controller.topic_config import CLEANUP_POLICY
from strandline.statemachine.partition.partition_commands import SetStartOffset, StartOffsetSet
from strandline.statemachine.partition.rejection import Rejected, Rejection

HIGH_WATERMARK: Final = -1
"""The offset that stands for "everything there is"."""


class _Answer(NamedTuple):
    """The result for one partition: its start offset now, -1 with an error."""

    code: ErrorCode
    low_watermark: int = -1


async def delete_records(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Answers when every start offset is committed. One that takes longer than the request's timeout is
    REQUEST_TIMED_OUT, and may move yet; asking again does no harm."""
    ask = request.payload
    deadline = context.loop.time() + data_wait(ask.timeout)

    async def delete(one: tuple[str, Any]) -> _Answer:
        try:
            async with asyncio.timeout_at(deadline):
                return await _delete(context, request, one[0], one[1])
        except TimeoutError:
            return _Answer(ErrorCode.request_timed_out)

    answers = iter(
        await gather_bounded(
            ((topic.name, part) for topic in ask.topics for part in topic.partitions), delete
        )
    )
    return a.DeleteRecordsResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            a.DeleteRecordsTopicResult(
                name=topic.name,
                partitions=tuple(
                    _partition(a, part.partition_index, next(answers)) for part in topic.partitions
                ),
            )
            for topic in ask.topics
        ),
    )


def _partition(a: ResponseTypes, number: int, answer: _Answer) -> Any:
    return a.DeleteRecordsPartitionResult(
        partition_index=number, low_watermark=answer.low_watermark, error_code=answer.code
    )


async def _delete(context: BrokerContext, request: Request, name: str, asked: Any) -> _Answer:
    number, offset = asked.partition_index, asked.offset
    topic = topic_of(context, request, Operation.DELETE, name, None)
    if isinstance(topic, ErrorCode):
        return _Answer(topic)
    partition = led_partition(context, topic, number)
    if isinstance(partition, ErrorCode):
        return _Answer(partition)
    if "delete" not in CLEANUP_POLICY.of(topic.configs):
        return _Answer(ErrorCode.policy_violation)
    # One that was replaced and does not know has too low a high watermark, and would refuse a good offset.
    if not await partition.confirm():
        return _Answer(ErrorCode.not_leader_or_follower)
    if offset == HIGH_WATERMARK:
        offset = partition.high_watermark
    if not 0 <= offset <= partition.high_watermark:
        return _Answer(ErrorCode.offset_out_of_range)
    if offset <= partition.start_offset:
        return _Answer(ErrorCode.none, partition.start_offset)
    return await _move(partition, offset)


async def _move(partition: Partition, offset: int) -> _Answer:
    result = await partition.execute(SetStartOffset(offset))
    if isinstance(result, StartOffsetSet):
        return _Answer(ErrorCode.none, result.start_offset)
    if isinstance(result, Rejected) and result.reason is Rejection.LOWER_START_OFFSET:
        return _Answer(ErrorCode.none, result.current)  # another request deleted more
    if isinstance(result, Refusal) and result.reason is not Reason.UNDECIDED:
        return _Answer(code_of(result))
    # It may be in the log, or not.
    return _Answer(ErrorCode.request_timed_out)
