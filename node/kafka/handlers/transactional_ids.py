"""Shared by requests of transactional producers: the coordinator's look-up, and one error's two names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from strandline.node.kafka.handlers.context import BrokerContext
from strandline.statemachine.internal_topics import is_key
from strandline.statemachine.kafka_errors import KafkaError

if TYPE_CHECKING:
    from strandline.node.coordinator.transactions.transaction_coordinator import TransactionCoordinator


def coordinator_for(context: BrokerContext, transactional_id: str) -> TransactionCoordinator | KafkaError:
    """The coordinator of an id, when it is led here; an empty id is INVALID_REQUEST, as in Kafka, and so is
    one that is too long."""
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
