"""Batches on their way to the log, one queue for each producer, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from enum import Enum
from itertools import groupby

from strandline.node.level_zero.batcher import Result, Stored
from strandline.node.partition.batch import AppendResult, ProducedBatch, Validation, Verification
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.partition.epoch_window import EpochWindow
from strandline.statemachine.partition.partition_commands import Append, AppendInline
from strandline.statemachine.partition.placeholder import InlineBatch, Placeholder


class Inline(Enum):
    """The place of a batch that needs none: it goes into the entry itself."""

    IN_THE_ENTRY = 0


class PendingBatch:
    """A batch on its way to the log.

    Its upload and its checks go on side by side, and it keeps its turn meanwhile. When all have ended,
    `outcome` says whether it goes to the log or fails. A batch whose epoch the window has passed by then is
    uploaded again, once.
    """

    __slots__ = (
        "batch",
        "checks",
        "lane",
        "rejected",
        "restaged",
        "result",
        "staged",
        "stored",
        "transaction",
        "verified",
    )

    def __init__(self, batch: ProducedBatch, lane: Lane, result: asyncio.Future[AppendResult]) -> None:
        self.batch = batch
        self.lane = lane
        self.result = result
        """Its answer; the caller may have cancelled it, which ends nothing here."""
        self.staged: asyncio.Future[Result] | None = None
        """Its upload; None if it needs none."""
        self.stored: Stored | Inline | Refusal | None = None
        """Outcome of its upload, None while that is in progress; or that it has none."""
        self.restaged = False
        """Whether it is uploaded for the second time."""
        self.checks = 0
        """Checks in progress: of its records, and of its transaction."""
        self.rejected: Refusal | None = None
        """Refusal of the first check that failed."""
        self.transaction = batch.transaction
        """Number of its transaction: the producer's, or the verified one."""
        self.verified = False
        """Whether it came with a verification."""

    @property
    def outcome(self) -> Stored | Inline | Refusal | None:
        """The place of its bytes, or the refusal that it ends with; None while something is in progress."""
        return None if self.checks else self.rejected or self.stored

    @property
    def first(self) -> bool:
        """Whether it is its producer's turn for this batch."""
        queue = self.lane.queue
        return bool(queue) and queue[0] is self

    def check_ended(self, ended: Validation | Verification) -> None:
        """Take the result of one of its checks."""
        self.checks -= 1
        if ended.cancelled() or ended.exception() is not None:
            self.rejected = Refusal(
                Reason.NOT_NOW, "the node could not look at the records, or ask for their transaction"
            )
            return
        result = ended.result()
        if isinstance(result, Refusal):
            self.rejected = self.rejected or result
        elif result is not None:
            self.transaction = result.number

    def upload_again(self) -> None:
        """Forget the upload; the caller stages the batch for the second and last time."""
        self.restaged = True
        self.stored = None


class Lane:
    """One producer's batches that are not in the log yet, in the order in which they came."""

    __slots__ = ("key", "queue", "waiting")

    def __init__(self, key: int) -> None:
        self.key = key
        self.queue: deque[PendingBatch] = deque()
        self.waiting: asyncio.Task[None] | None = None
        """Set while the first batch waits for the fence."""


def placeholder(pending: PendingBatch) -> Placeholder:
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


def inline_batch(pending: PendingBatch) -> InlineBatch:
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


def commands_of(entry: Sequence[PendingBatch], window: EpochWindow) -> list[Append | AppendInline]:
    """The commands that append these batches in their order."""
    commands: list[Append | AppendInline] = []
    for inline, run in groupby(entry, key=is_inline):
        batches = [*run]
        if inline:
            commands.append(AppendInline([*map(inline_batch, batches)]))
        else:
            commands.append(Append(window, [*map(placeholder, batches)]))
    return commands


def is_inline(pending: PendingBatch) -> bool:
    return pending.stored is Inline.IN_THE_ENTRY
