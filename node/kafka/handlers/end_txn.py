"""EndTxn: commit or abort. From version 5 on the answer has the epoch of the next transaction (KIP-890)."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.deadlines import NO_THROTTLE
from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.kafka.handlers.transactional_ids import code_for_version, coordinator_for
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.response_types import ResponseTypes
from strandline.node.refusal import Refusal
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.kafka_errors import KafkaError

_RAISES_SINCE: Final = 5
"""Transactions version 2: the version of the request says which the client speaks."""


async def end_txn(context: BrokerContext, request: Request, a: ResponseTypes) -> Any:
    """Answered once the outcome is decided; see TransactionCoordinator.end."""
    payload, version = request.payload, request.header.api_version
    code, producer_id, epoch = ErrorCode.none, -1, -1
    coordinator = coordinator_for(context, request, Operation.WRITE, payload.transactional_id)
    if isinstance(coordinator, KafkaError):
        code = code_of(coordinator)
    else:
        ended = await coordinator.end(
            payload.transactional_id,
            payload.producer_id,
            payload.producer_epoch,
            commit=payload.committed,
            raises=version >= _RAISES_SINCE,
        )
        if isinstance(ended, Refusal):
            code = code_of(ended)
        else:
            producer_id, epoch = ended
    return a.EndTxnResponse(
        throttle_time=NO_THROTTLE,
        error_code=code_for_version(code, version, fenced_since=2),
        producer_id=producer_id,
        producer_epoch=epoch,
    )
