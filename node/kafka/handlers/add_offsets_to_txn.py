"""AddOffsetsToTxn: a transactional producer says for which consumer group it is going to commit offsets.

Kafka adds the partition that has the group's offsets. Here it is the group itself, by its id: where its
coordinator is, is looked up when the transaction ends.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import (
    GROUP_REFUSED,
    ID_REFUSED,
    may_with_group,
    may_with_id,
)
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.kafka.handlers.transactional_ids import code_for_version, coordinator_for
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.refusal import Refusal
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.kafka_errors import KafkaError


async def add_offsets_to_txn(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Add a group to the transaction; see TransactionCoordinator.enlist for the refusals."""
    code = await _add(context, request)
    code = code_for_version(code, request.header.api_version, fenced_since=2)
    return a.AddOffsetsToTxnResponse(throttle_time=NO_THROTTLE, error_code=code)


async def _add(context: BrokerContext, request: Request) -> ErrorCode:
    payload = request.payload
    if not may_with_id(context, request, Operation.WRITE, payload.transactional_id):
        return ID_REFUSED
    if not may_with_group(context, request, Operation.READ, payload.group_id):
        return GROUP_REFUSED
    coordinator = coordinator_for(context, request, Operation.WRITE, payload.transactional_id)
    if isinstance(coordinator, KafkaError):
        return code_of(coordinator)
    if not payload.group_id:
        return ErrorCode.invalid_group_id
    added = await coordinator.enlist(
        payload.transactional_id, payload.producer_id, payload.producer_epoch, groups=(payload.group_id,)
    )
    return code_of(added) if isinstance(added, Refusal) else ErrorCode.none
