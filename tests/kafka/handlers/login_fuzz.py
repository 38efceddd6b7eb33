"""Hostile clients before their login, at a node's own requests: frames, handshakes of TLS, logins, tokens.

`python -m tests.kafka.handlers.login_fuzz 100000 1` is the long run: so many connections, from that seed.
Each must be ended by the node and let in nowhere, while an honest user is served all the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from strandline.node.config.listeners import OAUTHBEARER
from strandline.node.kafka.handlers.handler import BrokerHandler
from strandline.node.kafka.wire.apis import ApiKey
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.sasl_connection import BEFORE_LOGIN
from strandline.node.kafka.wire.server import KafkaServer, ListenAddress
from strandline.node.kafka.wire.server_config import ConnectionProblem, ServerConfig
from strandline.node.tls.keeper import TlsSettings
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.handlers.hostile_tokens import HostileTokens, message
from tests.kafka.handlers.sasl_logins import ALL, add
from tests.kafka.handlers.scram_client import ScramClient
from tests.kafka.wire.certificates import Authority, Pair
from tests.kafka.wire.server_harness import api_versions, init, request
from tests.oauth.issuer import token, tokens

AT_A_TIME: Final = 200
HONEST_EVERY: Final = 500
SECONDS: Final = 20.0
HOST: Final = "127.0.0.1"
_HUGE_NAMES: Final = 8_000
"""Names in a certificate of some 200 KiB: OpenSSL takes 100 KiB of a client's chain."""


@dataclass
class Outcome:
    """What became of a run."""

    connections: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    closed: Counter[str] = field(default_factory=Counter)
    let_in: list[str] = field(default_factory=list)
    """Requests that were handled for a client which had not logged in."""
    still_open: Counter[str] = field(default_factory=Counter)
    """By kind, connections that the node had not ended SECONDS after their last byte."""
    honest: int = 0
    slowest: float = 0.0
    """Seconds of the slowest honest login with a request after it."""
    grown_kb: int = 0
    """Memory of this process, clients and node, since a tenth of the run."""


class Watched:
    """The node's own handler, which must not be asked for more than a login by a stranger."""

    def __init__(self, handler: BrokerHandler, outcome: Outcome) -> None:
        self._handler, self._outcome = handler, outcome

    async def handle(self, asked: Request) -> Any:
        if asked.header.api_key not in BEFORE_LOGIN and asked.session.principal != "User:alice":
            self._outcome.let_in.append(f"{asked.session.principal} {asked.header.api_key}")
        return await self._handler.handle(asked)


def handshake(mechanism: str, correlation: int = 1) -> bytes:
    name = mechanism.encode()
    return request(ApiKey.SASL_HANDSHAKE, 1, correlation, struct.pack(">h", len(name)) + name)


def authenticate(token: bytes, correlation: int = 2) -> bytes:
    return request(ApiKey.SASL_AUTHENTICATE, 1, correlation, struct.pack(">i", len(token)) + token)


async def answer(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def token_of(answered: bytes) -> bytes:
    """The server's token in an answer to SaslAuthenticate 1 that is no error."""
    code, message = struct.unpack_from(">hh", answered, 4)
    assert code == 0
    start = 8 + max(message, 0)
    (size,) = struct.unpack_from(">i", answered, start)
    return answered[start + 4 : start + 4 + size]


class Fuzz:
    """One run."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.outcome = Outcome()
        self._rng = random.Random(seed)
        self._authority = Authority(folder)
        self._hostile = HostileTokens(self._rng)
        self._tokens = tokens(folder)
        self._server_pair = self._authority.issue("server")
        self._huge = huge(self._authority, folder)
        self._replay = (b"", b"")
        self._attacks: tuple[tuple[str, str, Callable[[], bytes]], ...] = (
            ("garbage", "plain", self._garbage),
            ("mutated", "plain", self._mutated),
            ("out of order", "plain", self._out_of_order),
            ("replayed", "plain", self._replayed),
            ("wrong password", "plain", self._wrong_password),
            ("truncated", "plain", lambda: self._mutated()[: self._rng.randrange(1, 40)]),
            ("garbage for TLS", "tls", self._garbage),
            ("broken ClientHello", "tls", self._broken_hello),
            ("through TLS", "tls", self._out_of_order),
            ("token", "tokens", self._token),
            ("tokens out of order", "tokens", self._out_of_order),
            ("huge certificate", "mutual", lambda: b""),
        )

    async def run(self, count: int) -> Outcome:
        node = FakeNode()
        await add(node, "alice", "wonderland")

        def problem(one: ConnectionProblem) -> None:
            self.outcome.closed[str(one.reason)] += 1

        config = ServerConfig(sweep_seconds=0.5, login_seconds=3, handshake_seconds=3)
        handler = Watched(BrokerHandler(node.context), self.outcome)
        self.server = KafkaServer(handler, loop=node.loop, config=config, on_problem=problem)
        tls = TlsSettings(*self._server_pair)
        mutual = TlsSettings(*self._server_pair, self._authority.path, "wanted")
        await self.server.start(
            [
                ListenAddress(HOST, 0, "plain", mechanisms=ALL),
                ListenAddress(HOST, 0, "tls", tls, mechanisms=ALL),
                ListenAddress(HOST, 0, "mutual", mutual, mechanisms=ALL),
                ListenAddress(HOST, 0, "tokens", mechanisms=(OAUTHBEARER, *ALL), tokens=self._tokens),
            ]
        )
        self._client = ssl.create_default_context(cafile=self._authority.path)
        self._heavy = ssl.create_default_context(cafile=self._authority.path)
        self._heavy.load_cert_chain(*self._huge)
        await self._honest()
        places, settled = asyncio.Semaphore(AT_A_TIME), 0
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                await places.acquire()
                # A certificate of 200 KiB takes this client's own processor longest.
                attack = self._rng.choice(self._attacks[: -1 if number % 20 else None])
                group.create_task(self._attack(*attack)).add_done_callback(lambda _: places.release())
                if number % HONEST_EVERY == HONEST_EVERY - 1:
                    await self._honest()
                if number == count // 10:
                    settled = rss_kb()
        await self._honest()
        await asyncio.sleep(2 * config.sweep_seconds)
        self.outcome.grown_kb = rss_kb() - settled
        held = (self.server.connections, self.server.logging_in, self.server.request_bytes)
        assert (*held, self.server.handshakes_under_way) == (0, 0, 0, 0), held
        await self.server.stop(1)
        return self.outcome

    async def _attack(self, kind: str, listener: str, make: Callable[[], bytes]) -> None:
        self.outcome.connections += 1
        self.outcome.kinds[kind] += 1
        port, sent = self.server.ports[listener], make()
        context = {"through TLS": self._client, "huge certificate": self._heavy}.get(kind)
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
            try:
                writer.write(sent)
                if kind == "truncated":
                    writer.write_eof()
                async with asyncio.timeout(SECONDS):
                    while await reader.read(65536):
                        pass
            except TimeoutError:
                self.outcome.still_open[kind] += 1
            finally:
                writer.transport.abort()

    async def _honest(self) -> None:
        """A user logs in and asks, by SCRAM and by a token; what it says is what the replays say again."""
        began, client = time.monotonic(), ScramClient("alice", "wonderland")
        async with asyncio.timeout(SECONDS):
            reader, writer = await asyncio.open_connection(HOST, self.server.ports["tls"], ssl=self._client)
            writer.write(handshake("SCRAM-SHA-256") + authenticate(client.first()))
            await answer(reader)
            final = client.final(token_of(await answer(reader)))
            writer.write(authenticate(final, 3))
            assert token_of(await answer(reader)) == client.expected
            writer.write(request(ApiKey.METADATA, 1, 4, struct.pack(">i", -1)))
            assert (await answer(reader))[:4] == struct.pack(">i", 4)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        self._replay = client.first(), final
        async with asyncio.timeout(SECONDS):
            reader, writer = await asyncio.open_connection(HOST, self.server.ports["tokens"])
            writer.write(handshake(OAUTHBEARER) + authenticate(message(token("ec-1").encode())))
            await answer(reader)
            assert token_of(await answer(reader)) == b""
            writer.write(request(ApiKey.METADATA, 1, 4, struct.pack(">i", -1)))
            assert (await answer(reader))[:4] == struct.pack(">i", 4)
            writer.close()
        self.outcome.honest += 1
        self.outcome.slowest = max(self.outcome.slowest, time.monotonic() - began)

    # What is sent.

    def _garbage(self) -> bytes:
        size = self._rng.choice((1, 4, 5, 100, 5000))
        return self._rng.randbytes(size)

    def _mutated(self) -> bytes:
        sent = bytearray(self._out_of_order())
        for _ in range(self._rng.randrange(1, 6)):
            sent[self._rng.randrange(len(sent))] = self._rng.randrange(256)
        return bytes(sent)

    def _out_of_order(self) -> bytes:
        """Requests before and within a login, of which none gives a right one."""
        rng, first, final = self._rng, *self._replay
        parts = (
            lambda: api_versions(1),
            lambda: handshake(rng.choice((*ALL, "OAUTHBEARER", "GSSAPI", "", "x" * 3000))),
            lambda: authenticate(first),
            lambda: authenticate(final),
            lambda: authenticate(b"v=" + rng.randbytes(30)),
            lambda: authenticate(self._hostile.draw()),
            lambda: authenticate(b"\1" * rng.choice((0, 1, 60_000))),
            lambda: authenticate(b"\0alice\0" + b"x" * rng.choice((0, 1, 3000))),
            lambda: init(9),
            lambda: request(rng.randrange(-3, 90), rng.randrange(5), 7, rng.randbytes(20)),
        )
        return b"".join(rng.choice(parts)() for _ in range(rng.randrange(1, 8)))

    def _replayed(self) -> bytes:
        first, final = self._replay
        return handshake("SCRAM-SHA-256") + authenticate(first) + authenticate(final, 3) + init(4)

    def _wrong_password(self) -> bytes:
        user = self._rng.choice((b"alice", b"bob", b"Internal:views"))
        return handshake("PLAIN") + authenticate(b"\0" + user + b"\0wrong") + init(4)

    def _token(self) -> bytes:
        """A token that proves nothing, and the next message, which the client may send after it."""
        asked = handshake(OAUTHBEARER) + authenticate(self._hostile.draw())
        return asked + self._rng.choice(
            (authenticate(b"\1", 3), authenticate(self._hostile.draw(), 3), init(4))
        )

    def _broken_hello(self) -> bytes:
        outgoing = ssl.MemoryBIO()
        client = self._client.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        hello = bytearray(outgoing.read())
        for _ in range(self._rng.randrange(4)):
            hello[self._rng.randrange(len(hello))] = self._rng.randrange(256)
        return bytes(hello[: self._rng.randrange(1, len(hello) + 1)])


def huge(authority: Authority, folder: Path) -> Pair:
    """A certificate of the client's own making, with thousands of names."""
    key = ec.generate_private_key(ec.SECP256R1())
    small = x509.load_pem_x509_certificate(Path(authority.path).read_bytes())
    names = x509.SubjectAlternativeName(
        [x509.DNSName(f"n{number}.example.org") for number in range(_HUGE_NAMES)]
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(small.subject)
        .issuer_name(small.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(small.not_valid_before_utc)
        .not_valid_after(small.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    made = builder.sign(key, hashes.SHA256())
    pair = Pair(str(folder / "huge.pem"), str(folder / "huge.key"))
    Path(pair.certificate).write_bytes(made.public_bytes(serialization.Encoding.PEM))
    Path(pair.key).write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return pair


def rss_kb() -> int:
    return int(psutil.Process().memory_info().rss) // 1024


async def run(count: int, seed: int) -> Outcome:
    """So many hostile connections, from a seed."""
    with tempfile.TemporaryDirectory() as folder:
        return await Fuzz(seed, Path(folder)).run(count)


if __name__ == "__main__":
    began = time.monotonic()
    done = uvloop.run(run(int(sys.argv[1]), int(sys.argv[2])))
    print(f"{done.connections} hostile connections in {time.monotonic() - began:.0f} s: {dict(done.kinds)}")
    print(f"ended by the node: {dict(done.closed)}; still open: {dict(done.still_open)}")
    print(f"let in: {done.let_in[:5]}; honest logins {done.honest}, slowest {done.slowest:.2f} s")
    print(f"memory since a tenth of it: {done.grown_kb} kB")
    sys.exit(bool(done.let_in or done.still_open or done.closed["handler_error"]))
