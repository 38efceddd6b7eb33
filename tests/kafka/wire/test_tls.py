"""TLS of a listener: what is let in, what is refused and how that is told, and files that change."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.principal import NoName, PrincipalRules
from strandline.node.kafka.wire.server import KafkaListenError, KafkaServer, ListenAddress
from strandline.node.kafka.wire.server_config import ServerConfig
from strandline.node.kafka.wire.session import ANONYMOUS
from strandline.node.tls import keeper as tls_module
from strandline.node.tls.keeper import TlsFilesError, TlsKeeper, TlsSettings, load
from tests.kafka.wire.certificates import Authority, Pair
from tests.kafka.wire.server_harness import Client, Served, answer_to, init, serve, settle

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def run(body: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(body, 60))

    return run


class Files:
    """An authority, a server's certificate of it, and another authority that the other side does not know."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ours, self.theirs = Authority(folder), Authority(folder, "stranger")
        self.server = self.ours.issue("server")

    def settings(self, pair: Pair | None = None, **more: Any) -> TlsSettings:
        given = {"ca": self.ours.path} if more.get("client_certificate", "none") != "none" else {}
        return TlsSettings(*(pair or self.server), **{**given, **more})

    def client(self, pair: Pair | None = None, ca: str | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=ca or self.ours.path)
        if pair is not None:
            context.load_cert_chain(*pair)
        return context


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


class Names:
    """Answers, and notes under which name each client asked."""

    def __init__(self) -> None:
        self.principals: list[str] = []
        self.takes_files: list[bool] = []

    async def handle(self, asked: Request) -> Any:
        self.principals.append(asked.session.principal)
        self.takes_files.append(asked.takes_files)
        return answer_to(asked)


@asynccontextmanager
async def connected(served: Served, context: ssl.SSLContext) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", served.server.port, ssl=context, server_hostname="localhost"
    )
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        await settle()


async def ask(served: Served, context: ssl.SSLContext) -> int:
    async with connected(served, context) as client:
        client.writer.write(init(1))
        return await client.answer()


async def refused(served: Served, context: ssl.SSLContext) -> str:
    """The one line that tells why a client was not let in."""
    before = len(served.problems)
    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        await ask(served, context)
    await settle()
    assert served.server.handshakes_under_way == 0
    assert served.server.connections == 0
    (problem,) = served.problems[before:]
    return str(problem)


def distrust(port: int, context: ssl.SSLContext) -> None:
    """Shake hands as most clients do, which say why they end it; asyncio's says nothing."""
    with socket.create_connection(("127.0.0.1", port)) as sock, pytest.raises(ssl.SSLCertVerificationError):
        context.wrap_socket(sock, server_hostname="localhost")


def test_a_client_speaks_through_tls_and_has_no_name(run: Run, files: Files) -> None:
    async def body() -> None:
        handler = Names()
        async with serve(handler, files.settings()) as served:
            async with connected(served, files.client()) as client:
                for number in range(1, 4):
                    client.writer.write(init(number))
                    assert await client.answer() == number
                assert client.writer.get_extra_info("ssl_object").version() == "TLSv1.3"
            assert handler.principals == [ANONYMOUS] * 3
            assert handler.takes_files == [False] * 3, "sendfile would send them as they are"
            assert served.server.handshakes == {"done": 1}
            assert not served.problems

    run(body())


def test_a_request_larger_than_a_record_of_tls_comes_whole(run: Run, files: Files) -> None:
    async def body() -> None:
        handler = Names()
        async with serve(handler, files.settings()) as served, connected(served, files.client()) as client:
            garbage = b"\0" * 3_000_000  # bytes behind a request are ignored
            whole = init(5)
            length = len(whole) - 4 + len(garbage)
            client.writer.write(length.to_bytes(4, "big") + whole[4:] + garbage + init(6))
            assert [await client.answer(), await client.answer()] == [5, 6]

    run(body())


def test_what_comes_with_the_end_of_the_handshake_is_not_lost(run: Run, files: Files) -> None:
    """A client of TLS 1.3 may send its first request in the same packet as its last word of the handshake."""

    async def body() -> None:
        async with serve(Names(), files.settings()) as served:
            to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
            end = files.client().wrap_bio(to_client, to_server, server_hostname="localhost")
            reader, writer = await asyncio.open_connection("127.0.0.1", served.server.port)
            while True:
                try:
                    end.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    if to_server.pending:
                        writer.write(to_server.read())
                    to_client.write(await reader.read(65536))
            end.write(init(9))
            writer.write(to_server.read())
            while True:
                to_client.write(await asyncio.wait_for(reader.read(65536), 5))
                try:
                    answer = end.read(65536)
                    break
                except ssl.SSLWantReadError:
                    continue
            assert int.from_bytes(answer[4:8], "big") == 9
            writer.close()

    run(body())


def test_the_name_of_a_client_is_the_subject_of_its_certificate(run: Run, files: Files) -> None:
    async def body() -> None:
        handler = Names()
        rules = PrincipalRules.parse(["RULE:^CN=([^,]+),OU=ships,.*$/$1/L", "DEFAULT"])
        settings = files.settings(client_certificate="required")
        async with serve(handler, settings, rules=rules) as served:
            for name, unit in (("Alice", "ships"), ("bob", "streams")):
                pair = files.ours.issue(name, common_name=name, unit=unit)
                async with connected(served, files.client(pair)) as client:
                    client.writer.write(init(1))
                    assert await client.answer() == 1
        assert handler.principals == ["User:alice", "User:CN=bob,OU=streams,O=Harbour"]

    run(body())


def test_a_wanted_certificate_may_be_missing_and_not_wrong(run: Run, files: Files) -> None:
    async def body() -> None:
        handler = Names()
        async with serve(handler, files.settings(client_certificate="wanted")) as served:
            async with connected(served, files.client()) as client:
                client.writer.write(init(1))
                assert await client.answer() == 1
            told = await refused(served, files.client(files.theirs.issue("mallory")))
        assert handler.principals == [ANONYMOUS]
        assert "the client's certificate is not accepted: unable to get local issuer certificate" in told

    run(body())


def test_each_refusal_is_one_line_that_says_why(run: Run, files: Files) -> None:
    async def body() -> None:
        async with serve(Names(), files.settings(client_certificate="required")) as served:
            told = await refused(served, files.client())
            assert told == (
                "closed the connection of 127.0.0.1: listener kafka: no TLS handshake: the client showed no "
                "certificate, and one is required"
            )
            expired = files.ours.issue("late", days=-1)
            told = await refused(served, files.client(expired))
            assert "the client's certificate is not accepted: certificate has expired" in told
            await asyncio.to_thread(distrust, served.server.port, files.client(ca=files.theirs.path))
            await settle()
            told = str(served.problems[-1])
            assert "the client does not trust the authority of this node's certificate" in told
            assert served.server.handshakes["failed"] == 3
            assert served.server.counters["closed_tls_handshake"] == 3

    run(body())


def test_a_version_that_is_too_old_is_refused(run: Run, files: Files) -> None:
    async def body() -> None:
        async with serve(Names(), files.settings(tls_version="1.3")) as served:
            old = files.client()
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            assert "the client's versions of TLS are older than tls_version" in await refused(served, old)

    run(body())


def test_a_client_without_tls_is_refused(run: Run, files: Files) -> None:
    async def body() -> None:
        async with serve(Names(), files.settings()) as served:
            for words, why in (
                (init(1), "the client does not speak TLS"),
                (b"GET / HTTP/1.0\r\n\r\n", "HTTP"),
            ):
                client = await served.client()
                client.writer.write(words)
                await client.reader.read()
                await settle()
                assert why in str(served.problems.pop())

    run(body())


def test_a_silent_handshake_ends_in_time(run: Run, files: Files) -> None:
    async def body() -> None:
        async with serve(Names(), files.settings(), handshake_seconds=0.2) as served:
            silent = await served.client()
            assert await silent.ended()
            await settle()
            assert "no TLS handshake within 0.2 s" in str(served.problems[0])
            assert served.server.handshakes_under_way == 0

    run(body())


def test_handshakes_are_bounded_in_number(run: Run, files: Files) -> None:
    async def body() -> None:
        async with serve(Names(), files.settings(), max_handshakes=2) as served:
            silent = [await served.client() for _ in range(2)]
            await settle()
            assert served.server.handshakes_under_way == 2
            asking = asyncio.ensure_future(ask(served, files.client()))
            await settle(100)
            assert served.server.handshakes_under_way == 2
            assert not asking.done()
            silent[0].writer.close()
            assert await asking == 1

    run(body())


def test_a_client_that_leaves_in_its_handshake_leaves_nothing(run: Run, files: Files) -> None:
    async def body() -> None:
        async with serve(Names(), files.settings()) as served:
            for bytes_sent in (b"", b"\x16\x03\x01\x02\x00\x01\x00"):
                sock = socket.create_connection(("127.0.0.1", served.server.port))
                sock.sendall(bytes_sent)
                await settle()
                sock.close()
                await settle(50)
            assert served.server.handshakes_under_way == 0
            assert served.server.connections == 0
            assert served.server.handshakes == {"failed": 2}

    run(body())


# Files.


def test_a_new_certificate_is_for_the_next_client(run: Run, files: Files, tmp_path: Path) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        keeper = TlsKeeper(files.settings(), "listener public", loop=loop, watch_seconds=0.05)
        keeper.open()
        first, end = keeper.context, keeper.not_after
        await asyncio.sleep(0.2)
        assert keeper.context is first
        other = files.ours.issue("other", days=700)
        # As Kubernetes does, one after the other; between the two nothing fits.
        os.replace(other.key, files.server.key)
        await asyncio.sleep(0.2)
        assert keeper.context is first
        os.replace(other.certificate, files.server.certificate)
        await asyncio.sleep(0.4)
        assert keeper.context is not first
        assert end is not None
        assert keeper.not_after is not None
        assert keeper.not_after > end + 300 * 86400
        keeper.close()

    run(body())


def test_the_watching_goes_on_after_any_failure(
    run: Run, files: Files, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        keeper = TlsKeeper(files.settings(), "listener public", loop=asyncio.get_running_loop())
        keeper._watch_seconds = 0.02
        keeper.open()
        assert keeper.not_after is not None
        looked = []

        def changed() -> None:
            looked.append(1)
            raise RuntimeError("odd")

        monkeypatch.setattr(keeper, "_changed", changed)
        async with asyncio.timeout(5):
            while len(looked) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        keeper.close()

    with caplog.at_level(logging.WARNING, tls_module.__name__):
        run(body())
    (told,) = [record.getMessage() for record in caplog.records]
    assert "goes on with the certificate it has: RuntimeError('odd')" in told


def test_files_that_do_not_fit_are_told_of_once(
    run: Run, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        keeper = TlsKeeper(
            files.settings(), "listener public", loop=asyncio.get_running_loop(), watch_seconds=0.02
        )
        keeper.open()
        shutil.copy(files.theirs.issue("x").key, files.server.key)
        await asyncio.sleep(0.3)
        keeper.close()

    with caplog.at_level(logging.WARNING, tls_module.__name__):
        run(body())
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "listener public goes on with the certificate it has" in told[0]
    assert "not a certificate and its private key" in told[0]


@pytest.mark.parametrize(
    ("days", "expected"),
    [(200, []), (5.5, ["its certificate ends in 5 days"]), (-2, ["its certificate has expired"])],
)
def test_the_end_of_a_certificate_is_known_and_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, days: float, expected: list[str]
) -> None:
    pair = Authority(tmp_path).issue("server", days=days)

    async def body() -> None:
        keeper = TlsKeeper(
            TlsSettings(*pair), "listener public", loop=asyncio.get_running_loop(), watch_seconds=0.02
        )
        keeper.open()
        await asyncio.sleep(0.1)
        keeper.close()

    with caplog.at_level(logging.WARNING, tls_module.__name__):
        asyncio.run(body())
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == len(expected)
    for line, part in zip(told, expected, strict=True):
        assert part in line


def test_a_key_that_everyone_may_read_is_told(
    run: Run, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    os.chmod(files.server.key, 0o644)
    assert load(files.settings()).readable_key
    os.chmod(files.server.key, 0o640)
    assert not load(files.settings()).readable_key


def test_files_that_no_server_can_be_made_of(files: Files, tmp_path: Path) -> None:
    def refuse(settings: TlsSettings, words: str) -> None:
        with pytest.raises(TlsFilesError) as caught:
            load(settings)
        assert words in str(caught.value)

    gone = str(tmp_path / "gone.pem")
    refuse(
        TlsSettings(gone, files.server.key), f"{gone}: No such file or directory: let the node's user read"
    )
    refuse(TlsSettings(files.server.certificate, files.theirs.issue("x").key), "not a certificate and its")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("nothing")
    refuse(TlsSettings(str(garbage), files.server.key), "not a certificate and its private key")
    refuse(TlsSettings(*files.server, ca=str(garbage)), "holds no certificates in PEM")
    locked = tmp_path / "locked.key"
    command = f"openssl ec -aes128 -passout pass:secret -in {files.server.key} -out {locked} 2>/dev/null"
    assert os.system(command) == 0
    refuse(TlsSettings(files.server.certificate, str(locked)), "the key has a password")


# Names.


def subject(*parts: tuple[str, str]) -> dict[str, Any]:
    return {"subject": tuple((part,) for part in parts)}


def test_a_name_is_written_as_rfc_2253_has_it() -> None:
    certificate = subject(("countryName", "NL"), ("organizationName", "A, B"), ("commonName", " #x "))
    assert PrincipalRules.parse([]).principal(certificate) == r"User:CN=\ #x\ ,O=A\, B,C=NL"


def test_rules_are_tried_in_their_order() -> None:
    rules = PrincipalRules.parse(["RULE:^CN=(.*?),OU=(.*?)$/$1@$2/U", "RULE:^CN=(.*)$/$1/"])
    assert rules.principal(subject(("organizationalUnitName", "u"), ("commonName", "a"))) == "User:A@U"
    assert rules.principal(subject(("commonName", "Only"))) == "User:Only"
    with pytest.raises(NoName, match="none of principal_rules gives the client a name, its subject is O=x"):
        rules.principal(subject(("organizationName", "x")))
    with pytest.raises(NoName, match="CN=ANONYMOUS has the name of clients that show no certificate"):
        rules.principal(subject(("commonName", "ANONYMOUS")))
    with pytest.raises(NoName, match="has 0 characters"):
        rules.principal(subject())
    with pytest.raises(NoName, match="5003 characters"):
        rules.principal(subject(("commonName", "x" * 5000)))


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("RULE:^CN=(.*)$", "is not a rule"),
        ("RULE:(/$1/", "has no valid pattern"),
        ("RULE:^CN=.*$/$1/", "uses \\$1, and its pattern has 0 groups"),
        ("default", "is not a rule"),
    ],
)
def test_a_wrong_rule_is_told(rule: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PrincipalRules.parse([rule])


def test_a_name_with_an_address_that_cannot_be_had_is_told_with_it(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()

        async def found(*_: Any, **__: Any) -> list[Any]:
            kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
            return [(*kind, ("127.0.0.1", 0)), (*kind, ("203.0.113.1", 0))]

        monkeypatch.setattr(loop, "getaddrinfo", found)
        names = Names()
        server = KafkaServer(names, loop=loop, config=ServerConfig(), on_problem=lambda _: None)
        told = (
            r"^kafka: cannot listen on node-1:0: 203\.0\.113\.1: Cannot assign requested address: configure "
            r"another kafka\.host, which is an address of this machine, or kafka\.port$"
        )
        with pytest.raises(KafkaListenError, match=told):
            await server.start([ListenAddress("node-1", 0, tls=files.settings())])
        await server.stop(0)

    asyncio.run(body())
