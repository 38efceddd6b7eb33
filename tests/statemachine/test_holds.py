"""Holds of readers: given only where nothing was cleaned, gone when their time is over, never silently."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from strandline.statemachine.machine import Corruption
from strandline.statemachine.partition.holds import MAX_HOLD_MS, MAX_HOLDS, Hold
from strandline.statemachine.partition.level_one import LevelOneExtent
from strandline.statemachine.partition.partition_commands import (
    AdvanceReconciled,
    Command,
    HoldReleased,
    HoldRenewed,
    ReleaseHold,
    RenewHold,
    ReplaceLevelOne,
    SetStartOffset,
    Tick,
    encode,
)
from strandline.statemachine.partition.partition_state import PartitionState
from strandline.statemachine.partition.rejection import Rejected, Rejection
from tests.statemachine.partitions import NOW, Replica, placeholder

HOUR = 3_600_000


def filled(batches: int = 10, reconciled: int = 50) -> Replica:
    """Batches of ten records, those below an offset in level one."""
    replica = Replica()
    replica.append(*[placeholder(10) for _ in range(batches)])
    reconcile(replica, reconciled)
    return replica


def reconcile(replica: Replica, end: int) -> None:
    first = replica.machine.extents.first_offset
    unique = first.to_bytes(16, "big")
    replica.apply(AdvanceReconciled(first, [LevelOneExtent(first, end, NOW, 1000, 100, 1, unique)]))


def one(replica: Replica, command: Command, time: int = NOW) -> Any:
    results = replica.apply(command, time=time)
    assert isinstance(results, list)
    return results[0]


def publish(replica: Replica, clean: int) -> Any:
    return one(replica, ReplaceLevelOne([], [], clean, clean, clean))


def test_the_first_hold_begins_where_no_replica_can_have_cleaned() -> None:
    replica = filled(reconciled=50)
    assert one(replica, RenewHold("view", 49, HOUR)) == Rejected(Rejection.HOLD_TOO_LOW, 50)
    assert replica.machine.cleanable_end == 50
    assert one(replica, RenewHold("view", 101, HOUR)) == Rejected(Rejection.HOLD_ABOVE_THE_END, 100)
    assert one(replica, RenewHold("view", 50, HOUR)) == HoldRenewed(50, NOW + HOUR)
    reconcile(replica, 100)
    assert replica.machine.cleanable_end == 50


def test_while_one_stands_others_may_begin_where_it_does() -> None:
    replica = filled()
    one(replica, RenewHold("a", 60, HOUR))
    reconcile(replica, 100)
    assert one(replica, RenewHold("b", 59, HOUR)) == Rejected(Rejection.HOLD_TOO_LOW, 60)
    assert one(replica, RenewHold("b", 60, HOUR)) == HoldRenewed(60, NOW + HOUR)
    assert one(replica, RenewHold("a", 90, HOUR)) == HoldRenewed(90, NOW + HOUR)
    assert replica.machine.cleanable_end == 60
    # Its own hold went on: what lies between is held by the other one alone.
    assert one(replica, RenewHold("a", 70, HOUR)) == HoldRenewed(70, NOW + HOUR)
    assert one(replica, ReleaseHold("b")) == HoldReleased(True)
    assert one(replica, ReleaseHold("b")) == HoldReleased(False)
    assert replica.machine.cleanable_end == 70


def test_a_hold_that_ran_out_is_gone_and_its_reader_is_told() -> None:
    replica = filled()
    one(replica, RenewHold("view", 50, HOUR))
    reconcile(replica, 100)
    assert one(replica, RenewHold("view", 50, HOUR), NOW + HOUR - 1) == HoldRenewed(50, NOW + 2 * HOUR - 1)
    late = NOW + 2 * HOUR - 1
    assert one(replica, RenewHold("view", 50, HOUR), late) == Rejected(Rejection.HOLD_TOO_LOW, 100)
    assert (len(replica.machine.holds), replica.machine.cleanable_end) == (0, 100)
    # Time that goes back does not bring it back: replicas may have cleaned meanwhile.
    one(replica, Tick(HOUR, NOW), NOW)
    assert replica.machine.time == NOW
    assert replica.machine.cleanable_end == 100


def test_a_wrong_clock_that_went_back_makes_no_hold_last_for_its_time() -> None:
    replica = filled()
    ahead = NOW + 400 * 24 * HOUR
    one(replica, RenewHold("view", 50, HOUR), ahead)
    one(replica, Tick(HOUR, NOW), NOW)
    assert replica.machine.holds.rows() == [Hold("view", 50, NOW + MAX_HOLD_MS)]


def test_deleted_records_cannot_be_held() -> None:
    replica = filled()
    one(replica, RenewHold("view", 50, HOUR))
    one(replica, SetStartOffset(70))
    assert one(replica, RenewHold("view", 69, HOUR)) == Rejected(Rejection.HOLD_TOO_LOW, 70)
    assert one(replica, RenewHold("view", 70, HOUR)) == HoldRenewed(70, NOW + HOUR)


def test_readers_are_bounded_in_number_and_those_that_are_there_go_on() -> None:
    replica = filled()
    for number in range(MAX_HOLDS):
        assert isinstance(one(replica, RenewHold(f"view {number:02}", 60, HOUR)), HoldRenewed)
    assert one(replica, RenewHold("more", 60, HOUR)) == Rejected(Rejection.TOO_MANY_HOLDS, MAX_HOLDS)
    assert one(replica, RenewHold("view 07", 61, HOUR)) == HoldRenewed(61, NOW + HOUR)


def test_level_one_that_is_clean_beyond_a_hold_is_the_work_of_no_correct_leader() -> None:
    replica = filled()
    assert not isinstance(publish(replica, 40), Rejected)
    one(replica, RenewHold("view", 60, HOUR))
    reconcile(replica, 100)
    assert not isinstance(publish(replica, 60), Rejected)
    with pytest.raises(Corruption, match=r"level one is clean below 61, and a reader holds .* from 60 on"):
        publish(replica, 61)


def test_snapshots_have_holds_and_those_of_earlier_releases_are_read() -> None:
    replica = filled()
    one(replica, RenewHold("b", 60, HOUR))
    one(replica, RenewHold("a", 70, HOUR))
    state = replica.machine.snapshot()
    fields = msgpack.unpackb(state)
    assert fields["holds"] == [["a", 70, NOW + HOUR], ["b", 60, NOW + HOUR]]
    loaded = PartitionState.loaded(state)
    assert (loaded.snapshot(), loaded.holds.lowest) == (state, 60)
    one(replica, ReleaseHold("a"))
    one(replica, ReleaseHold("b"))
    del fields["holds"]
    assert (
        PartitionState.loaded(msgpack.packb({**fields, "format": 5})).snapshot() == replica.machine.snapshot()
    )


@pytest.mark.parametrize(
    ("holds", "reason"),
    [
        ([["b", 60, NOW], ["a", 60, NOW]], "not in order"),
        ([["a", 60, NOW], ["a", 60, NOW]], "not in order"),
        ([["a", "60", NOW]], "is not a hold"),
        ([[f"{number:03}", 60, NOW] for number in range(MAX_HOLDS + 1)], "65 readers hold"),
        ([["a", 39, NOW]], "level one is clean below 40"),
    ],
)
def test_a_snapshot_with_holds_that_cannot_be_is_refused(holds: list[list[Any]], reason: str) -> None:
    replica = filled()
    publish(replica, 40)
    fields = msgpack.unpackb(replica.machine.snapshot())
    fields["holds"] = holds
    with pytest.raises(ValueError, match=reason):
        replica.machine.restore(msgpack.packb(fields))


@pytest.mark.parametrize(
    "command",
    [
        RenewHold("", 0, 1),
        RenewHold("x" * 250, 0, 1),
        RenewHold("a", -1, 1),
        RenewHold("a", 0, 0),
        RenewHold("a", 0, MAX_HOLD_MS + 1),
        ReleaseHold(""),
    ],
)
def test_commands_out_of_bounds_never_reach_the_log(command: Command) -> None:
    with pytest.raises(ValueError, match=r"reader's name|a hold is for"):
        encode(1, NOW, [command])
