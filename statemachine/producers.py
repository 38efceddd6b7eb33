"""Idempotent producers: which batch of a producer is new, which a retry, which must not be here.

Judged when a batch is applied, not when it arrives: only then is it certain what precedes it, so a retry
that crossed a change of leader is still recognised. The rules are Kafka's (KIP-98, ProducerStateManager):
a batch carries producer id, epoch and base sequence; sequences count records and wrap after 2**31 - 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

MAX_SEQUENCE = 2**31 - 1
REMEMBERED_BATCHES = 5
"""As many as a producer may have in flight, so any retry of an unanswered batch is found."""
NO_PRODUCER = -1
"""Producer id of a batch that claims no idempotence."""


class ProducerBatch(NamedTuple):
    """One of a producer's last batches; `last_sequence` is below `first_sequence` when it wraps."""

    first_sequence: int
    last_sequence: int
    base_offset: int


class Producer:
    """What is remembered of one producer id: its newest epoch and that epoch's last batches, oldest first."""

    __slots__ = ("batches", "epoch", "last_time")

    def __init__(self, epoch: int, last_time: int, batches: list[ProducerBatch]) -> None:
        self.epoch = epoch
        self.last_time = last_time
        """Time of the state machine, in ms, when its last batch was applied."""
        self.batches = batches


class Duplicate(NamedTuple):
    """The batch is here already, from this offset on."""

    base_offset: int


class OutOfOrderSequence(NamedTuple):
    """A batch in between is missing, or it is older than what is remembered; `expected` is the next one."""

    expected: int


class StaleProducerEpoch(NamedTuple):
    """A newer incarnation of the producer has written here, with this epoch."""

    current: int


Refusal = Duplicate | OutOfOrderSequence | StaleProducerEpoch


def last_sequence(first_sequence: int, record_count: int) -> int:
    """Sequence of a batch's last record, with the wrap from 2**31 - 1 to 0."""
    return (first_sequence + record_count - 1) & MAX_SEQUENCE


class Producers:
    """All producers of a partition, in the order of their last batch: the idlest comes first."""

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def get(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    def judge(self, producer_id: int, epoch: int, first: int, record_count: int) -> Refusal | None:
        """Why a batch must not be appended; None when it may.

        A producer nobody knows, or no longer, may start at any sequence: its state may have expired. A new
        epoch of a known one starts at 0. Raises ValueError for numbers that no checked batch has.
        """
        if not 0 <= first <= MAX_SEQUENCE or epoch < 0:
            raise ValueError(f"producer {producer_id} with epoch {epoch} has no sequence {first}")
        known = self._producers.get(producer_id)
        if known is None:
            return None
        if epoch != known.epoch:
            if epoch < known.epoch:
                return StaleProducerEpoch(known.epoch)
            return None if first == 0 else OutOfOrderSequence(0)
        expected = (known.batches[-1].last_sequence + 1) & MAX_SEQUENCE
        if first == expected:
            return None
        last = last_sequence(first, record_count)
        for batch in known.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return Duplicate(batch.base_offset)
        return OutOfOrderSequence(expected)

    def appended(
        self, producer_id: int, epoch: int, first: int, record_count: int, base_offset: int, time: int
    ) -> None:
        """Remember a batch that `judge` let through and that was appended."""
        batch = ProducerBatch(first, last_sequence(first, record_count), base_offset)
        known = self._producers.pop(producer_id, None)
        if known is None:
            known = Producer(epoch, time, [batch])
        elif known.epoch != epoch:
            known.epoch, known.last_time, known.batches = epoch, time, [batch]
        else:
            known.last_time = time
            known.batches.append(batch)
            if len(known.batches) > REMEMBERED_BATCHES:
                del known.batches[0]
        self._producers[producer_id] = known

    def expire(self, before: int) -> int:
        """Forget the producers whose last batch is older than a time in ms; returns how many."""
        expired = []
        for producer_id, producer in self._producers.items():
            if producer.last_time >= before:
                break
            expired.append(producer_id)
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    def capture(self) -> list[Any]:
        """Plain values for a snapshot, in the order of the last batches' offsets, which is their own."""
        return [
            (producer_id, producer.epoch, producer.last_time, producer.batches)
            for producer_id, producer in self._producers.items()
        ]

    @classmethod
    def restored(cls, captured: list[Any]) -> Producers:
        """What `capture` gave; raises ValueError when it is out of order."""
        restored = cls()
        newest = (-1, 0)
        for producer_id, epoch, last_time, batches in captured:
            remembered = [ProducerBatch(*batch) for batch in batches]
            if not remembered or len(remembered) > REMEMBERED_BATCHES:
                raise ValueError(f"producer {producer_id} has {len(remembered)} batches")
            base_offset = remembered[-1].base_offset
            if base_offset <= newest[0] or last_time < newest[1]:
                raise ValueError(f"producer {producer_id} is out of order")
            newest = (base_offset, last_time)
            restored._producers[producer_id] = Producer(epoch, last_time, remembered)
        return restored
