"""`strandline.local_cluster`: real nodes while a block lasts, and nothing of them when it has ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

import strandline
from strandline.cluster import temporary
from strandline.cluster.local_files import Description
from strandline.cluster.ports import Ports, free_ports
from strandline.node.runtime.process_end import PARENT_GONE

ENDED_SECONDS = 20.0

OWNER = """
import json, os, sys, time
import strandline
from strandline.cluster.local_files import Description

with strandline.local_cluster(nodes=2) as cluster:
    pids = [node.pid for node in Description.load(cluster.folder).nodes.values()]
    child = os.fork()
    if child:
        print(json.dumps({"folder": str(cluster.folder.parent), "nodes": pids, "child": child}), flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made in these tests."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def pids(cluster: strandline.TemporaryCluster) -> list[int]:
    found = Description.load(cluster.folder)
    assert found is not None
    return [node.pid for node in found.nodes.values() if node.pid is not None]


def run(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def soon(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + ENDED_SECONDS
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def produce(cluster: strandline.TemporaryCluster, topic: str, *values: bytes) -> None:
    failed = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(30) == 0
    assert failed == []


def consume(cluster: strandline.TemporaryCluster, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "test", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        records = [message.value() for message in consumer.consume(count, timeout=30)]
    finally:
        consumer.close()
    return sorted(value for value in records if value is not None)


def test_a_client_writes_and_reads_and_nothing_is_left(folder: Path) -> None:
    with strandline.local_cluster(config={"topics.partitions": 3, "log.level": "info"}) as cluster:
        nodes = pids(cluster)
        assert len(nodes) == 1
        produce(cluster, "orders", b"one", b"two")
        assert consume(cluster, "orders", 2) == [b"one", b"two"]
        metadata = Producer({"bootstrap.servers": cluster.bootstrap}).list_topics("orders", timeout=60)
        assert len(metadata.topics["orders"].partitions) == 3
        assert "serves Kafka on port" in cluster.log(1)
    assert not any(map(run, nodes))
    assert list(folder.iterdir()) == []


def test_a_cluster_grows_while_it_has_records(folder: Path) -> None:
    with strandline.local_cluster() as cluster:
        produce(cluster, "orders", b"one")
        cluster.grow(2)
        assert cluster.nodes == [1, 2]
        assert len(pids(cluster)) == 2
        cluster.create_topic("both")
        metadata = Producer({"bootstrap.servers": cluster.bootstrap}).list_topics("both", timeout=60)
        assert len(metadata.topics["both"].partitions[0].replicas) == 2, "as many as there are nodes now"
        produce(cluster, "both", b"two")
        assert consume(cluster, "both", 1) == [b"two"]
        assert consume(cluster, "orders", 1) == [b"one"]
        with pytest.raises(strandline.ClusterError, match="has 2 nodes, not 1; to take one out"):
            cluster.grow(1)


def test_two_at_once_share_nothing(folder: Path) -> None:
    with strandline.local_cluster() as one, strandline.local_cluster() as other:
        assert len(list(folder.iterdir())) == 2
        produce(one, "orders", b"one")
        produce(other, "orders", b"other")
        assert consume(one, "orders", 1) == [b"one"]
        assert consume(other, "orders", 1) == [b"other"]
    assert list(folder.iterdir()) == []


def test_a_node_dies_and_comes_back_and_the_records_are_there() -> None:
    with strandline.local_cluster() as cluster:
        cluster.create_topic("orders", partitions=2, config={"retention.ms": "86400000"})
        with pytest.raises(strandline.ClusterError, match="topic orders cannot be created"):
            cluster.create_topic("orders")
        produce(cluster, "orders", b"before")
        cluster.kill(1)
        with pytest.raises(strandline.ClusterError, match="node 1 does not run"):
            cluster.kill(1)
        cluster.start(1)
        assert consume(cluster, "orders", 1) == [b"before"]
        cluster.stop(1)


@pytest.mark.parametrize("fails", [RuntimeError, KeyboardInterrupt])
def test_a_block_that_fails_leaves_nothing(folder: Path, fails: type[BaseException]) -> None:
    nodes: list[int] = []

    def fail() -> None:
        with strandline.local_cluster() as cluster:
            nodes.extend(pids(cluster))
            os.kill(nodes[0], signal.SIGSTOP)  # one that hangs goes as well
            raise fails

    with pytest.raises(fails):
        fail()
    assert len(nodes) == 1
    assert not any(map(run, nodes))
    assert list(folder.iterdir()) == []


def test_nodes_end_when_their_parent_is_killed_and_the_next_cluster_removes_the_folder(folder: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(folder)}
    )
    assert owner.stdout is not None
    with owner:
        told = json.loads(owner.stdout.readline())
        assert all(map(run, told["nodes"]))
        owner.kill()
    try:
        # A process that it forked lives on, and holds what it had open.
        assert soon(lambda: not any(map(run, told["nodes"])))
        assert run(told["child"])
        with strandline.local_cluster():
            assert Path(told["folder"]).exists(), "one that is in use is left alone"
    finally:
        for pid in filter(run, [told["child"], *told["nodes"]]):
            os.kill(pid, signal.SIGKILL)
    assert soon(lambda: not run(told["child"]))
    with strandline.local_cluster():
        assert not Path(told["folder"]).exists()


def test_a_node_does_not_start_for_a_parent_that_is_gone(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    for pid in (gone.pid, os.getppid()):
        arguments = ["--config", str(tmp_path / "none.toml"), "--parent", str(pid)]
        done = subprocess.run([sys.executable, "-m", "strandline.node.process", *arguments], check=False)
        assert done.returncode == PARENT_GONE


def test_what_is_configured_wrongly_is_said_before_anything_is_started(folder: Path) -> None:
    with (
        pytest.raises(strandline.ClusterError, match=r"topics\.partitoins.*topics\.partitions"),
        strandline.local_cluster(config={"topics.partitoins": 3}),
    ):
        pass
    with pytest.raises(strandline.ClusterError, match="16 nodes"), strandline.local_cluster(nodes=16):
        pass
    assert list(folder.iterdir()) == []


def test_a_node_that_dies_at_its_start_leaves_its_last_words(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (sys.executable, "-c", "import sys; print('one'); sys.exit('strandline: no luck')")
    monkeypatch.setattr(temporary, "NODE_PROGRAM", program)
    with (
        pytest.raises(strandline.ClusterError, match="node 1 died: no luck") as failed,
        strandline.local_cluster(),
    ):
        pass
    assert failed.value.__notes__ == ["log of node 1:\none\nstrandline: no luck"]
    assert list(folder.iterdir()) == []


def test_ports_that_another_took_meanwhile_are_chosen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        rounds = []

        def choose(nodes: Sequence[int]) -> dict[int, Ports]:
            rounds.append(nodes)
            ports = free_ports(nodes)
            if len(rounds) == 1:
                ports[1] = Ports(taken.getsockname()[1], ports[1].admin, ports[1].mesh)
            return ports

        monkeypatch.setattr(temporary, "free_ports", choose)
        with strandline.local_cluster() as cluster:
            produce(cluster, "orders", b"one")
        assert len(rounds) == 2
