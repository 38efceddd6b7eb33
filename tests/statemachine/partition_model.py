"""A partition as one would tell it: every batch and object of all time in lists, searched from end to end.

It shares nothing with the state machine but the commands and their results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from strandline.statemachine.partition.aborted_transactions import AbortedTransaction
from strandline.statemachine.partition.level_one import LevelOneExtent, RemovedObject
from strandline.statemachine.partition.partition_commands import (
    AdvanceEpoch,
    AdvanceReconciled,
    AdvanceRemoval,
    Append,
    Appended,
    AppendInline,
    Checkpoint,
    CheckpointsReleased,
    CheckpointTaken,
    Command,
    EndTransaction,
    EpochAdvanced,
    ForgetRemoved,
    HoldReleased,
    HoldRenewed,
    InlineStored,
    LevelOneReplaced,
    Reconciled,
    ReleaseCheckpoints,
    ReleaseHold,
    RemovalAdvanced,
    RemovedForgotten,
    RenewCheckpoint,
    RenewHold,
    ReplaceLevelOne,
    SetStartOffset,
    StartOffsetSet,
    StoreInline,
    Tick,
    Ticked,
    TransactionEnded,
)
from strandline.statemachine.partition.placeholder import InlineBatch, Placeholder
from strandline.statemachine.partition.rejection import Rejected, Rejection


@dataclass(frozen=True)
class Written:
    """One accepted batch, or a marker."""

    base: int
    term: int
    time: int
    batch: Placeholder | InlineBatch
    marker: EndTransaction | None = None

    @property
    def producer(self) -> int:
        return self.batch.producer_id if self.marker is None else self.marker.producer_id

    @property
    def producer_epoch(self) -> int:
        return self.batch.producer_epoch if self.marker is None else self.marker.producer_epoch

    @property
    def end(self) -> int:
        return self.base + self.batch.record_count


@dataclass(frozen=True)
class Saved:
    index: int
    until: int
    epochs: tuple[int, ...]
    uniques: frozenset[bytes]
    """Level-one objects it names."""


class Model:
    """What was written, what was reconciled and replaced, and what was deleted."""

    def __init__(self, creation_epoch: int) -> None:
        self.previous = self.newest = creation_epoch
        self.term = self.time = self.start = self.end = 0
        self.written: list[Written] = []
        self.inline_stored: dict[int, int] = {}
        """Epochs of the objects that have inline batches, by their base offsets."""
        self.forgotten: dict[int, int] = {}
        """For each producer that expired, how many batches had been written by then."""
        self.saved: list[Saved] = []
        self.clean = self.settled = 0
        """Of level one."""
        self.told: list[tuple[int, int, int]] = [(0, 0, 0)]
        """All that was ever in force of removal, with its time."""
        self.ripe = (0, 0)
        self.held: list[tuple[str, int, int]] = []
        """Reader, offset and end of each hold that was given and not released, the newest last."""
        self.reconciled = 0
        """Offset after the last record that was moved to level one."""
        self.objects: list[LevelOneExtent] = []
        """Every object that was ever named."""
        self.replaced: set[bytes] = set()
        self.removed: list[RemovedObject] = []

    def live(self) -> list[Written]:
        """Level zero."""
        return [one for one in self.written if one.end > self.start and one.base >= self.reconciled]

    def first_unreconciled(self) -> int:
        return next((one.base for one in self.live()), self.end)

    def level_one(self) -> list[LevelOneExtent]:
        present = [
            one for one in self.objects if one.unique not in self.replaced and one.end_offset > self.start
        ]
        return sorted(present)

    def leased(self) -> list[Saved]:
        return [one for one in self.saved if one.until > self.time]

    def holds(self) -> dict[str, int]:
        """The offsets that are held now, by reader."""
        newest = {reader: (offset, until) for reader, offset, until in self.held}
        return {reader: offset for reader, (offset, until) in newest.items() if until > self.time}

    def holdable(self) -> int:
        held = self.holds().values()
        end = min(self.first_unreconciled(), self.last_stable())
        return max(self.start, min(held) if held else end)

    def removable(self) -> list[RemovedObject]:
        return [one for one in self.removed if all(saved.index > one.log_index for saved in self.leased())]

    def named(self) -> frozenset[bytes]:
        return frozenset(one.unique for one in self.level_one())

    def remove(self, index: int, objects: Sequence[LevelOneExtent]) -> None:
        self.removed += [RemovedObject(index, one.term, one.unique, one.size) for one in objects]

    def epochs(self) -> tuple[int, ...]:
        return tuple(
            one.batch.epoch if isinstance(one.batch, Placeholder) else self.inline_stored[one.base]
            for one in self.live()
            if isinstance(one.batch, Placeholder) or one.base in self.inline_stored
        )

    def inline(self) -> list[Written]:
        """What of level zero lies in the log alone."""
        return [
            one
            for one in self.live()
            if isinstance(one.batch, InlineBatch) and one.base not in self.inline_stored
        ]

    def collectable(self) -> int:
        leased = [epoch for one in self.leased() for epoch in one.epochs]
        return min([self.previous, *self.epochs(), *leased]) - 1

    def known(self, producer: int) -> list[Written]:
        """The producer's batches and markers, as far as they are still remembered."""
        since = self.forgotten.get(producer, 0)
        return [one for one in self.written[since:] if one.producer == producer]

    def open(self, producer: int) -> list[Written]:
        """The batches of the producer's open transaction: those in one that have no marker behind them."""
        batches: list[Written] = []
        for one in self.known(producer):
            if one.marker is not None:
                batches = []
            elif one.batch.transaction > 0:
                batches.append(one)
        return batches

    def ended(self, producer: int) -> int:
        markers = (one.marker for one in self.known(producer))
        return max((marker.transaction for marker in markers if marker is not None), default=0)

    def producers(self) -> list[int]:
        return sorted({one.producer for one in self.written if self.known(one.producer)} - {-1})

    def last_stable(self) -> int:
        opened = [batches[0].base for producer in self.producers() if (batches := self.open(producer))]
        return max(self.start, min([self.end, *opened]))

    def outcomes(self) -> dict[int, bool]:
        """For each decided batch in a transaction, by base offset, whether it was committed."""
        outcomes: dict[int, bool] = {}
        opened: dict[int, list[int]] = {}
        for one in self.written:
            if one.marker is not None:
                outcomes.update(dict.fromkeys(opened.pop(one.producer, []), one.marker.commit))
            elif one.batch.transaction > 0:
                opened.setdefault(one.producer, []).append(one.base)
        return outcomes

    def aborted(self) -> list[AbortedTransaction]:
        opened: dict[int, int] = {}
        found = []
        for one in self.written:
            if one.marker is not None:
                first = opened.pop(one.producer, None)
                if first is not None and not one.marker.commit and one.base >= self.start:
                    found.append(AbortedTransaction(one.producer, first, one.base))
            elif one.batch.transaction > 0:
                opened.setdefault(one.producer, one.base)
        return found

    def append(self, batch: Placeholder | InlineBatch) -> Appended | Rejected:
        known = self.known(batch.producer_id) if batch.producer_id >= 0 else []
        if known:
            current = max(one.producer_epoch for one in known)
            if batch.producer_epoch < current:
                return Rejected(Rejection.INVALID_PRODUCER_EPOCH, current)
            same = [one for one in known if one.marker is None and one.producer_epoch == batch.producer_epoch]
            expected = (same[-1].batch.base_sequence + same[-1].batch.record_count) % 2**31 if same else 0
            if batch.base_sequence != expected:
                for one in same[-5:]:
                    same_size = one.batch.record_count == batch.record_count
                    if one.batch.base_sequence == batch.base_sequence and same_size:
                        return Appended(one.base, duplicate=True)
            if 0 < batch.transaction <= self.ended(batch.producer_id):
                return Rejected(Rejection.TRANSACTION_ENDED, self.ended(batch.producer_id))
            for one in self.open(batch.producer_id):
                if (one.batch.transaction, one.producer_epoch) != (batch.transaction, batch.producer_epoch):
                    return Rejected(Rejection.NOT_IN_TRANSACTION, one.batch.transaction)
            if batch.base_sequence != expected:
                return Rejected(Rejection.OUT_OF_ORDER_SEQUENCE_NUMBER, expected)
        self.written.append(Written(self.end, self.term, self.time, batch))
        self.end += batch.record_count
        return Appended(self.written[-1].base)

    def end_transaction(self, command: EndTransaction) -> TransactionEnded | Rejected:
        ended = self.ended(command.producer_id)
        for one in self.open(command.producer_id):
            ended = max(ended, one.batch.transaction - 1)
        if command.transaction <= ended:
            return Rejected(Rejection.TRANSACTION_ENDED, ended)
        batch = InlineBatch(1, command.max_timestamp, command.batch)
        self.written.append(Written(self.end, self.term, self.time, batch, command))
        self.end += 1
        return TransactionEnded(self.written[-1].base)

    def apply(self, index: int, command: Command) -> Any:
        if isinstance(command, (Append, StoreInline, AdvanceEpoch)):
            window = command.window
            assert window.oldest is not None
            assert window.newest is not None
            rises = window.oldest > self.previous or window.newest > self.newest
            self.previous = max(self.previous, window.oldest)
            self.newest = max(self.newest, window.newest)
            if isinstance(command, Append):
                return [self.append(batch) for batch in command.placeholders]
            if isinstance(command, StoreInline):
                there = {one.base for one in self.inline()}
                stored = {one.base_offset: one.epoch for one in command.stored if one.base_offset in there}
                self.inline_stored |= stored
                return InlineStored(len(stored))
            return (
                EpochAdvanced(self.previous, self.newest)
                if rises
                else Rejected(Rejection.LOWER_EPOCH, self.newest)
            )
        if isinstance(command, AppendInline):
            return [self.append(batch) for batch in command.batches]
        if isinstance(command, EndTransaction):
            return self.end_transaction(command)
        if isinstance(command, SetStartOffset):
            if command.start_offset < self.start:
                return Rejected(Rejection.LOWER_START_OFFSET, self.start)
            before = self.level_one()
            self.start = command.start_offset
            self.remove(index, [one for one in before if one not in self.level_one()])
            self.clean, self.settled = max(self.clean, self.start), max(self.settled, self.start)
            return StartOffsetSet(self.start)
        if isinstance(command, AdvanceRemoval):
            present = self.told[-1][:2]
            given = (max(present[0], command.mtro), max(present[1], command.mxro))
            if given != present:
                self.told.append((*given, self.time))
            ripe = max(
                row[:2]
                for row in self.told
                if row[2] + command.retention <= self.time or row[:2] <= self.ripe
            )
            changed = (given, ripe) != (present, self.ripe)
            self.ripe = ripe
            return (
                RemovalAdvanced(*given, *ripe) if changed else Rejected(Rejection.REMOVAL_NOT_NEWER, given[0])
            )
        if isinstance(command, Tick):
            limit = self.time - command.producer_expiry
            idle = [
                producer
                for producer in self.producers()
                if self.known(producer)[-1].time < limit and not self.open(producer)
            ]
            self.forgotten.update(dict.fromkeys(idle, len(self.written)))
            return Ticked(self.time, len(idle))
        if isinstance(command, RenewHold):
            if command.offset < self.holdable():
                return Rejected(Rejection.HOLD_TOO_LOW, self.holdable())
            if command.offset > self.end:
                return Rejected(Rejection.HOLD_ABOVE_THE_END, self.end)
            self.held.append((command.reader, command.offset, self.time + command.lease))
            return HoldRenewed(command.offset, self.time + command.lease)
        if isinstance(command, ReleaseHold):
            had_one = command.reader in self.holds()
            self.held = [one for one in self.held if one[0] != command.reader]
            return HoldReleased(had_one)
        if isinstance(command, Checkpoint):
            self.saved.append(Saved(index, self.time + command.lease, self.epochs(), self.named()))
            return CheckpointTaken(index, self.time + command.lease)
        if isinstance(command, RenewCheckpoint):
            for position, one in enumerate(self.saved):
                if one.index == command.log_index and one.until > self.time:
                    until = max(one.until, self.time + command.lease)
                    self.saved[position] = replace(one, until=until)
                    return CheckpointTaken(one.index, until)
            return Rejected(Rejection.CHECKPOINT_NOT_LEASED, self.time)
        if isinstance(command, AdvanceReconciled):
            if command.first_offset != self.first_unreconciled():
                return Rejected(Rejection.RECONCILED_ELSEWHERE, self.first_unreconciled())
            if any(one.term != self.term for one in command.extents):
                return Rejected(Rejection.OLDER_TERM, self.term)
            self.objects += command.extents
            self.reconciled = command.extents[-1].end_offset
            return Reconciled(self.reconciled - 1)
        if isinstance(command, ReplaceLevelOne):
            if any(one.term != self.term for one in command.new):
                return Rejected(Rejection.OLDER_TERM, self.term)
            if command.publishes and command.publisher_clean_end < self.clean:
                return Rejected(Rejection.LESS_CLEAN, self.clean)
            old = [one for one in self.level_one() if (one.term, one.unique) in command.old]
            if len(old) != len(command.old):
                return Rejected(Rejection.LEVEL_ONE_CHANGED, 0)
            self.replaced |= {one.unique for one in old}
            self.objects += command.new
            self.remove(index, [*old, *(one for one in command.new if one.end_offset <= self.start)])
            self.clean, self.settled = max(self.clean, command.clean), max(self.settled, command.settled)
            return LevelOneReplaced(len(old))
        if isinstance(command, ForgetRemoved):
            known = [one for one in self.removed if one.unique in command.uniques]
            self.removed = [one for one in self.removed if one not in known]
            return RemovedForgotten(len(known))
        assert isinstance(command, ReleaseCheckpoints)
        ended = [one for one in self.saved if one.until <= self.time]
        gone = ended[: len(ended) - command.keep] if command.keep < len(ended) else []
        self.saved = [one for one in self.saved if one not in gone]
        return CheckpointsReleased([one.index for one in gone])
