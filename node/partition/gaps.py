"""Which sequences a producer has to send again before anything behind them may go to the log.

The state machine refuses a gap only in the sequences of a producer it knows: one that it does not know may
start anywhere, because its state may have expired. So when the first batch of a producer fails before the
log, the second, which the client sent before it heard of that, would be accepted, and the first is lost for
good. Here the leader remembers what failed, and lets nothing behind it pass until it has come again.
"""

from __future__ import annotations

from typing import NamedTuple

from node.partition.batch import AppendFailed, ProducedBatch, behind
from statemachine.producers import MAX_SEQUENCE, NO_PRODUCER, Producers

MAX_GAPS = 4_096
"""Producers of one partition with a gap; beyond it the oldest is forgotten, as a change of node would."""

KEPT_SECONDS = 600.0
"""Longer than any client tries (Kafka's delivery.timeout.ms is 2 minutes): one that goes on behind a gap
after that has given the batch up."""


class _Gap(NamedTuple):
    epoch: int
    sequence: int
    failure: AppendFailed
    since: float


class Gaps:
    """The gaps in one partition's producers, at most MAX_GAPS of them, each for at most KEPT_SECONDS."""

    def __init__(self) -> None:
        self._gaps: dict[int, _Gap] = {}

    def __len__(self) -> int:
        return len(self._gaps)

    def note(self, batch: ProducedBatch, failure: AppendFailed, now: float) -> None:
        """A batch failed. Of several the first sequence counts, since the others come behind it again."""
        producer = batch.producer_id
        if producer == NO_PRODUCER:
            return
        epoch, sequence = batch.producer_epoch, batch.base_sequence
        known = self._gaps.get(producer)
        if known is not None:
            if known.epoch > epoch or (known.epoch == epoch and _reaches(sequence, known.sequence)):
                return
            del self._gaps[producer]
        elif len(self._gaps) >= MAX_GAPS:
            del self._gaps[next(iter(self._gaps))]
        self._gaps[producer] = _Gap(epoch, sequence, behind(failure), now)

    def refusal(self, batch: ProducedBatch, producers: Producers, now: float) -> AppendFailed | None:
        """Why a batch must not go to the log: the failure of the one before it. None: it may.

        `producers` is the applied state: a batch that got there after all, by another leader or late, is no
        gap. What comes before the gap passes, for it may be a retry itself.
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
            if not passed and now - gap.since <= KEPT_SECONDS:
                return gap.failure
        del self._gaps[batch.producer_id]
        return None


def _reaches(sequence: int, other: int) -> bool:
    """Whether a sequence is `other` or comes behind it, wherever they wrap: half the circle lies behind."""
    return (sequence - other) & MAX_SEQUENCE <= MAX_SEQUENCE // 2
