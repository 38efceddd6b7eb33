"""One producer's state in a partition: its newest epoch, its last batches and its transactions.

Sequences count records and wrap after 2**31 - 1. The rules about them are in `producers`.
"""

from __future__ import annotations

from copy import copy
from typing import NamedTuple

MAX_SEQUENCE = 2**31 - 1
REMEMBERED_BATCHES = 5
"""As many as a producer may have in flight, so any retry of an unanswered batch is found."""
NO_PRODUCER = -1
"""Producer id of a batch that claims no idempotence."""
NO_TRANSACTION = -1
"""Transaction number of a batch that is in none; those of transactions begin at 1."""


class ProducerBatch(NamedTuple):
    """One of a producer's last batches; `last_sequence` is below `first_sequence` when it wraps."""

    first_sequence: int
    last_sequence: int
    base_offset: int


class OpenTransaction(NamedTuple):
    """A transaction that has batches here and no marker yet."""

    number: int
    """The coordinator's: rises with each transaction of the transactional id."""
    first_offset: int
    epoch: int
    """The producer's, the same for the whole transaction."""


class Producer:
    """State of one producer id: its newest epoch and that epoch's last batches, oldest first, and the
    transactions that have ended here."""

    __slots__ = ("age", "batches", "coordinator_term", "ended", "epoch", "last_time", "marker_offset")

    def __init__(self, age: int, epoch: int, last_time: int, batches: list[ProducerBatch]) -> None:
        self.age = age
        """See machine.Rows."""
        self.epoch = epoch
        self.last_time = last_time
        """Time of the state machine, in ms, when its last batch or marker was applied."""
        self.batches = batches
        """Empty only after a marker: one that raised the epoch, or that found no batch here."""
        self.ended = 0
        """Highest number of a transaction whose marker was applied; 0 before the first."""
        self.marker_offset = -1
        """Offset of the last marker, and the Raft term of the coordinator that sent it; -1: none."""
        self.coordinator_term = -1

    def copy(self, age: int) -> Producer:
        """One that can be changed while this stays as it is."""
        made = copy(self)
        made.age, made.batches = age, list(self.batches)
        return made

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; -1 when this epoch has none here."""
        return self.batches[-1].last_sequence if self.batches else -1

    @property
    def next_sequence(self) -> int:
        """Sequence that the next batch of this epoch must have."""
        return (self.batches[-1].last_sequence + 1) & MAX_SEQUENCE if self.batches else 0

    @property
    def last_offset(self) -> int:
        """Base offset of its last batch or marker."""
        return max(self.batches[-1].base_offset, self.marker_offset) if self.batches else self.marker_offset


def last_sequence(first_sequence: int, record_count: int) -> int:
    """Sequence of a batch's last record, with the wrap from 2**31 - 1 to 0."""
    return (first_sequence + record_count - 1) & MAX_SEQUENCE
