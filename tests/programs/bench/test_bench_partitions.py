"""The run with a dozen partitions, and how it tells a problem."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strandline.cluster.failure import CommandFailed
from tests.programs.bench import partitions_bench
from tests.programs.bench.partitions_bench import Report, Run


@pytest.mark.timeout(120)
def test_each_figure_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions_bench, "_SETTLE_SECONDS", 1.0)
    report = Report(12)
    Run(tmp_path / "cluster", report, 1.0).go()
    assert report.problems == []
    assert min(report.created, report.processor, report.idle, report.killed, report.started) > 0
    assert report.controller == 0


def test_a_problem_is_told_and_is_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: Run) -> None:
        raise CommandFailed("it broke", "mend it")

    monkeypatch.setattr("strandline.cluster.local.LocalCluster.up", lambda *_, **__: [])
    monkeypatch.setattr("strandline.cluster.local.LocalCluster.down", lambda *_, **__: [])
    monkeypatch.setattr(Run, "_create", broken)
    assert partitions_bench.main(["--partitions", "3", "--folder", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "- FAILED: CommandFailed('it broke; mend it')" in told
    assert "bench partitions failed" in told
    assert partitions_bench.main(["--folder", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["problems"] == ["CommandFailed('it broke; mend it')"]


def test_late_times_are_remarked() -> None:
    assert list(partitions_bench._late(Report(5, created=11.0, killed=1.0))) == [
        "created: 11.0 s, wanted are 10"
    ]
