"""WriteTxnMarkers: ends a producer's open transaction in some partitions, on an operator's request.

Kafka's brokers send this to each other; here they use a call of their own, that names the transaction. The
remaining use is `kafka-transactions --abort` (KIP-664), for a transaction that hangs: open in a partition,
unknown to its coordinator. An operator that ends a transaction which its coordinator still has breaks its
atomicity, in Kafka as here.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import CLUSTER_REFUSED, may_with_cluster
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.kafka.handlers.leading import led_partition, plain_topic
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.refusal import Refusal
from strandline.node.runtime.gather import gather_bounded
from strandline.statemachine.controller.acl import Operation


async def write_txn_markers(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """The answer, once every marker is applied or refused."""
    ask = request.payload
    places = [
        (marker, topic.name, number)
        for marker in ask.markers
        for topic in marker.topics
        for number in topic.partition_indexes
    ]

    allowed = may_with_cluster(context, request, Operation.CLUSTER_ACTION, quiet=True)
    allowed = allowed or may_with_cluster(context, request, Operation.ALTER)

    async def write(place: tuple[Any, str, int]) -> ErrorCode:
        return await _write(context, *place) if allowed else CLUSTER_REFUSED

    codes = iter(await gather_bounded(places, write))
    return a.WriteTxnMarkersResponse(
        markers=tuple(
            a.WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=tuple(
                    a.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=tuple(
                            a.WritableTxnMarkerPartitionResult(partition_index=number, error_code=next(codes))
                            for number in topic.partition_indexes
                        ),
                    )
                    for topic in marker.topics
                ),
            )
            for marker in ask.markers
        )
    )


async def _write(context: BrokerContext, marker: Any, name: str, number: int) -> ErrorCode:
    """Write one marker, and return its error code.

    The marker gets the number of the open transaction; if none is open, there is nothing to do. An older
    epoch, of the producer or of its coordinator, ends nothing.
    """
    topic = plain_topic(context, name)
    partition = topic if isinstance(topic, ErrorCode) else led_partition(context, topic, number)
    if isinstance(partition, ErrorCode):
        return partition
    if not await partition.confirm():
        return ErrorCode.not_leader_or_follower
    producer_id, epoch = marker.producer_id, marker.producer_epoch
    producer = partition.machine.producers.get(producer_id)
    if producer is None:
        return ErrorCode.none
    if epoch < producer.epoch:
        return ErrorCode.invalid_producer_epoch
    if marker.coordinator_epoch < producer.coordinator_term:
        return ErrorCode.transaction_coordinator_fenced
    opened = partition.machine.open_transaction(producer_id)
    if opened is None:
        return ErrorCode.none
    failed = await partition.end_transaction(
        producer_id, epoch, opened.number, marker.transaction_result, max(marker.coordinator_epoch, 0)
    )
    return code_of(failed) if isinstance(failed, Refusal) else ErrorCode.none
