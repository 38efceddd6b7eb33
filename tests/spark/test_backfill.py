"""A batch up to a cut and a stream from it: each record once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strandline.spark import SourceError, backfill, cut
from tests.spark.planned import readable
from tests.spark.stored_cluster import StoredCluster, build_cluster

Found = list[tuple[str, int, int]]


def test_a_batch_up_to_a_cut_and_a_stream_from_it_have_each_record_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    cluster = build_cluster(tmp_path / "objects", batches_a_round=2)
    until = cut(cluster.url, ["orders", "clicks"])
    assert until == json.loads(json.dumps(until))
    before = _places(cluster)
    for partition in cluster.partitions.values():
        cluster.upload(partition.batch([b"later"]))
    cluster.checkpoint()
    assert cut(cluster.url, ["clicks"]) != {"clicks": until["clicks"]}

    def found(frame: object) -> Found:
        columns = frame.select("topic", "partition", "offset")  # type: ignore[attr-defined]
        return sorted((row[0], row[1], row[2]) for row in columns.collect())

    assert found(backfill(spark, cluster.url, until)) == before
    query = (
        spark.readStream.format("strandline")
        .options(url=cluster.url, topic="orders,clicks", startingOffsets=json.dumps(until))
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "kept"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "later"))
    )
    query.awaitTermination()
    later = found(spark.read.parquet(str(tmp_path / "later")))
    assert sorted(before + later) == _places(cluster)
    assert len(later) == 5


def test_a_cut_of_what_is_not_there(tmp_path: Path) -> None:
    cluster = build_cluster(tmp_path / "objects", batches_a_round=1)
    with pytest.raises(SourceError, match="there is no topic 'nope'"):
        cut(cluster.url, ["orders", "nope"])
    with pytest.raises(SourceError, match="there is no checkpoint 9 of all topics"):
        cut(cluster.url, ["orders"], {"checkpoint": "9"})


def _places(cluster: StoredCluster) -> Found:
    there = readable(cluster, "orders") | readable(cluster, "clicks")
    return sorted((topic, number, one.offset) for (topic, number), some in there.items() for one in some)
