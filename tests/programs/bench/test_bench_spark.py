"""What the run asks for and reckons, with commands that are played; and what a command takes."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.programs.bench import processor, spark_bench
from tests.programs.bench.processor import Taken
from tests.programs.bench.spark_bench import Line, Report, Run, growth
from tests.programs.bench.spark_storage import GrowingStorage, Stored


def test_the_processor_time_of_orphans_counts() -> None:
    spin = "import time\nwhile time.process_time() < 0.3: pass"
    orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {spin!r}])"
    taken = processor.run([sys.executable, "-c", orphan], 60.0)
    assert taken.status == 0
    assert taken.cpu >= 0.3
    assert processor.run([sys.executable, "-c", "raise SystemExit(3)"], 60.0).status == 3


def test_storage_grows_and_has_both_levels(tmp_path: Path) -> None:
    storage = GrowingStorage(tmp_path / "objects", 100, 10, 2)
    assert (storage.grow(4).records, storage.grow(400).records) == (40, 4_000)
    for level in ("l0", "l1"):
        assert any((tmp_path / "objects" / level).rglob("*"))


@pytest.mark.parametrize("lost", [0, 1])
def test_every_job_runs_at_every_size_and_what_is_missing_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes: list[int] = []

    def played(command: Sequence[str], seconds: float) -> Taken:
        told = {"records": sizes[-1] - lost, "start": 1.0, "first": 3.0, "again": 2.0}
        if "export" in command:
            target = Path(command[command.index("--to") + 1])
            target.mkdir(parents=True)
            (target / "one.parquet").touch()
        return Taken(0, 9.0, 4.0 + sizes[-1] / 1_000, 1, json.dumps(told), "")

    grow = GrowingStorage.grow

    def noted(self: GrowingStorage, batches: int) -> Stored:
        stored = grow(self, batches)
        sizes.append(stored.records)
        return stored

    monkeypatch.setattr(processor, "run", played)
    monkeypatch.setattr(GrowingStorage, "grow", noted)
    status = spark_bench.main(["--tiny", "--record-bytes", "1000", "--folder", str(tmp_path)])
    told = capsys.readouterr().out
    assert status == lost
    assert told.count(" records of ") == (8 if lost else 0)
    report = Report("tiny")
    Run(tmp_path, report, [1000], ["export"]).go()
    assert [line.job for line in report.lines] == ["export"] * 3
    assert ("bench spark ok" in told) is not bool(lost)
    assert "audit again: " in told


def test_growth_is_what_a_further_gigabyte_takes() -> None:
    lines = [
        Line("read", f"1,000 B a record, {size} GB", bytes=size * 10**9, cpu=20 + 3.0 * size)
        for size in (1, 4, 16)
    ]
    assert list(growth(lines)) == ["read: 3.00 s of processor a GB at 1,000 B a record, and 20.0 s once"]
    lines = [Line("audit", f"{count} batches", batches=count, cpu=5 + count / 1_000) for count in (10, 1_000)]
    assert list(growth(lines)) == ["audit: 1.00 ms of processor a batch, and 5.00 s once"]
    assert not list(growth(lines[:1]))
