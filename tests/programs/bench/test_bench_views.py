"""The figures of one small state, and how a problem is told."""

from __future__ import annotations

import json
import os
import sys
from mmap import ACCESS_READ, mmap
from pathlib import Path

import pytest

from tests.programs.bench import views_bench, views_peers, views_state
from tests.programs.bench.views_cluster import Report, Run
from tests.programs.bench.views_memory import taken
from tests.programs.bench.views_rows import Rows
from tests.programs.bench.views_watcher import Watcher


def test_each_figure_of_a_size_is_measured(tmp_path: Path) -> None:
    found = views_state.measure(2_000, 2, tmp_path / "store")
    assert (found["keys"], found["rows"]) == (2_000, 2_000)
    assert min(found.values()) > 0
    cells = views_bench.lines([found, found])
    assert all(len(line) == 4 and "-" not in line[2:] for line in cells)


def test_a_problem_is_told_and_is_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: Run) -> None:
        self._report.problems.append("it broke")

    monkeypatch.setattr(Run, "go", broken)
    monkeypatch.setattr(views_bench, "size", lambda keys, _: dict.fromkeys(FIGURES, 1.0) | {"keys": keys})
    assert views_bench.main(["--keys", "5", "--peer-rows", "0", "--folder", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "- FAILED: it broke" in told
    assert "bench views failed" in told
    assert views_bench.main(["--keys", "5", "--peer-rows", "0", "--folder", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["problems"] == ["it broke"]
    assert (
        views_bench.main(["--keys", "5", "--rows", "0", "--peer-rows", "0", "--folder", str(tmp_path)]) == 0
    )


FIGURES = dict.fromkeys(
    (
        "fill", "steps", "step", "longest", "state", "memory", "peak", "stored", "save", "again", "map",
        "fetch", "recompute",
    ),
    1.0,
)  # fmt: skip


def test_the_longest_gap_and_the_ages_are_those_of_a_time() -> None:
    watcher = Watcher.__new__(Watcher)
    watcher.seen = [(1.0, 0.1), (2.0, 0.2), (5.0, 0.3), (5.5, 0.4), (20.0, 9.0)]
    assert watcher.gap(0.0, 10.0) == 3.0
    assert watcher.ages((1.0, 6.0))[0] == pytest.approx(0.25)
    assert watcher.ages((1.0, 2.5), (19.0, 21.0))[0] == pytest.approx(0.2)
    assert [line[2] for line in views_bench.cluster_lines(Report())] == ["-"] * 18


def test_quantiles_are_those_that_the_values_have() -> None:
    assert views_bench.quantile_lines("pause", [0.5]) == [["pause", "500 ms"]]
    few = views_bench.quantile_lines("pause", [0.1, 0.2, 0.6])
    assert few == [["pause, p50 of 3", "200 ms"], ["the longest of 3", "600 ms"]]
    many = views_bench.quantile_lines("pause", [0.1] * 99 + [0.9])
    assert [line[0] for line in many] == ["pause, p50 of 100", "p99", "the longest of 100"]
    one = {"pause": 0.12, "gap": 0.3, "parts": {"stop": 0.02, "begin": 0.1}}
    wanted = ["2", "stop 20.0 ms, begin 100 ms", "120 ms", "300 ms"]
    assert views_bench.cutover_lines([one] * 2)[1] == wanted


def test_rows_that_are_written_at_once_are_those_that_flow_in() -> None:
    rows = Rows.__new__(Rows)
    rows._keys, rows._sent = 7, 3
    keys, values = rows._columns(20)
    found = [json.loads(one) for one in values.to_pylist()]
    wanted = [rows._numbers(at) for at in range(3, 23)]
    assert [(one["auction"], one["price"]) for one in found] == wanted
    assert keys.to_pylist() == [b"%d" % auction for auction, _ in wanted]
    assert all(set(one) == {"auction", "price", "sent"} for one in found)


def test_memory_is_told_with_and_without_mapped_files(tmp_path: Path) -> None:
    size = 64 << 20
    file = tmp_path / "mapped"
    file.write_bytes(b"x" * size)
    before = taken(os.getpid())
    with file.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as mapped:
        assert mapped.find(b"y") == -1
        after = taken(os.getpid())
    assert after.all - before.all > size * 3 // 4
    assert after.own - before.own < size // 4


def test_a_view_and_duckdb_work_the_same_lines(tmp_path: Path) -> None:
    views_peers.write_inputs(tmp_path / "in", 2_000)
    for work in views_peers.WORKS:
        assert views_peers.own_rate(work, 2_000) > 0
        found, why = views_peers.peer_rate(Path(sys.executable), "duckdb", work, tmp_path / "in", 2_000)
        assert (found is not None and found > 0, why) == (True, "")


def test_a_peer_that_cannot_be_installed_or_run_is_named(tmp_path: Path) -> None:
    python, why = views_peers.install("pathway", tmp_path, tmp_path / "no-uv")
    assert python is None
    assert why.startswith("pathway==0.33.0 cannot be installed: ")
    rate, why = views_peers.peer_rate(Path(sys.executable), "bytewax", "group", tmp_path, 10)
    assert rate is None
    assert why.startswith("bytewax group failed: ")
    rates = {"group strandline": 6.0, "group pathway": 2.0}
    lines = views_peers.lines(rates, {"committed_group": 3.0, "coming_group": 1.0})
    assert [line[2] for line in lines[:3]] == ["3.0 /s", "1.0 /s", "6.0 /s"]
    assert lines[3][1:] == ["pathway", "2.0 /s", "1.5", "3.0", "3"]
    assert lines[4][2:5] == ["-", "-", "-"]
