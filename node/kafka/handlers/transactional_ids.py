"""Shared by requests of transactional producers: the coordinator's look-up, and one error's two names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.authorization import may_with_id
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.wire.handler import Request
from strandline.statemachine.controller.acl import Operation
from strandline.statemachine.internal_topics import is_key
from strandline.statemachine.kafka_errors import KafkaError

if TYPE_CHECKING:
    from strandline.node.coordinator.transactions.transaction_coordinator import TransactionCoordinator


def coordinator_for(
    context: BrokerContext, request: Request, operation: Operation, transactional_id: str
) -> TransactionCoordinator | KafkaError:
    """The coordinator of an id, when it is led here and the client may do this with the id.

    Otherwise an error, first of all TRANSACTIONAL_ID_AUTHORIZATION_FAILED; an empty id is INVALID_REQUEST, as
    in Kafka, and so is one that is too long.
    """
    if not may_with_id(context, request, operation, transactional_id):
        return KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not transactional_id or not is_key(transactional_id):
        return KafkaError.INVALID_REQUEST
    return context.coordinators.transactions_for(transactional_id)


def code_for_version(code: ErrorCode, version: int, *, fenced_since: int) -> ErrorCode:
    """The code in a request's version: before `fenced_since` there was no PRODUCER_FENCED.

    Clients of those versions know INVALID_PRODUCER_EPOCH for it (KIP-588).
    """
    if code is ErrorCode.producer_fenced and version < fenced_since:
        return ErrorCode.invalid_producer_epoch
    return code
