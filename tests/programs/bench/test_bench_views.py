"""The figures of one small state, and how a problem is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.programs.bench import views_bench, views_state
from tests.programs.bench.views_bench import Report, Run, Watcher


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
    assert views_bench.main(["--keys", "5", "--folder", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "- FAILED: it broke" in told
    assert "bench views failed" in told
    assert views_bench.main(["--keys", "5", "--folder", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["problems"] == ["it broke"]
    assert views_bench.main(["--keys", "5", "--rows", "0", "--folder", str(tmp_path)]) == 0


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
    assert watcher.ages(1.0, 6.0)[0] == pytest.approx(0.25)
    assert [line[2] for line in views_bench.cluster_lines(Report().cluster)] == ["-"] * 9
