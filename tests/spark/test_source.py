"""`spark.read.format("strandline")` on a stored cluster, in a real Spark; and the page that tells how.

Spark finds the source in every test but the one that registers it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceRegistration
from pyspark.sql.functions import spark_partition_id

from strandline.snapshot.decode import COLUMNS
from strandline.snapshot.spark import options
from strandline.snapshot.spark.source import register
from strandline.statemachine.partition.extent import ObjectExtent
from tests import ROOT
from tests.spark.stored_cluster import StoredCluster, build_cluster

PAGE = ROOT / "docs" / "spark.md"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> StoredCluster:
    return build_cluster(tmp_path_factory.mktemp("read") / "objects")


def frame(spark: SparkSession, cluster: StoredCluster, schema: str | None = None, **given: str) -> DataFrame:
    reader = spark.read.format("strandline").options(url=cluster.url, **given)
    return (reader.schema(schema) if schema else reader).load()


def test_a_topic_is_read_from_start_offset_to_high_watermark(
    spark: SparkSession, cluster: StoredCluster
) -> None:
    read = frame(spark, cluster, topic="orders,clicks,visits", min_partitions="3")
    assert read.select(spark_partition_id()).distinct().count() == 3
    columns = ("topic", "partition", "offset", "key", "value", "leader_epoch", "headers", "timestampType")
    found = sorted(tuple(row) for row in read.select(*columns).collect())
    expected = [
        (topic, number, r.offset, r.key, r.value, r.leader_epoch, None, 0)
        for (topic, number), partition in cluster.partitions.items()
        for r in partition.readable
    ]
    assert [tuple(map(_plain, row)) for row in found] == sorted(expected)


def _plain(value: object) -> object:
    return bytes(value) if isinstance(value, bytearray) else value


def test_a_session_can_be_told_of_the_source_too(
    spark: SparkSession, cluster: StoredCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = spark.newSession()
    registered = []
    monkeypatch.setattr(DataSourceRegistration, "register", lambda _, source: registered.append(source))
    monkeypatch.setattr(SparkContext, "defaultParallelism", 7)
    register(told)
    assert [source.parallelism for source in registered] == [7]
    monkeypatch.undo()
    told.dataSource.register(registered[0])
    assert frame(told, cluster, topic="clicks").count() == len(cluster.partitions["clicks", 0].readable)


def test_times_are_moments(spark: SparkSession, cluster: StoredCluster) -> None:
    read = frame(spark, cluster, topic="clicks")
    oldest = min(record.timestamp for record in cluster.partitions["clicks", 0].readable)
    (row,) = read.selectExpr("unix_millis(min(timestamp))").collect()
    assert row[0] == oldest


def test_options_prune_and_a_frame_can_be_used_again(spark: SparkSession, cluster: StoredCluster) -> None:
    records = cluster.partitions["orders", 1].readable
    read = frame(spark, cluster, assign='{"orders": [1]}', startingOffsets=str(records[4].offset))
    assert read.count() == len(records) - 4
    # A source that lets Spark push filters down answers the second of these with the first one's filter.
    assert read.where("offset = 7").count() == 1
    assert read.where("offset > 7").count() == sum(record.offset > 7 for record in records)


def test_a_schema_prunes_columns(spark: SparkSession, cluster: StoredCluster) -> None:
    read = frame(spark, cluster, "offset bigint not null, value binary", topic="clicks")
    assert read.columns == ["offset", "value"]
    found = [(row.offset, bytes(row.value)) for row in read.orderBy("offset").collect()]
    assert found == [(r.offset, r.value) for r in cluster.partitions["clicks", 0].readable]


def test_headers_with_a_schema_of_their_own(spark: SparkSession, cluster: StoredCluster) -> None:
    kind = "headers array<struct<key: string, value: binary>>"
    assert frame(spark, cluster, kind, topic="clicks").where("headers is null").count() > 0


@pytest.mark.parametrize(
    ("schema", "given", "message"),
    [
        (None, {"topic": "nope"}, "there is no topic 'nope' in what is published, but clicks, orders"),
        (None, {"topic": "orders", "startingOfset": "1"}, "there is no option 'startingofset'"),
        ("value string", {"topic": "orders"}, "there is no column 'value string'; choose from: key binary"),
    ],
)
def test_what_is_wrong_is_the_last_line(
    spark: SparkSession, cluster: StoredCluster, schema: str | None, given: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        frame(spark, cluster, schema, **given).count()
    lines = [line for line in str(caught.value).splitlines() if "SourceError" in line]
    assert message in lines[-1]


def test_damage_is_an_error_that_names_the_object(spark: SparkSession, tmp_path: Path) -> None:
    cluster = build_cluster(tmp_path / "objects", batches_a_round=1)
    extent = next(iter(cluster.partitions["orders", 0].machine.extents))
    assert isinstance(extent, ObjectExtent)
    assert extent.position == 16
    path = cluster.root / extent.object_name
    data = bytearray(path.read_bytes())
    data[16 + 61 + 5] ^= 1
    path.write_bytes(bytes(data))
    name = path.relative_to(cluster.root).as_posix()
    with pytest.raises(PySparkException, match=f"object {name}, bytes 16 to .*checksum does not match"):
        frame(spark, cluster, topic="orders,clicks").count()


def test_the_examples_of_the_page_run(
    spark: SparkSession, cluster: StoredCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) >= 3
    names = {"spark": spark, "url": cluster.url}
    for example in examples:
        if "kafka.bootstrap.servers" in example:
            continue  # they need a broker: test_sink_spark.py
        example = example.replace('"/var/lib/strandline/objects"', "url").replace('"/srv/', f'"{tmp_path}/')
        exec(example.replace("spark.stop()", ""), names)
    assert "orders" in capsys.readouterr().out


def test_the_page_names_every_option_and_column() -> None:
    page = PAGE.read_text()
    named = {name.lower().replace("_", "") for name in re.findall(r"`(\w+)`", page)}
    assert {*options.KNOWN, *options.ALIASES} - named == set()
    assert {name for name in COLUMNS if f"`{name}`" not in page} == set()
