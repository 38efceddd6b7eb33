"""Tables of Delta and Iceberg in Spark, by the files that they list: record by record what the topic has."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from strandline.snapshot.spark.export.planning import Limits
from strandline.snapshot.spark.export.target import open_target
from tests.kafka.wire.batches import Record, build
from tests.spark.collected_cluster import write
from tests.spark.exporting import export, exporting
from tests.spark.stored_cluster import StoredCluster, Upload, build_cluster

SEVERAL = Limits(file_bytes=1500, round_files=20)
"""A round of several files."""
PLAIN = ("partition", "offset", "timestamp", "key", "value", "headers", "timestampType", "leader_epoch")


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test loses power, and a busy disk takes a second for each sync."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def cluster(tmp_path: Path) -> StoredCluster:
    found = build_cluster(tmp_path / "objects", batches_a_round=2)
    found.create_topic("events", 2)
    return found


def go_on(cluster: StoredCluster) -> None:
    write(cluster, *cluster.partitions.values())
    cluster.checkpoint()


def put(cluster: StoredCluster, *values: bytes, number: int = 0) -> None:
    """Write values to a partition of topic `events`, as one batch, and publish them."""
    records = tuple(Record(value) for value in values)
    cluster.upload(Upload(cluster.partitions["events", number], records, build(records), (-1, -1, -1)))
    cluster.checkpoint()


def files(lake: Path, form: str, topic: str) -> list[str]:
    """The files that are a table's now, by its own log or catalog."""
    if form == "delta":
        return [unquote(one.removeprefix("file://")) for one in _delta(lake, topic).file_uris()]
    found = list(_iceberg(lake, topic).scan().plan_files())
    assert not any(one.delete_files for one in found), "each file counts as a whole"
    return [one.file.file_path for one in found]


def _delta(lake: Path, topic: str) -> DeltaTable:
    return DeltaTable(str(lake / f"topic={topic}"))


def _iceberg(lake: Path, topic: str) -> Table:
    catalog = load_catalog("strandline", type="sql", uri=f"sqlite:///{lake}/_strandline/catalog.db")
    return catalog.load_table(("strandline", topic))


def source(spark: SparkSession, cluster: StoredCluster, topic: str) -> DataFrame:
    return spark.read.format("strandline").options(url=cluster.url, topic=topic).load()


def assert_same(one: DataFrame, other: DataFrame) -> None:
    """Each row as often in both; the columns are those of the second."""
    one = one.select(*other.columns)
    assert one.count() == other.count() > 0
    assert one.exceptAll(other).isEmpty()
    assert other.exceptAll(one).isEmpty()


@pytest.mark.parametrize("by", ["none", "day"])
@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_a_tables_files_in_spark_are_the_topics_records(
    spark: SparkSession, cluster: StoredCluster, tmp_path: Path, form: str, by: str
) -> None:
    lake = tmp_path / "lake"
    target = open_target(str(lake))
    for _ in range(3):
        export(cluster, target, "orders", format=form, by=by, limits=SEVERAL)
        go_on(cluster)
    made = exporting(cluster, target, "orders", limits=SEVERAL)
    made.run()
    wanted = source(spark, cluster, "orders").select(*PLAIN)
    wanted_now = "offset >= 3" if form == "delta" else "true"

    def found() -> DataFrame:
        return spark.read.parquet(*files(lake, form, "orders"))

    assert_same(found(), wanted)
    if form == "delta":
        before = files(lake, form, "orders")
        assert made.compact()
        after = files(lake, form, "orders")
        assert len(after) < len(before)
        on_disk = [str(path) for path in (lake / "topic=orders").rglob("*.parquet")]
        assert {*before} - {*after} < {*on_disk}, "Delta keeps them for a week, and they are no part of it"
        assert_same(found(), wanted)
        _delta(lake, "orders").delete("offset < 3")
        wanted = source(spark, cluster, "orders").select(*PLAIN).where("offset >= 3")
        assert_same(found(), wanted)
    before_that = found().count()
    go_on(cluster)
    export(cluster, target, "orders")
    assert found().count() > before_that
    assert_same(found(), source(spark, cluster, "orders").select(*PLAIN).where(wanted_now))


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_columns_that_came_later_are_there_in_spark(
    spark: SparkSession, cluster: StoredCluster, tmp_path: Path, form: str
) -> None:
    lake = tmp_path / "lake"
    target = open_target(str(lake))

    def run() -> None:
        export(cluster, target, "events", format=form, value="json")

    put(cluster, b'{"id": 1, "name": "A"}', b'{"id": 2, "name": "B"}')
    run()
    put(cluster, b'{"id": 3, "name": "C", "far": 1.5}', b"no JSON", b'{"id": "four"}', number=1)
    put(cluster, b'{"id": 5, "far": 2.5}')
    run()
    if form == "delta":
        assert exporting(cluster, target, "events", format=form, value="json").compact()
    table = spark.read.option("mergeSchema", True).parquet(*files(lake, form, "events"))
    read = source(spark, cluster, "events").withColumn(
        "told", expr("from_json(CAST(value AS STRING), 'id STRING, name STRING, far DOUBLE')")
    )
    wanted = read.selectExpr(
        "partition",
        "offset",
        "timestamp",
        "try_cast(told.id AS BIGINT) AS id",
        "told.name AS name",
        "told.far AS far",
        "CASE WHEN told.id IS NULL OR told.id = 'four' THEN value END AS value",
    )
    assert_same(table, wanted)
