"""`strandline quota` against a node's real requests, through TLS and a login."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12

from strandline.cluster import client_settings
from strandline.node.kafka.handlers.handler import BrokerHandler
from strandline.node.kafka.wire.server import KafkaServer, ListenAddress
from strandline.node.kafka.wire.server_config import ServerConfig
from strandline.node.tls.keeper import TlsSettings
from strandline.statemachine.controller.feature_levels import ADDRESSES
from tests.cluster.command import Done, as_json, nowhere, strandline
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.handlers.sasl_logins import ALL, SHA_512, add
from tests.kafka.wire.certificates import Authority


class Served:
    """A node on a loop of its own thread, with users that log in through TLS."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.folder = folder
        self.server: KafkaServer
        self._ready: Future[None] = Future()
        self._stop: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()))
        self._thread.start()
        self._ready.result(60)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)

    def config(
        self, user: str, password: str, mechanism: str = "SCRAM-SHA-256", ca: str | None = None
    ) -> str:
        path = self.folder / f"{user}.properties"
        path.touch(0o600)
        path.write_text(
            f"bootstrap.servers=127.0.0.1:{self.server.port}\nsecurity.protocol=SASL_SSL\n"
            f"sasl.mechanism={mechanism}\nsasl.username={user}\nsasl.password={password}\n"
            f"ssl.ca.location={ca or self.authority.path}\n"
        )
        return str(path)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        node = FakeNode()
        node.controller.machine._state.feature_level = ADDRESSES
        await add(node, "a,b=c", "odd=,")
        await add(node, "bob", "builder", SHA_512)
        self.server = KafkaServer(
            BrokerHandler(node.context), loop=self._loop, config=ServerConfig(), on_problem=lambda _: None
        )
        tls = TlsSettings(*self.authority.issue("server"))
        mutual = replace(tls, ca=self.authority.path, client_certificate="required")
        await self.server.start(
            [
                ListenAddress("127.0.0.1", 0, tls=tls, mechanisms=ALL),
                ListenAddress("127.0.0.1", 0, "mutual", mutual),
            ]
        )
        self._ready.set_result(None)
        await self._stop.wait()
        await self.server.stop(0.1)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("quotas"))
    yield made
    made.stop()
    client_settings.given({})


def test_quotas_are_set_shown_and_removed(
    served: Served, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = served.config("a,b=c", "odd=,")

    def quota(*words: str) -> Done:
        return strandline(capfd, monkeypatch, "--config", config, "quota", *words)

    assert quota("list").out == "no quotas\n"
    done = quota("set", "--user", "alice", "producer_byte_rate=1048577", "request_percentage=12.5")
    assert (done.status, done.out) == (0, "user alice: producer_byte_rate=1048577, request_percentage=12.5\n")
    assert quota("set", "--default-user", "--client-id", "loader", "consumer_byte_rate=5").status == 0
    told = as_json(quota("list", "--json"))["quotas"]
    assert told == [
        {
            "entity": {"user": "alice"},
            "values": {"producer_byte_rate": 1048577.0, "request_percentage": 12.5},
        },
        {"entity": {"user": None, "client-id": "loader"}, "values": {"consumer_byte_rate": 5.0}},
    ]
    table = quota("list").out
    assert "1048577" in table
    assert "user (default), client-id loader" in table
    assert quota("remove", "--user", "alice", "request_percentage").status == 0
    missing = quota("remove", "--user", "alice", "request_percentage")
    assert (missing.status, missing.err) == (
        1, "strandline: there is no such quota of user alice; see `strandline quota list`\n",
    )  # fmt: skip
    assert quota("remove", "--user", "alice").out == "removed of user alice: producer_byte_rate\n"
    assert quota("remove", "--default-user", "--client-id", "loader").status == 0
    done = quota("set", "--default-ip", "connection_creation_rate=2000")
    assert (done.status, done.out) == (0, "ip (default): connection_creation_rate=2000\n")
    assert quota("set", "--ip", "0:0::7", "connection_creation_rate=20").status == 0
    assert "ip ::7" in quota("list").out
    refused = quota("set", "--ip", "broker-1", "connection_creation_rate=20")
    assert (refused.status, "broker-1 is not a valid IP: write an address" in refused.err) == (1, True)
    assert quota("set", "--ip", "::7", "--user", "bob", "connection_creation_rate=20").status == 1
    assert quota("remove", "--ip", "0:0::7").status == 0, "in whatever spelling"
    assert quota("remove", "--default-ip").status == 0
    assert quota("list").out == "no quotas\n"


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_other_logins(
    served: Served, mechanism: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = served.config("bob", "builder", mechanism)
    assert strandline(capfd, monkeypatch, "--config", config, "quota", "list").status == 0


def test_a_wrong_password_and_another_authority_are_told_with_a_cure(
    served: Served, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = served.config("bob", "wrong", "SCRAM-SHA-512")
    done = strandline(capfd, monkeypatch, "--config", config, "quota", "list")
    assert done.status == 1
    assert "Authentication failed: invalid credentials; check that the nodes run, and the login" in done.err
    began = time.monotonic()
    done = strandline(capfd, monkeypatch, "--config", config, "acl", "list")
    assert done.status == 1
    assert "does not accept the login of --config" in done.err
    assert time.monotonic() - began < 15, "librdkafka goes on trying for 25 seconds"
    other = served.config("bob", "builder", "SCRAM-SHA-512", Authority(tmp_path).path)
    done = strandline(capfd, monkeypatch, "--config", other, "quota", "list")
    assert done.status == 1
    assert "certificate" in done.err


def test_a_certificate_of_its_own_from_a_keystore_or_from_files_in_pem(
    served: Served, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = served.authority.issue("operator")
    key = serialization.load_pem_private_key(Path(pair.key).read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    certificate = x509.load_pem_x509_certificate(Path(pair.certificate).read_bytes())
    stored = pkcs12.serialize_key_and_certificates(
        b"operator",
        key,
        certificate,
        None,
        serialization.BestAvailableEncryption(b"open"),
    )
    keystore = tmp_path / "operator.p12"
    keystore.write_bytes(stored)
    config = tmp_path / "mutual.properties"
    config.touch(0o600)

    def quota(*settings: str) -> Done:
        lines = (f"bootstrap.servers=127.0.0.1:{served.server.ports['mutual']}", "security.protocol=SSL")
        config.write_text("\n".join((*lines, f"ssl.ca.location={served.authority.path}", *settings)))
        return strandline(capfd, monkeypatch, "--config", str(config), "quota", "list")

    before = set(Path(tempfile.gettempdir()).iterdir())
    assert quota(f"ssl.keystore.location={keystore}", "ssl.keystore.password=open").status == 0
    pem = f"ssl.certificate.location={pair.certificate}", f"ssl.key.location={pair.key}"
    assert quota(*pem).status == 0
    assert not [one for one in set(Path(tempfile.gettempdir()).iterdir()) - before if one.is_file()]
    assert quota().status == 1
    wrong = quota(f"ssl.keystore.location={keystore}", "ssl.keystore.password=shut")
    assert (wrong.status, wrong.out) == (2, "")
    assert wrong.err.startswith(f"strandline: {keystore} cannot be used (")
    assert wrong.err.endswith("; correct ssl.keystore.location\n")
    nowhere_ca = quota("ssl.ca.location=/nowhere/ca.pem")
    assert "/nowhere/ca.pem cannot be used (No such file or directory); correct ssl.ca" in nowhere_ca.err


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("set", "producer_byte_rate=1"), "no user, client id or IP address is named"),
        (("set", "--user", "a", "--default-user", "producer_byte_rate=1"), "exclude each other"),
        (("set", "--user", "a", "producer_byte_rate=0"), "has no number above 0"),
        (("set", "--user", "a", "producer_byte_rate"), "has no number above 0"),
        (("set", "--user", "a", "producer_byte_rate=nan"), "has no number above 0"),
        (("set", "--user", "a", "bytes=1"), "'bytes' is no quota"),
        (("remove", "--user", "a", "bytes"), "'bytes' is no quota"),
    ],
)
def test_words_that_cannot_be(
    words: tuple[str, ...], cause: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = strandline(capfd, monkeypatch, "quota", *words, "--bootstrap", nowhere())
    assert done.status == 2
    assert cause in done.err
