"""Three real nodes with TLS and logins: certificates and credentials change while nodes and clients run."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from strandline.cluster import client_settings
from strandline.cluster.admin_client import AdminClient as Http
from strandline.cluster.local_security import LocalSecurity
from tests.cluster.real_cluster import RealCluster, running_cluster, wait

SECONDS = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with running_cluster(tmp_path_factory.mktemp("secure") / "cluster", secure=True) as running:
        client_settings.given(client_settings.load(running.folder / "client.properties"))
        yield running
        client_settings.given({})


def settings(cluster: RealCluster, **more: Any) -> dict[str, Any]:
    known = client_settings.load(cluster.folder / "client.properties")
    return {**known, "log_level": 0, **{name.replace("_", "."): value for name, value in more.items()}}


def address(cluster: RealCluster, node: int) -> str:
    return f"127.0.0.1:{cluster.description.nodes[node].ports.kafka}"


class Writer(threading.Thread):
    """Writes a record after the other until it is told to end."""

    def __init__(self, config: dict[str, Any], topic: str) -> None:
        super().__init__(daemon=True)
        self.errors: list[Any] = []
        self.problems: list[Any] = []
        self.ended = threading.Event()
        self._config, self._topic = config, topic

    def run(self) -> None:
        producer = Producer({**self._config, "error_cb": self.problems.append, "linger.ms": 0})
        number = 0
        while not self.ended.is_set():
            producer.produce(
                self._topic, str(number).encode(), on_delivery=lambda error, _: self.errors.append(error)
            )
            producer.poll(0.05)
            number += 1
        producer.flush(SECONDS)


def shown(cluster: RealCluster, port: int) -> str:
    """The certificate that a new client of a port is shown, and finds to be of the cluster's authority."""
    authority = str(LocalSecurity(cluster.folder).authority)
    return ssl.get_server_certificate(("127.0.0.1", port), ca_certs=authority)


@pytest.mark.timeout(240)
def test_certificates_are_replaced_while_clients_write(cluster: RealCluster) -> None:
    admin = AdminClient(settings(cluster))
    made: Any = admin.create_topics([NewTopic("kept", 3, 3)])
    made["kept"].result(SECONDS)
    writer = Writer(settings(cluster), "kept")
    writer.start()
    security = LocalSecurity(cluster.folder)
    try:
        wait(lambda: len(writer.errors) > 5)
        before: dict[int, str] = {}
        for node, known in cluster.description.nodes.items():
            before[known.ports.kafka] = shown(cluster, known.ports.kafka)
            before[known.ports.admin] = shown(cluster, known.ports.admin)
            Path(cluster.folder / f"node-{node}.pem").unlink()
            assert security.renew(node)
        for known in cluster.description.nodes.values():
            for port in (known.ports.kafka, known.ports.admin):
                wait(lambda port=port: shown(cluster, port) != before[port])  # type: ignore[misc]
        # The mesh has taken them, too: a node that comes back is let in by the others.
        cluster.kill(3)
        cluster.start(3)
        written = len(writer.errors)
        wait(lambda: len(writer.errors) > written + 20)
    finally:
        writer.ended.set()
        writer.join(SECONDS)
    assert set(writer.errors) == {None}
    assert not [one for one in writer.problems if "SSL" in one.name() or "AUTHENTICATION" in one.name()]


def let_in(cluster: RealCluster, node: int, password: str) -> bool:
    config = settings(cluster, sasl_username="alice", sasl_password=password)
    try:
        AdminClient({**config, "bootstrap.servers": address(cluster, node)}).list_topics(timeout=2)
    except KafkaException:
        return False
    return True


def change(cluster: RealCluster, password: str) -> None:
    """Returns once a node has acknowledged it; tried again while the controller is elected."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    asked = UserScramCredentialUpsertion("alice", info, password.encode())
    ends = time.monotonic() + SECONDS
    while True:
        admin = AdminClient(settings(cluster))  # what it has begun ends with it
        try:
            for future in admin.alter_user_scram_credentials([asked], request_timeout=4).values():
                future.result(5)
            return
        except (KafkaException, TimeoutError):
            assert time.monotonic() < ends
            time.sleep(0.1)


@pytest.mark.timeout(240)
def test_a_password_that_changes_while_the_controller_is_elected_changes_everywhere_and_for_good(
    cluster: RealCluster,
) -> None:
    change(cluster, "the first")
    for node in (1, 2, 3):
        wait(lambda node=node: let_in(cluster, node, "the first"))  # type: ignore[misc]
    port = cluster.description.nodes[1].ports.admin
    leader = Http(f"https://127.0.0.1:{port}").request("GET", "/api/cluster").body["controller"]["leader"]
    others = [node for node in (1, 2, 3) if node != leader]
    killing = threading.Thread(target=cluster.kill, args=(leader,))
    killing.start()
    change(cluster, "the second")
    killing.join()
    acknowledged = time.monotonic()
    for node in others:
        wait(lambda node=node: let_in(cluster, node, "the second"), 5.0)  # type: ignore[misc]
    took = time.monotonic() - acknowledged
    cluster.start(leader)
    assert let_in(cluster, leader, "the second"), "a node that comes back knows it"
    for node in (1, 2, 3):
        assert not let_in(cluster, node, "the first"), f"node {node}, {took:.1f} s"
