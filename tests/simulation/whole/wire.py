"""A Kafka client's connections in the simulator: real frames over the simulated network, answers in order."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from functools import cache
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.kafka.wire.response_encoder import encode
from tests.kafka.wire.entities import entity_of
from tests.kafka.wire.sent_bytes import sent_bytes
from tests.simulation.node import SimNode
from tests.simulation.whole.cluster import KAFKA_PORT

CONNECT_SECONDS = 0.5


class Lost(Exception):
    """No answer: the connection is gone, or was given up because the answer did not come."""


_schema = cache(load_request_schema)
"""kio looks a module up by its name each time."""


@cache
def _reader(key: int, version: int) -> Any:
    return entity_reader(load_response_schema(key, version))


def request_frame(key: int, version: int, correlation: int, client: str, given: dict[str, Any]) -> bytes:
    """One request with its length in front; fields that the version lacks are left out."""
    body = sent_bytes(encode(entity_of(_schema(key, version), given), b""))
    name = client.encode()
    tags = b"\0" if version >= APIS[key].flexible else b""
    head = struct.pack(f">hhih{len(name)}s", key, version, correlation, len(name), name) + tags
    return struct.pack(">i", len(head) + len(body)) + head + body


class Connection(asyncio.Protocol):
    """Requests go out at once; the answers come in their order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: str, number: int) -> None:
        self.number = number
        self.open = True
        self._loop = loop
        self._client = client
        self._correlation = 0
        self._waiting: deque[tuple[int, int, int, asyncio.Future[Any]]] = deque()
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        waiting, self._waiting = self._waiting, deque()
        for _, _, _, future in waiting:
            if not future.done():
                future.set_exception(Lost("the connection was lost"))
                future.exception()

    def eof_received(self) -> None:
        """The broker is gone: so is the connection."""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            size = int.from_bytes(self._received[:4], "big")
            if len(self._received) < 4 + size:
                return
            frame = bytes(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            self._answered(frame)

    def _answered(self, frame: bytes) -> None:
        correlation, key, version, future = self._waiting.popleft()
        assert int.from_bytes(frame[:4], "big") == correlation, "answers come in the order of the requests"
        start = 5 if version >= APIS[key].flexible and key != ApiKey.API_VERSIONS else 4
        response, _ = _reader(key, version)(frame, start)
        if not future.done():
            future.set_result(response)

    def send(self, key: int, version: int, /, *, answered: bool = True, **fields: Any) -> asyncio.Future[Any]:
        """The answer, or Lost; where none comes (acks=0) the future is done at once."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if not self.open or self._transport is None:
            future.set_exception(Lost("the connection is closed"))
            future.exception()
            return future
        self._correlation += 1
        frame = request_frame(key, version, self._correlation, self._client, fields)
        if answered:
            self._waiting.append((self._correlation, key, version, future))
        else:
            future.set_result(None)
        self._transport.write(frame)
        return future

    def give_up(self) -> None:
        """Close; whoever waits gets Lost."""
        if self.open and self._transport is not None:
            self._transport.abort()
            self.connection_lost(None)


class Wire:
    """One client's connections, one to each node."""

    def __init__(self, sim: SimNode, client: str, nodes: tuple[int, ...]) -> None:
        self.sim = sim
        self.loop = sim.loop
        self.nodes = nodes
        self.closed = False
        self._client = client
        self._connections: dict[int, Connection] = {}
        self._opening: dict[int, asyncio.Task[Connection]] = {}
        self._number = 0

    async def connection(self, node: int) -> Connection:
        """The connection to a node, opened if need be. Raises Lost."""
        known = self._connections.get(node)
        if known is not None and known.open:
            return known
        opening = self._opening.get(node)
        if opening is None:
            opening = self._opening[node] = self.loop.create_task(self._open(node))
            opening.add_done_callback(lambda task: self._opened(node, task))
        return await asyncio.shield(opening)

    def _opened(self, node: int, task: asyncio.Task[Connection]) -> None:
        del self._opening[node]
        if not task.cancelled() and task.exception() is None:
            self._connections[node] = task.result()

    async def _open(self, node: int) -> Connection:
        if self.closed:
            raise Lost("the client is closed")
        self._number += 1
        made = Connection(self.loop, self._client, self._number)
        host = self.sim.world.nodes[node].host
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self.loop.create_connection(lambda: made, host, KAFKA_PORT)
        except (OSError, TimeoutError) as error:
            made.give_up()  # a client that stood still meanwhile may have its connection, and no time left
            raise Lost(str(error)) from error
        return made

    async def ask(self, node: int, key: int, version: int, seconds: float, /, **fields: Any) -> Any:
        """One request's answer within so many seconds; the connection is given up if it does not come."""
        connection = await self.connection(node)
        return await self.answer(connection, connection.send(key, version, **fields), seconds)

    async def answer(self, connection: Connection, future: asyncio.Future[Any], seconds: float) -> Any:
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(future)
        except TimeoutError:
            connection.give_up()
            raise Lost("no answer in time") from None

    def reset(self) -> None:
        """Break every connection."""
        for connection in self._connections.values():
            connection.give_up()

    def close(self) -> None:
        self.closed = True
        self.reset()
