"""Jobs of Spark in a process of its own, and what each of their stages takes: a line of JSON for each.

`python -m tests.programs.bench.spark_driver JOB GIVEN FOLDER [STAGE...]`, where JOB is one of JOBS and GIVEN
are the fields of `Given` as JSON. Without stages it does those whose names it reads, one a line, and ends
when there are no more: so several such processes can take turns. The first line that it writes is that of
the session's start.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from strandline.snapshot.own_output import own_output
from strandline.spark import session
from tests.programs.bench import processor

STREAMS: Final = {"first": 8, "again": 8, "larger": 2}
"""Batches of each stream of a session, about. The first one starts and loads what all streams need."""
READS: Final = ("first", "again")
"""The reads of a session. The first one starts and loads what all of them need."""
STAGES: Final[Mapping[str, Sequence[str]]] = {"read": READS, "stream": tuple(STREAMS), "sink": ("first",)}
"""What each job does, one after the other."""
START: Final = "start"
COLUMNS: Final = """key binary, value binary, topic string, partition int, offset bigint,
    timestamp timestamp, timestampType int"""
"""The columns of Kafka's source, if it is not asked for headers. Strandline's would give two more."""
CORES: Final = 2
_SUM: Final = ("count(*)", "sum(length(value) + partition + offset * 0)")
"""What is asked of all columns, and costs nothing."""
_JAVA_SECONDS: Final = 60.0
"""Longest wait for a Java's end, when it may leave an archive of its classes."""


@dataclass(frozen=True)
class Given:
    """What is read or written, and by which of Spark's formats: `strandline` or `kafka`."""

    format: str
    topic: str
    options: Mapping[str, str] = field(default_factory=dict)
    bootstrap: str = ""
    jars: str = ""
    """Folder of the jars of Spark's Kafka source."""
    records: int = 0
    """To be read, or written."""
    record_bytes: int = 0
    servers: Sequence[int] = ()
    """Processes of the cluster."""
    plain: bool = False
    """Whether the session is Spark's own, with its defaults, in place of `strandline.spark.session`."""

    def brokers(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.bootstrap}

    def source(self) -> dict[str, str]:
        """Options of a read of the topic from its beginning."""
        begin = {"subscribe": self.topic, "startingOffsets": "earliest"}
        return {**begin, **(self.brokers() if self.format == "kafka" else {}), **self.options}

    def schema(self) -> str | None:
        """COLUMNS for a source that takes a schema, as Kafka's does not."""
        return COLUMNS if self.format == "strandline" else None

    def session(self) -> SparkSession:
        """Start the session. Each has the same cores, and Kafka's jars on its class path."""
        jars = ":".join(map(str, sorted(Path(self.jars).glob("*.jar")))) if self.jars else ""
        configs = {"spark.driver.extraClassPath": jars} if jars else {}
        if not self.plain:
            return session("bench", f"local[{CORES}]", configs)
        # As in a virtual environment that is activated.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.appName("bench").master(f"local[{CORES}]")
        for name, value in configs.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()


@dataclass(frozen=True)
class Taken:
    """What a stage took: seconds, and processor seconds of this process with all below it, and of servers."""

    stage: str
    seconds: float
    spark: float
    servers: float
    memory: int
    """Most bytes so far of the process that had most."""
    records: int = 0
    """That were read, or are there."""


class Stages:
    """What each stage takes, one after the other."""

    def __init__(self, servers: Sequence[int]) -> None:
        self._servers = servers
        self._since = self._now()

    def begin(self) -> None:
        """Leave out what has passed since the last stage."""
        self._since = self._now()

    def end(self, name: str) -> Taken:
        now = self._now()
        seconds, spark, servers = (later - earlier for later, earlier in zip(now, self._since, strict=True))
        self._since = now
        return Taken(name, seconds, spark, servers, processor.peak([os.getpid()]))

    def _now(self) -> tuple[float, float, float]:
        return time.monotonic(), processor.used([os.getpid()]), processor.used(self._servers)


Counting = Callable[[], int]
"""Says how many records were read, or are there; it is no part of the work."""


def read(spark: SparkSession, given: Given, folder: Path, name: str) -> Counting:
    """Read all columns."""
    source = spark.read.format(given.format).options(**given.source())
    row = source.load(schema=given.schema()).selectExpr(*_SUM).first()
    assert row is not None
    return lambda: int(row[0])


def stream(spark: SparkSession, given: Given, folder: Path, name: str) -> Counting:
    """Read all columns in micro-batches, which count their rows, until there is no more."""
    counted: list[int] = []

    def count(batch: DataFrame, number: int) -> None:
        found = batch.selectExpr(*_SUM).first()
        assert found is not None
        counted.append(int(found[0]))

    query = (
        spark.readStream.format(given.format)
        .options(**given.source(), maxOffsetsPerTrigger=str(given.records // STREAMS[name] + 1))
        .load(schema=given.schema())
        .writeStream.foreachBatch(count)
        .option("checkpointLocation", tempfile.mkdtemp(dir=folder))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return lambda: sum(counted)


def sink(spark: SparkSession, given: Given, folder: Path, name: str) -> Counting:
    """Write records. They are counted by Kafka's source, as a reader of committed records finds them."""
    value = f"rpad(CAST(id AS STRING), {given.record_bytes}, 'abcdefghij') AS value"
    topic = {"topic": given.topic}
    once = {"query": f"bench-{given.topic}", "batch": "0"} if given.format == "strandline" else {}
    frame = spark.range(0, given.records, 1, 6).selectExpr("CAST(id AS STRING) AS key", value)
    frame.write.format(given.format).options(**given.brokers(), **topic, **once).mode("append").save()

    def there() -> int:
        committed = {"kafka.isolation.level": "read_committed", "subscribe": given.topic}
        row = (
            spark.read.format("kafka")
            .options(**given.brokers(), **committed)
            .load()
            .selectExpr("count(DISTINCT key)", "count(*)")
            .first()
        )
        assert row is not None
        return int(row[0]) if row[0] == row[1] else -int(row[1])

    return there


JOBS: Final[dict[str, Callable[[SparkSession, Given, Path, str], Counting]]] = {
    "read": read, "stream": stream, "sink": sink,
}  # fmt: skip


def main(job: str, told: str, folder: str, *stages: str) -> None:
    with own_output() as output:  # Java prints to its own what it likes
        _work(job, Given(**json.loads(told)), Path(folder), stages, output)


def _work(job: str, given: Given, folder: Path, stages: Sequence[str], output: TextIO) -> None:
    taking = Stages(given.servers)
    spark = given.session()
    _tell(output, taking.end(START))
    names: Iterable[str] = stages or (line.strip() for line in sys.stdin)
    for name in names:
        taking.begin()
        counting = JOBS[job](spark, given, folder, name)
        taken = asdict(taking.end(name))
        _tell(output, Taken(**taken | {"records": counting()}))
    gateway: Any = SparkContext._gateway
    spark.stop()
    gateway.proc.stdin.close()
    gateway.proc.wait(_JAVA_SECONDS)


def _tell(output: TextIO, taken: Taken) -> None:
    print(json.dumps(asdict(taken)), file=output, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
