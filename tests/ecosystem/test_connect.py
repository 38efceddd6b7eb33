"""Kafka Connect, distributed: its three compacted topics, exactly-once source, a node and a worker killed."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # type: ignore[attr-defined]

from strandline.cluster.ports import free_ports
from tests.clients.programs import CONNECT, Missing
from tests.cluster.real_cluster import RealCluster
from tests.ecosystem.compacting import TOPIC_SETTINGS, leader_of
from tests.ecosystem.reading import read_until

_WAIT_SECONDS: Final = 60.0
_ASK_SECONDS: Final = 10.0
_FILE: Final = "org.apache.kafka.connect.file"


class Worker:
    """One Connect worker of a cluster of workers named `group`, with the REST API that it is asked by."""

    def __init__(self, command: list[str], bootstrap: str, group: str, folder: Path) -> None:
        folder.mkdir()
        port = free_ports([1])[1].kafka
        self.log = folder / "log"
        self._url = f"http://127.0.0.1:{port}"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "listeners": self._url,
            "plugin.discovery": "service_load",
            "exactly.once.source.support": "enabled",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offset.flush.interval.ms": 200,
            "scheduled.rebalance.max.delay.ms": 0,
            # A killed worker is missed after six seconds.
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 1000,
            "consumer.session.timeout.ms": 6000,
            "consumer.heartbeat.interval.ms": 1000,
        }
        for what, partitions in (("config", None), ("offset", 2), ("status", 2)):
            settings[f"{what}.storage.topic"] = f"{group}-{what}"
            settings[f"{what}.storage.replication.factor"] = 3
            if partitions is not None:
                settings[f"{what}.storage.partitions"] = partitions
            for name, value in TOPIC_SETTINGS.items():
                settings[f"{what}.storage.{name}"] = value
        (folder / "worker.properties").write_text(
            "".join(f"{name}={value}\n" for name, value in settings.items())
        )
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, str(folder / "worker.properties")], stdout=output, stderr=subprocess.STDOUT
            )

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """One request to the API; None while it does not answer or is rebalancing."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}{path}", data, headers, method=method)
        try:
            with self._opener.open(request, timeout=_ASK_SECONDS) as answer:
                return json.loads(answer.read() or b"null")
        except (OSError, urllib.error.URLError):
            return None

    def wait_for(self, holds: Callable[[], Any], what: str) -> None:
        """Ask again until it is so; fails with the worker's log otherwise."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while not holds():
            assert self._process.poll() is None, f"the worker ended: {self._said()}"
            assert time.monotonic() < deadline, f"not within {_WAIT_SECONDS:.0f} s: {what}: {self._said()}"
            time.sleep(0.1)

    def running(self, name: str) -> bool:
        """Whether a connector and its task run."""
        told = self.ask("GET", f"/connectors/{name}/status")
        if told is None:
            return False
        states = [told["connector"]["state"], *(task["state"] for task in told["tasks"])]
        return states == ["RUNNING", "RUNNING"]

    def kill(self) -> None:
        """SIGKILL, also where it has ended."""
        self._process.kill()
        self._process.wait(_WAIT_SECONDS)

    def _said(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


@pytest.fixture
def start(cluster: RealCluster, tmp_path: Path) -> Iterator[Callable[[str, str], Worker]]:
    """Starts a worker: its group, and the name of its folder."""
    started: list[Worker] = []
    try:
        command = CONNECT.command()
    except Missing as error:
        pytest.skip(str(error))

    def run(group: str, name: str) -> Worker:
        started.append(Worker(command, cluster.bootstrap, group, tmp_path / name))
        return started[-1]

    yield run
    for one in started:
        one.kill()


def test_files_to_a_topic_and_back(
    cluster: RealCluster, start: Callable[[str, str], Worker], tmp_path: Path
) -> None:
    group = f"connect-{uuid.uuid4().hex[:8]}"
    topic = f"{group}-lines"
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for made in admin.create_topics([NewTopic(topic, 1, 3)]).values():
        made.result(60)
    written: list[str] = []

    def write(count: int) -> None:
        lines = [f"line {number}" for number in range(len(written), len(written) + count)]
        with source.open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))
        written.extend(lines)

    def arrived() -> list[str | None]:
        got = read_until(cluster.bootstrap, topic, 1, lambda records: len(records) >= len(written))
        return [record.value for record in got]

    connectors = {
        "in": {
            "connector.class": f"{_FILE}.FileStreamSourceConnector", "tasks.max": "1", "file": str(source),
            "topic": topic, "exactly.once.support": "required", "transaction.boundary": "poll",
        },
        "out": {
            "connector.class": f"{_FILE}.FileStreamSinkConnector", "tasks.max": "1", "file": str(sink),
            "topics": topic, "consumer.override.isolation.level": "read_committed",
        },
    }  # fmt: skip
    write(200)
    first = start(group, "worker-1")
    for name, settings in connectors.items():
        taken = partial(first.ask, "PUT", f"/connectors/{name}/config", settings)
        first.wait_for(taken, f"the connector {name} is taken")
    first.wait_for(lambda: first.running("in") and first.running("out"), "both connectors run")
    assert arrived() == written
    killed = leader_of(cluster, f"{group}-config")
    cluster.kill(killed)
    write(200)
    assert arrived() == written
    first.wait_for(
        lambda: sink.exists() and set(sink.read_text().splitlines()) == set(written), "the sink has all"
    )
    first.kill()
    write(200)
    cluster.start(killed)

    # Another worker knows the connectors, and how far each was, from the topics alone.
    second = start(group, "worker-2")
    second.wait_for(lambda: second.running("in") and second.running("out"), "both connectors run again")
    write(200)
    assert arrived() == written
    second.wait_for(lambda: set(sink.read_text().splitlines()) == set(written), "the sink has all again")
    assert second.ask("GET", "/connectors/in/config") == {"name": "in", **connectors["in"]}
    for what in ("config", "offset", "status"):
        resource = ConfigResource(ConfigResource.Type.TOPIC, f"{group}-{what}")
        (told,) = admin.describe_configs([resource]).values()
        assert told.result(60)["cleanup.policy"].value == "compact"
