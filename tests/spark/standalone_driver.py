"""A driver on a Spark cluster: reads, streams and writes a topic, and audits.

It prints what it saw as a line of JSON, then what `strandline audit --json` does. Its argument is one JSON
object: `master`, `storage` (options of the source), `bootstrap`, `admin` (nodes' HTTP addresses), `audit`
(arguments of the command), `kept` (a folder for the stream's checkpoint), `secret` (a file of the driver's).
The command finds the session that there is, and so its executors: another one costs seconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from strandline.cluster import cli
from strandline.cluster.admin_client import first_answer
from strandline.snapshot.spark import session as sessions
from strandline.spark import NoMaster, session
from tests.spark.standalone_cluster import EXECUTOR_MB


def main(given: dict[str, Any]) -> dict[str, Any]:
    configs = {
        "spark.executor.memory": f"{EXECUTOR_MB}m",
        "spark.sql.shuffle.partitions": "2",
        # A pass of audits compiles hundreds of classes for a few rows each.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    seen: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sessions, "EXECUTOR_SECONDS", 2.0)
        try:
            session("too large", given["master"], {**configs, "spark.executor.memory": "8g"}, short_jobs=True)
        except NoMaster as error:
            seen["too large"] = str(error)
    spark = session("driver", given["master"], configs, short_jobs=True)
    source = spark.read.format("strandline").options(**given["storage"], topic="orders")
    secret = given["secret"]

    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The process that a task runs below, where it has the package from, and whether it is kept off."""
        import os.path

        import strandline.snapshot.spark.fetch

        for _ in batches:
            time.sleep(0.5)  # so that one executor does not take both tasks
        try:
            open(secret).close()
            refused = "opened"
        except PermissionError as error:
            refused = str(error)
        row = {
            "executor": [os.getcwd()],
            "package": [os.path.abspath(strandline.snapshot.spark.fetch.__file__)],
            "refused": [refused],
        }
        yield pa.RecordBatch.from_pydict(row)

    rows = (
        spark.range(0, 2, 1, 2).mapInArrow(where, "executor string, package string, refused string").collect()
    )
    seen["executors"] = [row.asDict() for row in rows]

    seen["read"] = [row.value for row in source.load().selectExpr("CAST(value AS STRING) AS value").collect()]

    frame = spark.range(100).selectExpr("CAST(id AS STRING) AS value")
    to = {"kafka.bootstrap.servers": given["bootstrap"]}
    frame.write.format("strandline").options(**to, topic="written", query="written", batch="0").mode(
        "append"
    ).save()

    stream = spark.readStream.format("strandline").options(**given["storage"], topic="orders").load()
    query = (
        stream.writeStream.format("strandline")
        .options(**to, topic="copies", checkpointLocation=given["kept"])
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(100)
    return seen


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(main(given)), flush=True)
    first_answer(
        given["admin"], "POST", "/api/checkpoints", {"lease_seconds": 600, "timeout_seconds": 60}, timeout=70
    )
    sys.argv = ["strandline", "audit", *given["audit"]]
    cli.main()
