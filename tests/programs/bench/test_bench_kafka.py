"""The comparison with Kafka: what it measures of Strandline, and what it says without Kafka."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.peers.kafka_jars import NoKafka, jars
from tests.programs.bench import kafka_cold, kafka_compare
from tests.programs.bench.kafka_compare import WORK, measure, rows
from tests.programs.bench.kafka_measure import TINY, percentile
from tests.programs.bench.measures import Result

WRITTEN = {"rate": 3.0, "cpu_gb": 4.0}


def test_every_figure_of_strandline_is_there(tmp_path: Path) -> None:
    written = tmp_path / "report.json"
    done = subprocess.run(
        [
            sys.executable, "-P", "-m", "tests.programs.bench.run", "kafka", "--only", "strandline", "--tiny",
            "--cases", "throughput", "consume", "single", "--folder", str(tmp_path), "--write", str(written),
        ],
        capture_output=True, text=True, timeout=55, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("bench kafka ok: 3 cases, ")
    report = json.loads(written.read_text())
    assert report["ok"]
    found = report["strandline"]
    assert found["1 kB records"]["figures"]["rate"] > 0
    assert found["read back, 1 kB"]["figures"]["rate"] > 0
    assert 0 < found["one at a time"]["figures"]["p50"] <= found["one at a time"]["figures"]["p99"]
    assert found["start, empty"]["figures"]["rss"] > 1e6
    assert "kafka" not in report
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_topic_is_read_twice_and_the_second_time_nothing_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []

    def read(*_: object) -> tuple[float, list[str]]:
        done.append("read")
        return 7.0, ["amiss"]

    monkeypatch.setattr(kafka_cold, "fill", lambda *_, **__: ("topic", 5, Result(WRITTEN)))
    monkeypatch.setattr(kafka_cold, "forget", done.append)
    monkeypatch.setattr(kafka_cold, "read_back", read)
    cluster = FakeCluster()
    cluster.folder = tmp_path
    found = kafka_cold.cold(cluster, TINY)  # type: ignore[arg-type]
    assert done == ["read", tmp_path, "read"]
    assert (found.figures["rate"], found.figures["rate_disk"]) == (7.0, 7.0)
    assert (found.figures["rate_written"], found.figures["cpu_gb_written"]) == (3.0, 4.0)
    assert found.figures["rss_written"] == 0.0
    assert found.problems == ["amiss"] * 2


def test_files_are_forgotten_by_the_system(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    path = tmp_path / "deep" / "file"
    path.write_bytes(bytes(1 << 20))
    kafka_cold.forget(tmp_path)
    with path.open("rb") as file, pytest.raises(BlockingIOError):
        os.preadv(file.fileno(), [bytearray(1)], 1 << 19, os.RWF_NOWAIT)


class FakeCluster:
    """Starts and stops, and nothing in between."""

    name = "fake"
    security: Mapping[str, str] = {}
    bootstrap = ""
    pids: Sequence[int] = ()
    folder = Path()

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.downs = 0

    def up(self) -> None:
        if self.error is not None:
            raise self.error

    def down(self) -> None:
        self.downs += 1

    def kill(self, node: int) -> None: ...
    def start(self, node: int) -> None: ...


def test_a_case_that_fails_is_told_and_the_next_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Result:
        raise TimeoutError("too long")

    monkeypatch.setitem(WORK, "single", ("one at a time", fails))
    monkeypatch.setitem(WORK, "idle", ("idle", lambda *_: Result({"cpu": 1.0})))
    cluster = FakeCluster()
    results = measure(cluster, ["single", "idle"], TINY)  # type: ignore[arg-type]
    assert results["one at a time"].problems == ["TimeoutError('too long')"]
    assert results["idle"].figures == {"cpu": 1.0}
    assert cluster.downs == 1


def test_a_cluster_that_does_not_start_is_taken_down_and_told() -> None:
    cluster = FakeCluster(NoKafka("no Java"))
    results = measure(cluster, ["idle"], TINY)  # type: ignore[arg-type]
    assert results["start, empty"].problems == ["no Java"]
    assert cluster.downs == 1


def test_without_kafka_the_run_fails_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KAFKA_LIBS", str(tmp_path))
    with pytest.raises(NoKafka, match="holds no kafka_2"):
        jars()
    assert kafka_compare.main(["--only", "kafka", "--tiny", "--folder", str(tmp_path)]) == 1
    assert f"FAILED: kafka: start, empty: KAFKA_LIBS={tmp_path} holds no" in capsys.readouterr().out


def test_each_case_has_rows_and_each_title_is_its_own() -> None:
    sections = [row.section for row in rows(tuple(WORK), kafka_compare.SCALES["tiny"])]
    assert set(sections) == {"start, empty", *(title for title, _ in WORK.values())}
    assert len({title for title, _ in WORK.values()}) == len(WORK)


def test_percentiles() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1.0)) == (
        51.0,
        100.0,
        100.0,
    )
    assert math.isnan(percentile([], 0.5))
