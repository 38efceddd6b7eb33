"""InitProducerId: an id of its own for every idempotent producer, the next epoch for every transactional one.

As in Kafka, a producer without a transactional id always gets a new id with epoch 0, even one that brings its
former id: the cluster does not remember the owners of such ids, so it has no epoch to raise.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.controller.client import Unavailable
from strandline.node.kafka.handlers.authorization import (
    CLUSTER_REFUSED,
    ID_REFUSED,
    may_with_cluster,
    may_with_id,
    may_with_some_topic,
)
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.kafka.handlers.transactional_ids import code_for_version, coordinator_for
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.refusal import Refusal
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.controller.view_state import GROUP_PREFIX
from strandline.statemachine.kafka_errors import KafkaError

CATCH_UP_SECONDS: Final = 1.0
_NONE = -1
_MILLISECOND = timedelta(milliseconds=1)


async def init_producer_id(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """A producer id and epoch 0, or COORDINATOR_LOAD_IN_PROGRESS while the controller does not answer.

    For a transactional id, the result of TransactionCoordinator.init_producer.
    """
    payload = request.payload
    present, epoch = getattr(payload, "producer_id", _NONE), getattr(payload, "producer_epoch", _NONE)
    transactional_id = payload.transactional_id
    if transactional_id is not None and transactional_id.startswith(GROUP_PREFIX):
        # A version that has just cut over begins a producer: this node, which says what topics the names in
        # its transactions mean, must have applied the cutover.
        caught_up = await context.controller.catch_up(CATCH_UP_SECONDS)
    else:
        caught_up = True
    code = _refused(context, request) if caught_up else ErrorCode.coordinator_load_in_progress
    producer_id, producer_epoch = _NONE, _NONE
    if code is not ErrorCode.none:
        pass
    elif (present == _NONE) != (epoch == _NONE):
        code = ErrorCode.invalid_request
    elif transactional_id is None:
        code, producer_id, producer_epoch = await _allocate(context)
    else:
        timeout_ms = payload.transaction_timeout // _MILLISECOND
        code, producer_id, producer_epoch = await _initialize(context, request, timeout_ms, present, epoch)
    return a.InitProducerIdResponse(
        throttle_time=NO_THROTTLE,
        error_code=code_for_version(code, request.header.api_version, fenced_since=4),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def _refused(context: BrokerContext, request: Request) -> ErrorCode:
    """NONE, or the refusal: an idempotent producer needs a topic that it may write, or, as before KIP-679, a
    permission of its own."""
    transactional_id = request.payload.transactional_id
    if transactional_id is not None:
        allowed = may_with_id(context, request, Operation.WRITE, transactional_id)
        return ErrorCode.none if allowed else ID_REFUSED
    if may_with_cluster(context, request, Operation.IDEMPOTENT_WRITE, quiet=True):
        return ErrorCode.none
    return ErrorCode.none if may_with_some_topic(context, request, Operation.WRITE) else CLUSTER_REFUSED


async def _allocate(context: BrokerContext) -> tuple[ErrorCode, int, int]:
    given = await context.producer_ids.next()
    if isinstance(given, Unavailable):
        return ErrorCode.coordinator_load_in_progress, _NONE, _NONE
    return ErrorCode.none, given, 0


async def _initialize(
    context: BrokerContext, request: Request, timeout_ms: int, producer_id: int, epoch: int
) -> tuple[ErrorCode, int, int]:
    transactional_id = request.payload.transactional_id
    coordinator = coordinator_for(context, request, Operation.WRITE, transactional_id)
    if isinstance(coordinator, KafkaError):
        return code_of(coordinator), _NONE, _NONE
    given = await coordinator.init_producer(transactional_id, timeout_ms, producer_id, epoch)
    if isinstance(given, Refusal):
        return code_of(given), _NONE, _NONE
    return ErrorCode.none, given.producer_id, given.epoch
