"""State of one transactional id at its coordinator, and its row of a snapshot.

One row for each id, in every state of its transaction: its producer, the number of its newest transaction,
the partitions and groups in it, and its markers. docs/transactions.md draws the states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from strandline.statemachine.transactions.transaction_commands import (
    LAST_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    Initialized,
    TopicPartition,
)

LAST_CLIENT_EPOCH: Final = LAST_EPOCH - 1
"""The highest epoch a producer gets; the one above it only ever fences (TransactionMetadata.java)."""


class TransactionState(Enum):
    """Kafka's states of a transaction, by the names its tools show (TransactionState.java)."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


PREPARED: Final = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
AT_REST: Final = (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
_COMPLETED: Final = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}


@dataclass(slots=True)
class Transaction:
    """A transactional id and its newest transaction. Times are the machine's, in ms."""

    transactional_id: str
    producer_id: int
    epoch: int
    """With `producer_id`: what the producer has, or is to get next; nothing else is listened to."""
    timeout_ms: int
    former_producer_id: int = NO_PRODUCER_ID
    former_epoch: int = NO_EPOCH
    """The producer's epoch before it was given the present one at its own request: a retry still has it.
    Cleared once the present one was used, or if another process raised the epoch: then it is fenced."""
    state: TransactionState = TransactionState.EMPTY
    number: int = 0
    """Of the newest transaction; it only grows, also when the producer id changes."""
    marker_producer_id: int = NO_PRODUCER_ID
    marker_epoch: int = NO_EPOCH
    """Epoch in the markers of the newest decided transaction."""
    started: int = -1
    """When the newest transaction began; -1 for none."""
    updated: int = 0
    partitions: dict[TopicPartition, None] = field(default_factory=dict)
    groups: dict[str, None] = field(default_factory=dict)
    age: int = field(default=0, compare=False)
    """See machine.Rows."""

    def copy(self, age: int) -> Transaction:
        """One that can be changed while this stays as it is."""
        partitions, groups = dict(self.partitions), dict(self.groups)
        return replace(self, partitions=partitions, groups=groups, age=age)

    @property
    def identity(self) -> tuple[int, int]:
        """Producer id and epoch that the producer has, or will get."""
        return self.producer_id, self.epoch

    def was(self, identity: tuple[int, int]) -> bool:
        """Whether a retry of the request that last changed the identity still has this one."""
        return identity == (self.former_producer_id, self.former_epoch) and identity[1] != NO_EPOCH

    @property
    def commits(self) -> bool:
        """Whether the newest transaction was decided to be committed."""
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    @property
    def is_exhausted(self) -> bool:
        """Whether there is no next epoch that a producer might have: it needs another producer id."""
        return self.epoch >= LAST_CLIENT_EPOCH

    def begin(self, now: int) -> None:
        """Open the next transaction."""
        self.state = TransactionState.ONGOING
        self.number += 1
        self.started = now
        self.former_producer_id, self.former_epoch = NO_PRODUCER_ID, NO_EPOCH

    def raise_epoch(self, new_producer_id: int) -> None:
        """The next identity, and markers that fence the present one.

        With epochs used up it is a new producer id, from epoch 0, and the old one's last epoch is for the
        markers; without a new id the producer is fenced and InitProducerId finds another.
        """
        self.marker_producer_id, self.marker_epoch = self.producer_id, self.epoch + 1
        if self.is_exhausted and new_producer_id != NO_PRODUCER_ID:
            self.producer_id, self.epoch = new_producer_id, 0
        else:
            self.epoch += 1

    def keep_epoch(self) -> None:
        """Markers with the identity the producer keeps (transactions version 1)."""
        self.marker_producer_id, self.marker_epoch = self.producer_id, self.epoch

    def remember(self, identity: tuple[int, int]) -> None:
        """Remember an identity: a retry with it gets the answer of the first time."""
        self.former_producer_id, self.former_epoch = identity

    def complete(self) -> None:
        """All markers are in their places."""
        self.state = _COMPLETED[self.state]
        self.partitions, self.groups = {}, {}

    def given(self) -> Initialized:
        """The identity as an answer."""
        return Initialized(self.producer_id, self.epoch)

    def row(self) -> list[Any]:
        """As a snapshot holds it."""
        return [
            self.transactional_id,
            self.producer_id,
            self.epoch,
            self.timeout_ms,
            self.former_producer_id,
            self.former_epoch,
            self.state.value,
            self.number,
            self.marker_producer_id,
            self.marker_epoch,
            self.started,
            self.updated,
            sorted([topic_id, partition] for topic_id, partition in self.partitions),
            sorted(self.groups),
        ]


def transaction_from(row: Sequence[Any]) -> Transaction:
    """Inverse of `row`; raises ValueError for a row that no machine has written."""
    (
        transactional_id,
        producer_id,
        epoch,
        timeout_ms,
        former_producer_id,
        former_epoch,
        state,
        number,
        marker_producer_id,
        marker_epoch,
        started,
        updated,
        partitions,
        groups,
    ) = row
    transaction = Transaction(
        transactional_id,
        producer_id,
        epoch,
        timeout_ms,
        former_producer_id,
        former_epoch,
        TransactionState(state),
        number,
        marker_producer_id,
        marker_epoch,
        started,
        updated,
        {TopicPartition(topic_id, partition): None for topic_id, partition in partitions},
        dict.fromkeys(groups),
    )
    wrong = problem(transaction)
    if wrong is not None:
        raise ValueError(f"transactional id {transaction.transactional_id!r}: {wrong}")
    return transaction


def problem(transaction: Transaction) -> str | None:
    """The broken invariant of a row; None for a sound row."""
    one = transaction
    holds = bool(one.partitions or one.groups)
    if one.producer_id < 0 or not 0 <= one.epoch <= LAST_EPOCH:
        return f"producer {one.producer_id} has epoch {one.epoch}"
    if one.number < 0 or (one.number == 0 and one.state in (TransactionState.ONGOING, *PREPARED)):
        return f"transaction {one.number} is {one.state.value}"
    if holds and one.state in AT_REST:
        return f"something is in it while it is {one.state.value}"
    if not holds and one.state in (TransactionState.ONGOING, *PREPARED):
        return f"nothing is in it while it is {one.state.value}"
    if one.state in PREPARED and one.marker_epoch < 0:
        return "it is prepared without what its markers say"
    return None
