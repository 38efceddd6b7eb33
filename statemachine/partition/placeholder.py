"""Placeholder: a log entry with the place of a batch's bytes and the batch's description."""

from __future__ import annotations

from typing import NamedTuple

from strandline.statemachine.partition.producer_state import NO_PRODUCER, NO_TRANSACTION


class Placeholder(NamedTuple):
    """Place and description of a batch. Timestamps are milliseconds, lengths and positions bytes."""

    record_count: int
    max_timestamp: int
    length: int
    epoch: int
    """The cluster epoch in the object's name."""
    position: int
    object_id: bytes
    producer_id: int = NO_PRODUCER
    producer_epoch: int = -1
    base_sequence: int = -1
    transaction: int = NO_TRANSACTION
    """Number of the transaction that was verified when the batch was staged."""


class InlineBatch(NamedTuple):
    """A batch that travels in the entry itself, and its description."""

    record_count: int
    max_timestamp: int
    data: bytes
    producer_id: int = NO_PRODUCER
    producer_epoch: int = -1
    base_sequence: int = -1
    transaction: int = NO_TRANSACTION
    """Number of the transaction that was verified when the batch was staged."""
