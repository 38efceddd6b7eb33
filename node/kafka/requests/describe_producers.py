"""DescribeProducers: what a partition remembers of its producers, for whoever looks for hanging transactions.

KIP-664: a transaction that is open in a partition and unknown to its coordinator holds the last stable offset
back for ever. This tells where it began and with which epochs; WriteTxnMarkers ends it.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from node.kafka.answers import Answers
from node.kafka.handler import Request
from node.kafka.requests.context import BrokerContext
from node.kafka.requests.leading import led_partition, topic_of
from node.kafka.requests.outcomes import NO_THROTTLE, each


async def describe_producers(context: BrokerContext, request: Request, a: Answers) -> Any:
    """The answer, by a node that has just proved that it leads: an older one knows transactions as open that
    have ended."""
    ask = request.payload
    pairs = [(topic.name, number) for topic in ask.topics for number in topic.partition_indexes]

    async def look(one: tuple[str, int]) -> Any:
        return await _partition(context, a, *one)

    answers = iter(await each(pairs, look))
    return a.DescribeProducersResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            a.TopicResponse(name=topic.name, partitions=tuple(next(answers) for _ in topic.partition_indexes))
            for topic in ask.topics
        ),
    )


async def _partition(context: BrokerContext, a: Answers, name: str, number: int) -> Any:
    topic = topic_of(context, name, None)
    partition = topic if isinstance(topic, ErrorCode) else led_partition(context, topic, number)
    if not isinstance(partition, ErrorCode) and not await partition.confirm():
        partition = ErrorCode.not_leader_or_follower
    if isinstance(partition, ErrorCode):
        return a.PartitionResponse(
            partition_index=number, error_code=partition, error_message=None, active_producers=()
        )
    producers = tuple(
        a.ProducerState(
            producer_id=one.producer_id,
            producer_epoch=one.epoch,
            last_sequence=one.last_sequence,
            last_timestamp=one.last_time,
            coordinator_epoch=one.coordinator_term,
            current_txn_start_offset=one.open_first_offset,
        )
        for one in partition.machine.producers
    )
    return a.PartitionResponse(
        partition_index=number, error_code=ErrorCode.none, error_message=None, active_producers=producers
    )
