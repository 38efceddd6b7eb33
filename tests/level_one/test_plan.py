"""Which partitions a job takes, how much of each, and how their batches become objects."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.node.level_one.plan import (
    LEAST_OBJECT_BYTES,
    MAX_MARKS,
    MAX_SHARES,
    Candidate,
    FirstSeen,
    Grain,
    Share,
    choose,
    cut,
    grain,
    page,
)
from strandline.statemachine.partition.extents import Extents
from tests.level_one.upkeep_harness import CONFIG

TARGET, JOB, AGE = CONFIG.target_bytes, CONFIG.job_bytes, CONFIG.reconcile_seconds


def extents(*lengths: int, count: int = 1) -> Extents:
    made = Extents()
    for length in lengths:
        made.append_inline(count, 1, 1_000, bytes(length))
    return made


def test_nothing_is_due_below_both_limits() -> None:
    assert choose([Candidate(1, TARGET - 1, AGE - 0.1)], CONFIG) == []


def test_by_size_whole_objects_go_and_the_rest_gathers_on() -> None:
    assert choose([Candidate(1, TARGET + 5, 0.0)], CONFIG) == [Share(1, TARGET)]
    assert choose([Candidate(1, 10 * TARGET + 5, 0.0)], CONFIG) == [Share(1, JOB)]


def test_by_age_everything_goes() -> None:
    assert choose([Candidate(1, 5, AGE)], CONFIG) == [Share(1, 5)]
    assert choose([Candidate(1, TARGET + 5, AGE)], CONFIG) == [Share(1, TARGET + 5)]


def test_what_is_half_as_old_goes_along_and_does_not_set_off() -> None:
    half, young = Candidate(2, 7, AGE / 2), Candidate(3, 7, AGE / 2 - 1)
    assert choose([half, young], CONFIG) == []
    assert choose([half, young, Candidate(1, 5, AGE)], CONFIG) == [Share(1, 5), Share(2, 7)]


def test_one_that_is_behind_takes_one_object_before_the_others_have_theirs() -> None:
    backlog = Candidate(1, 100 * TARGET, 10 * AGE)
    assert choose([backlog, Candidate(2, 9, AGE)], CONFIG) == [Share(1, TARGET), Share(2, 9)]
    assert choose([backlog, Candidate(2, 2 * TARGET, AGE)], CONFIG) == [Share(1, TARGET), Share(2, TARGET)]
    # What would only fit in part waits, and what fits beside it does not.
    some = [backlog, Candidate(2, TARGET - 1, 3 * AGE), Candidate(3, 2, 2 * AGE), Candidate(4, 1, AGE)]
    assert choose(some, CONFIG) == [Share(1, TARGET), Share(2, TARGET - 1), Share(4, 1)]


def test_a_job_has_a_bound_on_its_partitions() -> None:
    many = [Candidate(group, 10, AGE) for group in range(1, 500)]
    assert len(choose(many, CONFIG)) == MAX_SHARES


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 5 * TARGET), st.floats(0, 4 * AGE, allow_nan=False)), min_size=1, max_size=30
    ),
    st.integers(1, 4),
)
def test_a_job_is_bounded_takes_who_is_oldest_and_never_more_than_there_is(
    given_: list[tuple[int, float]], factor: int
) -> None:
    config = replace(CONFIG, job_bytes=factor * TARGET)
    candidates = [Candidate(number, size, age) for number, (size, age) in enumerate(given_)]
    shares = choose(candidates, config)
    due = [one for one in candidates if one.age >= AGE or one.bytes >= TARGET]
    assert bool(shares) == bool(due)
    assert sum(share.bytes for share in shares) <= config.job_bytes
    sizes = {one.group: one.bytes for one in candidates}
    assert len({share.group for share in shares}) == len(shares)
    assert all(0 < share.bytes <= sizes[share.group] for share in shares)
    # Whatever is given up to a bound is whole objects; small ones are only what is all there is.
    assert all(share.bytes in (sizes[share.group],) or share.bytes % TARGET == 0 for share in shares)
    if due:
        oldest = max(one.age for one in candidates if one.age >= AGE or one in due)
        assert max(candidates[share.group].age for share in shares) >= oldest


def test_lots_fill_an_object_each_and_a_larger_batch_has_its_own() -> None:
    lengths = [30, 30, 30, 41, 100, 250, 1]
    lots = cut(list(extents(*lengths)), 100)
    assert [[extent.length for extent in lot] for lot in lots] == [[30, 30, 30], [41], [100], [250], [1]]
    assert cut([], 100) == []


@settings(deadline=None)
@given(st.lists(st.integers(1, 300), max_size=50), st.integers(1, 400))
def test_lots_are_all_extents_in_order_and_no_two_neighbours_fit_together(
    lengths: list[int], room: int
) -> None:
    lots = cut(list(extents(*lengths)), room)
    assert [extent.length for lot in lots for extent in lot] == lengths
    assert all(sum(extent.length for extent in lot) <= room or len(lot) == 1 for lot in lots)
    for one, other in itertools.pairwise(lots):
        assert sum(extent.length for extent in one) + other[0].length > room


def test_a_page_begins_where_it_is_told_or_is_empty() -> None:
    some = extents(10, 10, 10, 10, count=3)
    assert [extent.base_offset for extent in page(some, 3, 25, 100)] == [3, 6]
    assert [extent.base_offset for extent in page(some, 3, 5, 100)] == [3]
    assert [extent.base_offset for extent in page(some, 3, 100, 4)] == [3, 6]
    assert page(some, 4, 100, 100) == []
    some.trim(6)
    assert page(some, 3, 100, 100) == []
    assert page(some, 12, 100, 100) == []


class TestFirstSeen:
    def test_age_is_of_the_oldest_that_is_left(self) -> None:
        seen = FirstSeen(60)
        assert seen.age(0, 0.0) == 0.0
        seen.note(0, 0, 0.0)
        assert seen.age(0, 9.0) == 0.0
        seen.note(0, 10, 10.0)
        seen.note(0, 20, 40.0)
        assert seen.age(0, 50.0) == seen.age(9, 50.0) == 40.0
        assert seen.age(10, 50.0) == 10.0
        assert seen.age(20, 50.0) == 0.0
        seen.note(15, 20, 51.0)
        assert seen.age(15, 51.0) == 11.0
        seen.note(20, 20, 52.0)
        assert seen.age(20, 52.0) == 0.0
        seen.note(20, 21, 100.0)
        assert seen.age(20, 101.0) == 1.0

    @settings(deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.floats(0.1, 30)), max_size=200))
    def test_never_younger_than_it_is_and_hardly_older(self, steps: list[tuple[int, int, float]]) -> None:
        period = 16.0
        seen = FirstSeen(period)
        came: dict[int, float] = {}
        first = end = 0
        now = 0.0
        for new, gone, pause in steps:
            now += pause
            came |= dict.fromkeys(range(end, end + new), now)
            end += new
            first = min(first + gone, end)
            seen.note(first, end, now)
            assert len(seen._marks) <= MAX_MARKS
            if first == end:
                assert seen.age(first, now) == 0.0
            else:
                true = now - came[first]
                assert true <= seen.age(first, now) + 1e-9
                if now <= period * MAX_MARKS / 16:
                    assert seen.age(first, now) <= true + period / 16 + 1e-9


@pytest.mark.parametrize(
    ("configs", "size", "span"),
    [
        ({}, 4 * TARGET, 7 * 24 * 3_600_000 // 4),
        ({"retention.ms": "-1"}, 4 * TARGET, None),
        ({"retention.ms": "4000"}, 4 * TARGET, 1000),
        ({"retention.ms": "-1", "retention.bytes": "0"}, LEAST_OBJECT_BYTES, None),
        ({"retention.ms": "-1", "cleanup.policy": "compact", "retention.bytes": "0"}, 4 * TARGET, None),
        ({"cleanup.policy": "compact,delete", "retention.ms": "0", "retention.bytes": "400000"}, 100_000, 0),
    ],
)
def test_objects_are_a_part_of_what_is_kept(configs: dict[str, str], size: int, span: int | None) -> None:
    config = replace(CONFIG, target_bytes=4 * TARGET, job_bytes=4 * TARGET)
    assert grain(configs, config) == Grain(size, span)
