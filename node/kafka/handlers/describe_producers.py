"""DescribeProducers: a partition's producer state, for operators that look for hanging transactions.

KIP-664: a transaction that is open in a partition and unknown to its coordinator holds the last stable offset
back for ever. The answer has the offset it began at and its epochs; WriteTxnMarkers ends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.leading import any_topic
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.runtime.gather import gather_bounded
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.internal_topics import INTERNAL_TOPICS
from strandline.statemachine.partition.producers import ProducerDescription


async def describe_producers(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """The answer of this node's replica, whether or not it leads, as in Kafka: `kafka-transactions` can ask
    any broker. A node that believes to lead proves it first, because clients ask the leader."""
    ask = request.payload
    pairs = [(topic.name, number) for topic in ask.topics for number in topic.partition_indexes]

    async def look(one: tuple[str, int]) -> Any:
        return await _partition(context, request, a, *one)

    answers = iter(await gather_bounded(pairs, look))
    return a.DescribeProducersResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            a.TopicResponse(name=topic.name, partitions=tuple(next(answers) for _ in topic.partition_indexes))
            for topic in ask.topics
        ),
    )


async def _partition(
    context: BrokerContext, request: Request, a: ResponseTypes, name: str, number: int
) -> Any:
    known = await _producers(context, request, name, number)
    if isinstance(known, ErrorCode):
        return a.PartitionResponse(
            partition_index=number, error_code=known, error_message=None, active_producers=()
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
        for one in known
    )
    return a.PartitionResponse(
        partition_index=number, error_code=ErrorCode.none, error_message=None, active_producers=producers
    )


async def _producers(
    context: BrokerContext, request: Request, name: str, number: int
) -> Iterable[ProducerDescription] | ErrorCode:
    topic = any_topic(context, request, Operation.READ, name, None)
    if isinstance(topic, ErrorCode):
        return topic
    if not 0 <= number < len(topic.partitions):
        return ErrorCode.unknown_topic_or_partition
    if name in INTERNAL_TOPICS:
        return ()  # It has no records, and so no producers.
    replica = context.partitions.get(topic.topic_id, number)
    if replica is None or (replica.leads and not await replica.confirm()):
        return ErrorCode.not_leader_or_follower
    return replica.machine.producers
