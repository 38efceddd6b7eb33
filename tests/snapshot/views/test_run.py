"""Runs and spines against dictionaries; hashes that collide; merges that come late."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.snapshot.views import hashing, spine
from strandline.snapshot.views.errors import ViewInvariant
from strandline.snapshot.views.run import ALL_HASHES, HASHES, HashRange, Layout, Run, merged, run_of
from strandline.snapshot.views.spine import Merge, Spine, contents
from strandline.snapshot.views.zset import ZSet, chosen, frame, gathered
from tests.snapshot.views.collisions import four_bit_hashes
from tests.snapshot.views.deltas import CUTS, FACTS, FEW, Change, counted, histories, of, rows_there, steps

BY_NUMBER = Layout(FACTS, (0,))
BY_ROW = Layout(FACTS, (0, 1, 2))
LAYOUTS = st.sampled_from([BY_NUMBER, Layout(FACTS, (0, 1)), BY_ROW, Layout(FACTS, (0,), order=1)])


def run(layout: Layout, changes: list[Change]) -> Run:
    delta = of(changes)
    return run_of(layout, delta.rows, (delta.weights,))


def of_run(one: Run) -> Counter[tuple[object, ...]]:
    return counted(ZSet(one.rows, one.sums[0]))


def spine_of(layout: Layout, changes: list[Change], cuts: list[int]) -> Spine:
    made = Spine(layout)
    for delta in steps(changes, cuts):
        made = made.with_run(run_of(layout, delta.rows, (delta.weights,)))
    return made


@FEW
@given(histories(), LAYOUTS)
def test_a_run_has_each_row_once_in_the_order_of_hashes(changes: list[Change], layout: Layout) -> None:
    one = run(layout, changes)
    assert of_run(one) == rows_there(changes)
    assert len(one) == len(rows_there(changes))
    assert np.array_equal(one.hashes, np.sort(one.hashes))
    assert np.array_equal(one.hashes, hashing.key_hash(chosen(one.rows, layout.key)))


@FEW
@given(histories(), CUTS, LAYOUTS, st.booleans())
def test_a_spine_is_a_dictionary_however_it_was_cut(
    changes: list[Change], cuts: list[int], layout: Layout, collide: bool
) -> None:
    with four_bit_hashes(collide):
        made = spine_of(layout, changes, cuts)
        whole = contents(made, ALL_HASHES)
        assert of_run(whole) == rows_there(changes)
        at_once = run(layout, changes)
        # The order of a run is a function of its rows alone.
        assert whole.rows.equals(at_once.rows)
        assert np.array_equal(whole.sums[0], at_once.sums[0])
        halves = [HashRange(0, 1 << 63), HashRange((1 << 63) + 1, HASHES - 1)]
        parts = [of_run(contents(made, half)) for half in halves]
        assert parts[0] + parts[1] == rows_there(changes)


@FEW
@given(histories(), CUTS, st.booleans())
def test_keys_are_found_in_all_runs(changes: list[Change], cuts: list[int], collide: bool) -> None:
    with four_bit_hashes(collide):
        made = spine_of(BY_NUMBER, changes, cuts)
        keys = frame([pl.Series([None, *range(-2, 9)], dtype=pl.Int64)])
        found = made.rows_of(hashing.key_hash(keys), keys)
        assert (counted(found) if found else Counter()) == rows_there(changes)


@FEW
@given(histories(), histories())
def test_a_merge_of_two_runs_is_the_run_of_both(first: list[Change], second: list[Change]) -> None:
    both = merged(run(BY_ROW, first), run(BY_ROW, second))
    at_once = run(BY_ROW, [*first, *second])
    assert both.rows.equals(at_once.rows)
    assert np.array_equal(both.hashes, at_once.hashes)
    assert np.array_equal(both.sums[0], at_once.sums[0])


@FEW
@given(histories(), CUTS)
def test_a_digest_depends_on_the_rows_alone(changes: list[Change], cuts: list[int]) -> None:
    total = 0
    for delta in steps(changes, cuts):
        total += hashing.digest(hashing.row_hashes(delta.rows), delta.weights)
    left = run(BY_ROW, changes)
    assert total % hashing.DIGEST_MODULUS == hashing.digest(hashing.row_hashes(left.rows), left.sums[0])


def test_a_digest_of_heavy_rows_does_not_overflow() -> None:
    rows = frame([pl.Series([1, 2], dtype=pl.Int64)])
    hashes = hashing.row_hashes(rows)
    one = [hashing.digest(hashing.row_hashes(rows[at : at + 1]), np.array([1])) for at in (0, 1)]
    heavy = hashing.digest(hashes, np.array([1 << 62, -(1 << 62)]))
    assert heavy == ((one[0] - one[1]) << 62) % hashing.DIGEST_MODULUS


def test_hashes_do_not_change_between_versions() -> None:
    """Stored runs have them: another value here needs another `hashing.KIND`."""
    rows = frame([pl.Series([7, None], dtype=pl.Int64), pl.Series(["strand", ""]), pl.Series([0.5, -1.0])])
    hashes = hashing.row_hashes(rows)
    assert [hex(each) for each in hashes.low.tolist()] == HASHED[0]
    assert [hex(each) for each in hashes.high.tolist()] == HASHED[1]


HASHED = (["0x2861e5c797e105dc", "0xcc8024c1bbaaf00b"], ["0x261eace06b232fff", "0x3a69d153c0e02c52"])


def test_arrays_of_a_run_cannot_be_written_to() -> None:
    one = run(BY_NUMBER, [((1, "a", 1.0), 1)])
    for array in (one.hashes, one.sums[0], one.ties):
        assert array is not None
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7


def test_more_retractions_than_rows_are_told_of() -> None:
    made = Spine(BY_ROW).with_run(run(BY_ROW, [((1, "a", 1.0), -1)]))
    with pytest.raises(ViewInvariant, match="more often"):
        contents(made, ALL_HASHES)


def numbered(layout: Layout, numbers: range) -> Run:
    return run(layout, [((number, None, None), 1) for number in numbers])


def test_runs_stay_few(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Spine(BY_NUMBER)
    for start in range(0, 4000, 10):
        made = made.with_run(numbered(BY_NUMBER, range(start, start + 10)))
        sizes = [len(one) for one in made.runs]
        assert all(first > 2 * second for first, second in itertools.pairwise(sizes))
        assert len(sizes) <= 2 + (len(made) // 10).bit_length()


def test_a_large_merge_is_due_and_installed_only_over_the_same_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spine, "INLINE_ROWS", 30)
    first = (
        Spine(BY_NUMBER).with_run(numbered(BY_NUMBER, range(20))).with_run(numbered(BY_NUMBER, range(20, 40)))
    )
    assert [len(one) for one in first.runs] == [20, 20]
    merge = first.due()
    assert merge is not None
    made = merge.made()
    later = first.with_run(numbered(BY_NUMBER, range(40, 45)))
    replaced = later.replaced(merge, made)
    assert [len(one) for one in replaced.runs] == [40, 5]
    assert replaced.due() is None
    # The runs are gone: what was merged of them must not come back.
    assert replaced.replaced(merge, made) is replaced
    assert [len(one) for one in later.runs] == [20, 20, 5], "a reader of the spine keeps what it had"


def test_a_large_merge_of_which_nothing_is_left_gives_no_run_and_no_file() -> None:
    there = run(BY_NUMBER, [((number, None, None), 1) for number in range(50)])
    gone = run(BY_NUMBER, [((number, None, None), -1) for number in range(50)])
    kept: list[Run] = []

    def keep(one: Run) -> Run:
        kept.append(one)
        return one

    assert Merge((there,), (gone,)).made(keep) == ()
    assert kept == []


def test_a_large_merge_gives_runs_of_some_size_that_are_one_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spine, "INLINE_ROWS", 30)
    monkeypatch.setattr(spine, "PIECE_ROWS", 60)
    monkeypatch.setattr(spine, "LEAST_PIECE_ROWS", 40)
    made, kept = Spine(BY_NUMBER), 0

    def keep(run: Run) -> Run:
        nonlocal kept
        kept += 1
        assert len(run) <= 60 + 40 + 60, "a merge takes memory for one of its runs"
        return run

    there: set[int] = set()
    for number in range(60):
        # The last third takes away what the first has added.
        numbers = (
            range(number * 20, number * 20 + 20)
            if number < 40
            else range((number - 40) * 20, (number - 39) * 20)
        )
        sign = 1 if number < 40 else -1
        made = made.with_run(run(BY_NUMBER, [((each, None, None), sign) for each in numbers]))
        there = there | {*numbers} if sign > 0 else there - {*numbers}
        while (merge := made.due()) is not None:
            made = made.replaced(merge, merge.made(keep))
        sizes = [sum(map(len, level)) for level in made.levels]
        assert all(first > 2 * second for first, second in itertools.pairwise(sizes))
        asked = frame([pl.Series(range(1000), dtype=pl.Int64)])
        hashes = hashing.key_hash(asked)
        for order in (np.argsort(hashes), np.arange(1000)):
            found = made.rows_of(hashes[order], gathered(asked, order))
            assert found is not None
            sums: dict[int, int] = {}
            for row, weight in zip(found.rows["c0"].to_list(), found.weights.tolist(), strict=True):
                sums[row] = sums.get(row, 0) + weight
            assert {row for row, weight in sums.items() if weight} == there
    assert len(made.runs) > len(made.levels)
    assert kept > 20


def test_rows_of_one_hash_stay_in_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spine, "INLINE_ROWS", 1)
    monkeypatch.setattr(spine, "PIECE_ROWS", 10)
    monkeypatch.setattr(spine, "LEAST_PIECE_ROWS", 5)
    one = run(BY_NUMBER, [((1, f"{text}", None), 1) for text in range(100)] + [((2, "b", None), 1)])
    other = run(BY_NUMBER, [((1, f"{text}", None), 1) for text in range(100, 200)])
    merge = Spine(BY_NUMBER).with_run(one).with_run(other).due()
    assert merge is not None
    made = merge.made()
    assert sum(map(len, made)) == 201
    hashes = [{*each.hashes.tolist()} for each in made]
    assert all(not first & second for first, second in itertools.combinations(hashes, 2))
