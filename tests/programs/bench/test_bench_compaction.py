"""`scripts/bench compaction`: what it measures, what it reads of Kafka, and that it says what went wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from tests.programs.bench import compaction_bench, compaction_parts, compaction_topics, kafka_measure
from tests.programs.bench.compaction_bench import PARTS, measure, rows, works
from tests.programs.bench.compaction_parts import Watch, memory
from tests.programs.bench.compaction_systems import (
    Cleaned,
    Cleaners,
    Round,
    children,
    most_memory,
    process_seconds,
    rounds_of,
    thread_seconds,
)
from tests.programs.bench.compaction_topics import CLEANING, SCALES, SHAPES, WAITING, rested
from tests.programs.bench.kafka_measure import Acknowledgements
from tests.programs.bench.measures import Result

LOG = """[kafka-log-cleaner-thread-0] INFO org.apache.kafka.storage.internals.log.LogCleaner - :
\tLog cleaner thread 0 cleaned log table-5b-0 (dirty section = [0, 26000])
\t1,023.5 MB of log processed in 0.2 seconds (13.3 MB/sec).
\tIndexed 3.0 MB in 0.1 seconds (24.4 Mb/sec, 54.4% of total time)
\tBuffer utilization: 0.1%
\tCleaned 3.0 MB in 0.1 seconds (29.2 Mb/sec, 45.5% of total time)
\tStart size: 3.0 MB (26,000 messages)
\tEnd size: 0.5 MB (6,000 messages)
\t75.0% size reduction (75.0% fewer messages)
\tLog cleaner thread 0 cleaned log __consumer_offsets-1 (dirty section = [0, 1])
\t9.0 MB of log processed in 0.2 seconds (13.3 MB/sec).
\tStart size: 9.0 MB (7 messages)
\tEnd size: 8.0 MB (6 messages)
"""


class FakeCluster:
    """Starts and stops; what its cleaning says it has done is a list."""

    name = "fake"
    security: Mapping[str, str] = {}
    bootstrap = ""
    pids: list[int] = []  # noqa: RUF012

    def __init__(self, done: list[Cleaned] | None = None) -> None:
        self.done = done or [Cleaned(0, 0, 0, 0)]
        self.downs = 0

    def up(self) -> None: ...
    def kill(self, node: int) -> None: ...
    def start(self, node: int) -> None: ...

    def down(self) -> None:
        self.downs += 1

    def cleaned(self) -> Cleaned:
        return self.done.pop(0) if len(self.done) > 1 else self.done[0]

    def cleaners(self) -> Cleaners:
        return Cleaners(self.cleaned().cpu, 0.0)


def test_rounds_of_a_cleaners_log_without_those_of_kafkas_own_topics() -> None:
    assert rounds_of(LOG) == [Round(1023.5 * (1 << 20), 0.5 * (1 << 20), 20_000)]
    assert rounds_of("nothing") == []


def test_a_process_without_a_cleaner_is_told() -> None:
    with pytest.raises(ValueError, match="has 0 threads of the log cleaner"):
        thread_seconds(os.getpid())


def test_what_the_kernel_says_of_a_process() -> None:
    before = process_seconds(os.getpid())
    sum(range(2_000_000))
    assert 0.005 < process_seconds(os.getpid()) - before < 5.0
    assert 1e7 < most_memory(os.getpid()) < 1e11


def test_a_watch_knows_while_what_moments_cleaning_went_on() -> None:
    cluster = FakeCluster([Cleaned(0, 0, 0, cpu) for cpu in (0.0, 0.0, 0.001, 0.1, 0.1, 0.2, 0.201, 0.201)])
    before = time.perf_counter()
    with Watch(cluster) as watch:
        while len(cluster.done) > 1:
            time.sleep(0.01)
    assert watch.began is not None
    # The fourth look is the first that sees work, the sixth the last: it was done after the third.
    assert 0.1 <= watch.began - before < watch.ended - before - 0.1
    assert watch.spans((watch.began + watch.ended) / 2)
    assert not watch.spans(before)
    assert not watch.spans(time.perf_counter())
    assert watch.cpu == pytest.approx(0.201)


def test_processes_that_a_process_has_started() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        assert child.pid in children(os.getpid())
        child.kill()
    assert child.pid not in children(os.getpid())


def test_the_first_pass_beside_cleaning_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    took = iter([9.0, 9.0, 0.1, 0.2, 0.1, 0.2, 0.1, 0.2])
    configured: list[object] = []

    def paced(cluster: FakeCluster, _: object) -> tuple[Acknowledgements, float]:
        # What cleaners do before and behind it is not beside it.
        while len(cluster.done) > 1 and configured[-1:] == [CLEANING]:
            time.sleep(0.01)
        told, each = Acknowledgements(), next(took)
        told.latencies, told.times = [each] * 100, [time.perf_counter() - 0.2 + each] * 100
        cluster.done = [Cleaned(0, 0, 0, float(number)) for number in range(10)]
        return told, 0.0

    for name in ("write", "rested", "delete"):
        monkeypatch.setattr(compaction_parts, name, lambda *_: None)
    monkeypatch.setattr(compaction_parts, "topic_of", lambda *_: "table")
    monkeypatch.setattr(compaction_parts, "configure", lambda *told: configured.append(told[-1]))
    monkeypatch.setattr(kafka_measure, "paced", paced)
    result = compaction_parts.produce(FakeCluster(), SCALES["tiny"])
    assert not result.problems
    assert (result.figures["still"], result.figures["busy"]) == (0.1, 0.2)
    assert result.figures["worse"] == pytest.approx(2.0)
    assert configured == [CLEANING, WAITING] * 4


def test_all_kinds_of_records_are_cleaned() -> None:
    kinds = {(shape.size, shape.skewed, shape.codec != "none") for shape in SHAPES}
    assert len(kinds) == len({shape.title for shape in SHAPES}) == 8


def test_a_map_takes_what_it_is_said_to() -> None:
    told = memory(1_000_000)
    assert not told.problems
    each, many = told.figures["key"], told.figures["many"]
    assert 30 < each < 40, "24 bytes a slot, of which three in four are taken"
    assert many == each * 1e8


def test_cleaning_has_rested_when_nothing_was_written_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_topics, "POLL_SECONDS", 0.01)
    cluster = FakeCluster([Cleaned(1, 0, 0, 0.1), Cleaned(2, 0, 0, 0.2), Cleaned(2, 0, 0, 0.3)])
    rested(cluster, quiet=0.05)
    assert len(cluster.done) == 1
    with pytest.raises(TimeoutError, match="had not come to its end"):
        rested(FakeCluster([Cleaned(number, 0, 0, 0) for number in range(100)]), quiet=0.05, most=0.02)


def test_cleaning_that_computes_and_has_written_nothing_yet_has_not_rested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compaction_topics, "POLL_SECONDS", 0.01)
    working = [Cleaned(1, 0, 0, 0.1 * number) for number in range(10_000)]
    with pytest.raises(TimeoutError, match="had not come to its end"):
        rested(FakeCluster(working), quiet=0.05, most=0.3)
    looking = [Cleaned(1, 0, 0, 0.001 * number) for number in range(10_000)]
    rested(FakeCluster(looking), quiet=0.05, most=5.0)


def test_a_section_that_fails_is_told_and_the_next_one_runs() -> None:
    def fails(_: object) -> Result:
        raise KafkaException("no")

    cluster = FakeCluster()
    results = measure(cluster, {"one": fails, "two": lambda _: Result({"x": 1.0})})
    assert "no" in results["one"].problems[0]
    assert results["two"].figures == {"x": 1.0}
    assert cluster.downs == 1


def test_each_section_has_rows() -> None:
    sections = {row.section for row in rows()}
    assert sections == {*works(SCALES["tiny"], PARTS), compaction_bench.MEMORY}


def test_figures_of_strandline_are_there(tmp_path: Path) -> None:
    written = tmp_path / "report.json"
    done = subprocess.run(
        [
            sys.executable, "-P", "-m", "tests.programs.bench.run", "compaction", "--no-kafka", "--tiny",
            "--only", "tombstone", "memory", "--folder", str(tmp_path), "--write", str(written),
        ],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("bench compaction ok: 3 sections, ")
    report = json.loads(written.read_text())
    assert report["ok"]
    assert 1.0 < report["strandline"][compaction_bench.TOMBSTONE]["figures"]["seconds"] < 90.0
    assert report["strandline"][compaction_bench.MANY]["figures"]["rounds"] >= 1
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
