"""A client of Spark Connect: reads, streams and writes a topic by a server, and asks for what is not there.

It prints what it saw as a line of JSON. Its argument is one JSON object: `remote`, `url` (of the storage),
`cluster` (its id), `bootstrap`, `folder` (for what the server's streams keep).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from strandline.audit import run_audits
from strandline.spark import backfill, cut, register, session, ship


def main(given: dict[str, str]) -> dict[str, Any]:
    spark = SparkSession.builder.remote(given["remote"]).getOrCreate()
    url, folder = given["url"], given["folder"]
    seen: dict[str, Any] = {}

    def source(topic: str) -> Any:
        return spark.read.format("strandline").options(url=url, topic=topic).load()

    seen["read"] = [row.value for row in source("orders").selectExpr("CAST(value AS STRING)").collect()]
    seen["no topic"] = refused(source("nowhere").count)
    seen["no option"] = refused(spark.read.format("strandline").option("topics", "orders").load().count)

    to = {"kafka.bootstrap.servers": given["bootstrap"]}
    frame = spark.range(100).selectExpr("CAST(id AS STRING) AS value")
    for _ in range(2):  # the second finds the first
        write = frame.write.format("strandline").options(**to, topic="written", query="written", batch="0")
        write.mode("append").save()

    stream = spark.readStream.format("strandline").options(url=url, topic="orders").load()
    copies = stream.writeStream.format("strandline").options(**to, topic="copies")
    kept = stream.select("offset").writeStream.format("parquet").option("path", f"{folder}/kept")
    for name, query in (("copies", copies), ("kept", kept)):
        query = query.option("checkpointLocation", f"{folder}/checkpoint-{name}").trigger(availableNow=True)
        assert query.start().awaitTermination(100)
    seen["kept"] = spark.read.parquet(f"{folder}/kept").count()

    def write_batch(batch: Any, number: int) -> None:
        options = {**to, "topic": "batches", "query": "batches", "batch": number}
        batch.select("value").write.format("strandline").options(**options).mode("append").save()

    each = stream.writeStream.foreachBatch(write_batch).trigger(availableNow=True)
    assert each.option("checkpointLocation", f"{folder}/checkpoint-batches").start().awaitTermination(100)

    register(spark)
    seen["registered"] = source("orders").count()
    seen["backfill"] = backfill(spark, url, cut(url, ["orders"])).count()

    seen["audit"] = refused(lambda: run_audits(url, {}, given["cluster"], spark=spark))
    seen["ship"] = refused(lambda: ship(spark))
    seen["session"] = refused(lambda: session("none", given["remote"]))
    return seen


def refused(action: Callable[[], object]) -> list[str]:
    """The lines of what an action is refused with, but for Java's stack."""
    try:
        action()
    except Exception as error:
        return [line for line in str(error).splitlines() if not line.startswith("\tat ")]
    return ["it was not refused"]


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))), flush=True)
