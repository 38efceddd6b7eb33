"""Files of runs: the same run comes back, and a damaged file is told of."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.snapshot.views import hashing, run_file
from strandline.snapshot.views.errors import RunDamaged
from strandline.snapshot.views.run import HashRange, Layout, Run, run_of
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
    old = hashing.row_hashes
    with monkeypatch.context() as patch:
        patch.setattr(hashing, "KIND", "other")
        patch.setattr(hashing, "row_hashes", lambda rows: hashing.RowHashes(*old(rows)[::-1]))
        path = written(tmp_path)
    again = map_run(path)
    assert np.array_equal(again.hashes, np.sort(again.hashes))
    assert equal(again, run([((number, "text", 0.5), 1) for number in range(50)], Layout(FACTS, (0,))))


def test_a_file_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    path = written(tmp_path)
    with pytest.raises(FileExistsError):
        write_run(path, map_run(path))
