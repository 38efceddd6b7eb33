"""The partition state machine: each command, each rejection, each corruption, and its snapshots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.statemachine.machine import Corruption, StateMachine
from strandline.statemachine.partition.aborted_transactions import AbortedTransactions
from strandline.statemachine.partition.collectable_epoch import max_collectable_epoch
from strandline.statemachine.partition.epoch_window import EpochStatus, EpochWindow
from strandline.statemachine.partition.extent import StoredInline
from strandline.statemachine.partition.partition import FAR_AHEAD_MS, PartitionStateMachine
from strandline.statemachine.partition.partition_commands import (
    AdvanceEpoch,
    Append,
    Appended,
    AppendInline,
    Checkpoint,
    CheckpointsReleased,
    CheckpointTaken,
    Command,
    EndTransaction,
    EpochAdvanced,
    InlineStored,
    ReleaseCheckpoints,
    RenewCheckpoint,
    SetStartOffset,
    StartOffsetSet,
    StoreInline,
    Tick,
    Ticked,
    encode,
)
from strandline.statemachine.partition.partition_state import SNAPSHOT_FIELDS
from strandline.statemachine.partition.placeholder import Placeholder
from strandline.statemachine.partition.rejection import Rejected, Rejection
from tests.statemachine.partitions import CREATION_EPOCH, NOW, OBJECT, Replica, inline, placeholder


@pytest.fixture
def replica() -> Replica:
    return Replica()


def fence(oldest: int, newest: int, term: int = 1) -> EpochWindow:
    return EpochWindow(term, oldest, newest)


def test_it_is_a_state_machine(replica: Replica) -> None:
    machine: StateMachine = replica.machine
    assert machine.kind == "partition"


# Append.


def test_a_batch_gets_its_offset_when_applied(replica: Replica) -> None:
    assert replica.append(placeholder(3), placeholder(2)) == [Appended(0), Appended(3)]
    assert replica.append(placeholder()) == [Appended(5)]
    assert replica.machine.high_watermark == replica.machine.next_offset == 6


def test_an_extent_tells_where_the_batch_lies_and_who_led(replica: Replica) -> None:
    replica.begin_term(4)
    replica.append(placeholder(3, timestamp=77, length=1234))
    (extent,) = replica.machine.extents_between(0, 10, 10**6)
    assert extent == (0, 3, 4, 77, 1234, CREATION_EPOCH, 64, OBJECT)
    assert extent.end_offset == 3


def test_an_inline_batch_carries_its_bytes_and_no_epoch(replica: Replica) -> None:
    assert replica.apply(AppendInline([inline(2, b"abc")])) == [[Appended(0)]]
    (extent,) = replica.machine.extents_between(0, 10, 10**6)
    assert extent == (0, 2, 1, NOW, 3, b"abc")
    assert replica.machine.extents.oldest_epoch is None


def test_one_entry_may_hold_many_commands_in_order(replica: Replica) -> None:
    window = fence(5, 6)
    assert replica.apply(
        Append(window, [placeholder(2)]),
        AppendInline([inline(1)]),
        Append(window, [placeholder(4, epoch=6)]),
        SetStartOffset(2),
        Tick(1000),
    ) == [[Appended(0)], [Appended(2)], [Appended(3)], StartOffsetSet(2), Ticked(NOW, 0)]


def test_a_retry_gets_its_first_offset_also_under_a_later_leader(replica: Replica) -> None:
    batch = placeholder(3, producer=9, producer_epoch=0, sequence=0)
    assert replica.append(batch) == [Appended(0)]
    replica.begin_term(2)
    assert replica.append(batch) == [Appended(0, duplicate=True)]
    assert replica.machine.next_offset == 3


def test_a_gap_is_rejected_and_the_batches_around_it_are_not(replica: Replica) -> None:
    assert replica.append(
        placeholder(2, producer=9, producer_epoch=0, sequence=0),
        placeholder(2, producer=9, producer_epoch=0, sequence=3),
        placeholder(1),
    ) == [Appended(0), Rejected(Rejection.OUT_OF_ORDER_SEQUENCE_NUMBER, 2), Appended(2)]


def test_an_older_producer_epoch_is_rejected(replica: Replica) -> None:
    replica.append(placeholder(producer=9, producer_epoch=3, sequence=0))
    assert replica.append(placeholder(producer=9, producer_epoch=2, sequence=1)) == [
        Rejected(Rejection.INVALID_PRODUCER_EPOCH, 3)
    ]


def test_inline_batches_are_judged_like_any_other(replica: Replica) -> None:
    batch = inline(2)._replace(producer_id=9, producer_epoch=0, base_sequence=0)
    assert replica.apply(AppendInline([batch, batch])) == [[Appended(0), Appended(0, duplicate=True)]]
    assert replica.append(placeholder(producer=9, producer_epoch=0, sequence=2)) == [Appended(2)]


# Epochs.


def test_the_window_moves_the_applied_epochs_and_the_batch_does_not(replica: Replica) -> None:
    """With [6, 10], then 8 and 10 applied: 7 is still accepted, so 7 must not be collectable."""
    machine = replica.machine
    replica.append(placeholder(epoch=6), window=(5, 6))
    replica.append(placeholder(epoch=8), window=(6, 10))
    replica.append(placeholder(epoch=10), window=(6, 10))
    assert (machine.previous_applied_epoch, machine.max_applied_epoch) == (6, 10)
    replica.apply(SetStartOffset(3))
    assert machine.max_collectable_epoch == 5
    assert replica.append(placeholder(epoch=7), window=(6, 10)) == [Appended(3)]


def test_the_index_of_the_highest_epoch_is_the_entry_that_brought_it(replica: Replica) -> None:
    assert replica.machine.max_applied_epoch_index == 0
    replica.append(placeholder(epoch=5), window=(5, 7))
    index = replica.index
    replica.append(placeholder(epoch=7), window=(5, 7))
    assert replica.machine.max_applied_epoch_index == index


def test_the_window_counts_even_when_the_batch_is_a_duplicate(replica: Replica) -> None:
    replica.append(placeholder(producer=9, producer_epoch=0, sequence=0))
    replica.append(placeholder(epoch=8, producer=9, producer_epoch=0, sequence=0), window=(5, 8))
    assert replica.machine.max_applied_epoch == 8


def test_advance_epoch_moves_the_applied_epochs_without_a_batch(replica: Replica) -> None:
    assert replica.apply(AdvanceEpoch(fence(5, 9))) == [EpochAdvanced(5, 9)]
    assert replica.apply(AdvanceEpoch(fence(9, 12))) == [EpochAdvanced(9, 12)]
    assert replica.machine.max_collectable_epoch == 8
    assert replica.machine.next_offset == 0


@pytest.mark.parametrize("window", [(9, 12), (5, 9), (9, 9)])
def test_advance_epoch_that_comes_late_is_rejected(replica: Replica, window: tuple[int, int]) -> None:
    replica.apply(AdvanceEpoch(fence(9, 12)))
    before = replica.machine.snapshot()
    assert replica.apply(AdvanceEpoch(fence(*window))) == [Rejected(Rejection.LOWER_EPOCH, 12)]
    assert replica.machine.snapshot() == before


def test_a_new_leader_starts_from_the_applied_epoch(replica: Replica) -> None:
    replica.append(placeholder(epoch=6), window=(5, 8))
    recovered = EpochWindow.recovered(2, replica.machine.max_applied_epoch)
    assert recovered.classify(8) is EpochStatus.IN_WINDOW
    assert recovered.classify(7) is EpochStatus.STALE


# M(p).


def test_a_new_partition_needs_its_creation_epoch_and_nothing_older() -> None:
    machine = Replica(creation_epoch=40).machine
    assert machine.max_collectable_epoch == 39
    assert EpochWindow.recovered(1, machine.max_applied_epoch).classify(39) is EpochStatus.STALE


@pytest.mark.parametrize(
    ("previous_applied", "named", "expected"),
    [(9, (None, None), 8), (9, (7, None), 6), (9, (None, 6), 5), (9, (7, 6), 5), (9, (12, None), 8)],
)
def test_collectable_is_one_below_whatever_is_needed(
    previous_applied: int, named: tuple[int | None, ...], expected: int
) -> None:
    assert max_collectable_epoch(previous_applied, *named) == expected


def test_an_extent_holds_its_epoch_back_until_it_is_trimmed(replica: Replica) -> None:
    replica.append(placeholder(2, epoch=5))
    replica.apply(AdvanceEpoch(fence(9, 12)))
    assert replica.machine.max_collectable_epoch == 4
    replica.apply(SetStartOffset(1))
    assert replica.machine.max_collectable_epoch == 4
    replica.apply(SetStartOffset(2))
    assert replica.machine.max_collectable_epoch == 8


def test_inline_batches_hold_nothing_back(replica: Replica) -> None:
    replica.apply(AppendInline([inline()]), AdvanceEpoch(fence(9, 12)))
    assert replica.machine.max_collectable_epoch == 8


def test_inline_batches_become_object_batches_with_their_epochs(replica: Replica) -> None:
    replica.apply(AppendInline([inline(2, b"abc"), inline(1, b"de")]))
    replica.append(placeholder(1, epoch=9), window=(8, 9))
    rows = [StoredInline(0, 3, 9, 64, OBJECT), StoredInline(2, 2, 8, 32, OBJECT)]
    assert replica.apply(StoreInline(fence(8, 9), rows)) == [InlineStored(2)]
    stored = replica.machine.extents_between(0, 3, 10**6)
    assert stored == [(0, 2, 1, NOW, 3, 9, 64, OBJECT), (2, 1, 1, NOW, 2, 8, 32, OBJECT)]
    assert replica.machine.extents.inline_bytes == 0
    assert replica.machine.max_collectable_epoch == 7, "they hold it back from now on"
    assert replica.apply(StoreInline(fence(9, 10), rows[:1])) == [InlineStored(0)]
    assert replica.restored().machine.snapshot() == replica.machine.snapshot()


def test_storing_brings_its_window_along(replica: Replica) -> None:
    replica.apply(AppendInline([inline(2, b"abc")]), StoreInline(fence(9, 12), []))
    assert (replica.machine.previous_applied_epoch, replica.machine.max_applied_epoch) == (9, 12)
    assert replica.machine.max_collectable_epoch == 8


# Start offset.


def test_start_offset_drops_the_extents_below_it_and_keeps_the_one_around_it(replica: Replica) -> None:
    replica.append(placeholder(3), placeholder(3), placeholder(3))
    assert replica.apply(SetStartOffset(4)) == [StartOffsetSet(4)]
    assert [extent.base_offset for extent in replica.machine.extents] == [3, 6]
    assert replica.machine.extents_between(0, 5, 10**6)[0].base_offset == 3
    assert replica.machine.extents_between(0, 4, 10**6) == []


def test_a_lower_start_offset_is_rejected_and_the_same_one_is_not(replica: Replica) -> None:
    replica.append(placeholder(3))
    replica.apply(SetStartOffset(2))
    assert replica.apply(SetStartOffset(1)) == [Rejected(Rejection.LOWER_START_OFFSET, 2)]
    assert replica.apply(SetStartOffset(2)) == [StartOffsetSet(2)]


def test_offsets_go_on_after_everything_was_deleted(replica: Replica) -> None:
    replica.append(placeholder(3))
    replica.apply(SetStartOffset(3))
    assert replica.machine.newest_extent() is None
    assert replica.append(placeholder()) == [Appended(3)]


# Terms.


def test_an_entry_made_in_an_earlier_term_changes_nothing(replica: Replica) -> None:
    replica.begin_term(3)
    before = replica.machine.snapshot()
    late = Append(fence(5, 9), [placeholder(epoch=9)])
    assert replica.apply(late, Tick(0), time=NOW + 9, made_in=1) == Rejected(Rejection.OLDER_TERM, 3)
    assert replica.machine.snapshot() == before


def test_leader_epochs_tell_where_each_leader_ended(replica: Replica) -> None:
    replica.append(placeholder(3))
    replica.begin_term(4)
    replica.append(placeholder(2))
    machine = replica.machine
    assert machine.offset_for_leader_epoch(1) == (1, 3)
    assert machine.offset_for_leader_epoch(4) == (4, 5)
    assert machine.offset_for_leader_epoch(5) is None
    replica.apply(SetStartOffset(4))
    assert machine.offset_for_leader_epoch(1) == (1, 4)


def test_by_timestamp_the_first_extent_that_reaches_it(replica: Replica) -> None:
    replica.append(placeholder(timestamp=10), placeholder(timestamp=30), placeholder(timestamp=20))
    found = [replica.machine.first_extent_since(timestamp) for timestamp in (5, 15, 25, 35)]
    assert [None if extent is None else extent.base_offset for extent in found] == [0, 1, 1, None]
    newest = replica.machine.newest_extent()
    assert newest is not None
    assert newest.base_offset == 1


# Time.


def test_time_is_the_highest_that_any_entry_carried(replica: Replica) -> None:
    replica.append(placeholder(), time=NOW + 10)
    assert replica.apply(Tick(1000), time=NOW) == [Ticked(NOW + 10, 0)]


def test_producers_expire_by_the_time_in_the_log(replica: Replica) -> None:
    replica.append(placeholder(producer=9, producer_epoch=0, sequence=0), time=NOW)
    assert replica.apply(Tick(1000), time=NOW + 1000) == [Ticked(NOW + 1000, 0)]
    assert replica.apply(Tick(1000), time=NOW + 1001) == [Ticked(NOW + 1001, 1)]
    assert replica.append(placeholder(producer=9, producer_epoch=0, sequence=50)) == [Appended(1)]


def test_an_append_after_a_long_silence_does_not_expire_at_the_next_tick(replica: Replica) -> None:
    replica.append(placeholder(producer=9, producer_epoch=0, sequence=0), time=NOW + 10**9)
    assert replica.apply(Tick(1000), time=NOW + 10**9) == [Ticked(NOW + 10**9, 0)]


def test_time_goes_back_to_a_clock_that_most_agree_on_if_it_is_far_ahead_of_it(replica: Replica) -> None:
    replica.append(placeholder(producer=9, producer_epoch=0, sequence=0), time=NOW)
    replica.append(placeholder(producer=8, producer_epoch=0, sequence=0), time=NOW + FAR_AHEAD_MS)
    assert replica.apply(Tick(1000, NOW), time=NOW) == [Ticked(NOW + FAR_AHEAD_MS, 1)]
    replica.append(placeholder(producer=7, producer_epoch=0, sequence=0), time=NOW + FAR_AHEAD_MS + 1)
    assert replica.apply(Tick(1000, NOW), time=NOW) == [Ticked(NOW, 0)]
    assert [one.last_time for one in replica.machine.producers] == [NOW, NOW]
    replica = replica.restored()
    assert replica.apply(Tick(1000), time=NOW + 1001) == [Ticked(NOW + 1001, 2)]


def test_a_lease_that_ended_by_a_clock_that_was_ahead_has_ended(replica: Replica) -> None:
    """What it named may be gone: nobody is to believe that it holds again."""
    replica.append(placeholder(3))
    replica.apply(Checkpoint(lease=500))
    replica.apply(Checkpoint(lease=10**9))
    ended = replica.index - 1
    replica.apply(SetStartOffset(3), AdvanceEpoch(fence(9, 12)), time=NOW + 10**8)
    bound = replica.machine.max_collectable_epoch
    replica.apply(Tick(10**9, NOW), time=NOW)
    assert replica.machine.time == NOW
    assert replica.machine.max_collectable_epoch >= bound
    leases = [one.lease_until for one in replica.machine.checkpoints.retained]
    assert leases == [NOW, NOW + 10**9]
    assert replica.apply(RenewCheckpoint(ended, 900)) == [Rejected(Rejection.CHECKPOINT_NOT_LEASED, NOW)]


# Checkpoints.


def test_a_checkpoint_captures_the_state_of_its_own_entry_on_every_replica(replica: Replica) -> None:
    replica.append(placeholder(3))
    assert replica.apply(Checkpoint(lease=500)) == [CheckpointTaken(replica.index, NOW + 500)]
    state = replica.machine.snapshot()
    replica.append(placeholder(3))
    assert replica.checkpoints == [(replica.index - 1, state)]
    assert msgpack.unpackb(state)["checkpoints"] == [[replica.index - 1, NOW + 500, CREATION_EPOCH]]


def test_a_leased_checkpoint_holds_its_epochs_back_until_the_lease_ends(replica: Replica) -> None:
    replica.append(placeholder(3))
    replica.apply(Checkpoint(lease=500))
    replica.apply(SetStartOffset(3), AdvanceEpoch(fence(9, 12)))
    assert replica.machine.max_collectable_epoch == CREATION_EPOCH - 1
    replica.apply(Tick(10**9), time=NOW + 499)
    assert replica.machine.max_collectable_epoch == CREATION_EPOCH - 1
    replica.apply(Tick(10**9), time=NOW + 500)
    assert replica.machine.max_collectable_epoch == 8


def test_of_several_leased_checkpoints_the_lowest_epoch_counts_whichever_names_it(replica: Replica) -> None:
    """Within a window a later batch may have a lower epoch."""
    replica.append(placeholder(epoch=9), window=(5, 9))
    replica.apply(Checkpoint(lease=100))
    replica.append(placeholder(epoch=6), window=(5, 9))
    replica.apply(Checkpoint(lease=200))
    replica.apply(SetStartOffset(2), AdvanceEpoch(fence(12, 14)))
    assert replica.machine.max_collectable_epoch == 5
    replica.append(placeholder(epoch=13), window=(12, 14))
    replica.apply(Checkpoint(lease=900))
    assert replica.machine.max_collectable_epoch == 5
    replica.apply(Tick(10**9), time=NOW + 200)
    assert replica.machine.max_collectable_epoch == 11


def test_a_lease_is_renewed_and_never_shortened(replica: Replica) -> None:
    replica.apply(Checkpoint(lease=500))
    index = replica.index
    assert replica.apply(RenewCheckpoint(index, 900), time=NOW + 100) == [CheckpointTaken(index, NOW + 1000)]
    assert replica.apply(RenewCheckpoint(index, 1)) == [CheckpointTaken(index, NOW + 1000)]


def test_a_lease_that_has_ended_is_not_renewed_because_its_objects_may_be_gone(replica: Replica) -> None:
    replica.apply(Checkpoint(lease=500))
    index = replica.index
    assert replica.apply(RenewCheckpoint(index, 900), time=NOW + 500) == [
        Rejected(Rejection.CHECKPOINT_NOT_LEASED, NOW + 500)
    ]
    assert replica.apply(RenewCheckpoint(77, 900)) == [Rejected(Rejection.CHECKPOINT_NOT_LEASED, NOW + 500)]


def test_checkpoints_without_a_lease_are_released_by_count(replica: Replica) -> None:
    indexes = []
    for lease in (0, 500, 0, 0, 0):
        replica.apply(Checkpoint(lease))
        indexes.append(replica.index)
    assert replica.apply(ReleaseCheckpoints(keep=2)) == [CheckpointsReleased([indexes[0], indexes[2]])]
    assert [one.log_index for one in replica.machine.checkpoints.retained] == [indexes[n] for n in (1, 3, 4)]
    assert replica.apply(ReleaseCheckpoints(keep=9)) == [CheckpointsReleased([])]


# Corruption: what no correct leader writes stops the replica.


def entry(*commands: list[Any], term: int = 1, time: int = NOW) -> bytes:
    packed: bytes = msgpack.packb([term, time, commands])
    return packed


PLACEHOLDER = list(placeholder(2, epoch=8))
CLAIM = {"producer": 1, "producer_epoch": 0, "sequence": 0}


@pytest.mark.parametrize(
    ("damaged", "why"),
    [
        (entry([1, 7, 9, [PLACEHOLDER]]), r"window \[7, 9\] comes after \[8, 9\]"),
        (entry([1, 8, 8, [PLACEHOLDER]]), r"window \[8, 8\] comes after \[8, 9\]"),
        (entry([1, 8, 9, [list(placeholder(epoch=7))]]), "epoch 7 was never inside"),
        (entry([1, 8, 9, [list(placeholder(epoch=10))]]), "epoch 10 was never inside"),
        (entry([1, 12, 11, [PLACEHOLDER]]), "is not a window"),
        (entry([3, 12, 11]), "is not a window"),
        (entry([1, 8, 9, [list(placeholder(0, epoch=8))]]), "no extent"),
        (entry([1, 8, 9, [list(placeholder(epoch=8, length=0))]]), "no extent"),
        (entry([1, 8, 9, [list(placeholder(epoch=8, producer=1))]]), "has no sequence"),
        (entry([1, 8, 9, [list(placeholder(epoch=8, **{**CLAIM, "producer": -5}))]]), "producer -5"),
        (entry([2, [list(inline(1, b""))]]), "no extent"),
        (entry([16, 7, 9, []]), r"window \[7, 9\] comes after \[8, 9\]"),
        (entry([16, 8, 9, [[0, 3, 7, 0, OBJECT]]]), "epoch 7 was never inside"),
        (entry([2, [list(inline(1, b"abc"))]], [16, 8, 9, [[2, 4, 8, 0, OBJECT]]]), "4 were stored"),
        (entry([16, 8, 9, [[0, 3, 8, 0, b"short"]]]), "no inline batch"),
        (entry([12, 1, 0, 0, True, 1, NOW, b"marker"]), "no transaction 0"),
        (entry([12, -1, 0, 1, True, 1, NOW, b"marker"]), "producer -1"),
        (entry([12, 1, -1, 1, True, 1, NOW, b"marker"]), "epoch -1"),
        (entry([12, 1, 0, 1, True, 1, NOW, b""]), "no extent"),
        (entry([1, 8, 9, [list(placeholder(epoch=8, **CLAIM, transaction=0))]]), "no transaction 0"),
        (entry([4, 3]), "start offset 3 lies above"),
        (entry([6, 100], [5, 100]), "not alone"),
        (entry([99]), "command kind 99"),
        (entry([5]), "not a partition's"),
        (entry([5, 100], term=2), "made in term 2, logged in 1"),
        (b"\xc1", "not a partition's"),
        (entry([5, 100]) + b"x", "not a partition's"),
        (b"", "not a partition's"),
    ],
)
def test_corruption_stops_the_replica_and_names_the_entry(replica: Replica, damaged: bytes, why: str) -> None:
    replica.append(placeholder(2, epoch=8), window=(8, 9))
    with pytest.raises(Corruption, match=rf"^entry {replica.index + 1}\b.*{why}"):
        replica.apply_bytes(damaged)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_entry_is_corruption_or_a_command_and_never_another_error(data: st.DataObject) -> None:
    replica = Replica()
    window = fence(5, 6)
    claim = placeholder(2, producer=1, producer_epoch=0, sequence=0, transaction=3)
    abort = EndTransaction(1, 1, 3, False, 2, NOW, b"marker")
    commands: list[Command] = [Append(window, [claim]), abort, SetStartOffset(1), AdvanceEpoch(window)]
    damaged = bytearray(encode(1, NOW, commands))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        result = replica.apply_bytes(bytes(damaged))
    except Corruption:
        return
    assert isinstance(result, list) or result.reason is Rejection.OLDER_TERM
    assert replica.restored().machine.snapshot() == replica.machine.snapshot()


@pytest.mark.parametrize("term", [0, 2])
def test_an_entry_of_another_term_than_the_present_one_is_corruption(replica: Replica, term: int) -> None:
    with pytest.raises(Corruption, match=f"logged in {term}, while 1 is present"):
        replica.machine.apply(2, term, encode(0, NOW, [Tick(1)]))


@pytest.mark.parametrize("term", [1, 3])
def test_a_term_that_does_not_rise_is_corruption(replica: Replica, term: int) -> None:
    replica.begin_term(3)
    with pytest.raises(Corruption, match=f"begins term {term} after term 3"):
        replica.begin_term(term)


@pytest.mark.parametrize(
    "commands",
    [
        [],
        [Checkpoint(1), Tick(1)],
        [Tick(1), Checkpoint(1)],
        [Append(fence(5, 5, term=2), [placeholder()])],
        [AdvanceEpoch(fence(5, 5, term=2))],
        [AdvanceEpoch(EpochWindow.recovered(1, None))],
        [EndTransaction(-1, 0, 1, True, 1, NOW, b"marker")],
        [EndTransaction(1, -1, 1, True, 1, NOW, b"marker")],
        [EndTransaction(1, 0, 0, True, 1, NOW, b"marker")],
        [EndTransaction(1, 0, 1, True, 1, NOW, b"")],
    ],
    ids=[
        "nothing",
        "checkpoint first",
        "checkpoint last",
        "fence of a term",
        "epoch of a term",
        "no window",
        "no producer",
        "no epoch",
        "no number",
        "no marker",
    ],
)
def test_what_no_replica_would_survive_is_not_encoded(commands: list[Command]) -> None:
    with pytest.raises(ValueError, match=r"entry|cannot be used|no marker"):
        encode(1, NOW, commands)


# Snapshots.


def lived() -> Replica:
    """A replica with something in each part of its state."""
    replica = Replica()
    replica.append(
        placeholder(3, producer=9, producer_epoch=1, sequence=0),
        placeholder(2, epoch=7, producer=8, producer_epoch=0, sequence=5),
        window=(5, 7),
    )
    replica.apply(AppendInline([inline(2, b"\x00\xff")]))
    replica.begin_term(4)
    replica.append(placeholder(3, epoch=7, producer=9, producer_epoch=1, sequence=3), window=(7, 7))
    replica.apply(Checkpoint(500), time=NOW + 5)
    replica.apply(SetStartOffset(4))
    return replica


def test_a_restored_replica_is_the_same_and_goes_on_the_same() -> None:
    one = lived()
    two = one.restored()
    assert two.machine.snapshot() == one.machine.snapshot()
    retry = placeholder(3, epoch=7, producer=9, producer_epoch=1, sequence=3)
    for replica in (one, two):
        assert replica.append(retry, window=(7, 8)) == [Appended(7, duplicate=True)]
        replica.apply(Tick(1))
        assert replica.machine.offset_for_leader_epoch(1) == (1, 7)
        assert replica.machine.max_collectable_epoch == CREATION_EPOCH - 1
    assert two.machine.snapshot() == one.machine.snapshot()


def test_restoring_replaces_what_was_there() -> None:
    one, other = lived(), Replica(creation_epoch=90, term=9)
    other.append(placeholder(epoch=90), window=(90, 90))
    other.machine.restore(one.machine.snapshot())
    assert other.machine.snapshot() == one.machine.snapshot()


def test_no_window_stands_in_a_snapshot() -> None:
    """What only the leader knows cannot be there: the fields are these, and a reader refuses any other."""
    replica = lived()
    state = msgpack.unpackb(replica.machine.snapshot())
    assert tuple(state) == SNAPSHOT_FIELDS
    for field in ("max_seen_epoch", "oldest_accepted_epoch", "window"):
        with pytest.raises(ValueError, match=field):
            replica.machine.restore(msgpack.packb({**state, field: 7}))


def aborted(*row: int) -> bytes:
    """A state's aborted transactions: one."""
    one = AbortedTransactions()
    one.append(*row)
    return one.packed()


def change(field: str, value: Any) -> Callable[[dict[str, Any]], bytes]:
    def changed(state: dict[str, Any]) -> bytes:
        packed: bytes = msgpack.packb({**state, field: value})
        return packed

    return changed


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (change("format", 7), "it has format 7, this release reads up to 6: upgrade this node"),
        (change("format", 3), "it has format 3 of an earlier release, this one reads 6"),
        (change("previous_applied_epoch", 8), "epochs 5, 8, 7 are out of order"),
        (change("creation_epoch", 8), "epochs 8, 7, 7 are out of order"),
        (change("next_offset", 9), "extents end at offset 10"),
        (change("start_offset", 2), "has no record 2"),
        (change("start_offset", 5), "has no record 5"),
        (change("extents", b""), "without an inline batch"),
        (change("extents", b"x"), "not rows"),
        (change("inline", []), "no bytes"),
        (change("leader_epochs", [[4, 0], [1, 7]]), "terms are out of order"),
        (change("checkpoints", [[4, 0, None], [4, 0, None]]), "checkpoints are out of order"),
        (change("producers", [[1, 0, 0, [], 0, -1, -1, None]]), "producer 1"),
        (change("producers", [[1, 0, 0, [[0, 0, 10]], 0, -1, -1, None]]), "wrote at offset 10"),
        (change("aborted", b"x"), "not a chunk"),
        (change("aborted", aborted(1, 3, 10)), "aborted at 10, and the partition ends"),
        (change("aborted", aborted(1, 2, 3)), "aborted at 3 lies below 4"),
        (lambda state: msgpack.packb({}), "cannot be read"),
        (lambda state: b"\xc1", "cannot be read"),
        (lambda state: b"", "cannot be read"),
        (lambda state: msgpack.packb(7), "cannot be read"),
    ],
)
def test_a_snapshot_that_cannot_be_is_refused_and_nothing_changes(
    damage: Callable[[dict[str, Any]], bytes], why: str
) -> None:
    replica = lived()
    before = replica.machine.snapshot()
    with pytest.raises(ValueError, match=why):
        replica.machine.restore(damage(msgpack.unpackb(before)))
    assert replica.machine.snapshot() == before


def test_a_snapshot_without_extents_must_be_empty() -> None:
    machine = PartitionStateMachine(5, lambda index, state: None)
    state = msgpack.unpackb(machine.snapshot())
    with pytest.raises(ValueError, match="no extent from 0 to 4"):
        machine.restore(msgpack.packb({**state, "next_offset": 4}))


def test_a_placeholder_takes_63_bytes_of_log() -> None:
    """What it costs to replicate a batch of any size; a growth is worth noticing."""
    batch = Placeholder(1000, NOW, 500_000, 1_000_000, 3_000_000, OBJECT, 1_000_000, 0, 2_000_000)
    one = len(encode(1, NOW, [Append(fence(1_000_000, 1_000_001), [batch])]))
    two = len(encode(1, NOW, [Append(fence(1_000_000, 1_000_001), [batch, batch])]))
    assert two - one <= 63
    assert one <= 91
