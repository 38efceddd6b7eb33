"""What goes into a partition and what comes out: batches, and how an append can end.

Values only, so that the requests, the write path and the read path need nothing else of each other.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from strandline.node.level_zero.batcher import UploadFailed
from strandline.node.objectstore.store import Buffer
from strandline.node.raft.outcome import NotLeader, Overloaded, Unknown
from strandline.node.refusal import AppendFailed
from strandline.statemachine.partition.partition_commands import NO_TRANSACTION, Appended, Rejected, Rejection


class ProducedBatch(NamedTuple):
    """A validated record batch of a produce request, exactly as its client sent it."""

    data: Buffer
    """Not to be changed any more."""
    record_count: int
    max_timestamp: int
    """Unix milliseconds."""
    producer_id: int
    """-1: the producer claims no idempotence, and its order is the connection's."""
    producer_epoch: int
    base_sequence: int
    connection: int
    """Number of the client's connection, 0 or more, never used twice by one process."""
    transaction: int = NO_TRANSACTION
    """Number of the transaction it belongs to, as far as that is known when it comes; see `Verification`."""
    replicas: int = 0
    """How many replicas have to hold it before it is acknowledged, where that is more than commit it."""


class Verified(NamedTuple):
    """The transaction coordinator says: it is in the open transaction, which has this number."""

    number: int


AppendResult = Appended | AppendFailed
Judgement = asyncio.Future[AppendFailed | None]
"""What is wrong with a batch whose records take long to look at; None when nothing is."""


Verification: TypeAlias = asyncio.Future[Verified | AppendFailed]
"""What the transaction coordinator says of a batch whose transaction has nothing in the partition yet."""


class StoredBatch(NamedTuple):
    """A batch as it is stored; base offset and leader epoch are to be stamped into `data` on the way out."""

    base_offset: int
    end_offset: int
    """Offset after its last record."""
    leader_epoch: int
    data: bytes


def not_leading(reason: str) -> AppendFailed:
    """This node may not write to the partition: its client is to look for who may."""
    return AppendFailed(ErrorCode.not_leader_or_follower, reason)


def not_now(reason: str) -> AppendFailed:
    """Nothing is wrong with the batch, and sending it again is all there is to do."""
    return AppendFailed(ErrorCode.not_enough_replicas, reason)


def too_few_hold(replicas: int) -> AppendFailed:
    """The batch is committed, but fewer replicas hold it than its topic wants before it is acknowledged."""
    message = f"the batch is in the log, but not on {replicas} replicas, which is min.insync.replicas"
    return AppendFailed(ErrorCode.not_enough_replicas_after_append, message)


def not_replicated(outcome: NotLeader | Overloaded | Unknown) -> AppendFailed:
    """What the log's refusal is to a client; an unknown outcome is never taken for a refusal."""
    if isinstance(outcome, NotLeader):
        return not_leading(outcome.reason)
    if isinstance(outcome, Overloaded):
        return not_now(outcome.reason)
    return AppendFailed(ErrorCode.not_enough_replicas_after_append, outcome.reason)


def behind(failure: AppendFailed) -> AppendFailed:
    """What to say to the batches behind one that failed: they certainly were not appended, and are to come
    again behind it, whatever its own failure says."""
    if failure.code in _FITS_ALL_BEHIND:
        return failure
    return not_now(f"a batch of this producer before this one failed: {failure.message}")


_FITS_ALL_BEHIND = (
    ErrorCode.not_leader_or_follower,
    ErrorCode.not_enough_replicas,
    ErrorCode.kafka_storage_error,
)


def refused(rejected: Rejected) -> AppendFailed:
    """What the state machine's refusal of a batch is to its producer."""
    current = rejected.current
    if rejected.reason is Rejection.OUT_OF_ORDER_SEQUENCE_NUMBER:
        return AppendFailed(ErrorCode.out_of_order_sequence_number, f"sequence {current} is expected next")
    if rejected.reason is Rejection.INVALID_PRODUCER_EPOCH:
        return AppendFailed(ErrorCode.invalid_producer_epoch, f"the producer's epoch is {current} by now")
    if rejected.reason is Rejection.TRANSACTION_ENDED:
        message = f"the producer's transactions up to number {current} have ended here"
        return AppendFailed(ErrorCode.invalid_txn_state, message)
    if rejected.reason is Rejection.NOT_IN_TRANSACTION:
        message = f"the producer's transaction of number {current} is open, and the batch is not part of it"
        return AppendFailed(ErrorCode.invalid_txn_state, message)
    return not_leading(f"the entry is of a term before {current}")


def not_stored(result: UploadFailed | Overloaded) -> AppendFailed:
    """What a failed upload is to a client. Nothing refers to the object, whether or not it is there: that
    the put's outcome is unknown is no uncertainty for the client."""
    if isinstance(result, Overloaded):
        return not_now(result.reason)
    return AppendFailed(ErrorCode.kafka_storage_error, f"object {result.object_name}: {result.reason}")
