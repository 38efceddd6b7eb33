"""What may be removed for good: beside a list of all that was ever told, on two replicas."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from strandline.statemachine.machine import Corruption
from strandline.statemachine.partition import partition_invariants
from strandline.statemachine.partition.level_one import LevelOneExtent
from strandline.statemachine.partition.partition_commands import (
    AdvanceReconciled,
    AdvanceRemoval,
    Command,
    EndTransaction,
    LevelOneReplaced,
    RemovalAdvanced,
    ReplaceLevelOne,
    SetStartOffset,
    Tick,
    TransactionEnded,
    encode,
)
from strandline.statemachine.partition.partition_state import SNAPSHOT_FIELDS, PartitionState
from strandline.statemachine.partition.rejection import Rejected, Rejection
from strandline.statemachine.partition.removal import MAX_REMOVALS, Removal, Removals
from tests.statemachine.partitions import NOW, Replica, placeholder

DAY = 86_400_000
SIX = ("mtro", "mxro", "ripe_tombstones", "ripe_markers", "level_one_clean", "level_one_settled")


def extent(base: int, end: int, unique: int, term: int = 1) -> LevelOneExtent:
    return LevelOneExtent(base, end, NOW, 1000, 100, term, unique.to_bytes(16, "big"))


def filled(batches: int = 10, reconciled: int | None = None) -> Replica:
    """Batches of ten records, the first of them in level one."""
    replica = Replica()
    replica.append(*[placeholder(10) for _ in range(batches)])
    end = 10 * batches if reconciled is None else reconciled
    if end:
        replica.apply(AdvanceReconciled(0, [extent(0, end, 1)]))
    return replica


def published(clean: int, settled: int | None = None, by: int = 1 << 40) -> ReplaceLevelOne:
    """What raises the numbers and replaces nothing."""
    return ReplaceLevelOne([], [], by, clean, clean if settled is None else settled)


def one(replica: Replica, command: Command, time: int = NOW) -> Any:
    results = replica.apply(command, time=time)
    assert isinstance(results, list)
    return results[0]


def test_what_is_in_force_becomes_ripe_after_the_retention_and_not_before() -> None:
    replica = filled()
    one(replica, published(60, 80))
    assert one(replica, AdvanceRemoval(50, 70, DAY)) == RemovalAdvanced(50, 70, 0, 0)
    assert one(replica, AdvanceRemoval(60, 70, DAY), NOW + 1000) == RemovalAdvanced(60, 70, 0, 0)
    late = AdvanceRemoval(0, 0, DAY)
    assert one(replica, late, NOW + DAY - 1) == Rejected(Rejection.REMOVAL_NOT_NEWER, 60)
    assert one(replica, late, NOW + DAY) == RemovalAdvanced(60, 70, 50, 70)
    assert one(replica, late, NOW + DAY + 1000) == RemovalAdvanced(60, 70, 60, 70)
    assert replica.machine.removals.waiting == []


def test_without_a_retention_it_is_ripe_at_once() -> None:
    replica = filled()
    one(replica, published(60))
    assert one(replica, AdvanceRemoval(50, 60, 0)) == RemovalAdvanced(50, 60, 50, 60)


def test_a_wrong_clock_that_went_back_makes_nobody_wait_for_its_time() -> None:
    replica = filled()
    one(replica, published(60))
    one(replica, AdvanceRemoval(50, 60, DAY), NOW + 30 * DAY)
    one(replica, Tick(DAY, NOW), NOW)
    assert one(replica, AdvanceRemoval(50, 60, DAY), NOW + DAY) == RemovalAdvanced(50, 60, 50, 60)


def test_more_rows_than_there_may_be_make_the_last_wait_longer() -> None:
    replica = filled(40)
    one(replica, published(400))
    for number in range(MAX_REMOVALS + 5):
        one(replica, AdvanceRemoval(number + 1, 2 * number, DAY), NOW + number)
    rows = replica.machine.removals.waiting
    assert len(rows) == MAX_REMOVALS
    assert rows[-2:] == [Removal(63, 124, NOW + 62), Removal(69, 136, NOW + 68)]
    assert one(replica, AdvanceRemoval(0, 0, DAY), NOW + DAY + 66) == RemovalAdvanced(69, 136, 63, 124)


def test_level_one_must_be_clean_first() -> None:
    replica = filled()
    one(replica, published(60, 80))
    with pytest.raises(Corruption, match="soon below 61, and level one is clean below 60"):
        replica.apply(AdvanceRemoval(61, 61, DAY))
    replica = filled()
    one(replica, published(60, 80))
    with pytest.raises(Corruption, match="soon below 81, and level one is settled below 80"):
        replica.apply(AdvanceRemoval(60, 81, DAY))


def test_a_publisher_that_is_less_clean_is_refused_and_changes_nothing() -> None:
    """K at 90 was dropped for K at 180; a leader that is clean to 150 still has it (schedule 5)."""
    replica = filled(20)
    one(replica, published(200, by=200))
    before = replica.machine.snapshot()
    less = ReplaceLevelOne([(1, (1).to_bytes(16, "big"))], [extent(0, 200, 2)], 150, 150, 200)
    assert one(replica, less) == Rejected(Rejection.LESS_CLEAN, 200)
    assert replica.machine.snapshot() == before
    same = ReplaceLevelOne([(1, (1).to_bytes(16, "big"))], [extent(0, 200, 2)], 200, 200, 200)
    assert one(replica, same) == LevelOneReplaced(1)


def test_a_merge_makes_nothing_cleaner_and_is_never_refused_for_it() -> None:
    replica = filled(20)
    one(replica, published(100, 120))
    assert one(
        replica, ReplaceLevelOne([(1, (1).to_bytes(16, "big"))], [extent(0, 200, 2)])
    ) == LevelOneReplaced(1)
    assert (replica.machine.removals.level_one_clean, replica.machine.removals.level_one_settled) == (
        100,
        120,
    )
    command = ReplaceLevelOne([(1, b"x" * 16)], [extent(0, 200, 3)])
    assert len(command.fields()) == 3, "as an earlier release writes it"


@pytest.mark.parametrize(("clean", "settled"), [(90, 80), (60, 101), (101, 101)])
def test_level_one_is_not_cleaner_than_it_is_settled_nor_above_its_end(clean: int, settled: int) -> None:
    with pytest.raises(Corruption, match="level one is clean below"):
        filled(12, reconciled=100).apply(published(clean, settled))


def test_it_is_not_settled_above_the_last_stable_offset() -> None:
    replica = filled(5, reconciled=0)
    replica.append(placeholder(10, producer=7, producer_epoch=0, sequence=0, transaction=1))
    replica.apply(AdvanceReconciled(0, [extent(0, 60, 1)]))
    one(replica, published(50))
    with pytest.raises(Corruption, match="cannot be above 50"):
        replica.apply(published(50, 60))


def test_rows_of_aborted_transactions_go_with_the_data_and_no_sooner() -> None:
    replica = Replica()
    for number in range(3):
        replica.append(placeholder(9, producer=7, producer_epoch=number, sequence=0, transaction=number + 1))
        marker = EndTransaction(7, number, number + 1, False, 3, NOW, b"marker")
        assert one(replica, marker) == TransactionEnded(10 * number + 9)
    replica.apply(AdvanceReconciled(0, [extent(0, 30, 1)]))
    one(replica, published(0, 30))
    assert len(replica.machine.aborted) == 3
    one(replica, AdvanceRemoval(0, 19, DAY))
    assert [row.last_offset for row in replica.machine.aborted] == [19, 29]
    one(replica, AdvanceRemoval(0, 20, DAY))
    assert [row.last_offset for row in replica.machine.aborted] == [29]


def test_a_start_offset_that_passes_them_takes_level_ones_numbers_along() -> None:
    replica = filled(10, reconciled=50)
    one(replica, SetStartOffset(75))
    removals = replica.machine.removals
    assert (removals.level_one_clean, removals.level_one_settled, removals.mtro) == (75, 75, 0)
    assert one(replica, AdvanceRemoval(75, 75, 0)) == RemovalAdvanced(75, 75, 75, 75)


def test_a_snapshot_of_a_release_without_compaction_is_read() -> None:
    replica = filled(10, reconciled=50)
    one(replica, SetStartOffset(15))
    fields = msgpack.unpackb(replica.machine.snapshot())
    assert tuple(fields) == SNAPSHOT_FIELDS
    del fields["removals"]
    del fields["holds"]
    fields["format"] = 4
    assert PartitionState.loaded(msgpack.packb(fields)).snapshot() == replica.machine.snapshot()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mtro": 61}, "soon below 61"),
        ({"mxro": 81}, "soon below 81"),
        ({"ripe_tombstones": 51}, "tombstones may go below 51"),
        ({"ripe_markers": 71}, "markers may go below 71"),
        ({"level_one_settled": 101}, "cannot be above 100"),
        ({"level_one_clean": 81}, "clean below 81, settled below 80"),
        ({"waiting": []}, "was the last removal"),
        ({"waiting": [[50, 70, NOW], [50, 70, NOW]]}, "waits behind"),
        ({"waiting": [[50, 70, NOW], [49, 70, NOW]]}, "waits behind"),
        ({"waiting": [[40, 60, NOW], [50, 70, NOW - 1]]}, "waits behind"),
        ({"waiting": [[number, 70, NOW] for number in range(65)]}, "65 removals wait"),
        ({"more": 1}, "the fields of removal are"),
    ],
)
def test_a_snapshot_that_says_what_cannot_be_is_refused(change: dict[str, Any], reason: str) -> None:
    replica = filled()
    one(replica, published(60, 80))
    one(replica, AdvanceRemoval(50, 70, DAY))
    fields = msgpack.unpackb(replica.machine.snapshot())
    replica.machine.restore(msgpack.packb(fields))
    fields["removals"] |= change
    with pytest.raises(ValueError, match=reason):
        replica.machine.restore(msgpack.packb(fields))


@pytest.mark.parametrize(
    "command",
    [
        AdvanceRemoval(-1, 0, 0),
        AdvanceRemoval(0, 0, -1),
        ReplaceLevelOne([], [extent(0, 5, 1)], 9, 9, 9),
        ReplaceLevelOne([(1, b"u" * 16)], [], 9, 9, 9),
        ReplaceLevelOne([], []),
    ],
)
def test_what_no_replica_would_survive_is_not_encoded(command: Command) -> None:
    with pytest.raises(ValueError, match=r"no objects|not negative"):
        encode(1, NOW, [command])


class RemovalHistory(RuleBasedStateMachine):
    """Everything that may be told in any order; a list of all that was in force, with its time."""

    @initialize()
    def create(self) -> None:
        self.replica, self.twin = filled(30, reconciled=200), filled(30, reconciled=200)
        self.now = NOW
        self.told: list[tuple[int, int, int]] = []
        self.ripe = (0, 0)
        self.before = dict.fromkeys(SIX, 0)

    def both(self, command: Command) -> Any:
        found = one(self.replica, command, self.now)
        assert one(self.twin, command, self.now) == found
        return found

    @property
    def removals(self) -> Removals:
        return self.replica.machine.removals

    @rule(seconds=st.sampled_from([0, 1, 10, 40]))
    def pass_time(self, seconds: int) -> None:
        self.now += 1000 * seconds

    @rule(clean=st.integers(0, 200), more=st.integers(0, 60), behind=st.integers(-30, 40))
    def publish(self, clean: int, more: int, behind: int) -> None:
        settled = min(clean + more, 200)
        present = self.removals.level_one_clean
        found = self.both(
            published(clean, max(settled, self.removals.level_one_settled), max(present + behind, 0))
        )
        if behind < 0 < present:
            assert found == Rejected(Rejection.LESS_CLEAN, present)
            assert self.removals.level_one_clean == present
        else:
            assert self.removals.level_one_clean == max(present, clean)

    @rule(mtro=st.integers(0, 200), mxro=st.integers(0, 200), retention=st.sampled_from([0, 10_000, 50_000]))
    def advance(self, mtro: int, mxro: int, retention: int) -> None:
        mtro = min(mtro, self.removals.level_one_clean)
        mxro = min(mxro, self.removals.level_one_settled)
        present = (self.removals.mtro, self.removals.mxro)
        given = (max(present[0], mtro), max(present[1], mxro))
        if given != present:
            self.told.append((*given, self.now))
        old = [row[:2] for row in self.told if row[2] + retention <= self.now]
        ripe = max([self.ripe, *old])
        found = self.both(AdvanceRemoval(mtro, mxro, retention))
        if (given, ripe) == (present, self.ripe):
            assert found == Rejected(Rejection.REMOVAL_NOT_NEWER, present[0])
        else:
            assert found == RemovalAdvanced(*given, *ripe)
        self.ripe = ripe

    @rule(offset=st.integers(0, 300))
    def move_start(self, offset: int) -> None:
        self.both(SetStartOffset(max(offset // 3, self.replica.machine.start_offset)))

    @rule()
    def restart(self) -> None:
        self.twin.machine.restore(self.replica.machine.snapshot())

    @invariant()
    def nothing_goes_down(self) -> None:
        now = {name: getattr(self.removals, name) for name in SIX}
        assert all(now[name] >= self.before[name] for name in SIX)
        self.before = now

    @invariant()
    def replicas_are_equal_and_right(self) -> None:
        partition_invariants.check(self.replica.machine)
        assert self.twin.machine.snapshot() == self.replica.machine.snapshot()


RemovalHistory.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestRemovalHistory = RemovalHistory.TestCase
