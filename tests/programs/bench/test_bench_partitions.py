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
    assert min(report.metadata_seconds, report.frames, report.memory, report.elected) > 0
    assert report.metadata_bytes > 12 * 30
    assert 0 < report.led <= 12


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
    assert list(partitions_bench._late(Report(5, metadata_seconds=2.1, elected=3.0))) == [
        "Metadata: 2.1 s, wanted are 2",
        "elected: 3.0 s, wanted are 2",
    ]


def test_the_state_of_a_controller_grows_with_its_partitions() -> None:
    few, many = (partitions_bench.controller_state(count, 5)[0] for count in (100, 10_100))
    assert 10_000 * 8 < many - few < 10_000 * 10
