"""One job of Spark in a process of its own, and how long its stages took: a line of JSON.

`python -m tests.programs.bench.spark_driver JOB URL FOLDER`, where JOB is one of JOBS.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from strandline.spark import session
from tests.programs.bench.spark_storage import TOPIC

TRIGGERS: Final = 8
"""Batches of a stream, about."""


class Stages:
    """Seconds of each stage, one after the other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.monotonic()

    def end(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name], self._since = now - self._since, now


def _frame(spark: SparkSession, url: str) -> DataFrame:
    return spark.read.format("strandline").option("url", url).option("topic", TOPIC).load()


def read(spark: SparkSession, stages: Stages, url: str, folder: Path) -> int:
    """Read all columns, twice; what is asked of them costs nothing."""
    counted = 0
    for name in ("first", "again"):
        row = _frame(spark, url).selectExpr("count(*)", "sum(length(value) + partition + offset * 0)").first()
        assert row is not None
        counted = int(row[0])
        stages.end(name)
    return counted


def stream(spark: SparkSession, stages: Stages, url: str, folder: Path) -> int:
    """Read all columns in some micro-batches, which count their rows."""
    row = _frame(spark, url).selectExpr("max(offset) + 1", "count(DISTINCT partition)").first()
    assert row is not None
    stages.end("size")
    counted: list[int] = []

    def count(batch: DataFrame, number: int) -> None:
        found = batch.selectExpr("count(*)", "sum(length(value) + partition + offset * 0)").first()
        assert found is not None
        counted.append(int(found[0]))

    query = (
        spark.readStream.format("strandline")
        .options(url=url, topic=TOPIC, maxOffsetsPerTrigger=str(row[0] * row[1] // TRIGGERS + 1))
        .load()
        .writeStream.foreachBatch(count)
        .option("checkpointLocation", str(folder / "stream"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    stages.end("first")
    return sum(counted)


JOBS: Final[dict[str, Callable[[SparkSession, Stages, str, Path], int]]] = {"read": read, "stream": stream}


def main(job: str, url: str, folder: str) -> None:
    stages = Stages()
    spark = session("bench", "local[2]")
    stages.end("start")
    counted = JOBS[job](spark, stages, url, Path(folder))
    spark.stop()
    stages.end("stop")
    print(json.dumps({"records": counted, **stages.seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])
