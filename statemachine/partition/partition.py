"""The state machine of a partition: its batches, their places, and the checks of new ones.

It assigns Kafka offsets, recognises retries, keeps late batches and markers out of later transactions, and
holds the epochs that bound what the collector may delete. The records themselves lie in object storage, but
for inline batches until they are stored too. docs/partition.md tells the state, each command, and why.

Three kinds of bad command are told apart. One that lost a race is rejected by value and changes nothing. A
producer out of step gets Kafka's own answer. One that no correct leader writes raises Corruption, which
stops the replica before its state can diverge further.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgpack

from strandline.statemachine.machine import Captured, Corruption, ReadAttributes, ReadState
from strandline.statemachine.partition import partition_invariants
from strandline.statemachine.partition.checkpoints import RetainedCheckpoint
from strandline.statemachine.partition.extent import StoredInline
from strandline.statemachine.partition.holds import Hold
from strandline.statemachine.partition.level_one import LevelOneExtent, RemovedObject
from strandline.statemachine.partition.partition_commands import (
    NO_CLOCK,
    NOT_PUBLISHED,
    Appended,
    CheckpointsReleased,
    CheckpointTaken,
    CommandResult,
    EntryResult,
    EpochAdvanced,
    HoldReleased,
    HoldRenewed,
    InlineStored,
    LevelOneReplaced,
    PartitionOpcode,
    Reconciled,
    RemovalAdvanced,
    RemovedForgotten,
    StartOffsetSet,
    Ticked,
    TransactionEnded,
)
from strandline.statemachine.partition.partition_state import PartitionState
from strandline.statemachine.partition.placeholder import InlineBatch, Placeholder
from strandline.statemachine.partition.producer_state import NO_PRODUCER
from strandline.statemachine.partition.producers import Duplicate
from strandline.statemachine.partition.rejection import Rejected, Rejection

FAR_AHEAD_MS: Final = 60_000
"""Clocks that most nodes agree on differ by less: a state's time that is so far ahead of one of them was
pushed there by a clock that was wrong."""


class PartitionStateMachine(PartitionState):
    """One partition and its log; see StateMachine for what the log asks of it.

    `on_checkpoint(index, captured)` is called inside the apply of a Checkpoint, on every replica, with the
    state as of that very entry; when entries are applied again after a restart it gets the same again.
    """

    kind = "partition"

    def __init__(self, creation_epoch: int, on_checkpoint: Callable[[int, Captured], None]) -> None:
        super().__init__(creation_epoch)
        self._on_checkpoint = on_checkpoint

    def read(self, state: bytes) -> ReadState:
        """See StateMachine."""
        try:
            restored = PartitionState.loaded(state)
            partition_invariants.check(restored)
        except Exception as error:
            raise ValueError(f"a partition's state cannot be read: {error}") from error
        return ReadAttributes(self, vars(restored))

    def restore(self, state: bytes) -> None:
        """See StateMachine."""
        self.read(state).adopt()

    def begin_term(self, index: int, term: int, node: int) -> None:
        """A leader's first entry; the term becomes Kafka's partition leader epoch."""
        if term <= self.term:
            raise Corruption(f"entry {index}: node {node} begins term {term} after term {self.term}")
        self.term = term
        self.leader_epochs.begin(term, self.next_offset)

    def apply(self, index: int, term: int, command: bytes) -> EntryResult:
        """Apply an entry's commands in order. Raises Corruption; the state is then not to be used."""
        try:
            made_in, time, commands = msgpack.unpackb(command)
            if term != self.term or made_in > term:
                raise Corruption(f"made in term {made_in}, logged in {term}, while {self.term} is present")
            if made_in < term:
                return Rejected(Rejection.OLDER_TERM, term)
            if len(commands) > 1 and any(fields[0] == PartitionOpcode.CHECKPOINT for fields in commands):
                raise Corruption("a checkpoint is not alone in its entry")
            if time > self.time:
                self.time = time
                self.holds.expire(time)
            results = []
            for kind, *fields in commands:
                handler = _HANDLERS.get(kind)
                if handler is None:
                    raise Corruption(f"command kind {kind} is unknown: a newer release's? Upgrade this node")
                results.append(handler(self, index, *fields))
            return results
        except Corruption as error:
            raise Corruption(f"entry {index}: {error}") from None
        except Exception as error:
            raise Corruption(f"entry {index} is not a partition's: {error!r}") from error

    def _append(
        self, index: int, oldest: int, newest: int, placeholders: Sequence[Sequence[Any]]
    ) -> CommandResult:
        partition_invariants.window_comes_in_order(self, oldest, newest)
        # Even if every batch is refused below: the fence was granted, and may have been slid to.
        self._raise_epochs(index, oldest, newest)
        results: list[Appended | Rejected] = []
        append, term = self.extents.append_object, self.term
        for fields in placeholders:
            one = Placeholder._make(fields)
            partition_invariants.epoch_lies_in_its_window(one.epoch, oldest, newest)
            refused = None if one.producer_id == NO_PRODUCER else self._refuse(one)
            if refused is not None:
                results.append(refused)
                continue
            base = append(
                one.record_count, term, one.max_timestamp, one.length, one.epoch, one.position, one.object_id
            )
            self._appended(one, base)
            results.append(Appended(base))
        return results

    def _append_inline(self, index: int, batches: Sequence[Sequence[Any]]) -> CommandResult:
        results: list[Appended | Rejected] = []
        for fields in batches:
            one = InlineBatch._make(fields)
            refused = None if one.producer_id == NO_PRODUCER else self._refuse(one)
            if refused is not None:
                results.append(refused)
                continue
            base = self.extents.append_inline(one.record_count, self.term, one.max_timestamp, one.data)
            self._appended(one, base)
            results.append(Appended(base))
        return results

    def _store_inline(
        self, index: int, oldest: int, newest: int, rows: Sequence[Sequence[Any]]
    ) -> CommandResult:
        partition_invariants.window_comes_in_order(self, oldest, newest)
        self._raise_epochs(index, oldest, newest)
        stored = [StoredInline._make(row) for row in rows]
        for one in stored:
            partition_invariants.epoch_lies_in_its_window(one.epoch, oldest, newest)
        return InlineStored(self.extents.store_inline(stored))

    def _appended(self, one: Placeholder | InlineBatch, base: int) -> None:
        """Remember what its producer wrote."""
        if one.producer_id != NO_PRODUCER:
            self.producers.appended(one, base, self.time)

    def _refuse(self, one: Placeholder | InlineBatch) -> Appended | Rejected | None:
        """The answer to a batch that must not be appended (again); None when it must."""
        refusal = self.producers.check(one)
        if isinstance(refusal, Duplicate):
            return Appended(refusal.base_offset, duplicate=True)
        return refusal

    def _end_transaction(
        self,
        index: int,
        producer_id: int,
        producer_epoch: int,
        transaction: int,
        commit: bool,
        coordinator_term: int,
        max_timestamp: int,
        batch: bytes,
    ) -> CommandResult:
        refusal = self.producers.check_end(producer_id, producer_epoch, transaction)
        if refusal is not None:
            return refusal
        offset = self.extents.append_inline(1, self.term, max_timestamp, batch)
        ended = self.producers.end(
            producer_id, producer_epoch, transaction, coordinator_term, offset, self.time
        )
        if ended is not None and not commit:
            self.aborted.append(producer_id, ended.first_offset, offset)
        return TransactionEnded(offset)

    def _advance_epoch(self, index: int, oldest: int, newest: int) -> CommandResult:
        if oldest <= self.previous_applied_epoch and newest <= self.max_applied_epoch:
            return Rejected(Rejection.LOWER_EPOCH, self.max_applied_epoch)
        self._raise_epochs(index, oldest, newest)
        return EpochAdvanced(self.previous_applied_epoch, self.max_applied_epoch)

    def _set_start_offset(self, index: int, start_offset: int) -> CommandResult:
        if start_offset < self.start_offset:
            return Rejected(Rejection.LOWER_START_OFFSET, self.start_offset)
        if start_offset > self.next_offset:
            raise Corruption(f"start offset {start_offset} lies above the next offset {self.next_offset}")
        self.start_offset = start_offset
        self._remove(index, self.level_one.trim(start_offset))
        self._begin_level_zero_at(index, start_offset)
        self.leader_epochs.trim(start_offset)
        self.aborted.trim(start_offset)
        self.removals.published(start_offset, start_offset)
        return StartOffsetSet(start_offset)

    def _tick(self, index: int, producer_expiry: int, now: int) -> CommandResult:
        if now != NO_CLOCK and self.time - now > FAR_AHEAD_MS:
            self.checkpoints.go_back(self.time, now)
            self.producers.not_after(now)
            self.removals.not_after(now)
            self.holds.not_after(now)
            self.time = now
        return Ticked(self.time, self.producers.expire(self.time - producer_expiry))

    def _checkpoint(self, index: int, lease: int) -> CommandResult:
        until = self.time + lease
        self.checkpoints.add(RetainedCheckpoint(index, until, self.extents.oldest_epoch))
        self._on_checkpoint(index, self.capture())
        return CheckpointTaken(index, until)

    def _renew_checkpoint(self, index: int, checkpoint: int, lease: int) -> CommandResult:
        until = self.checkpoints.renew(checkpoint, self.time + lease, self.time)
        if until is None:
            return Rejected(Rejection.CHECKPOINT_NOT_LEASED, self.time)
        return CheckpointTaken(checkpoint, until)

    def _release_checkpoints(self, index: int, keep: int) -> CommandResult:
        return CheckpointsReleased(self.checkpoints.release(keep, self.time))

    def _advance_reconciled(
        self, index: int, first_offset: int, rows: Sequence[Sequence[Any]]
    ) -> CommandResult:
        if first_offset != self.extents.first_offset:
            return Rejected(Rejection.RECONCILED_ELSEWHERE, self.extents.first_offset)
        objects = [LevelOneExtent(*row) for row in rows]
        if self._are_of_an_earlier_term(objects):
            return Rejected(Rejection.OLDER_TERM, self.term)
        partition_invariants.reconciled_batches_are_whole(self, objects)
        self.level_one.append(objects)
        self._begin_level_zero_at(index, objects[-1].end_offset)
        return Reconciled(self.last_reconciled_offset)

    def _begin_level_zero_at(self, index: int, offset: int) -> None:
        """Forget the extents below an offset: the last reconciled offset rises, if there were any."""
        first = self.extents.first_offset
        self.extents.trim(offset)
        if self.extents.first_offset > first:
            self.last_reconciled_log_index = index

    def _replace_level_one(
        self,
        index: int,
        old: Sequence[Sequence[Any]],
        rows: Sequence[Sequence[Any]],
        publisher_clean_end: int = NOT_PUBLISHED,
        clean: int = NOT_PUBLISHED,
        settled: int = NOT_PUBLISHED,
    ) -> CommandResult:
        objects = [LevelOneExtent(*row) for row in rows]
        if self._are_of_an_earlier_term(objects):
            return Rejected(Rejection.OLDER_TERM, self.term)
        publishes = publisher_clean_end != NOT_PUBLISHED
        if publishes and publisher_clean_end < self.removals.level_one_clean:
            # Its log would bring back what a cleaner one has superseded, and nothing would end that again.
            return Rejected(Rejection.LESS_CLEAN, self.removals.level_one_clean)
        replaced: list[LevelOneExtent] | None = []
        if old or not publishes:
            replaced = self.level_one.replace([(term, unique) for term, unique in old], objects)
        if replaced is None:
            return Rejected(Rejection.LEVEL_ONE_CHANGED, 0)
        # One object cut into two may leave the first of them below the start offset.
        self._remove(index, [*replaced, *self.level_one.trim(self.start_offset)])
        if publishes:
            self.removals.published(clean, settled)
            partition_invariants.removal_waits_for_level_one(self)
            partition_invariants.nothing_held_is_cleaned(self)
        return LevelOneReplaced(len(replaced))

    def _advance_removal(self, index: int, mtro: int, mxro: int, retention: int) -> CommandResult:
        removals = self.removals
        if not removals.advance(mtro, mxro, retention, self.time):
            return Rejected(Rejection.REMOVAL_NOT_NEWER, removals.mtro)
        # Nowhere is there anything of these transactions that a reader would have to leave out. The row is
        # what an ABORT marker says: a partition that deletes nothing would keep it for ever.
        self.aborted.trim(removals.mxro)
        partition_invariants.removal_waits_for_level_one(self)
        partition_invariants.removals_rise(self)
        return RemovalAdvanced(removals.mtro, removals.mxro, removals.ripe_tombstones, removals.ripe_markers)

    def _renew_hold(self, index: int, reader: str, offset: int, lease: int) -> CommandResult:
        lowest = self.lowest_holdable
        if offset < lowest:
            return Rejected(Rejection.HOLD_TOO_LOW, lowest)
        if offset > self.next_offset:
            return Rejected(Rejection.HOLD_ABOVE_THE_END, self.next_offset)
        hold = Hold(reader, offset, self.time + lease)
        if not self.holds.put(hold):
            return Rejected(Rejection.TOO_MANY_HOLDS, len(self.holds))
        return HoldRenewed(hold.offset, hold.until)

    def _release_hold(self, index: int, reader: str) -> CommandResult:
        return HoldReleased(self.holds.release(reader))

    def _are_of_an_earlier_term(self, objects: Sequence[LevelOneExtent]) -> bool:
        """Whether an object is of an earlier term: this term's leader may have deleted it as unnamed."""
        partition_invariants.objects_are_not_of_a_later_term(self, objects)
        return any(one.term < self.term for one in objects)

    def _remove(self, index: int, extents: Sequence[LevelOneExtent]) -> None:
        self.removed += [RemovedObject(index, one.term, one.unique, one.size) for one in extents]

    def _forget_removed(self, index: int, uniques: Sequence[bytes]) -> CommandResult:
        gone = set(uniques)
        partition_invariants.what_is_leased_is_not_forgotten(self, gone)
        before = len(self.removed)
        self.removed = [one for one in self.removed if one.unique not in gone]
        return RemovedForgotten(before - len(self.removed))


_HANDLERS: dict[int, Callable[..., CommandResult]] = {
    PartitionOpcode.APPEND: PartitionStateMachine._append,
    PartitionOpcode.APPEND_INLINE: PartitionStateMachine._append_inline,
    PartitionOpcode.STORE_INLINE: PartitionStateMachine._store_inline,
    PartitionOpcode.ADVANCE_EPOCH: PartitionStateMachine._advance_epoch,
    PartitionOpcode.SET_START_OFFSET: PartitionStateMachine._set_start_offset,
    PartitionOpcode.TICK: PartitionStateMachine._tick,
    PartitionOpcode.CHECKPOINT: PartitionStateMachine._checkpoint,
    PartitionOpcode.RENEW_CHECKPOINT: PartitionStateMachine._renew_checkpoint,
    PartitionOpcode.RELEASE_CHECKPOINTS: PartitionStateMachine._release_checkpoints,
    PartitionOpcode.ADVANCE_RECONCILED: PartitionStateMachine._advance_reconciled,
    PartitionOpcode.REPLACE_LEVEL_ONE: PartitionStateMachine._replace_level_one,
    PartitionOpcode.FORGET_REMOVED: PartitionStateMachine._forget_removed,
    PartitionOpcode.END_TRANSACTION: PartitionStateMachine._end_transaction,
    PartitionOpcode.ADVANCE_REMOVAL: PartitionStateMachine._advance_removal,
    PartitionOpcode.RENEW_HOLD: PartitionStateMachine._renew_hold,
    PartitionOpcode.RELEASE_HOLD: PartitionStateMachine._release_hold,
}
