"""Three real nodes with TLS and logins: certificates and credentials change while nodes and clients run."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from strandline.cluster import client_settings
from strandline.cluster.admin_client import AdminClient as Http
from strandline.cluster.local_security import LocalSecurity
from tests.cluster.real_cluster import RealCluster, running_cluster, wait

SECONDS = 30.0
IN_FORCE_SECONDS = 1.0
"""From the acknowledgement of a change to a login, or request, on every node that it decides."""


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


def first_let_in(cluster: RealCluster, node: int, password: str) -> float:
    """When the login that is the first to be let in began, of time.monotonic."""
    ends = time.monotonic() + SECONDS
    while True:
        began = time.monotonic()
        if let_in(cluster, node, password):
            return began
        assert began < ends


def admits(cluster: RealCluster, node: int) -> bool:
    """Whether the cluster's own user gets in."""
    config = {**settings(cluster), "bootstrap.servers": address(cluster, node)}
    return bool(AdminClient(config).list_topics(timeout=5).brokers)


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
    with ThreadPoolExecutor(len(others)) as pool:
        known = list(pool.map(lambda node: first_let_in(cluster, node, "the second"), others))
    took = [moment - acknowledged for moment in known]
    # A second is promised. On a busy machine a client's start and its handshakes come on top: what that
    # costs now, a login with a password that has counted for long tells.
    began = time.monotonic()
    assert admits(cluster, others[0])
    own = time.monotonic() - began
    assert max(took) < IN_FORCE_SECONDS + 2 * own, (took, own)
    cluster.start(leader)
    assert let_in(cluster, leader, "the second"), "a node that comes back knows it"
    for node in (1, 2, 3):
        assert not let_in(cluster, node, "the first"), f"node {node}, {took}"


def within_a_second(happened: Callable[[int], bool], nodes: list[int]) -> None:
    """Wait until something is so on every node, all asked side by side, and hold it to IN_FORCE_SECONDS.

    `happened` asks one request on a connection that is there: on a busy machine that takes longer than alone.
    So what the first request after it takes, when nothing changes, is given on top, twice.
    """
    acknowledged = time.monotonic()

    def seen(node: int) -> float:
        while True:
            began = time.monotonic()
            if happened(node):
                return began
            assert began < acknowledged + SECONDS, f"node {node}"

    with ThreadPoolExecutor(len(nodes)) as pool:
        took = [moment - acknowledged for moment in pool.map(seen, nodes)]
        began = time.monotonic()
        list(pool.map(happened, nodes))
    own = time.monotonic() - began
    assert max(took) < IN_FORCE_SECONDS + 2 * own, (took, own)


@pytest.mark.timeout(240)
def test_acls_and_a_deleted_user_on_connections_that_are_there(cluster: RealCluster) -> None:
    """An ACL counts within a second for clients that are connected; a deleted user keeps its connection."""
    change(cluster, "the last")
    admin = AdminClient(settings(cluster))
    made: Any = admin.create_topics([NewTopic("seen", 1, 3)])
    made["seen"].result(SECONDS)
    entry = AclBinding(
        ResourceType.TOPIC, "seen", ResourcePatternType.LITERAL, "User:alice", "*",
        AclOperation.DESCRIBE, AclPermissionType.ALLOW,
    )  # fmt: skip
    nodes = [1, 2, 3]
    config = settings(cluster, sasl_username="alice", sasl_password="the last")
    clients = {node: AdminClient({**config, "bootstrap.servers": address(cluster, node)}) for node in nodes}
    wait(lambda: all(clients[node].list_topics(timeout=5).brokers for node in nodes))

    def sees(node: int) -> bool:
        return "seen" in clients[node].list_topics(timeout=5).topics

    admin.create_acls([entry])[entry].result(SECONDS)
    within_a_second(sees, nodes)
    every = AclBindingFilter(
        ResourceType.TOPIC, "seen", ResourcePatternType.LITERAL, "User:alice", "*",
        AclOperation.DESCRIBE, AclPermissionType.ALLOW,
    )  # fmt: skip
    assert len(admin.delete_acls([every])[every].result(SECONDS)) == 1
    within_a_second(lambda node: not sees(node), nodes)
    admin.create_acls([entry])[entry].result(SECONDS)
    within_a_second(sees, nodes)
    deletion = UserScramCredentialDeletion("alice", ScramMechanism.SCRAM_SHA_256)
    admin.alter_user_scram_credentials([deletion])["alice"].result(SECONDS)
    within_a_second(lambda node: not let_in(cluster, node, "the last"), nodes)
    # As at Kafka: a login is looked at when it is made, and ACLs at each request.
    assert all(map(sees, nodes)), "what it had connected goes on"
    admin.delete_acls([every])[every].result(SECONDS)
    within_a_second(lambda node: not sees(node), nodes)
