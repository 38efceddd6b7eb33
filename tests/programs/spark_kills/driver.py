"""The program that is killed: a stream from a topic into Parquet files or another topic.

Run as `python -m tests.programs.spark_kills.driver SETTINGS`, which is JSON of `master`, `url`, `topic`,
`kept`, `sink` (a folder), `copies` (a topic, or null for the folder), `jars` (those of Kafka's own sink, or
null for Strandline's), `bootstrap` and `finish`. With `finish` the query ends
by itself. It prints a line of JSON when its query runs, and when it has ended: with what it has counted in
the folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from strandline.spark import session
from tests.spark.standalone_cluster import EXECUTOR_MB

MOST_OFFSETS = "20000"
"""Offsets of a batch. After a restart it has what has come meanwhile, which takes a second or two."""

TASKS = "6"
"""Of a batch, at least. Those that are done have written before the last ones begin, for as long as a batch
takes: a batch of one task sends all its records in its last few milliseconds."""

TRANSACTION_SECONDS = "300"
"""Longer than a restart takes on a busy machine, and no longer than the judge waits for what is left open."""


def main(settings: dict[str, Any]) -> None:
    configs = {"spark.driver.memory": "512m", "spark.executor.memory": f"{EXECUTOR_MB}m"}
    if settings["jars"] is not None:
        jars = ":".join(map(str, sorted(Path(settings["jars"]).glob("*.jar"))))
        configs |= {"spark.driver.extraClassPath": jars, "spark.executor.extraClassPath": jars}
    spark = session("spark-kills", settings["master"], configs, short_jobs=True, archives=False)
    query = start(spark, settings)
    tell(ready=True)
    query.awaitTermination()
    if settings["finish"] and settings["copies"] is not None:
        tell(ended=True)
    elif settings["finish"]:
        # Spark reads its sink's files by the log that the sink keeps; without it, all that lie there.
        files = [str(path) for path in Path(settings["sink"]).glob("*.parquet")]
        tell(counted=counts(spark, settings["sink"]), lying=counts(spark, *files))
    spark.stop()


def start(spark: SparkSession, settings: dict[str, Any]) -> StreamingQuery:
    read = (
        spark.readStream.format("strandline")
        .option("url", settings["url"])
        .option("subscribePattern", settings["topic"])
        .option("maxOffsetsPerTrigger", MOST_OFFSETS)
        .option("minPartitions", TASKS)
        .load()
    )
    if settings["copies"] is None:
        write = read.select("value").writeStream.format("parquet").option("path", settings["sink"])
    else:
        ours = settings["jars"] is None
        write = read.select("value").writeStream.format("strandline" if ours else "kafka")
        write = write.option("kafka.bootstrap.servers", settings["bootstrap"])
        write = write.option("topic", settings["copies"])
        if ours:
            write = write.option("transactionTimeoutSeconds", TRANSACTION_SECONDS)
    write = write.option("checkpointLocation", settings["kept"])
    if settings["finish"]:
        return write.trigger(availableNow=True).start()
    return write.trigger(processingTime="200 milliseconds").start()


def counts(spark: SparkSession, *paths: str) -> dict[str, int]:
    (row,) = (
        spark.read.option("ignoreCorruptFiles", "true")  # of a task that was killed in the midst of one
        .parquet(*paths)
        .groupBy("value")
        .agg(f.count("*").alias("times"))
        .withColumn("number", f.expr("CAST(split_part(CAST(value AS STRING), ' ', 1) AS BIGINT)"))
        .selectExpr(
            "sum(times) AS all",
            "count(*) AS distinct",
            "min(number) AS first",
            "max(number) AS last",
            "sum(crc32(value)) AS checksum",
        )
        .collect()
    )
    return dict(row.asDict())


def tell(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
