"""The minimum over all copies, beside one made by hand; and when it is sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.node.compaction.distribution import DELAY_SECONDS, Distribution, spacing_seconds
from strandline.node.compaction.removal_minimum import LEVEL_ONE, Ends, HeldBy, held_by, removal_minimum
from strandline.statemachine.partition.partition import FAR_AHEAD_MS
from strandline.statemachine.partition.removal import Removals

DAY = 86_400_000
HOUR = 3600.0
offsets = st.integers(0, 6)
ends = st.builds(lambda mcco, more: Ends(mcco, mcco + more), offsets, offsets)
members = st.lists(st.integers(1, 5), min_size=1, max_size=5, unique=True)
reports = st.dictionaries(st.integers(1, 6), ends)


@given(members, reports, ends)
def test_it_is_above_no_copy_and_as_high_as_that_allows(
    nodes: list[int], known: dict[int, Ends], level_one: Ends
) -> None:
    minimum = removal_minimum(nodes, known, level_one)
    if not {*nodes} <= known.keys():
        assert minimum is None
        return
    copies = [level_one, *(known[node] for node in nodes)]
    assert minimum is not None
    assert all(minimum.mcco <= copy.mcco and minimum.mxfo <= copy.mxfo for copy in copies)
    assert any(minimum.mcco == copy.mcco for copy in copies)
    assert any(minimum.mxfo == copy.mxfo for copy in copies)
    assert minimum.mcco <= minimum.mxfo


@given(members, reports, ends)
def test_what_holds_it_back_is_who_said_nothing_or_who_is_behind(
    nodes: list[int], known: dict[int, Ends], level_one: Ends
) -> None:
    held = held_by(nodes, known, level_one)
    minimum = removal_minimum(nodes, known, level_one)
    if minimum is None:
        silent = tuple(sorted({*nodes} - known.keys()))
        assert held == HeldBy(silent, silent)
        return
    copies = {LEVEL_ONE: level_one, **{node: known[node] for node in nodes}}
    raised = {copy: Ends(99, 99) if copy in held.tombstones else ends for copy, ends in copies.items()}
    if held.tombstones:
        assert min(ends.mcco for ends in raised.values()) > minimum.mcco, "with them out of the way it rises"
        assert all(copies[copy].mcco == minimum.mcco for copy in held.tombstones)
    else:
        assert len({ends.mcco for ends in copies.values()}) == 1
    assert (not held.markers) == (len({ends.mxfo for ends in copies.values()}) == 1)
    assert all(copies[copy].mxfo == minimum.mxfo for copy in held.markers)


def test_without_replicas_level_one_alone_counts() -> None:
    """No configuration is empty; a minimum over nothing would be no bound at all."""
    assert removal_minimum((), {}, Ends(3, 4)) == Ends(3, 4)


@pytest.mark.parametrize(
    ("retention", "seconds"),
    [(0, 1.0), (23_999, 1.0), (48_000, 2.0), (DAY, HOUR), (30 * DAY, HOUR), (2**63 - 1, HOUR)],
)
def test_entries_keep_a_24th_of_the_retention_within_bounds(retention: int, seconds: float) -> None:
    assert spacing_seconds(retention) == seconds


def test_changes_wait_for_others_and_for_the_entry_before() -> None:
    timing, removals = Distribution(), Removals()

    def due(minimum: Ends | None, now: float, retention: int = DAY) -> bool:
        return timing.is_due(minimum, removals, retention, now, 0)

    assert not due(Ends(0, 0), 1000.0)
    assert not due(Ends(0, 1), 1001.0)
    assert not due(Ends(5, 9), 1001.0 + DELAY_SECONDS - 0.1)
    assert due(Ends(6, 9), 1001.0 + DELAY_SECONDS)
    timing.attempted(1006.0)
    removals.advance(6, 9, DAY, 0)
    timing.in_force(1006.0)
    assert not due(Ends(6, 9), 1006.0 + 2 * HOUR), "nothing has changed"
    assert not due(Ends(7, 9), 1007.0)
    assert not due(Ends(7, 9), 1006.0 + HOUR - 1)
    assert due(Ends(7, 9), 1006.0 + HOUR)
    assert due(Ends(7, 9), 1100.0, retention=60_000), "a retention that was lowered counts at once"
    assert not due(None, 1006.0 + HOUR), "a member has not reported"
    assert not due(Ends(7, 9), 1007.0 + HOUR), "and the delay begins again"


def test_changes_wait_no_longer_for_others_than_entries_keep_their_distance() -> None:
    timing, removals, retention = Distribution(), Removals(), 48_000
    assert not timing.is_due(Ends(0, 1), removals, retention, 1000.0, 0)
    assert not timing.is_due(Ends(0, 1), removals, retention, 1001.9, 0)
    assert timing.is_due(Ends(0, 1), removals, retention, 1002.0, 0)


def test_an_entry_that_failed_is_tried_again_soon_and_not_at_every_look() -> None:
    timing, removals = Distribution(), Removals()
    assert not timing.is_due(Ends(1, 1), removals, DAY, 0.0, 0)
    assert timing.is_due(Ends(1, 1), removals, DAY, 5.0, 0)
    timing.attempted(5.0)
    assert not timing.is_due(Ends(1, 1), removals, DAY, 9.9, 0)
    assert timing.is_due(Ends(1, 1), removals, DAY, 10.0, 0)


def test_rows_ripen_by_the_clock_also_while_a_member_is_silent() -> None:
    timing, removals = Distribution(), Removals()
    removals.advance(5, 5, DAY, 1_000_000)
    assert not timing.is_due(None, removals, DAY, 0.0, 1_000_000 + DAY - 1)
    assert timing.is_due(None, removals, DAY, 0.0, 1_000_000 + DAY)
    timing.attempted(0.0)
    assert not timing.is_due(None, removals, DAY, 4.0, 1_000_000 + DAY)
    removals.advance(5, 5, DAY, 1_000_000 + DAY)
    timing.in_force(0.1)
    assert not timing.is_due(None, removals, DAY, 100.0, 1_000_000 + 2 * DAY)


def test_rows_of_a_clock_that_was_wrong_get_an_entry_that_sets_the_time_back() -> None:
    timing, removals = Distribution(), Removals()
    removals.advance(5, 5, DAY, 1_000_000 + FAR_AHEAD_MS)
    assert not timing.is_due(None, removals, DAY, 0.0, 1_000_000)
    assert timing.is_due(None, removals, DAY, 0.0, 999_999)
