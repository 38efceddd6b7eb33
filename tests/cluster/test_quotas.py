"""`strandline quota` against a node's real requests, through TLS and a login."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
import uvloop

from strandline.cluster import client_settings
from strandline.node.kafka.handlers.handler import BrokerHandler
from strandline.node.kafka.wire.server import KafkaServer, ListenAddress
from strandline.node.kafka.wire.server_config import ServerConfig
from strandline.node.tls.keeper import TlsSettings
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
        self._ready.result(20)

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
        await add(node, "a,b=c", "odd=,")
        await add(node, "bob", "builder", SHA_512)
        self.server = KafkaServer(
            BrokerHandler(node.context), loop=self._loop, config=ServerConfig(), on_problem=lambda _: None
        )
        tls = TlsSettings(*self.authority.issue("server"))
        await self.server.start([ListenAddress("127.0.0.1", 0, tls=tls, mechanisms=ALL)])
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
    other = served.config("bob", "builder", "SCRAM-SHA-512", Authority(tmp_path).path)
    done = strandline(capfd, monkeypatch, "--config", other, "quota", "list")
    assert done.status == 1
    assert "certificate" in done.err


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("set", "producer_byte_rate=1"), "no user and no client id is named"),
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
