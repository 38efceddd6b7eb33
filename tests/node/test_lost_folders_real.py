"""Data folders that are lost under real nodes: one of three at the worst moment, then made good; then all.

The tests share one cluster and run in their order: each begins where the one before ended.
"""

from __future__ import annotations

import json
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from strandline.cluster.local import LocalCluster
from tests.cluster.command import strandline
from tests.cluster.real_cluster import RealCluster, running_cluster

TOPIC = "kept"
PARTITIONS = 3
SOON_SECONDS = 30.0
SETTINGS = ("collector.grace_seconds=0", "collector.sweep_seconds=0.5", "cluster.epoch_seconds=0.5")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with running_cluster(tmp_path_factory.mktemp("lost") / "cluster", settings=SETTINGS) as cluster:
        client = AdminClient({"bootstrap.servers": cluster.bootstrap})
        client.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(timeout=SOON_SECONDS)
        yield cluster


def wait(done: Callable[[], Any], seconds: float = SOON_SECONDS) -> None:
    ends = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < ends, f"not within {seconds:g} s"
        time.sleep(0.1)


def produce(cluster: RealCluster, first: int, count: int) -> None:
    """Records first, first + 1, …: all acknowledged when it returns."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 5})
    told: list[KafkaError | None] = []
    for number in range(first, first + count):
        producer.produce(TOPIC, str(number), on_delivery=lambda error, _: told.append(error))
    assert producer.flush(SOON_SECONDS) == 0
    assert told == [None] * count


def read(cluster: RealCluster, count: int) -> list[int]:
    """At least `count` records, from the beginning; and what comes within half a second more."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "reader", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    found: list[int] = []
    ends = time.monotonic() + SOON_SECONDS
    while time.monotonic() < ends:
        message = consumer.poll(0.5)
        if message is None:
            if len(found) >= count:
                break
        elif (error := message.error()) is None:
            found.append(int(message.value() or b""))
        else:
            assert error.code() == KafkaError._ALL_BROKERS_DOWN or error.retriable(), error
    consumer.close()
    return sorted(found)


def fetch(cluster: RealCluster, node: int, path: str) -> str:
    """What a node answers on its HTTP port, "" when it does not."""
    try:
        with urllib.request.urlopen(f"http://{cluster.admin[node - 1]}{path}", timeout=5) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())
    except OSError:
        return ""


def problems(cluster: RealCluster, node: int) -> dict[str, str]:
    """What /health of a node says is wrong, by reason."""
    answer = fetch(cluster, node, "/health")
    return {row["reason"]: json.dumps(row) for row in json.loads(answer)["problems"]} if answer else {}


def led(cluster: RealCluster, node: int) -> list[int]:
    """The groups that a node leads."""
    groups = json.loads(fetch(cluster, node, "/api/groups") or '{"groups": []}')["groups"]
    return [group["group"] for group in groups if group["role"] == "leader"]


def told(cluster: RealCluster, node: int) -> str:
    return cluster.local.chosen(node)[0].log.read_text()


def lose_folder(cluster: RealCluster, node: int) -> None:
    shutil.rmtree(cluster.local.chosen(node)[0].data)


def objects(folder: Path) -> dict[str, bytes]:
    """Everything in the bucket."""
    root = folder / "objects"
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_majority_with_a_lost_folder_serves_nothing_and_says_why(cluster: RealCluster) -> None:
    produce(cluster, 0, 200)
    cluster.kill(1)
    produce(cluster, 200, 100)
    cluster.kill(3)
    cluster.kill(2)
    lose_folder(cluster, 3)
    before = {node: len(told(cluster, node)) for node in (1, 3)}
    cluster.start(1, wait=False)
    cluster.start(3, wait=False)
    wait(lambda: "strangers" in problems(cluster, 1) and "folder_refused" in problems(cluster, 3))
    assert "node 3 comes with data folder" in problems(cluster, 1)["strangers"]
    assert "strandline node replace" in problems(cluster, 1)["strangers"]
    assert "the other nodes know node 3 by another data folder" in problems(cluster, 3)["folder_refused"]
    assert "since it is empty" in problems(cluster, 3)["folder_refused"]
    assert problems(cluster, 3).keys() == {"folder_refused"}, "what follows from it has another cure alone"
    assert 'strandline_problems{reason="strangers"} 1' in fetch(cluster, 1, "/metrics")
    assert 'strandline_problems{reason="folder_refused"} 1' in fetch(cluster, 3, "/metrics")
    for node in (1, 3):
        assert "strandline node replace 3" in told(cluster, node)[before[node] :]
    ends = time.monotonic() + 3
    while time.monotonic() < ends:
        assert led(cluster, 1) == led(cluster, 3) == []
        time.sleep(0.2)
    assert "mesh: alone" not in told(cluster, 3)[before[3] :], "a peer is there, and refuses it"
    cluster.start(2, wait=False)
    wait(lambda: {0, 1, 2, 3} <= {*led(cluster, 1), *led(cluster, 2)})
    assert read(cluster, 300) == list(range(300))


def test_folder_that_was_let_in_serves_when_another_node_is_away(
    cluster: RealCluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = strandline(
        capfd, monkeypatch, "node", "replace", "3", "--timeout", "40", "--cluster", str(cluster.folder)
    )
    assert done.status == 0, done
    assert done.out.startswith("node 3 is replaced: data folder ")
    cluster.kill(1)
    produce(cluster, 300, 50)
    assert read(cluster, 350) == list(range(350))


def test_cluster_without_any_of_its_folders_is_not_up_and_deletes_nothing(
    cluster: RealCluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in (2, 3):
        cluster.stop(node)
    for node in (1, 2, 3):
        lose_folder(cluster, node)
    before = objects(cluster.folder)
    assert len(before) > 3
    done = strandline(
        capfd, monkeypatch, "cluster", "up", "--timeout", "12", "--cluster", str(cluster.folder)
    )
    assert done.status != 0
    assert "up: " not in done.out
    assert "this node's data folder is new" in done.err, done
    assert objects(cluster.folder) == before
    assert all(pid is None for pid in (each.pid for each in LocalCluster(cluster.folder).chosen()))
