"""InitProducerId: an id of its own for every idempotent producer, the next epoch for every transactional one.

As in Kafka, a producer without a transactional id always gets a new id with epoch 0, even one that brings its
former id: the cluster does not remember the owners of such ids, so it has no epoch to raise.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from strandline.node.controller.client import Unavailable
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.kafka.handlers.transactional_ids import code_for_version, coordinator_for
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.refusal import Refusal
from strandline.statemachine.kafka_errors import KafkaError

_NONE = -1
_MILLISECOND = timedelta(milliseconds=1)


async def init_producer_id(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """A producer id and epoch 0, or COORDINATOR_LOAD_IN_PROGRESS while the controller gives no ids.

    For a transactional id, the result of TransactionCoordinator.init_producer.
    """
    payload = request.payload
    present, epoch = getattr(payload, "producer_id", _NONE), getattr(payload, "producer_epoch", _NONE)
    if (present == _NONE) != (epoch == _NONE):
        code, producer_id, producer_epoch = ErrorCode.invalid_request, _NONE, _NONE
    elif payload.transactional_id is None:
        code, producer_id, producer_epoch = await _allocate(context)
    else:
        timeout_ms = payload.transaction_timeout // _MILLISECOND
        code, producer_id, producer_epoch = await _initialize(
            context, payload.transactional_id, timeout_ms, present, epoch
        )
    return a.InitProducerIdResponse(
        throttle_time=NO_THROTTLE,
        error_code=code_for_version(code, request.header.api_version, fenced_since=4),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


async def _allocate(context: BrokerContext) -> tuple[ErrorCode, int, int]:
    given = await context.producer_ids.next()
    if isinstance(given, Unavailable):
        return ErrorCode.coordinator_load_in_progress, _NONE, _NONE
    return ErrorCode.none, given, 0


async def _initialize(
    context: BrokerContext, transactional_id: str, timeout_ms: int, producer_id: int, epoch: int
) -> tuple[ErrorCode, int, int]:
    coordinator = coordinator_for(context, transactional_id)
    if isinstance(coordinator, KafkaError):
        return code_of(coordinator), _NONE, _NONE
    given = await coordinator.init_producer(transactional_id, timeout_ms, producer_id, epoch)
    if isinstance(given, Refusal):
        return code_of(given), _NONE, _NONE
    return ErrorCode.none, given.producer_id, given.epoch
