"""A server with a handler under the test's control, and a client that speaks in plain bytes."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.kafka.wire.handler import Handler, Request
from strandline.node.kafka.wire.principal import WHOLE_NAMES, PrincipalRules
from strandline.node.kafka.wire.response_types import response_types
from strandline.node.kafka.wire.server import KafkaServer, ListenAddress
from strandline.node.kafka.wire.server_config import ConnectionProblem, ServerConfig
from strandline.node.tls.keeper import TlsSettings
from strandline.statemachine.controller.quota_set import QuotaSet

INIT = ApiKey.INIT_PRODUCER_ID
PRODUCE = ApiKey.PRODUCE


def request(api_key: int, version: int, correlation: int, body: bytes) -> bytes:
    tags = b"\0" if api_key in APIS and version >= APIS[api_key].flexible else b""
    head = struct.pack(">hhih", api_key, version, correlation, -1) + tags
    return struct.pack(">i", len(head) + len(body)) + head + body


def init(correlation: int) -> bytes:
    """A small request of a kind that is handled alone."""
    return request(INIT, 0, correlation, struct.pack(">hi", -1, 1000))


def produce(correlation: int, records: bytes = b"", acks: int = -1) -> bytes:
    """A produce request for partition 0 of topic t."""
    partition = struct.pack(">hii", 1, 0, len(records))[:0] + struct.pack(">ii", 0, len(records)) + records
    topics = struct.pack(">ih", 1, 1) + b"t" + struct.pack(">i", 1) + partition
    return request(PRODUCE, 3, correlation, struct.pack(">hhi", -1, acks, 1000) + topics)


def commit(correlation: int) -> bytes:
    """An offset commit that commits nothing."""
    return request(ApiKey.OFFSET_COMMIT, 2, correlation, struct.pack(">hihqi", 0, -1, 0, -1, 0))


def api_versions(correlation: int, version: int = 0) -> bytes:
    return request(ApiKey.API_VERSIONS, version, correlation, b"")


def answer_to(asked: Request) -> Any:
    """A well-formed answer to `init`, `produce` and `commit`."""
    a = response_types(asked.header.api_key, asked.header.api_version)
    if asked.header.api_key == PRODUCE:
        return a.ProduceResponse(responses=(), throttle_time=timedelta(0))
    if asked.header.api_key == ApiKey.OFFSET_COMMIT:
        return a.OffsetCommitResponse(topics=())
    return a.InitProducerIdResponse(
        throttle_time=timedelta(0), error_code=0, producer_id=asked.header.correlation_id, producer_epoch=0
    )


@dataclass
class HeldHandler:
    """Holds every request until the test lets it go, by correlation id."""

    loop: asyncio.AbstractEventLoop
    started: list[int] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    held: dict[int, asyncio.Future[Any]] = field(default_factory=dict)

    async def handle(self, asked: Request) -> Any:
        number = asked.header.correlation_id
        self.started.append(number)
        self.held[number] = self.loop.create_future()
        try:
            answer = await self.held[number]
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        self.finished.append(number)
        return answer_to(asked) if answer is None else answer

    def release(self, number: int, answer: Any = None) -> None:
        self.held[number].set_result(answer)


class EchoHandler:
    """Answers at once."""

    asked = 0

    async def handle(self, asked: Request) -> Any:
        self.asked += 1
        return answer_to(asked)


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def answer(self) -> int:
        """The correlation id of the next answer."""
        (number,) = struct.unpack(">i", (await self.frame())[:4])
        return int(number)

    async def frame(self) -> bytes:
        (size,) = struct.unpack(">i", await asyncio.wait_for(self.reader.readexactly(4), 5))
        return await asyncio.wait_for(self.reader.readexactly(size), 5)

    async def ended(self) -> bool:
        """Wait until the server has closed; whether nothing more came."""
        try:
            return await asyncio.wait_for(self.reader.read(), 5) == b""
        except ConnectionError:
            return True


@dataclass
class Served:
    server: KafkaServer
    problems: list[ConnectionProblem]
    lost: list[int] = field(default_factory=list)
    """The numbers of connections that are gone."""
    clients: list[Client] = field(default_factory=list)

    async def client(self, *, receive_buffer: int | None = None) -> Client:
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.server.port))
        client = Client(*await asyncio.open_connection(sock=sock))
        self.clients.append(client)
        return client

    def reasons(self) -> list[str]:
        return [str(problem.reason) for problem in self.problems]


@asynccontextmanager
async def serve(
    handler: Handler,
    tls: TlsSettings | None = None,
    mechanisms: tuple[str, ...] = (),
    rules: PrincipalRules = WHOLE_NAMES,
    quotas: QuotaSet | None = None,
    **config: Any,
) -> AsyncIterator[Served]:
    problems: list[ConnectionProblem] = []
    lost: list[int] = []
    loop = asyncio.get_running_loop()
    known = quotas or QuotaSet()
    server = KafkaServer(
        handler,
        loop=loop,
        config=ServerConfig(**config),
        on_problem=problems.append,
        quotas=lambda: known,
        on_lost=lost.append,
    )
    await server.start([ListenAddress("127.0.0.1", 0, tls=tls, rules=rules, mechanisms=mechanisms)])
    served = Served(server, problems, lost)
    try:
        yield served
    finally:
        for client in served.clients:
            client.writer.close()
        await server.stop(0.0)
        await settle()


async def settle(turns: int = 20) -> None:
    """Let what is under way on this loop and its sockets happen."""
    for _ in range(turns):
        await asyncio.sleep(0.001)
