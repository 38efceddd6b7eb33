"""What the run asks for and reckons, with commands that are played; and what a command takes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.clients.programs import SPARK, Missing
from tests.peers.kafka_jars import NoKafka
from tests.programs.bench import processor, spark_bench, spark_beside
from tests.programs.bench.processor import Taken
from tests.programs.bench.spark_bench import Line, Report, Run, growth
from tests.programs.bench.spark_beside import WAYS, Beside
from tests.programs.bench.spark_driver import STREAMS, Given
from tests.programs.bench.spark_storage import GrowingStorage


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


class PlayedServers:
    """A cluster's processes that take two seconds between two looks."""

    seconds = 0.0

    def processor(self) -> float:
        self.seconds += 2
        return self.seconds


def played_go(self: Beside, jobs: Sequence[str], each: Callable[..., None]) -> None:
    for job in jobs:
        for way in WAYS[job]:
            each(job, way, Given(way.format, "topic", records=4_000), PlayedServers())


@pytest.mark.parametrize("lost", [0, 1])
def test_every_job_runs_at_every_size_and_what_is_missing_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def played(command: Sequence[str], seconds: float) -> Taken:
        told, records = {}, 1_000
        if "tests.programs.bench.spark_driver" in command:
            given = Given(**json.loads(command[4]))
            records = given.records
            # Strandline's are twice as fast as what is beside them.
            again = 1.0 if given.format == "strandline" else 2.0
            took = [again, 2 * again, 0.5]
            told = {"records": records - lost, "start": [1.0, 3.0, 0.5]} | dict.fromkeys(STREAMS, took)
        if "export" in command:
            target = Path(command[command.index("--to") + 1])
            target.mkdir(parents=True)
            (target / "one.parquet").touch()
        return Taken(0, 9.0, 4.0 + records / 1_000, 1, json.dumps(told), "")

    monkeypatch.setattr(processor, "run", played)
    monkeypatch.setattr(SPARK.__class__, "command", lambda self: ["python", "jars"])
    monkeypatch.setattr(Beside, "go", played_go)
    status = spark_bench.main(["--tiny", "--record-bytes", "1000", "--folder", str(tmp_path)])
    told = capsys.readouterr().out
    assert status == lost
    assert told.count(" records of ") == (3 + 3 + 2 + 2 + 11 if lost else 0)
    report = Report("tiny")
    Run(tmp_path, report, [1000], ["export"]).go()
    assert [line.job for line in report.lines] == ["export"] * 3
    assert ("bench spark ok" in told) is not bool(lost)
    assert "audit again: " in told
    assert "of processor a partition" in told
    size = "1,000 B a record, 4 MB"
    missed = f"read, again, {size}: Strandline's source is 2.0 times Kafka's source, wanted 3: MISSED"
    assert (missed in told) is not bool(lost)
    assert "sink, 1,000 B a record, 4 MB: Strandline's sink, exactly once is 2.0 times" in told
    for which in () if lost else STREAMS:
        assert f"stream, {which}, 1,000 B a record, 4 MB: Strandline's source is 2.0 times Kafka's" in told
    if not lost:
        report = Report("tiny")
        Run(tmp_path / "streams", report, [1000], ["stream"]).go()
        first, again, larger, *_ = report.lines
        assert [first.job, again.job, larger.job] == ["stream, first", "stream, again", "stream, larger"]
        assert (first.seconds, first.start, first.cpu, first.work) == (2.0, 1.0, 5.0, 1.0)
        assert (again.seconds, again.start, again.cpu, again.work) == (1.0, None, 2.0, 1.0)
        report = Report("tiny")
        Run(tmp_path / "reads", report, [1000], ["read"]).go()
        assert [line.job for line in report.lines] == ["read, first", "read, again"] * 3
    theirs = next(line for line in told.splitlines() if spark_beside.KAFKA_SINK.name in line)
    assert "2.00 s" in theirs, "what the servers took"


@pytest.mark.parametrize(("again", "verdict"), [(29.0, "2.9 {}: holds"), (31.0, "3.1 {}: MISSED")])
def test_a_first_read_may_take_three_times_as_long_as_the_second(again: float, verdict: str) -> None:
    speeds = {
        (job, "some", way): speed
        for way in (spark_beside.OURS.name, spark_beside.KAFKA_TUNED.name)
        for job, speed in (("read, first", 10.0), ("read, again", again))
    }
    ours, tuned = list(spark_beside.ratios(speeds))[-2:]
    told = verdict.format("times as long as again, 3 at most")
    assert ours == f"read, first, some: Strandline's source takes {told}"
    assert tuned == f"read, first, some: Kafka's source, tuned takes {again / 10:.1f} times as long as again"


def test_where_the_jars_are_not_there_it_is_a_problem_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(self: object) -> list[str]:
        raise Missing("the driver for spark is not built: run scripts/setup --clients")

    monkeypatch.setattr(SPARK.__class__, "command", missing)
    assert spark_bench.main(["--tiny", "--only", "beside", "--folder", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "- FAILED: beside, 1,000 B a record: the driver for spark is not built: run scripts/setup" in told


def test_a_cluster_that_does_not_start_is_a_problem_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    downs: list[Path] = []

    class Slow:
        def __init__(self, folder: Path) -> None:
            self.folder = folder

        def up(self) -> None:
            raise NoKafka("Kafka's node 1 does not start:\nnode 2 may not be available")

        def down(self) -> None:
            downs.append(self.folder)

    monkeypatch.setattr(SPARK.__class__, "command", lambda self: ["python", "jars"])
    monkeypatch.setattr(spark_beside, "KafkaCluster", Slow)
    command = ["--tiny", "--only", "beside", "--record-bytes", "100", "--folder", str(tmp_path)]
    assert spark_bench.main(command) == 1
    told = capsys.readouterr().out
    assert "kafka: Kafka's node 1 does not start: node 2 may not be available\n" in told
    assert len(downs) == 1


def test_growth_is_what_a_further_gigabyte_takes() -> None:
    lines = [
        Line("read", f"1,000 B a record, {size} GB", bytes=size * 10**9, cpu=20 + 3.0 * size)
        for size in (1, 4, 16)
    ]
    assert list(growth(lines)) == ["read: 3.00 s of processor a GB at 1,000 B a record, and 20.0 s once"]
    lines = [
        Line("audit", f"{count} batches of a record", batches=count, cpu=5 + count / 1_000)
        for count in (10, 1_000)
    ]
    assert list(growth(lines)) == ["audit: 1.00 ms of processor a batch, and 5.00 s once"]
    assert not list(growth(lines[:1]))
