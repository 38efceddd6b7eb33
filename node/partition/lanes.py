"""Batches on their way to the log, one queue for each producer, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque

from strandline.node.level_zero.batcher import Result, Stored
from strandline.node.partition.batch import AppendResult, ProducedBatch
from strandline.node.refusal import Refusal
from strandline.statemachine.partition.placeholder import Placeholder


class Pending:
    """A batch on its way to the log."""

    __slots__ = (
        "batch",
        "invalid",
        "lane",
        "restaged",
        "result",
        "staged",
        "stored",
        "transaction",
        "unvalidated",
        "verified",
    )

    def __init__(self, batch: ProducedBatch, lane: Lane, result: asyncio.Future[AppendResult]) -> None:
        self.batch = batch
        self.lane = lane
        self.result = result
        self.staged: asyncio.Future[Result] | None = None
        self.stored: Stored | Refusal | None = None
        """Outcome of its upload; None while that is in progress."""
        self.restaged = False
        self.transaction = batch.transaction
        self.unvalidated = 0
        """Checks and verification in progress; the batch keeps its turn meanwhile."""
        self.invalid: Refusal | None = None
        self.verified = False
        """Whether it came with a verification."""


class Lane:
    """One producer's batches that are not in the log yet, in the order in which they came."""

    __slots__ = ("key", "queue", "waiting")

    def __init__(self, key: int) -> None:
        self.key = key
        self.queue: deque[Pending] = deque()
        self.waiting: asyncio.Task[None] | None = None
        """Set while the first batch waits for the fence."""


def placeholder(pending: Pending) -> Placeholder:
    """The log's entry for an uploaded batch."""
    batch, stored = pending.batch, pending.stored
    assert isinstance(stored, Stored)
    return Placeholder(
        batch.record_count,
        batch.max_timestamp,
        stored.length,
        stored.epoch,
        stored.position,
        stored.object_id,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        pending.transaction,
    )
