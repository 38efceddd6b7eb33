"""ListOffsets: the ends of a partition, its newest record, or the first record since a time.

Consumers start from these offsets, so only a node that has just proved its leadership answers: the end of the
log at a former leader lies before acknowledged records.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.fetch_partition import READ_COMMITTED
from strandline.node.kafka.handlers.leading import (
    NO_LEADER_EPOCH,
    any_topic,
    check_leader_epoch,
    led_partition,
)
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.record_batch import BatchLimits, InvalidBatch
from strandline.node.kafka.wire.record_lookup import Found, first_at_or_after, newest
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.level_one.stored_run import TimedBatch
from strandline.node.objectstore.store import StoreError
from strandline.node.partition.partition import Partition
from strandline.node.runtime.gather import gather_bounded
from strandline.snapshot.object_frame import BadObject
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.internal_topics import INTERNAL_TOPICS

log = logging.getLogger(__name__)

_LAST_WITHOUT_OFFSET_NOT_AVAILABLE: Final = 4
_MAX_DECOMPRESSED_BYTES: Final = BatchLimits().max_decompressed_bytes


class Special(IntEnum):
    """Timestamps that are none: Kafka's ListOffsetsRequest; KIP-734, KIP-405, KIP-1005."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5


_SINCE_VERSION: Final[Mapping[int, int]] = MappingProxyType(
    {
        Special.LATEST: 1,
        Special.EARLIEST: 1,
        Special.MAX_TIMESTAMP: 7,
        Special.EARLIEST_LOCAL: 8,
        Special.LATEST_TIERED: 9,
    }
)


class _Answer(NamedTuple):
    """-1 stands for nothing, everywhere."""

    code: ErrorCode = ErrorCode.none
    offset: int = -1
    timestamp: int = -1
    leader_epoch: int = NO_LEADER_EPOCH


async def list_offsets(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """The answer; a look-up that outlasts version 10's timeout is REQUEST_TIMED_OUT, unless that is 0."""
    ask = request.payload
    pairs = [(topic.name, asked) for topic in ask.topics for asked in topic.partitions]
    times = Counter((name, asked.partition_index) for name, asked in pairs)
    # Kafka looks up in its own files without asking for the time: kafka-python sends 0, and waits.
    seconds = max(ask.timeout.total_seconds(), 0.0) or None if request.header.api_version >= 10 else None

    committed = getattr(ask, "isolation_level", 0) == READ_COMMITTED

    async def look(one: tuple[str, Any]) -> _Answer:
        name, asked = one
        if times[name, asked.partition_index] > 1:
            return _Answer(ErrorCode.invalid_request)
        return await _answer(context, request, name, asked, seconds, committed)

    answers = iter(await gather_bounded(pairs, look))
    return a.ListOffsetsResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            a.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(
                    _partition(a, asked.partition_index, next(answers)) for asked in topic.partitions
                ),
            )
            for topic in ask.topics
        ),
    )


def _partition(a: ResponseTypes, number: int, answer: _Answer) -> Any:
    return a.ListOffsetsPartitionResponse(
        partition_index=number,
        error_code=answer.code,
        offset=answer.offset,
        timestamp=answer.timestamp,
        leader_epoch=answer.leader_epoch,
    )


async def _answer(
    context: BrokerContext, request: Request, name: str, asked: Any, seconds: float | None, committed: bool
) -> _Answer:
    version = request.header.api_version
    topic = any_topic(context, request, Operation.DESCRIBE, name, None)
    if isinstance(topic, ErrorCode):
        return _Answer(topic)
    if asked.timestamp < 0 and version < _SINCE_VERSION.get(asked.timestamp, 1 << 15):
        return _Answer(ErrorCode.unsupported_version)
    if name in INTERNAL_TOPICS:
        return _of_none(topic, asked)
    partition = led_partition(context, topic, asked.partition_index)
    if isinstance(partition, ErrorCode):
        if partition is ErrorCode.not_leader_or_follower and _elected(context, topic, asked.partition_index):
            late = version > _LAST_WITHOUT_OFFSET_NOT_AVAILABLE
            return _Answer(ErrorCode.offset_not_available if late else ErrorCode.leader_not_available)
        return _Answer(partition)
    code = check_leader_epoch(partition, getattr(asked, "current_leader_epoch", NO_LEADER_EPOCH))
    if code is not ErrorCode.none:
        return _Answer(code)
    try:
        async with asyncio.timeout(seconds):
            if not await partition.confirm():
                return _Answer(ErrorCode.not_leader_or_follower)
            return await _look_up(partition, asked.timestamp, committed)
    except TimeoutError:
        return _Answer(ErrorCode.request_timed_out)
    except (BadObject, InvalidBatch) as error:
        log.error("partition %d of %s: %s", asked.partition_index, name, error)
        return _Answer(ErrorCode.corrupt_message)
    except StoreError:
        return _Answer(ErrorCode.kafka_storage_error)


def _of_none(topic: Topic, asked: Any) -> _Answer:
    """Of an internal topic, which has no records. Tools ask for all topics, and would end on a refusal."""
    if not 0 <= asked.partition_index < len(topic.partitions):
        return _Answer(ErrorCode.unknown_topic_or_partition)
    ends = (Special.LATEST, Special.EARLIEST, Special.EARLIEST_LOCAL)
    return _Answer(offset=0) if asked.timestamp in ends else _Answer()


def _elected(context: BrokerContext, topic: Topic, number: int) -> bool:
    """Whether this node is the leader and has yet to catch up with its predecessors (KIP-207)."""
    partition = context.partitions.get(topic.topic_id, number)
    return partition is not None and partition.loading


async def _look_up(partition: Partition, timestamp: int, committed: bool) -> _Answer:
    """To a read-committed reader the log ends at the last stable offset (Kafka's lastFetchableOffset)."""
    machine = partition.machine
    if timestamp == Special.LATEST:
        return _Answer(offset=_end(partition, committed), leader_epoch=partition.leader_epoch)
    if timestamp == Special.EARLIEST:
        return _at(partition, partition.start_offset)
    if timestamp == Special.EARLIEST_LOCAL:
        return _at(partition, max(partition.start_offset, machine.last_reconciled_offset + 1))
    if timestamp == Special.LATEST_TIERED:
        return _at(partition, machine.last_reconciled_offset) if len(machine.level_one) else _Answer()
    by_time = timestamp != Special.MAX_TIMESTAMP
    batch = await (partition.first_since(timestamp) if by_time else partition.newest())
    if batch is None:
        return _Answer()
    found = _record(batch, timestamp if by_time else None)
    if found is None:
        # The batch's header promised a record of this time. The offset behind the batch skips none.
        if batch.end_offset >= _end(partition, committed):
            return _Answer()
        after = max(batch.end_offset, partition.start_offset)
        return _Answer(ErrorCode.none, after, batch.max_timestamp, batch.leader_epoch)
    # A batch at the start of the partition may begin before it.
    offset = max(found.offset, partition.start_offset)
    if offset >= _end(partition, committed):
        return _Answer()
    return _Answer(ErrorCode.none, offset, found.timestamp, batch.leader_epoch)


def _end(partition: Partition, committed: bool) -> int:
    """The end of the log for this reader now; never below the end when its look-up began."""
    return partition.last_stable_offset if committed else partition.high_watermark


def _at(partition: Partition, offset: int) -> _Answer:
    """An offset and the leader epoch of its record; where none is yet, of the last one before."""
    epochs = partition.machine.leader_epochs.entries
    known = bisect_right(epochs, offset, key=lambda epoch: epoch.first_offset)
    return _Answer(offset=offset, leader_epoch=epochs[known - 1].term if known else NO_LEADER_EPOCH)


def _record(batch: TimedBatch, timestamp: int | None) -> Found | None:
    """The record in a batch: the first of a time or later, or the newest."""
    data, base = batch.data, batch.base_offset
    if timestamp is None:
        return newest(data, base_offset=base, max_decompressed_bytes=_MAX_DECOMPRESSED_BYTES)
    return first_at_or_after(
        data, timestamp, base_offset=base, max_decompressed_bytes=_MAX_DECOMPRESSED_BYTES
    )
