"""The sink in a real Spark: the examples of the page, a restart, errors. test_sink.py kills it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from strandline import TemporaryCluster, local_cluster
from strandline.cluster.admin_client import first_answer
from strandline.snapshot.spark.sink import options
from tests.spark.sink_play import values

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


@pytest.fixture(scope="module")
def cluster() -> Iterator[TemporaryCluster]:
    with local_cluster() as running:
        for topic in ("orders", "copies"):
            running.create_topic(topic, partitions=2)
        yield running


def test_the_examples_of_the_page_that_write(
    spark: SparkSession, cluster: TemporaryCluster, tmp_path: Path
) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    batch, stream, numbered = [one for one in examples if "kafka.bootstrap.servers" in one]
    names = {"spark": spark, "url": cluster.storage, "bootstrap": cluster.bootstrap}

    def run(example: str) -> None:
        example = example.replace('"/var/lib/strandline/objects"', "url").replace('"/srv/', f'"{tmp_path}/')
        exec(example.replace('"localhost:9092"', "bootstrap"), names)

    run(batch)
    first = values(cluster.bootstrap, "orders", 2)
    assert sorted(first) == sorted(f'{{"id":{number}}}' for number in range(1000))
    assert set(first.values()) == {1}
    run(numbered)  # writes the same number twice
    second = values(cluster.bootstrap, "orders", 2)
    assert set(second.values()) == {2}

    body = {"topics": ["orders"], "lease_seconds": 600, "timeout_seconds": 60}
    first_answer(cluster.admin, "POST", "/api/checkpoints", body, timeout=70)
    run(stream)
    assert values(cluster.bootstrap, "copies", 2) == second
    # What a driver leaves that is killed when a batch is in the topic, and Spark has not written that down.
    commits = tmp_path / "streams" / "copies" / "commits"
    last = max(int(path.name) for path in commits.glob("[0-9]*"))
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink()
    run(stream)
    assert values(cluster.bootstrap, "copies", 2) == second
    assert (commits / f"{last}").exists()


def test_what_is_wrong_is_said_in_a_line(spark: SparkSession, cluster: TemporaryCluster) -> None:
    frame = spark.range(3).selectExpr("CAST(id AS STRING) AS value", "id")
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "topic": "nosuch"}
    with pytest.raises(PySparkException, match="SinkError: there is no place for column 'id' in a record"):
        frame.write.format("strandline").options(**given).mode("append").save()
    with pytest.raises(PySparkException, match="SinkError: there is no topic 'nosuch'"):
        frame.select("value").write.format("strandline").options(**given).mode("append").save()
    with pytest.raises(PySparkException, match="SinkError: a topic cannot be overwritten"):
        frame.select("value").write.format("strandline").options(**given).mode("overwrite").save()


def test_the_page_names_every_option_of_the_sink() -> None:
    named = {name.lower().replace("_", "") for name in re.findall(r"`([\w.]+)`", PAGE.read_text())}
    assert {*options.KNOWN} - named == set()
