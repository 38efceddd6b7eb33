"""InitProducerId: an id of its own for every idempotent producer.

As in Kafka, a producer without a transactional id always gets a new id with epoch 0, also one that brings
the id it had: nobody remembers to whom an id was given, so there is nothing whose epoch could be raised.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from node.controller.client import Unavailable
from node.kafka.answers import Answers
from node.kafka.handler import Request
from node.kafka.requests.context import BrokerContext
from node.kafka.requests.find_coordinator import NO_TRANSACTIONS
from node.kafka.requests.outcomes import NO_THROTTLE

_NONE = -1


async def init_producer_id(context: BrokerContext, request: Request, a: Answers) -> Any:
    """A producer id and epoch 0, or COORDINATOR_LOAD_IN_PROGRESS while the controller gives no ids."""
    code, producer_id = await _allocate(context, request.payload)
    return a.InitProducerIdResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        producer_id=producer_id,
        producer_epoch=0 if code is ErrorCode.none else _NONE,
    )


async def _allocate(context: BrokerContext, payload: Any) -> tuple[ErrorCode, int]:
    present, epoch = getattr(payload, "producer_id", _NONE), getattr(payload, "producer_epoch", _NONE)
    if (present == _NONE) != (epoch == _NONE) or payload.transactional_id == "":
        return ErrorCode.invalid_request, _NONE
    if payload.transactional_id is not None:
        return NO_TRANSACTIONS.code, _NONE
    given = await context.producer_ids.next()
    if isinstance(given, Unavailable):
        return ErrorCode.coordinator_load_in_progress, _NONE
    return ErrorCode.none, given
