"""Random histories of a partition under changing leaders, against a plain model.

A leader fences with the real window and proposes; entries wait in its log, are applied in order, and are
lost in part when the next leader comes. Two replicas apply what is committed, one of which is restored from
a snapshot now and then. The model keeps every batch of all time in lists and searches them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgpack
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from statemachine.epoch_window import EpochWindow, Verdict
from statemachine.extents import ObjectExtent
from statemachine.partition import PartitionStateMachine
from statemachine.partition_commands import (
    AdvanceEpoch,
    Append,
    Appended,
    AppendInline,
    Checkpoint,
    CheckpointsReleased,
    CheckpointTaken,
    Command,
    EpochAdvanced,
    InlineBatch,
    Placeholder,
    Rejected,
    Rejection,
    ReleaseCheckpoints,
    RenewCheckpoint,
    SetStartOffset,
    StartOffsetSet,
    Tick,
    Ticked,
    encode,
)
from tests.statemachine.partitions import OBJECT

EXPIRY = 60
DISTANCES = st.sampled_from([0, 0, 0, 1, 1, -1, -1, 2, -2, -3, 6])
"""How far from the newest epoch a request's is."""


@dataclass(frozen=True)
class Written:
    """One accepted batch."""

    base: int
    term: int
    time: int
    batch: Placeholder | InlineBatch

    @property
    def end(self) -> int:
        return self.base + self.batch.record_count


@dataclass(frozen=True)
class Saved:
    index: int
    until: int
    epochs: tuple[int, ...]


class Model:
    """A partition as one would tell it: what was written, and what was deleted."""

    def __init__(self, creation_epoch: int) -> None:
        self.previous = self.newest = creation_epoch
        self.term = self.time = self.start = self.end = 0
        self.written: list[Written] = []
        self.forgotten: dict[int, int] = {}
        """For each producer that expired, how many batches had been written by then."""
        self.saved: list[Saved] = []

    def live(self) -> list[Written]:
        return [one for one in self.written if one.end > self.start]

    def epochs(self) -> tuple[int, ...]:
        return tuple(one.batch.epoch for one in self.live() if isinstance(one.batch, Placeholder))

    def collectable(self) -> int:
        leased = [epoch for one in self.saved if one.until > self.time for epoch in one.epochs]
        return min([self.previous, *self.epochs(), *leased]) - 1

    def known(self, producer: int) -> list[Written]:
        """The producer's batches, as far as they are still remembered."""
        since = self.forgotten.get(producer, 0)
        return [one for one in self.written[since:] if one.batch.producer_id == producer]

    def append(self, batch: Placeholder | InlineBatch) -> Appended | Rejected:
        known = self.known(batch.producer_id) if batch.producer_id >= 0 else []
        if known:
            current = known[-1].batch.producer_epoch
            if batch.producer_epoch < current:
                return Rejected(Rejection.INVALID_PRODUCER_EPOCH, current)
            same = [one for one in known if one.batch.producer_epoch == batch.producer_epoch]
            expected = (same[-1].batch.base_sequence + same[-1].batch.record_count) % 2**31 if same else 0
            if batch.base_sequence != expected:
                for one in same[-5:]:
                    same_size = one.batch.record_count == batch.record_count
                    if one.batch.base_sequence == batch.base_sequence and same_size:
                        return Appended(one.base, duplicate=True)
                return Rejected(Rejection.OUT_OF_ORDER_SEQUENCE_NUMBER, expected)
        self.written.append(Written(self.end, self.term, self.time, batch))
        self.end += batch.record_count
        return Appended(self.written[-1].base)

    def apply(self, index: int, command: Command) -> Any:
        if isinstance(command, (Append, AdvanceEpoch)):
            window = command.window
            assert window.oldest is not None
            assert window.newest is not None
            rises = window.oldest > self.previous or window.newest > self.newest
            self.previous = max(self.previous, window.oldest)
            self.newest = max(self.newest, window.newest)
            if isinstance(command, Append):
                return [self.append(batch) for batch in command.placeholders]
            return (
                EpochAdvanced(self.previous, self.newest)
                if rises
                else Rejected(Rejection.LOWER_EPOCH, self.newest)
            )
        if isinstance(command, AppendInline):
            return [self.append(batch) for batch in command.batches]
        if isinstance(command, SetStartOffset):
            if command.start_offset < self.start:
                return Rejected(Rejection.LOWER_START_OFFSET, self.start)
            self.start = command.start_offset
            return StartOffsetSet(self.start)
        if isinstance(command, Tick):
            last = {one.batch.producer_id: one.time for one in self.written if one.batch.producer_id >= 0}
            idle = [
                producer
                for producer, time in last.items()
                if self.known(producer) and time < self.time - command.producer_expiry
            ]
            self.forgotten.update(dict.fromkeys(idle, len(self.written)))
            return Ticked(self.time, len(idle))
        if isinstance(command, Checkpoint):
            self.saved.append(Saved(index, self.time + command.lease, self.epochs()))
            return CheckpointTaken(index, self.time + command.lease)
        if isinstance(command, RenewCheckpoint):
            for position, one in enumerate(self.saved):
                if one.index == command.log_index and one.until > self.time:
                    until = max(one.until, self.time + command.lease)
                    self.saved[position] = replace(one, until=until)
                    return CheckpointTaken(one.index, until)
            return Rejected(Rejection.CHECKPOINT_NOT_LEASED, self.time)
        ended = [one for one in self.saved if one.until <= self.time]
        gone = ended[: len(ended) - command.keep] if command.keep < len(ended) else []
        self.saved = [one for one in self.saved if one not in gone]
        return CheckpointsReleased([one.index for one in gone])


class PartitionHistory(RuleBasedStateMachine):
    @initialize(creation_epoch=st.integers(0, 9))
    def create(self, creation_epoch: int) -> None:
        self.captured: list[tuple[int, bytes]] = []
        self.replica = PartitionStateMachine(creation_epoch, lambda *one: self.captured.append(one))
        self.twin = PartitionStateMachine(creation_epoch, lambda *one: None)
        self.model = Model(creation_epoch)
        self.index = 0
        self.clock = 1000
        self.pending: list[tuple[int, int, list[Command]]] = []
        """(term made in, time, commands) of entries in the leader's log that are not committed yet."""
        self.collectable = creation_epoch - 1
        self.lead(1)

    def lead(self, term: int) -> None:
        self.index += 1
        self.model.term = term
        for machine in (self.replica, self.twin):
            machine.begin_term(self.index, term, 1)
        self.window = EpochWindow.recovered(term, self.replica.max_applied_epoch)

    # What a leader does.

    def fence(self, distance: int) -> tuple[EpochWindow, int] | None:
        """A fence for an epoch near the newest; None when it is refused."""
        newest = self.window.newest
        assert newest is not None
        epoch = max(0, newest + distance)
        verdict = self.window.judge(epoch)
        if verdict is Verdict.STALE:
            assert epoch < self.window.refusal(epoch).oldest
            return None
        if verdict is Verdict.NEW:
            self.window = self.window.slide(epoch)
        return self.window, epoch

    def propose(self, *commands: Command) -> None:
        self.pending.append((self.window.term, self.clock, list(commands)))

    def sequence(self, producer: int, producer_epoch_step: int, step: int) -> tuple[int, int]:
        """Producer epoch and base sequence of a batch near what the producer would send next."""
        known = self.model.known(producer)
        if not known:
            return 3, (2**31 - 2 + step) % 2**31
        last = known[-1].batch
        epoch = last.producer_epoch + producer_epoch_step
        following = (last.base_sequence + last.record_count + step) % 2**31
        return max(0, epoch), following if epoch == last.producer_epoch else max(0, step)

    @rule(
        distance=DISTANCES,
        producers=st.lists(st.sampled_from([-1, 1, 2, 3]), min_size=1, max_size=3),
        producer_epoch_step=st.sampled_from([0, 0, 0, 0, 1, -1]),
        step=st.sampled_from([0, 0, 0, 0, 1, -1, -2]),
        count=st.integers(1, 3),
        timestamp=st.integers(0, 99),
        commits=st.integers(0, 3),
    )
    def produce(
        self,
        distance: int,
        producers: list[int],
        producer_epoch_step: int,
        step: int,
        count: int,
        timestamp: int,
        commits: int,
    ) -> None:
        granted = self.fence(distance)
        if granted is None:
            return
        window, epoch = granted
        placeholders = []
        for producer in producers:
            claim = (producer, -1, -1)
            if producer >= 0:
                claim = (producer, *self.sequence(producer, producer_epoch_step, step))
            placeholders.append(Placeholder(count, timestamp, 10, epoch, 0, OBJECT, *claim))
        self.propose(Append(window, placeholders))
        self.commit(commits)

    @rule(back=st.integers(1, 8), distance=DISTANCES, commits=st.integers(0, 3))
    def retry(self, back: int, distance: int, commits: int) -> None:
        """A batch that is in the log already, in a new object, under a new fence."""
        if len(self.model.written) < back or (granted := self.fence(distance)) is None:
            return
        batch = self.model.written[-back].batch
        if isinstance(batch, Placeholder):
            self.propose(Append(granted[0], [batch._replace(epoch=granted[1])]))
        self.commit(commits)

    @rule(count=st.integers(1, 3), data=st.binary(min_size=1, max_size=5), expiry=st.integers(0, EXPIRY))
    def append_inline_among_others(self, count: int, data: bytes, expiry: int) -> None:
        self.propose(Tick(expiry), AppendInline([InlineBatch(count, 50, data)]), Tick(EXPIRY))

    @rule(distance=st.integers(-2, 6))
    def advance_epoch(self, distance: int) -> None:
        if (granted := self.fence(distance)) is not None:
            self.propose(AdvanceEpoch(granted[0]))

    @rule(back=st.integers(0, 6))
    def set_start_offset(self, back: int) -> None:
        self.propose(SetStartOffset(max(0, self.replica.next_offset - back)))

    @rule(lease=st.integers(0, 80))
    def checkpoint(self, lease: int) -> None:
        self.propose(Checkpoint(lease))

    @rule(which=st.integers(1, 3), lease=st.integers(0, 80), keep=st.integers(0, 2))
    def tend_checkpoints(self, which: int, lease: int, keep: int) -> None:
        index = self.model.saved[-which].index if len(self.model.saved) >= which else 0
        self.propose(RenewCheckpoint(index, lease), ReleaseCheckpoints(keep))

    @rule(milliseconds=st.integers(-10, 50))
    def pass_time(self, milliseconds: int) -> None:
        self.clock += milliseconds

    # What the log does.

    @rule(count=st.integers(1, 5))
    def commit(self, count: int) -> None:
        for made_in, time, commands in self.pending[:count]:
            self.index += 1
            entry = encode(made_in, time, commands)
            results = [
                machine.apply(self.index, self.model.term, entry) for machine in (self.replica, self.twin)
            ]
            self.model.time = max(self.model.time, time)
            expected = [self.model.apply(self.index, command) for command in commands]
            assert results == [expected, expected]
            if isinstance(commands[0], Checkpoint):
                assert self.captured[-1] == (self.index, self.replica.snapshot())
        del self.pending[:count]

    @rule(survive=st.integers(0, 3), terms=st.integers(1, 2))
    def elect(self, survive: int, terms: int) -> None:
        """What the next leader has of the earlier one's entries it commits; the others are gone."""
        self.commit(survive)
        self.pending.clear()
        self.lead(self.model.term + terms)

    @rule()
    def propose_of_an_earlier_term(self) -> None:
        self.index += 1
        term = self.model.term
        window = EpochWindow(term - 1, 0, 99)
        entry = encode(term - 1, self.clock + 500, [AdvanceEpoch(window)])
        for machine in (self.replica, self.twin):
            assert machine.apply(self.index, term, entry) == Rejected(Rejection.OLDER_TERM, term)

    @rule()
    def restore_the_twin(self) -> None:
        state = self.twin.snapshot()
        self.twin = PartitionStateMachine(0, lambda *one: None)
        self.twin.restore(state)
        assert self.twin.snapshot() == state

    # What always holds.

    @invariant()
    def replicas_are_the_same_byte_for_byte(self) -> None:
        assert self.replica.snapshot() == self.twin.snapshot()

    @invariant()
    def state_is_the_models(self) -> None:
        for machine in (self.replica, self.twin):
            assert (machine.previous_applied_epoch, machine.max_applied_epoch) == (
                self.model.previous,
                self.model.newest,
            )
            assert (machine.start_offset, machine.high_watermark) == (self.model.start, self.model.end)
            assert [
                (one.base_offset, one.end_offset, one.term, one.max_timestamp) for one in machine.extents
            ] == [(one.base, one.end, one.term, one.batch.max_timestamp) for one in self.model.live()]
            assert machine.max_collectable_epoch == self.model.collectable()

    @invariant()
    def the_collectable_epoch_never_goes_down(self) -> None:
        assert self.replica.max_collectable_epoch >= self.collectable
        self.collectable = self.replica.max_collectable_epoch

    @invariant()
    def a_collectable_epoch_is_refused_by_this_leader_and_by_any_next_one(self) -> None:
        if self.collectable >= 0:
            following = EpochWindow.recovered(99, self.replica.max_applied_epoch)
            assert self.window.judge(self.collectable) is Verdict.STALE
            assert following.judge(self.collectable) is Verdict.STALE

    @invariant()
    def nothing_that_is_needed_is_collectable(self) -> None:
        for extent in self.replica.extents:
            assert not isinstance(extent, ObjectExtent) or extent.epoch > self.collectable
        for _, _, commands in self.pending:
            for command in commands:
                if isinstance(command, Append):
                    assert all(one.epoch > self.collectable for one in command.placeholders)

    @invariant()
    def no_window_stands_in_the_snapshot(self) -> None:
        assert not {"max_seen_epoch", "oldest_accepted_epoch"} & set(msgpack.unpackb(self.replica.snapshot()))


TestPartitionHistory = PartitionHistory.TestCase
TestPartitionHistory.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
