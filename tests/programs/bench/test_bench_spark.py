"""What the run asks for and reckons, with commands that are played; and what a command takes."""

from __future__ import annotations

import json
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from tests.clients.programs import SPARK, Missing
from tests.peers.kafka_jars import NoKafka
from tests.programs.bench import processor, spark_bench, spark_beside, spark_driver
from tests.programs.bench.processor import Taken
from tests.programs.bench.spark_bench import Line, Report, Run, growth
from tests.programs.bench.spark_beside import SINKS, SOURCES
from tests.programs.bench.spark_driver import START, Given
from tests.programs.bench.spark_storage import TOPIC, GrowingStorage
from tests.programs.bench.spark_turns import Broken, Driver, Measured, Pair, cells, firsts, ratios


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


@dataclass
class Played:
    """A driver of which each stage takes two seconds, or one with what is Strandline's."""

    job: str
    given: Given
    folder: Path
    environment: Mapping[str, str]
    lost: ClassVar[int] = 0
    asked: ClassVar[list[tuple[str, Given]]] = []
    slow: ClassVar[range] = range(0)
    """The stages that take three times as long, by number."""
    up: ClassVar[list[Given]] = []
    made: ClassVar[list[Given]] = []

    def __post_init__(self) -> None:
        assert self.folder.is_dir()
        self.up.append(self.given)
        self.made.append(self.given)
        self.start = self._taken(START)

    def stage(self, name: str) -> spark_driver.Taken:
        assert self.given in self.up
        self.asked.append((name, self.given))
        return self._taken(name)

    def _taken(self, name: str) -> spark_driver.Taken:
        seconds = 1.0 if self.given.format == "strandline" else 2.0
        if len(self.asked) in self.slow:
            seconds *= 3.0
        return spark_driver.Taken(name, seconds, 4.0, 2.0, 1, self.given.records - self.lost)

    def end(self) -> None:
        self.up.remove(self.given)


class PlayedCluster:
    """Any cluster, of which nothing is asked but where it is."""

    pids: Sequence[int] = ()

    def __init__(self, folder: Path, settings: Sequence[str] = ()) -> None:
        self.folder = folder
        self.bootstrap = folder.parent.name.partition("-")[0]

    def up(self) -> None:
        self.folder.mkdir()

    def down(self) -> None:
        pass


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters and drivers of `beside` are played."""
    monkeypatch.setattr(SPARK.__class__, "command", lambda self: ["python", "jars"])
    monkeypatch.setattr(spark_beside, "KafkaCluster", PlayedCluster)
    monkeypatch.setattr(spark_beside, "StrandlineCluster", PlayedCluster)
    monkeypatch.setattr(spark_beside, "Driver", Played)
    monkeypatch.setattr(spark_beside, "fill", lambda peer, amount, size: ("filled", 4_000, None))
    monkeypatch.setattr(spark_beside, "new_topic", lambda peer, partitions: "new")
    monkeypatch.setattr(spark_beside, "settle", lambda servers: None)
    monkeypatch.setattr(spark_beside, "_checkpoint", lambda cluster: None)
    monkeypatch.setattr(spark_beside, "_delete", lambda peer, topic: None)
    for name in ("asked", "up", "made"):
        monkeypatch.setattr(Played, name, [])


@pytest.mark.parametrize("lost", [0, 1])
def test_every_job_runs_at_every_size_and_what_is_missing_is_a_problem(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lost: int,
    capsys: pytest.CaptureFixture[str],
    clusters: None,
) -> None:
    def played(command: Sequence[str], seconds: float) -> Taken:
        told: list[spark_driver.Taken] = []
        if "tests.programs.bench.spark_driver" in command:
            given = Given(**json.loads(command[4]))
            told = [spark_driver.Taken(START, 1.0, 3.0, 0.0, 1)]
            told += [spark_driver.Taken(name, 1.0, 2.0, 0.0, 1, given.records - lost) for name in command[6:]]
        if "export" in command:
            target = Path(command[command.index("--to") + 1])
            target.mkdir(parents=True)
            (target / "one.parquet").touch()
        return Taken(0, 9.0, 5.0, 1, "\n".join(json.dumps(asdict(one)) for one in told), "")

    monkeypatch.setattr(processor, "run", played)
    monkeypatch.setattr(Played, "lost", lost)
    status = spark_bench.main(["--tiny", "--record-bytes", "1000", "--folder", str(tmp_path)])
    told = capsys.readouterr().out
    assert status == lost
    reads, streams, turns = 2 * 3, 3 * 3, 1
    assert told.count(" records of ") == (reads + streams + 2 * (2 + 2) + turns if lost else 0)
    assert ("bench spark ok" in told) is not bool(lost)
    assert "audit again: " in told
    assert "of processor a partition" in told
    report = Report("tiny")
    Run(tmp_path, report, [1000], ["export"]).go()
    assert [line.job for line in report.lines] == ["export"] * 3
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


def test_ways_take_turns_and_are_compared_within_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clusters: None
) -> None:
    ways = len(SOURCES)
    each = 2 * ways + len(SINKS)
    monkeypatch.setattr(Played, "slow", range(5 + each, 5 + 2 * each))  # the second turn
    command = ["--only", "beside", "--jobs", "read", "sink", "--turns", "3", "--record-bytes", "1000"]
    assert spark_bench.main([*command, "--folder", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert not Played.up, "all have ended"
    assert len(Played.made) == 4 + 3 * (ways + len(SINKS)), "each stays up from stage to stage"
    before, asked = Played.asked[:4], Played.asked[4:]
    assert [name for name, _ in before] == ["first"] * 4, "of the programs before there is an archive"
    assert len(asked) == 3 * each
    for turn in range(3):
        stages = asked[turn * each : (turn + 1) * each]
        assert [name for name, _ in stages[: 2 * ways]] == ["first"] * ways + ["again"] * ways
        assert [given for _, given in stages[:ways]] == [given for _, given in stages[ways : 2 * ways]]
        formats = [(given.bootstrap, given.format, given.plain) for _, given in stages[:ways]]
        wanted = [(way.on, way.format, way.plain) for way in SOURCES]
        assert formats == wanted[turn:] + wanted[:turn]
    for _, given in asked:
        assert (given.topic == "new") == (given.records == 2_000), "a sink writes half of it elsewhere"
        assert given.schema() == (spark_driver.COLUMNS if given.format == "strandline" else None)
    size = "1,000 B a record, 4 MB"
    kafka = f"read, again, {size}: Strandline's source is 2.0 (2.0 to 2.0) times as fast as Kafka's source"
    assert f"{kafka}, wanted 3: MISSED" in told
    assert "Strandline's sink, exactly once is 2.0 (2.0 to 2.0) times as fast as Kafka's sink" in told
    (row,) = (line for line in told.splitlines() if line.startswith("read, again"))
    assert "1.0 to 3.0 s" in row, "the machine's slow turn is no ratio"


def test_a_topic_is_deleted_by_a_client_that_lives_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[bool] = []

    class Deleting:
        def __init__(self, admin: Admin) -> None:
            self.admin = weakref.ref(admin)

        def result(self, seconds: float) -> None:
            waited.append(self.admin() is not None)

    class Admin:
        def __init__(self, settings: Mapping[str, str]) -> None:
            pass

        def delete_topics(self, topics: Sequence[str]) -> dict[str, Deleting]:
            return {topic: Deleting(self) for topic in topics}

    monkeypatch.setattr(spark_beside, "AdminClient", Admin)
    monkeypatch.setattr(spark_beside, "client", lambda peer: {})
    spark_beside._delete(PlayedCluster(tmp_path), "topic")  # type: ignore[arg-type]
    assert waited == [True]


def measured(job: str, way: str, *seconds: float) -> list[Measured]:
    return [Measured(job, "some", way, turn, took, 1.0, 1.0, 1, 100) for turn, took in enumerate(seconds)]


def test_a_ratio_is_the_median_of_the_turns() -> None:
    lines = [*measured("read", "ours", 1.0, 4.0, 2.0), *measured("read", "theirs", 3.0, 8.0, 8.0)]
    (told,) = ratios(lines, [Pair("read", "ours", "theirs", 3.0), Pair("read", "ours", "none", 1.0)])
    assert told == "read, some: ours is 3.0 (2.0 to 4.0) times as fast as theirs, wanted 3: holds"
    (told,) = ratios(lines, [Pair("read", "ours", "theirs", 3.5)])
    assert told.endswith("wanted 3.5: MISSED"), "though one turn's is 4"
    (told,) = ratios(lines[:-1], [Pair("read", "ours", "theirs")])
    assert told == "read, some: ours is 2.5 (2.0 to 3.0) times as fast as theirs"
    (row,) = cells(lines[:3])
    assert row[1:5] == ["some, ours", "50.0 /s", "2.00 s", "1.0 to 4.0 s"]


@pytest.mark.parametrize(
    ("first", "verdict"), [(2.9, "2.9 (2.9 to 9.0) {}: holds"), (3.1, "3.1 (3.1 to 9.0) {}: MISSED")]
)
def test_a_first_read_may_take_three_times_as_long_as_the_second(first: float, verdict: str) -> None:
    lines = [*measured("first", "ours", first, 9.0, first), *measured("again", "ours", 1.0, 1.0, 1.0)]
    (told,) = firsts(lines, "first", "again", 3.0)
    assert told == f"first, some: ours takes {verdict.format('times as long as again, 3 at most')}"


def test_a_driver_that_ends_says_why(tmp_path: Path) -> None:
    with pytest.raises(Broken, match=r"start: .*Spark needs Java"):
        Driver("read", Given("strandline", "topic"), tmp_path, {"JAVA_HOME": "/none"})


@pytest.mark.parametrize("plain", [False, True])
def test_a_driver_does_what_it_is_asked_for_and_stays_up(tmp_path: Path, plain: bool) -> None:
    stored = GrowingStorage(tmp_path / "objects", 100, 10, 2).grow(4)
    given = Given("strandline", TOPIC, {"url": stored.url}, records=stored.records, plain=plain)
    (tmp_path / "driver").mkdir()
    # What it says must not be taken for an answer. It is short, and its second compiler would be most of it.
    java = "-Xlog:gc=info:stdout -XX:TieredStopAtLevel=1"
    loud = {"JAVA_TOOL_OPTIONS": java, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    driver = Driver("read", given, tmp_path / "driver", loud)
    try:
        first, again = driver.stage("first"), driver.stage("again")
    finally:
        driver.end()
    assert (first.stage, first.records, again.records) == ("first", 40, 40)
    assert first.seconds > again.seconds > 0
    assert driver.start.spark > 0
    assert again.memory >= first.memory > 50_000_000
    assert any((tmp_path / "cache").rglob("*.starts")) is not plain


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
