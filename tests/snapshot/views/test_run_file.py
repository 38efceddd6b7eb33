"""Files of runs: the same run comes back, and a damaged file is told of."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.snapshot.views import hashing, run_file, zset
from strandline.snapshot.views.errors import RunDamaged
from strandline.snapshot.views.run import HASHES, HashRange, Layout, Run, merged, run_of
from strandline.snapshot.views.run_file import check_run, map_run, packed, unpacked, write_run
from tests.snapshot.views.deltas import FACTS, FEW, Change, histories, of

LAYOUTS = st.sampled_from([Layout(FACTS, (0,)), Layout(FACTS, (0, 1, 2)), Layout(FACTS, (0,), order=2)])
SAME_FOLDER = settings(FEW, suppress_health_check=[HealthCheck.function_scoped_fixture])
NUMBERS = itertools.count()


def run(changes: list[Change], layout: Layout) -> Run:
    delta = of(changes)
    return run_of(layout, delta.rows, (delta.weights,))


def equal(one: Run, other: Run) -> bool:
    ties = one.ties is other.ties is None or np.array_equal(one.ties, other.ties)  # type: ignore[arg-type]
    return (
        ties
        and one.layout == other.layout
        and one.rows.equals(other.rows)
        and np.array_equal(one.hashes, other.hashes)
        and all(map(np.array_equal, one.sums, other.sums))
    )


@SAME_FOLDER
@given(histories(), LAYOUTS)
def test_a_run_comes_back(tmp_path: Path, changes: list[Change], layout: Layout) -> None:
    whole = run(changes, layout)
    for one in (whole, whole.within(HashRange(0, 1 << 63))):
        path = tmp_path / str(next(NUMBERS))
        crc = write_run(path, one)
        assert equal(map_run(path), one)
        assert check_run(path) == crc
        path.unlink()
        assert equal(unpacked("object", b"".join(packed(one))), one)


LONG: Final = Layout((pl.String(), pl.Int64()), (0,))


def texts(numbers: Iterable[int], counts: Sequence[int], weight: int = 1) -> Run:
    named = [f"the long name of a group, number {number:09d}" for number in numbers]
    rows = pl.DataFrame({"c0": named, "c1": list(counts)})
    return run_of(LONG, rows, (np.full(len(named), weight, np.int64),))


def size(one: Run) -> int:
    return sum(map(len, run_file._parts(one, compressed=False)))


def text_buffers(one: Run) -> list[int]:
    """The sizes of the pieces of memory in which a run's text lies."""
    [text, _] = one.rows.to_arrow(compat_level=pl.CompatLevel.newest()).columns
    return [buffer.size for buffer in text.combine_chunks().buffers()[2:]]


def test_a_run_keeps_no_text_of_rows_that_are_gone() -> None:
    """Each step changes the same groups, and adds one that stays: of its text is all that came with it."""
    hot = range(1000)
    whole = texts(hot, [0] * len(hot))
    for step in range(30):
        whole = merged(whole, texts(hot, [step] * len(hot), -1))
        whole = merged(whole, texts([*hot, 1000 + step], [step + 1] * (len(hot) + 1)))
        assert sum(text_buffers(whole)) <= 2 * whole.rows["c0"].estimated_size() + zset.FREE_BYTES
    assert sorted(whole.rows["c1"].to_list()) == [*range(1, 30), *[30] * (len(hot) + 1)]
    assert size(whole) <= 2 * size(texts(range(len(whole)), whole.rows["c1"].to_list())) + zset.FREE_BYTES


def test_a_part_of_a_run_has_its_own_text_in_its_file() -> None:
    whole = texts(range(8000), [0] * 8000)
    part = whole.within(HashRange(0, HASHES // 20))
    assert size(part) < size(whole) / 10


def test_text_in_many_pieces_is_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zset, "MOST_BUFFERS", 8)
    whole = texts([0], [0])
    for first in range(1, 4000, 100):
        some = range(first, first + 100)
        whole = merged(whole, texts(some, some))
        assert len(text_buffers(whole)) <= 8
    assert sorted(whole.rows["c1"].to_list()) == [*range(4001)]


@given(st.lists(st.none() | st.text() | st.text(min_size=13), max_size=20))
def test_text_that_is_copied_is_the_same(found: list[str | None]) -> None:
    column = pl.Series("c0", found, dtype=pl.String)
    again = zset._copied(column)
    assert (again.name, again.dtype, again.to_list()) == (column.name, column.dtype, found)


def written(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    write_run(path, run([((number, "text", 0.5), 1) for number in range(50)], Layout(FACTS, (0,))))
    return path


def test_every_damaged_byte_is_found(tmp_path: Path) -> None:
    path = written(tmp_path)
    good = path.read_bytes()
    for place in range(0, len(good), 7):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x10]) + good[place + 1 :])
        with pytest.raises(RunDamaged):
            check_run(path)
        with pytest.raises(RunDamaged):
            unpacked("object", path.read_bytes())


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 100, -1])
def test_a_torn_file_is_found(tmp_path: Path, length: int) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(RunDamaged, match="run"):
        map_run(path)
    with pytest.raises(RunDamaged, match="run"):
        check_run(path)
    with pytest.raises(RunDamaged, match="object"):
        unpacked("object", path.read_bytes())


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)
    monkeypatch.setattr(run_file, "VERSION", 2)
    with pytest.raises(RunDamaged, match="has version 1; this program reads 2"):
        map_run(path)


def test_a_run_of_another_hash_is_hashed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = hashing.halves
    with monkeypatch.context() as patch:
        patch.setattr(hashing, "KIND", "other")
        patch.setattr(hashing, "halves", lambda rows, wanted: old(rows, tuple(1 - one for one in wanted)))
        path = written(tmp_path)
    again = map_run(path)
    assert np.array_equal(again.hashes, np.sort(again.hashes))
    assert equal(again, run([((number, "text", 0.5), 1) for number in range(50)], Layout(FACTS, (0,))))


def test_a_file_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    path = written(tmp_path)
    with pytest.raises(FileExistsError):
        write_run(path, map_run(path))
