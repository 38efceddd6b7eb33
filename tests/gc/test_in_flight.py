"""An upload in flight whose epoch may be collected is never referenced, by any leader, in any term.

One partition, its log as Raft allows it, and the real state machine and window. Leaders are deposed and do
not know it, hold the fence while others are elected, apply late, are restored from snapshots; each may tell
what it takes for collectable at any moment. After each step no state, no lease and no entry that can still be
committed names an epoch that was ever told, and no window that counts accepts one.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strandline.statemachine.partition.epoch_window import EpochStatus, EpochWindow
from strandline.statemachine.partition.extent import ObjectExtent
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import (
    AdvanceEpoch,
    Append,
    Checkpoint,
    Command,
    RenewCheckpoint,
    SetStartOffset,
    encode,
)
from tests.statemachine.partitions import placeholder


class Entry(NamedTuple):
    """One entry of a log: two are the same only if one leader wrote them at one place."""

    term: int
    number: int
    command: bytes | None
    """None: the term begins."""
    epoch: int | None = None
    """What it names."""


class Permit(NamedTuple):
    window: EpochWindow
    epoch: int


class Leader:
    """A node in one term, from its election on, for as long as it believes in it, and longer."""

    def __init__(self, term: int, log: list[Entry], creation_epoch: int) -> None:
        self.term = term
        self.log = [*log, Entry(term, 0, None)]
        self.begin = len(log)
        self.window: EpochWindow | None = None
        self.permits: list[Permit] = []
        self.machine = PartitionStateMachine(creation_epoch, lambda index, state: None)
        self.applied = 0

    def apply(self, upto: int) -> None:
        for index in range(self.applied, upto):
            entry = self.log[index]
            if entry.command is None:
                self.machine.begin_term(index + 1, entry.term, 1)
            else:
                self.machine.apply(index + 1, entry.term, entry.command)
            self.applied = index + 1

    def write(self, command: Command, time: int, epoch: int | None = None) -> None:
        self.log.append(Entry(self.term, len(self.log), encode(self.term, time, [command]), epoch))


class InFlight(RuleBasedStateMachine):
    """See the module."""

    @initialize(creation_epoch=st.integers(1, 5))
    def begin(self, creation_epoch: int) -> None:
        self.creation_epoch = self.epoch = creation_epoch
        self.time = 1_000
        self.committed: list[Entry] = []
        self.leaders = [Leader(1, [], creation_epoch)]
        self.collected = 0
        """The highest epoch that anybody ever told."""

    @property
    def newest(self) -> Leader:
        return self.leaders[-1]

    def some(self, data: st.DataObject) -> Leader:
        # The newest ones come up most often.
        return data.draw(st.sampled_from([*self.leaders, *self.leaders[-2:], self.newest]))

    @rule(epochs=st.integers(1, 4), ms=st.integers(0, 400))
    def time_passes(self, epochs: int, ms: int) -> None:
        self.epoch += epochs
        self.time += ms

    @rule(data=st.data())
    def elect(self, data: st.DataObject) -> None:
        """Whoever is elected has all that is committed, and perhaps more of some leader's log."""
        able = [self.committed]
        for leader in self.leaders:
            if leader.log[: len(self.committed)] == self.committed:
                able.append(leader.log[: data.draw(st.integers(len(self.committed), len(leader.log)))])
        log = data.draw(st.sampled_from(able))
        self.leaders.append(Leader(self.newest.term + 1, log, self.creation_epoch))

    @rule()
    def take_up(self) -> None:
        """The barrier: the term's first entry is committed and applied, then the fence opens."""
        leader = self.newest
        if leader.window is None:
            self.commit_upto(max(leader.begin + 1, len(self.committed)))
            leader.apply(len(self.committed))
            leader.window = EpochWindow.recovered(leader.term, leader.machine.max_applied_epoch)

    def commit_upto(self, end: int) -> None:
        assert self.newest.log[: len(self.committed)] == self.committed
        self.committed = self.newest.log[:end]

    @rule(entries=st.integers(1, 5))
    def commit(self, entries: int) -> None:
        """A leader commits what earlier terms left only together with an entry of its own."""
        end = min(len(self.committed) + entries, len(self.newest.log))
        if end > self.newest.begin:
            self.commit_upto(end)

    @rule(data=st.data(), entries=st.integers(1, 5))
    def apply(self, data: st.DataObject, entries: int) -> None:
        leader = self.some(data)
        known = 0
        for known, (mine, theirs) in enumerate(zip(leader.log, self.committed, strict=False), 1):
            if mine != theirs:
                known -= 1
                break
        leader.apply(min(known, leader.applied + entries))

    @rule(data=st.data())
    def restart_from_a_snapshot(self, data: st.DataObject) -> None:
        leader = self.some(data)
        if leader.applied:
            state = leader.machine.snapshot()
            leader.machine = PartitionStateMachine(0, lambda index, state: None)
            leader.machine.restore(state)

    @rule(data=st.data(), behind=st.integers(0, 8))
    def fence(self, data: st.DataObject, behind: int) -> None:
        """An upload comes in with its epoch, however old, at whoever believes to lead."""
        self.let_in(self.some(data), max(1, self.epoch - behind))

    def let_in(self, leader: Leader, epoch: int) -> None:
        if leader.window is None:
            return
        status = leader.window.classify(epoch)
        if status is EpochStatus.STALE or (status is EpochStatus.NEW and leader.permits):
            return
        if status is EpochStatus.NEW:
            leader.window = leader.window.slide(epoch)
        leader.permits.append(Permit(leader.window, epoch))

    @rule(epochs=st.integers(0, 2), behind=st.integers(0, 3), times=st.integers(1, 2))
    def all_goes_well(self, epochs: int, behind: int, times: int) -> None:
        """As most of the time: an upload, its fence, its entry, committed and applied."""
        self.take_up()
        for _ in range(times):
            self.epoch += epochs
            leader = self.newest
            held = len(leader.permits)
            self.let_in(leader, max(1, self.epoch - behind))
            if len(leader.permits) > held:
                window, epoch = leader.permits.pop()
                leader.write(Append(window, [placeholder(epoch=epoch)]), self.time, epoch)
        self.commit_upto(len(leader.log))
        leader.apply(len(self.committed))

    @rule(data=st.data(), idle=st.integers(0, 3))
    def write(self, data: st.DataObject, idle: int) -> None:
        leader = self.some(data)
        if leader.permits:
            window, epoch = leader.permits.pop(data.draw(st.integers(0, len(leader.permits) - 1)))
            if idle:
                leader.write(Append(window, [placeholder(epoch=epoch)]), self.time, epoch)
            else:
                leader.write(AdvanceEpoch(window), self.time)

    @precondition(lambda self: self.newest.window is not None)
    @rule(data=st.data())
    def forget_records(self, data: st.DataObject) -> None:
        """As reconciling does to level zero: extents go from the front."""
        machine = self.newest.machine
        offset = data.draw(st.integers(machine.start_offset, machine.next_offset))
        self.newest.write(SetStartOffset(offset), self.time)

    @precondition(lambda self: self.newest.window is not None)
    @rule(data=st.data(), lease=st.integers(0, 600))
    def checkpoint(self, data: st.DataObject, lease: int) -> None:
        retained = [one.log_index for one in self.newest.machine.checkpoints.retained]
        renewed: bool = data.draw(st.booleans())
        if retained and renewed:
            index: int = data.draw(st.sampled_from(retained))
            self.newest.write(RenewCheckpoint(index, lease), self.time)
        else:
            self.newest.write(Checkpoint(lease), self.time)

    @rule(data=st.data())
    def tell(self, data: st.DataObject) -> None:
        """Also by one that was deposed long ago, or was not told yet that it leads."""
        leader = self.some(data)
        if leader.applied:
            self.collected = max(self.collected, leader.machine.max_collectable_epoch)

    @invariant()
    def nothing_names_what_may_be_gone(self) -> None:
        if not hasattr(self, "committed"):
            return
        present = Leader(0, self.committed, self.creation_epoch)
        present.apply(len(self.committed))
        machine = present.machine
        named = [extent.epoch for extent in machine.extents if isinstance(extent, ObjectExtent)]
        leased = machine.checkpoints.oldest_epoch(machine.time)
        assert all(epoch > self.collected for epoch in named)
        assert leased is None or leased > self.collected
        assert machine.max_collectable_epoch >= self.collected
        for leader in self.leaders:
            if leader.log[: len(self.committed)] == self.committed:
                for entry in leader.log[len(self.committed) :]:
                    assert entry.epoch is None or entry.epoch > self.collected
        if self.newest.window is not None:
            oldest = self.newest.window.oldest
            assert oldest is not None
            assert oldest > self.collected
            assert all(permit.epoch > self.collected for permit in self.newest.permits)


TestInFlight = InFlight.TestCase
TestInFlight.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
