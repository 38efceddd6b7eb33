"""Idempotent and transactional producers: which batch is new, which a retry, which must not be here.

Judged when a batch is applied, not when it arrives: only then is it certain what precedes it, so a retry
that crossed a change of leader is still recognised, and a batch that was staged before its transaction ended
is refused after. The rules are Kafka's (KIP-98, KIP-890, ProducerStateManager), but for one: transactions
bear numbers that only rise, so a late batch or marker is told from one of the present transaction even where
the producer's epoch is the same. Sequences count records and wrap after 2**31 - 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice, takewhile
from typing import Any, NamedTuple

from strandline.statemachine.machine import Rows
from strandline.statemachine.partition.placeholder import InlineBatch, Placeholder
from strandline.statemachine.partition.producer_state import (
    MAX_SEQUENCE,
    NO_TRANSACTION,
    REMEMBERED_BATCHES,
    OpenTransaction,
    Producer,
    ProducerBatch,
    last_sequence,
)
from strandline.statemachine.partition.rejection import Rejected, Rejection


class ProducerDescription(NamedTuple):
    """A producer's row in DescribeProducers (KIP-664); -1 for a missing value."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_time: int
    """Time of its last batch or marker, in ms of the state machine's time."""
    coordinator_term: int
    """Of its last marker."""
    open_first_offset: int


class Duplicate(NamedTuple):
    """The batch is here already, from this offset on."""

    base_offset: int


class Producers:
    """All producers of a partition, in the order of their last batch or marker: the idlest comes first.

    Costs: a batch and a marker O(1), whatever the number of producers and of open transactions.
    """

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        self._open: dict[int, OpenTransaction] = {}
        """By producer id, in the order of their first offsets."""
        self._age = 0
        self.first_open_offset: int | None = None
        """First offset of the earliest open transaction; None when none is open. Every fetch looks at it."""

    @property
    def first_open_producer(self) -> int | None:
        """The producer of the earliest open transaction; None when none is open."""
        return next(iter(self._open), None)

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[ProducerDescription]:
        for producer_id, one in self._producers.items():
            opened = self._open.get(producer_id)
            yield ProducerDescription(
                producer_id,
                one.epoch,
                one.last_sequence,
                one.last_time,
                one.coordinator_term,
                -1 if opened is None else opened.first_offset,
            )

    def get(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    @property
    def last_offset(self) -> int:
        """Highest offset at which a batch or marker of a producer begins; -1 when there are no producers."""
        for producer_id in reversed(self._producers):
            return self._producers[producer_id].last_offset
        return -1

    def open_transaction(self, producer_id: int) -> OpenTransaction | None:
        return self._open.get(producer_id)

    # Batches.

    def check(self, batch: Placeholder | InlineBatch) -> Duplicate | Rejected | None:
        """Duplicate or Rejected for a batch that must not be appended; None if it may be.

        An unknown producer may start at any sequence: its state may have expired. A new epoch of a known
        producer starts at 0. A batch that is remembered as appended is a duplicate even if its transaction
        has ended meanwhile: it is in the log, and the marker decided on it. Raises ValueError for numbers
        that no checked batch has.
        """
        producer_id, epoch, transaction = batch.producer_id, batch.producer_epoch, batch.transaction
        base_sequence = batch.base_sequence
        if not 0 <= base_sequence <= MAX_SEQUENCE or epoch < 0 or producer_id < 0:
            raise ValueError(f"producer {producer_id} with epoch {epoch} has no sequence {base_sequence}")
        if transaction < 1 and transaction != NO_TRANSACTION:
            raise ValueError(f"producer {producer_id} has no transaction {transaction}")
        known = self._producers.get(producer_id)
        if known is None:
            return None
        expected = 0
        if epoch == known.epoch:
            expected = known.next_sequence
            if base_sequence != expected and (there := _remembered(known, base_sequence, batch.record_count)):
                return Duplicate(there.base_offset)
        elif epoch < known.epoch:
            return Rejected(Rejection.INVALID_PRODUCER_EPOCH, known.epoch)
        if transaction != NO_TRANSACTION and transaction <= known.ended:
            return Rejected(Rejection.TRANSACTION_ENDED, known.ended)
        if self._open:
            opened = self._open.get(producer_id)
            if opened is not None and (transaction != opened.number or epoch != opened.epoch):
                return Rejected(Rejection.NOT_IN_TRANSACTION, opened.number)
        if base_sequence != expected:
            return Rejected(Rejection.OUT_OF_ORDER_SEQUENCE_NUMBER, expected)
        return None

    def duplicate(
        self, producer_id: int, epoch: int, base_sequence: int, record_count: int
    ) -> Duplicate | None:
        """The batch as it was appended, if it is remembered: what `check` says of it then, whatever its
        transaction. None for one that is not remembered, whose end only the log can tell."""
        known = self._producers.get(producer_id)
        if known is None or known.epoch != epoch or base_sequence == known.next_sequence:
            return None
        there = _remembered(known, base_sequence, record_count)
        return None if there is None else Duplicate(there.base_offset)

    def appended(self, batch: Placeholder | InlineBatch, base_offset: int, time: int) -> None:
        """Remember an appended batch that `check` accepted; it may open its transaction."""
        producer_id, epoch = batch.producer_id, batch.producer_epoch
        last = last_sequence(batch.base_sequence, batch.record_count)
        remembered = ProducerBatch(batch.base_sequence, last, base_offset)
        known = self._taken(producer_id)
        if known is None:
            known = Producer(self._age, epoch, time, [remembered])
        elif known.epoch != epoch:
            known.epoch, known.last_time, known.batches = epoch, time, [remembered]
        else:
            known.last_time = time
            known.batches.append(remembered)
            if len(known.batches) > REMEMBERED_BATCHES:
                del known.batches[0]
        self._producers[producer_id] = known
        if batch.transaction != NO_TRANSACTION and producer_id not in self._open:
            self._open[producer_id] = OpenTransaction(batch.transaction, base_offset, epoch)
            if self.first_open_offset is None:
                self.first_open_offset = base_offset

    def _taken(self, producer_id: int) -> Producer | None:
        """A producer out of its place, to be changed and put behind all others."""
        known = self._producers.pop(producer_id, None)
        return known if known is None or known.age == self._age else known.copy(self._age)

    # Markers.

    def check_end(self, producer_id: int, epoch: int, transaction: int) -> Rejected | None:
        """Rejected for a marker that must be ignored; None if it is newer than all before it.

        An open transaction shows that the coordinator has ended all transactions before it. A marker of an
        earlier transaction must not be appended while this one is open: readers would take it for the end of
        the open one. Raises ValueError for numbers that no transaction has.
        """
        if transaction < 1 or epoch < 0 or producer_id < 0:
            raise ValueError(f"producer {producer_id} has no transaction {transaction} with epoch {epoch}")
        known = self._producers.get(producer_id)
        ended = 0 if known is None else known.ended
        opened = self._open.get(producer_id)
        if opened is not None:
            ended = max(ended, opened.number - 1)
        return Rejected(Rejection.TRANSACTION_ENDED, ended) if transaction <= ended else None

    def end(
        self, producer_id: int, epoch: int, transaction: int, coordinator_term: int, offset: int, time: int
    ) -> OpenTransaction | None:
        """Remember a marker that `check_end` let through and that is at this offset; returns what it ended.

        A higher epoch becomes the producer's, fences those below it and starts the sequences at 0 again
        (KIP-890). A lower one ends the transaction all the same, because its number is newer.
        """
        known = self._taken(producer_id)
        if known is None:
            known = Producer(self._age, epoch, time, [])
        elif epoch > known.epoch:
            known.epoch, known.batches = epoch, []
        known.last_time = time
        known.ended, known.marker_offset, known.coordinator_term = transaction, offset, coordinator_term
        self._producers[producer_id] = known
        ended = self._open.pop(producer_id, None)
        self._find_first_open()
        return ended

    def _find_first_open(self) -> None:
        self.first_open_offset = next((opened.first_offset for opened in self._open.values()), None)

    def newest_since(self, count: int) -> int | None:
        """Time in ms after which at most the newest `count` producers wrote; None if there are no more."""
        older = len(self._producers) - count
        if older <= 0:
            return None
        return next(islice(self._producers.values(), older, None)).last_time

    def expire(self, before: int) -> int:
        """Forget the producers whose last batch or marker is older than a time in ms; returns their number.

        A producer with an open transaction stays: without it, the transaction's batches could never be ended.
        """
        expired = []
        for producer_id, producer in self._producers.items():
            if producer.last_time >= before:
                break
            if producer_id not in self._open:
                expired.append(producer_id)
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    def not_after(self, time: int) -> None:
        """Lower every later time of a producer to this one, in ms, because the state's time went back."""
        later = takewhile(lambda one: one[1].last_time > time, reversed(self._producers.items()))
        for producer_id, producer in list(later):
            self._producers[producer_id] = clamped = producer.copy(self._age)
            clamped.last_time = time

    # Snapshots.

    def rows(self) -> Rows:
        """Plain values for a snapshot, in the order of the last batches' or markers' offsets, which is their
        own: producer id, epoch, last time, batches, highest number ended, offset of its marker and term of
        its coordinator, and number and first offset of the open transaction or None."""
        held, opened = dict(self._producers), dict(self._open)
        self._age += 1
        return Rows(len(held), partial(_rows, held, opened))

    @classmethod
    def restored(cls, captured: list[Any]) -> Producers:
        """The producers that `rows` was taken from; raises ValueError for rows that no producers give."""
        restored = cls()
        newest = (-1, 0)
        opened: list[tuple[int, int, OpenTransaction]] = []
        for producer_id, epoch, last_time, batches, ended, marker_offset, coordinator_term, open_ in captured:
            one = Producer(0, epoch, last_time, [ProducerBatch(*batch) for batch in batches])
            one.ended, one.marker_offset, one.coordinator_term = ended, marker_offset, coordinator_term
            if len(one.batches) > REMEMBERED_BATCHES or not (one.batches or ended):
                raise ValueError(f"producer {producer_id} has {len(one.batches)} batches")
            if ended < 0 or (ended > 0) != (marker_offset >= 0):
                raise ValueError(f"producer {producer_id} ended {ended}, with a marker at {marker_offset}")
            if one.last_offset <= newest[0] or last_time < newest[1]:
                raise ValueError(f"producer {producer_id} is out of order")
            newest = (one.last_offset, last_time)
            restored._producers[producer_id] = one
            if open_ is not None:
                number, first = open_
                if number <= ended or not marker_offset < first <= one.last_offset:
                    raise ValueError(f"producer {producer_id} has no transaction {number} open from {first}")
                opened.append((first, producer_id, OpenTransaction(number, first, epoch)))
        restored._open = {producer_id: one for _, producer_id, one in sorted(opened)}
        restored._find_first_open()
        return restored


def _remembered(known: Producer, base_sequence: int, record_count: int) -> ProducerBatch | None:
    last = last_sequence(base_sequence, record_count)
    for batch in known.batches:
        if batch.first_sequence == base_sequence and batch.last_sequence == last:
            return batch
    return None


def _rows(held: Mapping[int, Producer], opened: Mapping[int, OpenTransaction]) -> Iterator[tuple[Any, ...]]:
    for producer_id, one in held.items():
        open_ = opened.get(producer_id)
        yield (
            producer_id,
            one.epoch,
            one.last_time,
            one.batches,
            one.ended,
            one.marker_offset,
            one.coordinator_term,
            None if open_ is None else (open_.number, open_.first_offset),
        )
