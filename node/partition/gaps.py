"""Gaps in producers' sequences: batches that have to come again before later ones may go to the log.

The state machine refuses a gap only in the sequences of a producer it knows. A producer that it does not know
may start anywhere, because its state may have expired. So when the first batch of a producer fails before the
log, the second, which the client sent before it heard of that, would be accepted, and the first is lost for
good. Here the leader remembers the batch that failed, and refuses all later ones until it has come again.

A batch may also arrive before one that was sent first: when leadership moves, a client sends the next batch
to the new leader while those before it are still in flight to the old one. On "out of order", librdkafka
takes another epoch and sends them all under it, and batches that the old leader had replicated are in the log
twice. So the answer is to try again instead, for longer than those before it can be in flight.
"""

from __future__ import annotations

from typing import NamedTuple

from strandline.node.partition.batch import ProducedBatch
from strandline.node.partition.refusals import behind
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.partition.producer_state import MAX_SEQUENCE, NO_PRODUCER
from strandline.statemachine.partition.producers import Producers

MAX_GAPS = 4_096
"""Producers of one partition with a gap; beyond it the oldest is forgotten, as a change of node would."""

KEPT_SECONDS = 600.0
"""Longer than any client tries (Kafka's delivery.timeout.ms is 2 minutes): one that goes on behind a gap
after that has given the batch up."""

EARLY_SECONDS = 90.0
"""Time for which the answer to a batch that came too early is to try again: longer than a client waits for
one answer (librdkafka's socket.timeout.ms is 1 minute), shorter than it tries (delivery.timeout.ms)."""

EARLY_IN_TRANSACTION_SECONDS = 10.0
"""As EARLY_SECONDS, in a transaction. A client that gets "out of order" there aborts, and nothing is in the
log twice; while one that waits beyond its transaction's timeout (1 minute unless it sets another) is fenced.
And it may wait in vain: of a producer that was forgotten, the log may have a marker only."""
assert EARLY_IN_TRANSACTION_SECONDS < EARLY_SECONDS < KEPT_SECONDS


class _Gap(NamedTuple):
    epoch: int
    sequence: int
    failure: Refusal
    until: float
    early: bool = False
    """Whether no batch failed here: a later batch was faster."""


class Gaps:
    """The gaps in one partition's producers, at most MAX_GAPS of them. A failed batch keeps what is behind it
    out for at most KEPT_SECONDS, one that is only late for EARLY_SECONDS or EARLY_IN_TRANSACTION_SECONDS."""

    def __init__(self) -> None:
        self._gaps: dict[int, _Gap] = {}

    def __len__(self) -> int:
        return len(self._gaps)

    def note(self, batch: ProducedBatch, failure: Refusal, now: float) -> None:
        """A batch failed. Of several the first sequence counts, since the others come behind it again."""
        producer = batch.producer_id
        if producer == NO_PRODUCER:
            return
        epoch, sequence = batch.producer_epoch, batch.base_sequence
        known = self._gaps.get(producer)
        if known is not None and (
            known.epoch > epoch or (known.epoch == epoch and _reaches(sequence, known.sequence))
        ):
            return
        self._keep(producer, _Gap(epoch, sequence, behind(failure), now + KEPT_SECONDS))

    def early(
        self, batch: ProducedBatch, expected: int, now: float, *, transactional: bool
    ) -> Refusal | None:
        """The answer to a batch that is not the `expected` one by the state machine's check.

        None if it lies before the expected one, or if the batches before it had time enough to come: then it
        is out of order.
        """
        producer, epoch = batch.producer_id, batch.producer_epoch
        if not _reaches(batch.base_sequence, expected):
            return None
        known = self._gaps.get(producer)
        if known is None or (known.epoch, known.sequence, known.early) != (epoch, expected, True):
            failure = Refusal(Reason.NOT_NOW, f"sequence {expected} of its producer has to come first")
            seconds = EARLY_IN_TRANSACTION_SECONDS if transactional else EARLY_SECONDS
            known = _Gap(epoch, expected, failure, now + seconds, early=True)
        self._keep(producer, known)
        return known.failure if now <= known.until else None

    def refusal(self, batch: ProducedBatch, producers: Producers, now: float) -> Refusal | None:
        """The reason to keep a batch out of the log: the failure of the one before it. None: it may go.

        `producers` is the applied state: a batch that got there after all, by another leader or late, is no
        gap. Batches before the gap pass, because they may be retries.
        """
        gap = self._gaps.get(batch.producer_id)
        if gap is None or batch.producer_epoch < gap.epoch:
            return None
        if batch.producer_epoch == gap.epoch and batch.base_sequence != gap.sequence:
            if not _reaches(batch.base_sequence, gap.sequence):
                return None
            known = producers.get(batch.producer_id)
            passed = known is not None and (
                known.epoch > gap.epoch
                or (
                    known.epoch == gap.epoch
                    and bool(known.batches)
                    and _reaches(known.batches[-1].last_sequence, gap.sequence)
                )
            )
            if not passed:
                if now <= gap.until:
                    return gap.failure
                if gap.early:
                    return None  # still there, so that the state machine's word is the last
        del self._gaps[batch.producer_id]
        return None

    def _keep(self, producer: int, gap: _Gap) -> None:
        """As the newest; with too many the oldest goes."""
        if self._gaps.pop(producer, None) is None and len(self._gaps) >= MAX_GAPS:
            del self._gaps[next(iter(self._gaps))]
        self._gaps[producer] = gap


def _reaches(sequence: int, other: int) -> bool:
    """Whether a sequence is `other` or comes behind it, wherever they wrap: half the circle lies behind."""
    return (sequence - other) & MAX_SEQUENCE <= MAX_SEQUENCE // 2
