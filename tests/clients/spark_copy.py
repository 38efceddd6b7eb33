"""Spark's own Kafka source and sink, in their own process: the jars must be there when its Java starts.

    python -m tests.clients.spark_copy JARS BOOTSTRAP SOURCE TARGET FOLDER

Writes 100 records to SOURCE as a batch, reads SOURCE in a stream in several steps and writes what it reads to
TARGET, reads TARGET back as a batch of committed records, and prints a JSON object with what it found.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from strandline.snapshot.spark.session import session

COUNT: Final = 100
_STEP: Final = 40


def copy(spark: SparkSession, bootstrap: str, source: str, target: str, folder: Path) -> dict[str, object]:
    """What became of it."""
    rows = spark.range(COUNT).select(
        f.col("id").cast("string").alias("key"), f.concat(f.lit("value-"), f.col("id")).alias("value")
    )
    sink = {"kafka.bootstrap.servers": bootstrap}
    rows.write.format("kafka").options(**sink, topic=source).save()
    query = (
        spark.readStream.format("kafka")
        .options(**sink, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=str(_STEP))
        .options(**{"kafka.isolation.level": "read_committed"})
        .load()
        .select("key", "value")
        .writeStream.format("kafka")
        .options(**sink, topic=target, checkpointLocation=str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return {
        "steps": len([one for one in query.recentProgress if one["numInputRows"]]),
        "source": _values(_read(spark, bootstrap, source)),
        "target": _values(_read(spark, bootstrap, target)),
    }


def _read(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": bootstrap, "kafka.isolation.level": "read_committed"}
    return spark.read.format("kafka").options(**options, subscribe=topic).load()


def _values(read: DataFrame) -> list[str]:
    return sorted(row.value for row in read.select(f.col("value").cast("string").alias("value")).collect())


def main() -> int:
    jars, bootstrap, source, target, folder = sys.argv[1:]
    path = ":".join(str(jar) for jar in sorted(Path(jars).glob("*.jar")))
    spark = session(
        "copy",
        "local[2]",
        {
            "spark.driver.extraClassPath": path,
            "spark.driver.memory": "512m",
            "spark.local.dir": str(Path(folder, "local")),
            "spark.sql.warehouse.dir": str(Path(folder, "warehouse")),
            "spark.sql.shuffle.partitions": "2",
        },
        short_jobs=True,
    )
    print(json.dumps(copy(spark, bootstrap, source, target, Path(folder))))
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
