"""Cleaning stops at the lowest hold: a reader that restarts from there is given what it was given before."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import PropertyMock, patch

import pytest

from strandline.node.compaction.replica_log import ReplicaLog
from strandline.statemachine.machine import Corruption
from strandline.statemachine.partition.partition_commands import (
    HoldRenewed,
    ReleaseHold,
    RenewHold,
)
from strandline.statemachine.partition.partition_state import PartitionState
from tests.compaction.logs import Plan
from tests.compaction.upkeep_harness import Replica, check, compaction_node, contents

HOUR = 3_600_000


def put(replica: Replica, *keys: bytes) -> None:
    """One record of each key, its value the offset it gets; one object for them."""
    for key in keys:
        offset = replica.machine.next_offset
        replica.put(Plan(((key, b"%d" % offset, offset),)))
    replica.lift()


def hold(replica: Replica, offset: int, reader: str = "view") -> None:
    assert isinstance(replica.apply(RenewHold(reader, offset, HOUR)), HoldRenewed)


def offsets(log: ReplicaLog) -> list[int]:
    return [one.offset for one in contents(log)]


def test_a_record_between_a_hold_and_the_record_that_supersedes_it_stays() -> None:
    """K at 6 is superseded by K at 9; a reader is at 8, and goes back to 5 when it restarts (schedule 22)."""
    with compaction_node() as node:
        replica = node.add()
        put(replica, b"k", b"a", b"k", b"b", b"a")
        hold(replica, 5)
        put(replica, b"b", b"k", b"c", b"a", b"k", b"k", b"end")
        node.settle()
        log = node.log(replica)
        # Below the hold the log is clean: k at 0 went, for k at 2. Behind it nothing has gone.
        assert offsets(log) == [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
        check(log)
        hold(replica, 8)
        node.settle()
        assert offsets(log) == [4, 5, 6, 7, 8, 9, 10, 11], "k at 2 and b at 3 are superseded below 8"
        check(log)
        replica.apply(ReleaseHold("view"))
        node.settle()
        assert offsets(log) == [5, 7, 8, 10, 11]
        check(log)


def test_a_batch_that_reaches_beyond_a_hold_is_not_cleaned_in_part() -> None:
    with compaction_node() as node:
        replica = node.add()
        put(replica, b"k", b"a")
        replica.put(Plan(((b"k", b"2", 2), (b"k", b"3", 3), (b"k", b"4", 4))))
        hold(replica, 3)
        replica.lift()
        put(replica, b"end")
        node.settle()
        assert offsets(node.log(replica)) == [0, 1, 2, 3, 4, 5]


def test_when_its_time_is_over_cleaning_goes_on() -> None:
    with compaction_node() as node:
        replica = node.add()
        put(replica, b"k")
        hold(replica, 1)
        put(replica, b"k", b"k", b"end")
        node.settle()
        assert offsets(node.log(replica)) == [0, 1, 2, 3]
        replica.now_ms += HOUR
        replica.apply(ReleaseHold("another"))
        node.settle()
        assert offsets(node.log(replica)) == [2, 3]


def test_a_replica_that_replays_its_log_does_not_clean_beyond_what_its_state_knows() -> None:
    """After a restart the log is ahead of the state, which does not know yet of a hold that was given.

    The hold was given at level one's end of then or above, so that is how far the state lets it clean.
    """
    with compaction_node() as node:
        replica = node.add()
        put(replica, b"k", b"a")
        before = replica.machine.snapshot()
        hold(replica, 2)
        put(replica, b"k", b"a", b"k", b"end")
        node.settle()
        after = replica.machine.snapshot()
        log = node.log(replica)
        assert offsets(log) == [0, 1, 2, 3, 4, 5]
        replica.machine.restore(before)
        again = node.again()
        again.settle()
        replica.machine.restore(after)
        again.settle()
        assert offsets(again.log(replica)) == [0, 1, 2, 3, 4, 5]


def test_a_hold_above_the_end_of_an_older_state_lets_nothing_be_cleaned_beyond_that_end() -> None:
    """The hold is over since, and then another was given below it: at the end of then, or above."""
    with compaction_node() as node:
        replica = node.add()
        put(replica, b"k", b"a")
        replica.put(Plan(((b"k", b"2", 2),)))
        hold(replica, 3, "over since")
        before = replica.machine.snapshot()
        replica.apply(ReleaseHold("over since"))
        hold(replica, 2)
        replica.lift()
        put(replica, b"k", b"a", b"k", b"end")
        node.settle()
        after = replica.machine.snapshot()
        log = node.log(replica)
        assert offsets(log) == [0, 1, 2, 3, 4, 5, 6]
        replica.machine.restore(before)
        again = node.again()
        again.settle()
        replica.machine.restore(after)
        again.settle()
        assert offsets(again.log(replica)) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "play",
    [
        test_a_record_between_a_hold_and_the_record_that_supersedes_it_stays,
        test_a_batch_that_reaches_beyond_a_hold_is_not_cleaned_in_part,
        test_when_its_time_is_over_cleaning_goes_on,
        test_a_replica_that_replays_its_log_does_not_clean_beyond_what_its_state_knows,
        test_a_hold_above_the_end_of_an_older_state_lets_nothing_be_cleaned_beyond_that_end,
    ],
)
def test_sabotage_rounds_that_know_of_no_holds(play: Callable[[], None]) -> None:
    with (
        patch.object(PartitionState, "cleanable_end", new_callable=PropertyMock, return_value=1 << 62),
        pytest.raises((AssertionError, Corruption)),
    ):
        play()
