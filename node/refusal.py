"""Reasons of a refusal: the one value that every layer below Kafka's requests answers with.

A layer names the obstacle in words of its own. `node/kafka/handlers/error_codes.py` alone says which of
Kafka's codes a client gets for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from strandline.statemachine.kafka_errors import KafkaError


class Reason(Enum):
    """The reason why a batch or a command had no effect that is known of."""

    # This node.
    NOT_LEADER = "not_leader"
    """It may not write to the partition: the client is to look for the node that may."""
    NOT_NOW = "not_now"
    """A bound is reached, or something has to come first: sending the same again is all there is to do."""
    STORAGE_FAILED = "storage_failed"
    """The object store did not take it. Nothing refers to the object, whether or not it is there."""
    UNDECIDED = "undecided"
    """Under this reason and COORDINATOR_UNDECIDED alone it may be in the log all the same, now or later."""
    TOO_FEW_HOLD = "too_few_hold"
    """It is committed, but fewer replicas hold it than its topic wants before it is acknowledged."""
    LATE = "late"
    """The client's time is over, and the log has not answered yet."""
    COORDINATOR_UNDECIDED = "coordinator_undecided"
    """This node no longer leads the coordinator, and the command is in the log: it may be applied yet."""

    # The request.
    BAD_ACKS = "bad_acks"
    NO_TRANSACTIONAL_ID = "no_transactional_id"
    """A transactional batch in a request without a transactional id."""

    # The batch.
    TOO_LARGE = "too_large"
    CORRUPT = "corrupt"
    INVALID_RECORD = "invalid_record"
    INVALID_TIMESTAMP = "invalid_timestamp"
    UNKNOWN_COMPRESSION = "unknown_compression"

    # Its producer.
    OUT_OF_ORDER = "out_of_order"
    """Another sequence is expected next."""
    STALE_PRODUCER_EPOCH = "stale_producer_epoch"
    """The producer has a newer epoch by now."""
    NOT_IN_TRANSACTION = "not_in_transaction"
    """Its transaction has ended here, another one is open, or its coordinator does not know of it."""
    TRANSACTION_ABORTABLE = "transaction_abortable"
    """As NOT_IN_TRANSACTION, for a client that can abort the transaction and go on."""

    # The partition.
    TOO_MANY_ABORTED = "too_many_aborted"
    """It remembers as many aborted transactions as it can."""
    ABOVE_HIGH_WATERMARK = "above_high_watermark"


Cause = Reason | KafkaError
"""A KafkaError is the answer of a state machine or a coordinator, whose rules are Kafka's own."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """It was not done, and unless the reason says otherwise it never will be."""

    reason: Cause
    message: str | None = None
    """One clause for people."""
    records: Sequence[int] = ()
    """Numbers of the refused records within the batch, where single records are refused."""
