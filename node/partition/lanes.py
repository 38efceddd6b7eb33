"""Batches on their way to the log, one queue for each producer, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from enum import Enum
from itertools import groupby

from strandline.node.level_zero.batcher import Result, Stored
from strandline.node.partition.batch import AppendResult, ProducedBatch
from strandline.node.refusal import Refusal
from strandline.statemachine.partition.epoch_window import EpochWindow
from strandline.statemachine.partition.partition_commands import Append, AppendInline
from strandline.statemachine.partition.placeholder import InlineBatch, Placeholder


class Inline(Enum):
    """The place of a batch that needs none: it goes into the entry itself."""

    IN_THE_ENTRY = 0


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
        self.stored: Stored | Inline | Refusal | None = None
        """Outcome of its upload, None while that is in progress; or that it has none."""
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


def inline_batch(pending: Pending) -> InlineBatch:
    """The log's entry for a batch that goes there with its bytes."""
    batch = pending.batch
    return InlineBatch(
        batch.record_count,
        batch.max_timestamp,
        bytes(batch.data),
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        pending.transaction,
    )


def commands_of(entry: Sequence[Pending], window: EpochWindow) -> list[Append | AppendInline]:
    """The commands that append these batches in their order."""
    commands: list[Append | AppendInline] = []
    for inline, run in groupby(entry, key=is_inline):
        batches = [*run]
        if inline:
            commands.append(AppendInline([*map(inline_batch, batches)]))
        else:
            commands.append(Append(window, [*map(placeholder, batches)]))
    return commands


def is_inline(pending: Pending) -> bool:
    return pending.stored is Inline.IN_THE_ENTRY
