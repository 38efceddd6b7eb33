"""A real Spark cluster: everything that runs in Spark runs there, with nothing but what the driver sends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from strandline.cluster.admin_client import first_answer
from strandline.cluster.kafka_client import TopicAdmin
from strandline.cluster.target import target
from strandline.spark import NoMaster, session
from tests import ROOT
from tests.cluster.command import nowhere
from tests.cluster.real_cluster import RealCluster, running_cluster
from tests.objectstore.s3_endpoint import endpoint
from tests.spark.sink_play import values
from tests.spark.standalone_cluster import StandaloneCluster, standalone_cluster

__all__ = ["endpoint"]
pytestmark = [pytest.mark.s3, pytest.mark.timeout(300)]

BUCKET = "s3://data"
RECORDS = 3_000
KEYS = {"region": "us-east-1", "access_key_id": "test", "secret_access_key": "test"}


@pytest.fixture(scope="module")
def options(endpoint: str) -> dict[str, str]:
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/data", method="PUT"), timeout=60).close()
    return {**KEYS, "endpoint": endpoint}


@pytest.fixture(scope="module")
def cluster(options: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """One node whose objects are in a bucket, which executors reach as they would reach any."""
    settings = [f"storage.options.{name}={value}" for name, value in options.items()]
    folder = tmp_path_factory.mktemp("cluster")
    with running_cluster(folder, nodes=1, settings=settings, storage=BUCKET) as running:
        topics = TopicAdmin(target(folder=folder))
        for topic in ("orders", "copies", "written"):
            topics.create(topic, 2, 1, {})
        producer = Producer({"bootstrap.servers": running.bootstrap, "enable.idempotence": True})
        for number in range(RECORDS):
            producer.produce("orders", value=f"order {number}", key=str(number))
        assert producer.flush(60) == 0
        checkpoint(running)
        yield running


@pytest.fixture(scope="module")
def spark_cluster(
    cluster: RealCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StandaloneCluster]:
    drivers = [ROOT, tmp_path_factory.mktemp("driver"), cluster.folder]
    with standalone_cluster(tmp_path_factory.mktemp("standalone"), drivers) as running:
        yield running


def checkpoint(cluster: RealCluster) -> None:
    body = {"lease_seconds": 600, "timeout_seconds": 60}
    first_answer(cluster.admin, "POST", "/api/checkpoints", body, timeout=70)


def test_reading_streaming_writing_and_all_audits_on_a_cluster(
    spark_cluster: StandaloneCluster, cluster: RealCluster, options: dict[str, str], tmp_path: Path
) -> None:
    secret = ROOT / "README.md"
    chosen = [f"--option={name}={value}" for name, value in options.items()]
    where = ["--storage", BUCKET, "--cluster-id", cluster.description.cluster, *chosen]
    given = {
        "master": spark_cluster.master,
        "storage": {"url": BUCKET, **{f"storage.{name}": value for name, value in options.items()}},
        "bootstrap": cluster.bootstrap,
        "admin": cluster.admin,
        "audit": [*where, "--master", spark_cluster.master, "--json"],
        "kept": str(tmp_path / "kept"),
        "secret": str(secret),
    }
    command = [sys.executable, "-m", "tests.spark.standalone_driver", json.dumps(given)]
    env = {**os.environ, "PYSPARK_PYTHON": str(spark_cluster.python)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    told, _, audited = done.stdout.partition("\n")
    seen = json.loads(told)

    assert re.fullmatch(r"spark://\S+ started no executor in 2 s: check .*memory left", seen["too large"])
    executors = seen["executors"]
    assert len({one["executor"] for one in executors}) == 2, "both workers have had a task"
    for one in executors:
        assert one["package"].startswith(f"{one['executor']}/strandline.zip/"), "sent by the driver"
        assert one["refused"] == f"{secret} is on the driver's disk"

    everything = Counter(f"order {number}" for number in range(RECORDS))
    assert Counter(seen["read"]) == everything
    assert values(cluster.bootstrap, "copies", 2) == everything
    assert values(cluster.bootstrap, "written", 2) == Counter(str(number) for number in range(100))

    verdicts = {audit["name"]: audit["verdict"] for audit in json.loads(audited)["audits"]}
    assert "finding" not in verdicts.values()
    passed = {name for name, verdict in verdicts.items() if verdict == "passed"}
    assert {
        "replicas_agree",
        "references_exist_and_crc",
        "replay",
        "aborted_index_equals_replay",
        "every_marker_has_its_transaction",
    } <= passed, passed


def test_a_master_that_is_not_there_is_told_at_once() -> None:
    with pytest.raises(NoMaster, match=f"spark://{nowhere()[:10]}.* cannot be reached .*: check its address"):
        session("none", f"spark://{nowhere()}")


def test_a_server_of_spark_connect_is_no_master() -> None:
    with pytest.raises(NoMaster, match=r"sc://harbour:15002 is a server of Spark Connect.*builder.remote"):
        session("none", "sc://harbour:15002")
