"""AddPartitionsToTxn: a transactional producer says where it is going to write.

Only the versions of clients are spoken, up to 3. By those above Kafka's brokers ask each other, as here
node/coordinator/verification.py does over the mesh.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import ID_REFUSED, may_with_id
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.kafka.handlers.leading import topic_of
from strandline.node.kafka.handlers.transactional_ids import code_for_version, coordinator_for
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.refusal import Refusal
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.kafka_errors import KafkaError


async def add_partitions_to_txn(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """All partitions are added or none: one that does not exist makes the others OPERATION_NOT_ATTEMPTED."""
    payload = request.payload
    partitions: list[tuple[bytes, int]] = []
    unknown: dict[tuple[str, int], ErrorCode] = {}
    transactional_id = payload.v3_and_below_transactional_id
    allowed = may_with_id(context, request, Operation.WRITE, transactional_id)
    for asked in payload.v3_and_below_topics if allowed else ():
        topic = topic_of(context, request, Operation.WRITE, asked.name, None)
        for number in asked.partitions:
            if isinstance(topic, ErrorCode):
                unknown[asked.name, number] = topic
            elif not 0 <= number < len(topic.partitions):
                unknown[asked.name, number] = ErrorCode.unknown_topic_or_partition
            else:
                partitions.append((topic.topic_id, number))
    if not allowed:
        code = ID_REFUSED
    else:
        code = ErrorCode.operation_not_attempted if unknown else await _add(context, request, partitions)
    code = code_for_version(code, request.header.api_version, fenced_since=2)
    return a.AddPartitionsToTxnResponse(
        throttle_time=NO_THROTTLE,
        results_by_topic_v3_and_below=tuple(
            a.AddPartitionsToTxnTopicResult(
                name=asked.name,
                results_by_partition=tuple(
                    a.AddPartitionsToTxnPartitionResult(
                        partition_index=number,
                        partition_error_code=unknown.get((asked.name, number), code),
                    )
                    for number in asked.partitions
                ),
            )
            for asked in payload.v3_and_below_topics
        ),
    )


async def _add(context: BrokerContext, request: Request, partitions: list[tuple[bytes, int]]) -> ErrorCode:
    if not partitions:
        return ErrorCode.none
    payload = request.payload
    transactional_id = payload.v3_and_below_transactional_id
    coordinator = coordinator_for(context, request, Operation.WRITE, transactional_id)
    if isinstance(coordinator, KafkaError):
        return code_of(coordinator)
    producer = (payload.v3_and_below_producer_id, payload.v3_and_below_producer_epoch)
    added = await coordinator.enlist(transactional_id, *producer, partitions)
    if isinstance(added, Refusal):
        return code_of(added)
    context.verifier.told.tell(*producer, added, partitions)
    return ErrorCode.none
