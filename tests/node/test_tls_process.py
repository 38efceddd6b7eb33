"""Real clients against a real node's TLS listener: what is let in, and what each refusal says at the node."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tests.kafka.wire.certificates import Authority, Pair
from tests.node.one_node import SECONDS, healthy, started, write_config
from tests.node.there_and_back import there_and_back

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas with importlib's old functions
    from kafka import KafkaAdminClient  # type: ignore[import-untyped]
    from kafka.errors import KafkaError as PythonKafkaError  # type: ignore[import-untyped]


@dataclass
class Node:
    """A node with a listener without TLS, one that wants no certificate, and one that requires them."""

    folder: Path
    ours: Authority
    theirs: Authority
    server: Pair
    process: subprocess.Popen[str]
    told: dict[str, Any]
    lines: list[str]

    def port(self, listener: str) -> int:
        return int(self.told["listeners"][listener])

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.told['admin_port']}/metrics", timeout=30
        ) as page:
            rows = page.read().decode().splitlines()
        return float(next(row.split()[-1] for row in rows if row.startswith(name)))

    def says(self, words: str) -> str:
        """Wait for a line of the node's log."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            for line in self.lines:
                if words in line:
                    return line
            time.sleep(0.05)
        raise AssertionError(f"the node never says {words!r}: {self.lines}")


def tls(pair: Pair, port: int, more: str = "") -> str:
    return f'port = {port}\nprotocol = "SSL"\ncertificate = "{pair.certificate}"\nkey = "{pair.key}"\n{more}'


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("tls")
    ours, theirs = Authority(folder), Authority(folder, "stranger")
    server, late = ours.issue("server"), ours.issue("late", days=-1)
    mutual = f'ca = "{ours.path}"\nclient_certificate = "required"'
    config = write_config(
        folder,
        kafka="\n".join(
            (
                f"[listeners.internal]\nport = 0\n[listeners.public]\n{tls(server, 0)}",
                f"[listeners.mutual]\n{tls(server, 0, mutual)}",
                f"[listeners.late]\n{tls(late, 0)}",
            )
        ),
    )
    with started(config) as process:
        lines: list[str] = []
        assert process.stderr is not None
        errors = process.stderr
        reading = threading.Thread(target=lambda: lines.extend(iter(errors.readline, "")), daemon=True)
        reading.start()
        told = healthy(folder, process)
        yield Node(folder, ours, theirs, server, process, told, lines)
        process.terminate()
        assert process.wait(SECONDS) == 0


def librdkafka(node: Node, listener: str, ca: str | None = None, pair: Pair | None = None) -> dict[str, Any]:
    settings = {
        "bootstrap.servers": f"127.0.0.1:{node.port(listener)}",
        "security.protocol": "SSL",
        "ssl.ca.location": ca or node.ours.path,
        "log_level": 0,
    }
    if pair is not None:
        settings |= {"ssl.certificate.location": pair.certificate, "ssl.key.location": pair.key}
    return settings


REFUSED_SECONDS = 4.0
"""So long a client that is to be refused goes on trying; one that is to be let in has SECONDS."""


def by_librdkafka(
    node: Node, listener: str, ca: str | None = None, pair: Pair | None = None, seconds: float = SECONDS
) -> bool:
    refusals: list[Any] = []
    settings: dict[str, Any] = {**librdkafka(node, listener, ca, pair), "error_cb": refusals.append}
    client = AdminClient(settings)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(KafkaException):
            client.list_topics(timeout=0.3)
            return True
        client.poll(0)
        if any(error.code() == KafkaError._SSL for error in refusals):
            return False
    return False


def by_kafka_python(
    node: Node, listener: str, ca: str | None = None, pair: Pair | None = None, seconds: float = SECONDS
) -> bool:
    own = {} if pair is None else {"ssl_certfile": pair.certificate, "ssl_keyfile": pair.key}
    try:
        client = KafkaAdminClient(
            bootstrap_servers=f"127.0.0.1:{node.port(listener)}",
            security_protocol="SSL",
            ssl_cafile=ca or node.ours.path,
            bootstrap_timeout_ms=int(1000 * seconds),
            **own,
        )
    except PythonKafkaError:
        gc.collect()  # it leaves sockets of handshakes that failed to the collector, which warns of them here
        return False
    try:
        client.list_topics()
    finally:
        client.close()
    return True


pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
CLIENTS = pytest.mark.parametrize("let_in", [by_librdkafka, by_kafka_python])
LetIn = Callable[..., bool]


@CLIENTS
def test_the_right_authority_and_certificate_are_let_in(node: Node, let_in: LetIn) -> None:
    assert let_in(node, "public")
    assert let_in(node, "mutual", pair=node.ours.issue("alice", common_name="alice"))


@CLIENTS
@pytest.mark.parametrize(
    ("listener", "of_client", "line"),
    [
        ("public", "stranger's ca", "listener public: no TLS handshake: the client "),
        ("late", "right ca", "listener late: no TLS handshake: the client "),
        (
            "mutual",
            "no certificate",
            "listener mutual: no TLS handshake: the client showed no certificate",
        ),
        (
            "mutual",
            "expired",
            "mutual: the client's certificate is not accepted: certificate has expired",
        ),
        (
            "mutual",
            "stranger's",
            "mutual: the client's certificate is not accepted: unable to get local",
        ),
    ],
)
def test_what_is_wrong_is_refused_with_a_line_that_says_why(
    node: Node, let_in: LetIn, listener: str, of_client: str, line: str
) -> None:
    node.lines.clear()
    pair = {
        "expired": node.ours.issue("expired", days=-1),
        "stranger's": node.theirs.issue("mallory"),
    }.get(of_client)
    ca = node.theirs.path if of_client == "stranger's ca" else None
    before = node.metric('strandline_kafka_tls_handshakes_total{result="failed"}')
    assert not let_in(node, listener, ca, pair, REFUSED_SECONDS)
    assert line in node.says(line)
    assert node.metric('strandline_kafka_tls_handshakes_total{result="failed"}') > before


def test_records_go_through_a_listener_with_tls_and_come_back(node: Node) -> None:
    """The addresses that a client is told are those of the listener that it came by."""
    settings = librdkafka(node, "public")
    (broker,) = AdminClient(settings).list_topics(timeout=SECONDS).brokers.values()
    assert broker.port == node.port("public")
    plain = AdminClient({"bootstrap.servers": f"127.0.0.1:{node.port('internal')}"})
    (broker,) = plain.list_topics(timeout=SECONDS).brokers.values()
    assert broker.port == node.port("internal")
    values = [os.urandom(100_000) for _ in range(50)]
    assert there_and_back(settings, "through-tls", values) == values


def test_a_new_certificate_is_shown_without_a_restart(node: Node) -> None:
    def shown() -> bytes:
        context = ssl.create_default_context(cafile=node.ours.path)
        address = ("127.0.0.1", node.port("public"))
        with (
            socket.create_connection(address) as sock,
            context.wrap_socket(sock, server_hostname="localhost") as wrapped,
        ):
            return wrapped.getpeercert(binary_form=True) or b""

    stays = Producer(librdkafka(node, "public"))
    stays.produce("stays", b"1")
    assert stays.flush(SECONDS) == 0
    name = 'strandline_kafka_certificate_end_seconds{listener="public"}'
    first, end = shown(), node.metric(name)
    fresh = node.ours.issue("fresh", days=500)
    os.replace(fresh.key, node.server.key)
    os.replace(fresh.certificate, node.server.certificate)
    node.says("listener public has read its certificate again: its certificate ends in 500")
    assert shown() != first
    assert node.metric(name) > end + 100 * 86400
    stays.produce("stays", b"2")
    assert stays.flush(SECONDS) == 0
    assert node.process.poll() is None


def test_an_expired_certificate_is_said_at_the_start(node: Node) -> None:
    late = node.metric('strandline_kafka_certificate_end_seconds{listener="late"}')
    assert late < time.time()
