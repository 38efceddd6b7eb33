"""One job of Spark in a process of its own, and what its stages took: a line of JSON.

`python -m tests.programs.bench.spark_driver JOB GIVEN FOLDER`, where JOB is one of JOBS and GIVEN are the
fields of `Given` as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from strandline.spark import session
from tests.programs.bench import processor

STREAMS: Final = {"first": 8, "again": 8, "larger": 2}
"""Batches of each stream of a session, about. The first one starts and loads what all streams need."""
READS: Final = ("first", "again")
"""The reads of a session. The first one starts and loads what all of them need."""
STAGES: Final[Mapping[str, Sequence[str]]] = {"read": READS, "stream": tuple(STREAMS), "sink": ("first",)}
"""What each job does, one after the other."""
COLUMNS: Final = """key binary, value binary, topic string, partition int, offset bigint,
    timestamp timestamp, timestampType int"""
"""The columns of Kafka's source, if it is not asked for headers. Strandline's would give two more."""
_SUM: Final = ("count(*)", "sum(length(value) + partition + offset * 0)")
"""What is asked of all columns, and costs nothing."""


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

    def brokers(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.bootstrap}

    def source(self) -> dict[str, str]:
        """Options of a read of the topic from its beginning."""
        begin = {"subscribe": self.topic, "startingOffsets": "earliest"}
        return {**begin, **(self.brokers() if self.format == "kafka" else {}), **self.options}

    def schema(self) -> str | None:
        """COLUMNS for a source that takes a schema, as Kafka's does not."""
        return COLUMNS if self.format == "strandline" else None


class Stages:
    """What each stage took, one after the other."""

    def __init__(self, servers: Sequence[int]) -> None:
        self._servers = servers
        self.taken: dict[str, tuple[float, float, float]] = {}
        """Seconds; processor seconds of this process and all below it, and of the servers meanwhile."""
        self._since = self._now()

    def end(self, name: str) -> None:
        now = self._now()
        seconds, spark, servers = (later - earlier for later, earlier in zip(now, self._since, strict=True))
        self.taken[name], self._since = (seconds, spark, servers), now

    def _now(self) -> tuple[float, float, float]:
        return time.monotonic(), processor.used([os.getpid()]), processor.used(self._servers)


def read(spark: SparkSession, stages: Stages, given: Given, folder: Path) -> int:
    """Read all columns by each of READS."""
    counted = 0
    for name in READS:
        source = spark.read.format(given.format).options(**given.source())
        row = source.load(schema=given.schema()).selectExpr(*_SUM).first()
        assert row is not None
        counted = int(row[0])
        stages.end(name)
    return counted


def stream(spark: SparkSession, stages: Stages, given: Given, folder: Path) -> int:
    """Read all columns by each of STREAMS, whose micro-batches count their rows."""
    counts = {_streamed(spark, stages, given, folder / name, name) for name in STREAMS}
    return counts.pop() if len(counts) == 1 else -1


def _streamed(spark: SparkSession, stages: Stages, given: Given, folder: Path, name: str) -> int:
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
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    stages.end(name)
    return sum(counted)


def sink(spark: SparkSession, stages: Stages, given: Given, folder: Path) -> int:
    """Write records, and count by Kafka's source what a reader of committed records finds there."""
    value = f"rpad(CAST(id AS STRING), {given.record_bytes}, 'abcdefghij') AS value"
    topic = {"topic": given.topic}
    once = {"query": "bench", "batch": "0"} if given.format == "strandline" else {}
    frame = spark.range(0, given.records, 1, 6).selectExpr("CAST(id AS STRING) AS key", value)
    stages.end("frame")
    frame.write.format(given.format).options(**given.brokers(), **topic, **once).mode("append").save()
    stages.end("first")
    committed = {"kafka.isolation.level": "read_committed", "subscribe": given.topic}
    row = (
        spark.read.format("kafka")
        .options(**given.brokers(), **committed)
        .load()
        .selectExpr("count(DISTINCT key)", "count(*)")
        .first()
    )
    assert row is not None
    stages.end("check")
    return int(row[0]) if row[0] == row[1] else -int(row[1])


JOBS: Final[dict[str, Callable[[SparkSession, Stages, Given, Path], int]]] = {
    "read": read, "stream": stream, "sink": sink,
}  # fmt: skip


def main(job: str, told: str, folder: str) -> None:
    given = Given(**json.loads(told))
    stages = Stages(given.servers)
    configs: dict[str, Any] = {}
    if given.jars:
        configs["spark.driver.extraClassPath"] = ":".join(map(str, sorted(Path(given.jars).glob("*.jar"))))
    spark = session("bench", "local[2]", configs)
    stages.end("start")
    counted = JOBS[job](spark, stages, given, Path(folder))
    spark.stop()
    stages.end("stop")
    print(json.dumps({"records": counted, **stages.taken}))


if __name__ == "__main__":
    main(*sys.argv[1:])
