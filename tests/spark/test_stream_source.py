"""`spark.readStream.format("strandline")` in a real Spark: triggers, restarts, errors.

What the reader decides is tried in test_stream.py, without Spark. Each query here costs seconds.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from strandline.statemachine.partition.partition_commands import SetStartOffset
from tests.spark.collected_cluster import write
from tests.spark.planned import Place, readable
from tests.spark.stored_cluster import StoredCluster, StoredRecord, build_cluster

COLUMNS = "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary"


@pytest.fixture
def cluster(tmp_path: Path) -> StoredCluster:
    return build_cluster(tmp_path / "objects", batches_a_round=2)


def stream(spark: SparkSession, cluster: StoredCluster, **given: str) -> DataFrame:
    return (
        spark.readStream.format("strandline")
        .options(url=cluster.url, **given)
        .schema(f"{COLUMNS}, leader_epoch int")
        .load()
    )


def records(frame: DataFrame) -> dict[Place, list[StoredRecord]]:
    """All rows, sorted; one that is there twice is in the list twice."""
    found: dict[Place, list[StoredRecord]] = {}
    for row in frame.selectExpr("*", "unix_millis(timestamp) AS ms").collect():
        key = None if row.key is None else bytes(row.key)
        one = StoredRecord(row.offset, row.ms, key, bytes(row.value), row.leader_epoch)
        found.setdefault((row.topic, row.partition), []).append(one)
    return {place: sorted(those) for place, those in found.items()}


def test_available_now_restarts_where_it_was_and_repeats_what_was_not_committed(
    spark: SparkSession, cluster: StoredCluster, tmp_path: Path
) -> None:
    kept, sink = tmp_path / "kept", tmp_path / "sink"

    def run() -> int:
        """Run the query until it ends by itself; returns the number of its batches."""
        read = stream(spark, cluster, subscribePattern="orders|visits|new.*", maxOffsetsPerTrigger="40")
        query = (
            read.writeStream.format("parquet")
            .option("checkpointLocation", str(kept))
            .trigger(availableNow=True)
            .start(str(sink))
        )
        assert query.awaitTermination(100)
        return len(list((kept / "commits").glob("[0-9]*")))

    assert run() >= 3
    assert records(spark.read.parquet(str(sink))) == readable(cluster, "orders", "visits")
    # What a driver leaves that is killed after a batch was planned, and before its rows were in the sink.
    last = max(int(path.name) for path in (kept / "commits").glob("[0-9]*"))
    for path in (kept / "commits", sink / "_spark_metadata"):
        for name in (f"{last}", f".{last}.crc"):
            (path / name).unlink(missing_ok=True)
    cluster.create_topic("newer", 1)
    write(cluster, *cluster.partitions.values())
    cluster.checkpoint()
    assert run() > last + 1
    assert records(spark.read.parquet(str(sink))) == readable(cluster, "orders", "visits", "newer")


def test_processing_time_sees_new_checkpoints_and_deleted_records_end_it(
    spark: SparkSession, cluster: StoredCluster
) -> None:
    query = (
        stream(spark, cluster, topic="clicks", startingOffsets="latest")
        .writeStream.format("memory")
        .queryName("clicked")
        .trigger(processingTime="50 milliseconds")
        .start()
    )
    try:
        query.processAllAvailable()
        assert spark.table("clicked").count() == 0
        clicks = cluster.partitions["clicks", 0]
        before = clicks.machine.next_offset
        write(cluster, clicks, count=5)
        cluster.checkpoint()
        deadline = time.monotonic() + 60
        while spark.table("clicked").count() < 5 and time.monotonic() < deadline:
            time.sleep(0.2)
        assert records(spark.table("clicked")) == {("clicks", 0): clicks.readable[-5:]}
        told = query.lastProgress
        assert told is not None
        assert f'"0":{before + 5}' in str(told.sources[0].endOffset).replace(" ", "")

        write(cluster, clicks, count=5)
        clicks.execute(SetStartOffset(before + 7))
        cluster.checkpoint()
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination(60)
        said = [line for line in str(caught.value).splitlines() if "SourceError" in line]
        assert f"clicks-0: records below offset {before + 7} were deleted, {before + 5} was next" in said[-1]
    finally:
        query.stop()


def test_what_a_stream_is_refused_for_is_the_last_that_its_error_says(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = (
        spark.readStream.format("strandline").options(url=str(tmp_path / "nowhere"), topic="orders").load()
    )
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "kept"))
    with pytest.raises(StreamingQueryException) as caught:
        writer.trigger(availableNow=True).start().awaitTermination()
    errors = [line for line in str(caught.value).splitlines() if "Error: " in line]
    assert re.fullmatch(r".*SourceError: \S+: there is no such folder: name the one .*", errors[-1]), errors
