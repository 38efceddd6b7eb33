"""The partition state machine and level one: reconciling, replacing, removing, and what snapshots keep."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from strandline.statemachine.machine import Corruption
from strandline.statemachine.partition.epoch_window import EpochWindow
from strandline.statemachine.partition.level_one import LEVEL_ONE_ROW, LevelOneExtent, RemovedObject
from strandline.statemachine.partition.partition_commands import (
    AdvanceEpoch,
    AdvanceReconciled,
    AppendInline,
    Checkpoint,
    Command,
    ForgetRemoved,
    LevelOneReplaced,
    Reconciled,
    RemovedForgotten,
    RenewCheckpoint,
    ReplaceLevelOne,
    SetStartOffset,
    StartOffsetSet,
    Tick,
    encode,
)
from strandline.statemachine.partition.rejection import Rejected, Rejection
from tests.statemachine.partitions import CREATION_EPOCH, NOW, Replica, inline, placeholder

TERM = 3


def unique(number: int) -> bytes:
    return number.to_bytes(16, "big")


def extent(base: int, end: int, number: int, *, term: int = TERM) -> LevelOneExtent:
    return LevelOneExtent(base, end, NOW, 1000 + number, 50, term, unique(number))


def names(*objects: LevelOneExtent) -> list[tuple[int, bytes]]:
    return [(one.term, one.unique) for one in objects]


@pytest.fixture
def replica() -> Replica:
    """Batches of three records from offset 0 to 18."""
    replica = Replica(term=TERM)
    replica.append(*[placeholder(3)] * 6)
    return replica


@pytest.fixture
def reconciled(replica: Replica) -> Replica:
    """Two objects, 1 and 2, up to offset 12."""
    replica.apply(AdvanceReconciled(0, [extent(0, 6, 1), extent(6, 12, 2)]))
    return replica


def unchanged(replica: Replica, command: Command, rejection: Rejection, current: int) -> None:
    before = replica.machine.snapshot()
    assert replica.apply(command) == [Rejected(rejection, current)]
    assert replica.machine.snapshot() == before


# Reconciling.


def test_the_log_index_of_the_last_reconciled_offset_is_that_of_the_entry_that_raised_it(
    replica: Replica,
) -> None:
    machine = replica.machine
    assert machine.last_reconciled_log_index == 0
    replica.apply(SetStartOffset(1))
    assert machine.last_reconciled_log_index == 0, "nothing was trimmed: the first batch is still there"
    replica.apply(AdvanceReconciled(0, [extent(0, 6, 1)]))
    first = machine.last_reconciled_log_index
    assert first == replica.index
    replica.append(placeholder(2))
    replica.apply(AdvanceReconciled(0, [extent(0, 6, 1)]))
    replica.apply(ReplaceLevelOne(names(*machine.level_one), [extent(0, 6, 7)]))
    replica.apply(SetStartOffset(4))
    assert machine.last_reconciled_log_index == first, (
        "what changes level one alone, or is rejected, does not"
    )
    replica.apply(SetStartOffset(13))
    assert machine.last_reconciled_offset == 11
    assert machine.last_reconciled_log_index == replica.index
    assert replica.restored().machine.last_reconciled_log_index == replica.index


@pytest.mark.parametrize("lost", [True, False])
def test_a_state_that_was_reconciled_by_no_entry_is_refused(replica: Replica, lost: bool) -> None:
    if lost:
        replica.apply(AdvanceReconciled(0, [extent(0, 6, 1)]))
    state = msgpack.unpackb(replica.machine.snapshot())
    state["last_reconciled_log_index"] = 0 if lost else 3
    with pytest.raises(ValueError, match="are reconciled, by entry"):
        replica.machine.restore(msgpack.packb(state))


def test_nothing_is_reconciled_at_first(replica: Replica) -> None:
    assert replica.machine.last_reconciled_offset == -1
    assert list(replica.machine.level_one) == []


def test_batches_move_to_level_one(replica: Replica) -> None:
    objects = [extent(0, 6, 1), extent(6, 12, 2)]
    assert replica.apply(AdvanceReconciled(0, objects)) == [Reconciled(11)]
    machine = replica.machine
    assert (machine.last_reconciled_offset, machine.last_reconciled_log_index) == (11, replica.index)
    assert list(machine.level_one) == objects
    assert [one.base_offset for one in machine.extents] == [12, 15]
    assert (machine.start_offset, machine.high_watermark) == (0, 18)
    assert machine.extents_between(0, 18, 10**6) == list(machine.extents)
    assert machine.removed == []


def test_reconciling_goes_on_where_it_ended_and_to_the_end(reconciled: Replica) -> None:
    assert reconciled.apply(AdvanceReconciled(12, [extent(12, 18, 3)])) == [Reconciled(17)]
    assert len(reconciled.machine.extents) == 0
    reconciled.append(placeholder(2))
    assert reconciled.machine.last_reconciled_offset == 17
    assert reconciled.machine.extents.first_offset == 18


def test_inline_batches_are_reconciled_like_any_other(replica: Replica) -> None:
    replica.apply(AppendInline([inline(2)]))
    assert replica.apply(AdvanceReconciled(0, [extent(0, 20, 1)])) == [Reconciled(19)]
    assert replica.machine.extents.inline() == []


def test_reconciling_lets_the_epochs_go(replica: Replica) -> None:
    replica.apply(AdvanceEpoch(EpochWindow(TERM, 9, 12)))
    assert replica.machine.max_collectable_epoch == CREATION_EPOCH - 1
    replica.apply(AdvanceReconciled(0, [extent(0, 15, 1)]))
    assert replica.machine.max_collectable_epoch == CREATION_EPOCH - 1
    replica.apply(AdvanceReconciled(15, [extent(15, 18, 2)]))
    assert replica.machine.max_collectable_epoch == 8


def test_a_leased_checkpoint_holds_the_epochs_of_what_is_reconciled_since(replica: Replica) -> None:
    replica.apply(Checkpoint(500))
    replica.apply(AdvanceEpoch(EpochWindow(TERM, 9, 12)), AdvanceReconciled(0, [extent(0, 18, 1)]))
    assert replica.machine.max_collectable_epoch == CREATION_EPOCH - 1
    replica.apply(Tick(10**9), time=NOW + 500)
    assert replica.machine.max_collectable_epoch == 8


def test_a_second_attempt_is_rejected_and_told_where_level_zero_begins(reconciled: Replica) -> None:
    again = AdvanceReconciled(0, [extent(0, 6, 1), extent(6, 12, 2)])
    unchanged(reconciled, again, Rejection.RECONCILED_ELSEWHERE, 12)


def test_reconciling_what_retention_took_is_rejected(replica: Replica) -> None:
    replica.apply(SetStartOffset(7))
    assert replica.machine.last_reconciled_offset == 5
    unchanged(replica, AdvanceReconciled(0, [extent(0, 12, 1)]), Rejection.RECONCILED_ELSEWHERE, 6)
    assert replica.apply(AdvanceReconciled(6, [extent(6, 12, 1)])) == [Reconciled(11)]


def test_retention_within_the_first_batch_does_not_disturb(replica: Replica) -> None:
    replica.apply(SetStartOffset(2))
    assert replica.apply(AdvanceReconciled(0, [extent(0, 12, 1)])) == [Reconciled(11)]


def test_objects_that_an_earlier_leader_wrote_are_rejected_since_this_one_may_have_deleted_them(
    reconciled: Replica,
) -> None:
    reconciled.begin_term(TERM + 1)
    late = AdvanceReconciled(12, [extent(12, 15, 3, term=TERM + 1), extent(15, 18, 4)])
    unchanged(reconciled, late, Rejection.OLDER_TERM, TERM + 1)
    late_replace = ReplaceLevelOne(names(*reconciled.machine.level_one), [extent(0, 12, 5)])
    unchanged(reconciled, late_replace, Rejection.OLDER_TERM, TERM + 1)
    own = AdvanceReconciled(12, [extent(12, 18, 6, term=TERM + 1)])
    assert reconciled.apply(own) == [Reconciled(17)]


# The start offset.


def test_the_start_offset_removes_whole_objects_and_keeps_the_one_around_it(reconciled: Replica) -> None:
    assert reconciled.apply(SetStartOffset(5)) == [StartOffsetSet(5)]
    assert reconciled.machine.removed == []
    reconciled.apply(SetStartOffset(6))
    assert reconciled.machine.removed == [RemovedObject(reconciled.index, TERM, unique(1), 1001)]
    assert list(reconciled.machine.level_one) == [extent(6, 12, 2)]
    assert reconciled.machine.last_reconciled_offset == 11


def test_a_start_offset_beyond_level_one_raises_the_last_reconciled_offset(reconciled: Replica) -> None:
    reconciled.apply(SetStartOffset(16))
    assert reconciled.machine.last_reconciled_offset == 14
    assert [one.unique for one in reconciled.machine.removed] == [unique(1), unique(2)]
    assert list(reconciled.machine.level_one) == []
    assert reconciled.apply(AdvanceReconciled(15, [extent(15, 18, 3)])) == [Reconciled(17)]


def test_offsets_go_on_after_all_of_both_levels_was_deleted(reconciled: Replica) -> None:
    reconciled.apply(SetStartOffset(18))
    assert reconciled.machine.last_reconciled_offset == 17
    reconciled.append(placeholder(2))
    assert reconciled.apply(AdvanceReconciled(18, [extent(18, 20, 3)])) == [Reconciled(19)]
    assert reconciled.restored().machine.snapshot() == reconciled.machine.snapshot()


# Replacing.


def test_neighbours_become_one_object_and_are_removed(reconciled: Replica) -> None:
    old = list(reconciled.machine.level_one)
    assert reconciled.apply(ReplaceLevelOne(names(*old), [extent(0, 12, 7)])) == [LevelOneReplaced(2)]
    assert list(reconciled.machine.level_one) == [extent(0, 12, 7)]
    assert reconciled.machine.removed == [
        RemovedObject(reconciled.index, TERM, unique(1), 1001),
        RemovedObject(reconciled.index, TERM, unique(2), 1002),
    ]
    assert reconciled.machine.last_reconciled_offset == 11


def test_a_replacement_that_comes_twice_or_after_retention_is_rejected(reconciled: Replica) -> None:
    old = list(reconciled.machine.level_one)
    merge = ReplaceLevelOne(names(*old), [extent(0, 12, 7)])
    reconciled.apply(SetStartOffset(6))
    unchanged(reconciled, merge, Rejection.LEVEL_ONE_CHANGED, 0)
    reconciled.apply(ReplaceLevelOne(names(old[1]), [extent(6, 12, 8)]))
    unchanged(reconciled, ReplaceLevelOne(names(old[1]), [extent(6, 12, 8)]), Rejection.LEVEL_ONE_CHANGED, 0)


def test_a_part_of_a_cut_object_that_lies_below_the_start_offset_is_removed_with_it(
    reconciled: Replica,
) -> None:
    reconciled.apply(SetStartOffset(4))
    cut = ReplaceLevelOne(names(extent(0, 6, 1)), [extent(0, 4, 7), extent(4, 6, 8)])
    assert reconciled.apply(cut) == [LevelOneReplaced(1)]
    assert [one.unique for one in reconciled.machine.removed] == [unique(1), unique(7)]
    assert reconciled.machine.level_one.bytes == 1008 + 1002
    assert reconciled.restored().machine.snapshot() == reconciled.machine.snapshot()


# Removed objects.


def test_a_removed_object_may_go_when_no_lease_is_older_than_its_removal(reconciled: Replica) -> None:
    """It is held by checkpoints that may name it: those before the entry that removed it."""
    first = reconciled.index + 1
    reconciled.apply(Checkpoint(500))
    reconciled.apply(SetStartOffset(6))
    removed_first = reconciled.index
    assert reconciled.machine.removable() == []
    reconciled.apply(Checkpoint(900))
    reconciled.apply(SetStartOffset(12))
    assert reconciled.machine.removable() == []
    reconciled.apply(RenewCheckpoint(first, 600))
    reconciled.apply(Tick(10**9), time=NOW + 599)
    assert reconciled.machine.removable() == []
    reconciled.apply(Tick(10**9), time=NOW + 600)
    assert reconciled.machine.removable() == [RemovedObject(removed_first, TERM, unique(1), 1001)]
    reconciled.apply(Tick(10**9), time=NOW + 900)
    assert [one.unique for one in reconciled.machine.removable()] == [unique(1), unique(2)]


def test_a_checkpoint_without_a_lease_or_after_the_removal_holds_nothing(reconciled: Replica) -> None:
    reconciled.apply(Checkpoint(0))
    reconciled.apply(SetStartOffset(6))
    reconciled.apply(Checkpoint(500))
    assert [one.unique for one in reconciled.machine.removable()] == [unique(1)]


def test_what_was_deleted_is_forgotten_once(reconciled: Replica) -> None:
    reconciled.apply(SetStartOffset(12))
    assert reconciled.apply(ForgetRemoved([unique(2), unique(9)])) == [RemovedForgotten(1)]
    assert [one.unique for one in reconciled.machine.removed] == [unique(1)]
    assert reconciled.apply(ForgetRemoved([unique(2)])) == [RemovedForgotten(0)]
    assert reconciled.apply(ForgetRemoved([unique(1), unique(1)])) == [RemovedForgotten(1)]
    assert reconciled.machine.removed == []


def test_forgetting_what_is_still_named_changes_nothing(reconciled: Replica) -> None:
    before = reconciled.machine.snapshot()
    assert reconciled.apply(ForgetRemoved([unique(1)])) == [RemovedForgotten(0)]
    assert reconciled.machine.snapshot() == before


# Corruption.


def leased(replica: Replica) -> None:
    replica.apply(Checkpoint(500))
    replica.apply(SetStartOffset(6))


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (AdvanceReconciled(12, [extent(12, 16, 3)]), "object 0+3 ends inside a batch, at offset 16"),
        (AdvanceReconciled(12, [extent(12, 21, 3)]), "ends inside a batch, at offset 21"),
        (AdvanceReconciled(12, [extent(12, 16, 3), extent(16, 18, 4)]), "ends inside a batch, at offset 16"),
        (AdvanceReconciled(12, [extent(9, 15, 3)]), "do not begin at offset 12"),
        (AdvanceReconciled(12, [extent(12, 15, 3), extent(12, 18, 4)]), "cannot follow on 15"),
        (AdvanceReconciled(12, [extent(12, 15, 2)]), "named twice"),
        (ReplaceLevelOne(names(extent(0, 6, 1)), [extent(0, 5, 7)]), "up to offset 5 cannot replace"),
        (ReplaceLevelOne(names(extent(0, 6, 1)), [extent(0, 6, 2)]), "named twice"),
        (ForgetRemoved([unique(1)]), "object 0+1 is said to be deleted, and checkpoint 4 is leased"),
    ],
)
def test_what_no_correct_leader_writes_stops_the_replica(
    reconciled: Replica, command: Command, why: str
) -> None:
    if isinstance(command, ForgetRemoved):
        leased(reconciled)
    with pytest.raises(Corruption, match=rf"^entry {reconciled.index + 1}: .*{why}"):
        reconciled.apply(command)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ([9, 12, []], "do not begin at offset 12"),
        ([9, 12, [list(extent(12, 15, 3, term=TERM + 1))]], f"of a later term than {TERM}"),
        ([10, [[TERM, unique(1)]], []], "no objects"),
        ([10, [[TERM, unique(1)]], [list(extent(0, 6, 3, term=TERM + 1))]], f"of a later term than {TERM}"),
        ([10, [], [list(extent(0, 6, 3))]], "not a partition's"),
        ([9, 12, [[12, 15]]], "not a partition's"),
        ([9, 12, [[12, 15, NOW, 2.5, 1, TERM, unique(3)]]], "not a partition's"),
        ([11, 7], "not a partition's"),
    ],
)
def test_what_encode_refuses_stops_the_replica_that_meets_it(
    reconciled: Replica, command: list[Any], why: str
) -> None:
    with pytest.raises(Corruption, match=why):
        reconciled.apply_bytes(msgpack.packb([TERM, NOW, [command]]))


@pytest.mark.parametrize(
    "command",
    [
        AdvanceReconciled(0, []),
        AdvanceReconciled(0, [extent(0, 6, 1), extent(6, 9, 2, term=TERM + 1)]),
        ReplaceLevelOne([], [extent(0, 6, 1)]),
        ReplaceLevelOne(names(extent(0, 6, 1)), []),
        ReplaceLevelOne(names(extent(0, 6, 1)), [extent(0, 6, 2, term=TERM + 1)]),
    ],
)
def test_what_no_replica_would_survive_is_not_encoded(command: Command) -> None:
    with pytest.raises(ValueError, match="objects"):
        encode(TERM, NOW, [command])


# Snapshots.


def lived() -> Replica:
    """Something on both levels and among the removed, object 4 leased by a checkpoint."""
    replica = Replica(term=TERM)
    replica.append(*[placeholder(3)] * 6)
    replica.apply(AdvanceReconciled(0, [extent(0, 3, 4), extent(3, 9, 5), extent(9, 12, 6)]))
    replica.apply(Checkpoint(500))
    replica.apply(SetStartOffset(4))
    replica.apply(ReplaceLevelOne(names(extent(3, 9, 5), extent(9, 12, 6)), [extent(3, 12, 7)]))
    return replica


def test_a_restored_replica_knows_both_levels_and_what_was_removed() -> None:
    one = lived()
    two = one.restored()
    assert two.machine.snapshot() == one.machine.snapshot()
    for replica in (one, two):
        machine = replica.machine
        assert list(machine.level_one) == [extent(3, 12, 7)]
        assert [one.unique for one in machine.removed] == [unique(4), unique(5), unique(6)]
        assert machine.level_one.bytes == 1007
        assert machine.extents.bytes == 200
        assert machine.removable() == []
        replica.apply(Tick(10**9), time=NOW + 500)
        assert len(machine.removable()) == 3
        assert replica.apply(AdvanceReconciled(12, [extent(12, 15, 8)])) == [Reconciled(14)]
    assert two.machine.snapshot() == one.machine.snapshot()


def rows(*objects: LevelOneExtent) -> bytes:
    return b"".join(LEVEL_ONE_ROW.pack(*one) for one in objects)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"level_one": rows(extent(3, 11, 7))}, "level one ends at offset 11, level zero begins at 12"),
        ({"level_one": rows(extent(5, 12, 7))}, "the first extent, at 5, has no record 4"),
        ({"level_one": b""}, "the first extent, at 12, has no record 4"),
        ({"level_one": b"x"}, "not rows of 60"),
        ({"level_one": rows(extent(3, 12, 4))}, "object 0+4 is removed and named"),
        ({"start_offset": 12}, "the first extent, at 3, has no record 12"),
        ({"extents": b""}, "level one ends at offset 12, level zero begins at 18"),
        ({"extents": b"", "level_one": b""}, "no extent from 4 to 18"),
        ({"removed": [[9, 3, unique(8), 1], [8, 3, unique(9), 1]]}, "out of order: 9 before 8"),
        ({"removed": [[9, 3, unique(8), 1], [9, 3, unique(8), 1]]}, "removed twice"),
        ({"removed": [[9, 3]]}, "cannot be read"),
    ],
)
def test_a_state_whose_levels_contradict_each_other_is_refused(changes: dict[str, Any], why: str) -> None:
    replica = lived()
    before = replica.machine.snapshot()
    with pytest.raises(ValueError, match=why):
        replica.machine.restore(msgpack.packb({**msgpack.unpackb(before), **changes}))
    assert replica.machine.snapshot() == before


def test_a_state_all_of_whose_batches_are_reconciled_is_restored() -> None:
    replica = lived()
    replica.apply(AdvanceReconciled(12, [extent(12, 18, 8)]))
    other = replica.restored()
    assert other.machine.snapshot() == replica.machine.snapshot()
    assert other.machine.last_reconciled_offset == 17


def test_restoring_does_not_change_whom_checkpoints_are_handed_to() -> None:
    replica = lived()
    replica.machine.restore(replica.machine.snapshot())
    replica.apply(Checkpoint(0))
    assert replica.checkpoints[-1] == (replica.index, replica.machine.snapshot())
