"""Spark Connect: sources, streams and the sink of a client that has no Spark, only a server's address."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from strandline.cluster.kafka_client import TopicAdmin
from strandline.cluster.target import target
from tests import ROOT
from tests.clients.programs import SPARK_CONNECT, Missing
from tests.cluster.real_cluster import RealCluster, running_cluster
from tests.spark.connect_server import connect_server
from tests.spark.sink_play import values

pytestmark = pytest.mark.timeout(300)

RECORDS = 3_000
TOPICS = ("orders", "copies", "written", "batches")


@pytest.fixture
def client() -> list[str]:
    try:
        return SPARK_CONNECT.command()
    except Missing as error:
        pytest.skip(str(error))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RealCluster]:
    with running_cluster(tmp_path / "cluster", nodes=1) as running:
        topics = TopicAdmin(target(folder=running.folder))
        for topic in TOPICS:
            topics.create(topic, 2, 1, {})
        producer = Producer({"bootstrap.servers": running.bootstrap, "enable.idempotence": True})
        for number in range(RECORDS):
            producer.produce("orders", value=f"order {number}", key=str(number))
        assert producer.flush(60) == 0
        yield running


def test_reading_streaming_and_writing_by_a_server(
    client: list[str], cluster: RealCluster, tmp_path: Path
) -> None:
    (tmp_path / "server").mkdir()
    with connect_server(tmp_path / "server", sys.executable, SPARK_CONNECT.folder()) as remote:
        given = {
            "remote": remote,
            "url": cluster.description.storage,
            "cluster": cluster.description.cluster,
            "bootstrap": cluster.bootstrap,
            "folder": str(tmp_path),
        }
        done = subprocess.run(
            [*client, json.dumps(given)], cwd=ROOT, capture_output=True, text=True, timeout=250, check=False
        )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout)

    everything = Counter(f"order {number}" for number in range(RECORDS))
    assert Counter(seen["read"]) == everything
    assert (seen["kept"], seen["registered"], seen["backfill"]) == (RECORDS,) * 3
    assert values(cluster.bootstrap, "copies", 2) == everything
    assert values(cluster.bootstrap, "batches", 2) == everything
    assert values(cluster.bootstrap, "written", 2) == Counter(str(number) for number in range(100))

    assert any("there is no topic 'nowhere' in what is published" in line for line in seen["no topic"])
    assert any("option 'url' is missing: the folder or bucket" in line for line in seen["no option"])
    lacks = "a session's context, and one of Spark Connect has none"
    assert seen["audit"] == [
        f"audits need {lacks}: read there with SparkSession.builder.remote; audits and SQL take local or spark://"
    ]
    assert seen["ship"] == [
        f"ship() needs {lacks}: install the package in the Python of the server and its executors"
    ]
    assert [line.partition(":")[0] for line in seen["session"]] == ["sc"]
