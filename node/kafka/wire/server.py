"""The listening side: every connection of one Kafka port, and the bounds they share.

node/kafka/wire/connection.py has one connection. This module has the bound on their number, the bound on the
bytes of requests that they hold together, and the one timer that ends connections which are idle, slow to
send or slow to read; so a thousand idle connections cost a thousand small objects and nothing else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from strandline.node.kafka.wire.connection import Connection
from strandline.node.kafka.wire.handler import Handler
from strandline.node.kafka.wire.server_config import CloseReason, ConnectionProblem, ServerConfig

_SCRATCH_BYTES = 256 * 1024


class KafkaListenError(Exception):
    """The Kafka port cannot be had; `str()` is one line with the cause and the cure."""


class KafkaServer:
    """Accepts connections and hands their requests to `handler`, all of it on `loop`."""

    def __init__(
        self,
        handler: Handler,
        *,
        loop: asyncio.AbstractEventLoop,
        config: ServerConfig,
        on_problem: Callable[[ConnectionProblem], None],
    ) -> None:
        self.handler = handler
        self.loop = loop
        self.config = config
        self.counters: Counter[str] = Counter()
        """`connections`, `requests`, and `closed_<reason>` for each CloseReason; totals since the start."""
        self.request_bytes = 0
        """Bytes of frames that were admitted and not yet answered, of all connections."""
        # Received bytes are parsed before any other connection is read, so one buffer serves all.
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._on_problem = on_problem
        self._connections: dict[Connection, None] = {}
        self._starved: dict[Connection, None] = {}
        self._waking = self._released = False
        self._listener: asyncio.AbstractServer | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._empty: asyncio.Future[None] | None = None

    @property
    def port(self) -> int:
        """The port it listens on, once started."""
        assert self._listener is not None
        sockets: Any = getattr(self._listener, "sockets", ())
        return int(sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    async def start(self, host: str, port: int, *, accept: bool = True) -> None:
        """Listen; port 0 takes a free one. Raises KafkaListenError when the address cannot be had.

        Without `accept` the address is taken and clients are refused until `accept` is called.
        """
        try:
            self._listener = await self.loop.create_server(
                lambda: Connection(self), host, port, start_serving=accept
            )
        except OSError as error:
            raise KafkaListenError(
                f"kafka: cannot listen on {host}:{port}: {error.strerror or error}: stop the process that "
                "has it, or configure another kafka.host or kafka.port"
            ) from error
        self._sweep = self.loop.call_later(self.config.sweep_seconds, self._swept)

    async def accept(self) -> None:
        """Let clients connect, if `start` did not."""
        if self._listener is not None:
            await self._listener.start_serving()

    async def stop(self, grace_seconds: float) -> None:
        """Accept and read nothing more, give open requests `grace_seconds`, then end every connection."""
        if self._listener is not None:
            self._listener.close()
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._connections):
            connection.drain()
        if self._connections:
            self._empty = self.loop.create_future()
            deadline = self.loop.call_later(grace_seconds, self._grace_over)
            await self._empty
            deadline.cancel()

    def _grace_over(self) -> None:
        for connection in list(self._connections):
            connection.close(CloseReason.STOPPED, "the node stops")

    def opened(self, connection: Connection) -> bool:
        """Whether there is room for one more connection."""
        self._connections[connection] = None
        self.counters["connections"] += 1
        return len(self._connections) <= self.config.max_connections

    def lost(self, connection: Connection) -> None:
        """The connection is gone; once for each that was opened."""
        self._connections.pop(connection, None)
        self._starved.pop(connection, None)
        if not self._connections and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def admit(self, connection: Connection, size: int) -> bool:
        """Reserve `size` bytes for a frame; when it says no, the connection is woken up later.

        A frame larger than the whole budget is let in when nothing else is held, or it never would be. A
        newcomer waits behind those that wait already.
        """
        fits = self.request_bytes + size <= self.config.max_request_bytes or not self.request_bytes
        queued = self._starved and next(iter(self._starved)) is not connection
        if not fits or queued:
            self._starved.setdefault(connection)
            return False
        self._starved.pop(connection, None)
        self.request_bytes += size
        return True

    def release(self, size: int) -> None:
        """Give back bytes that `admit` reserved; wake waiting connections, in order, while there is room."""
        self.request_bytes -= size
        self._released = True
        if self._waking:
            return
        self._waking = True
        while self._starved and self._released:
            self._released = False
            first = next(iter(self._starved))
            first.take()
            self._released |= next(iter(self._starved), None) is not first
        self._waking = False

    def closed(self, reason: CloseReason, client: str, message: str) -> None:
        """Count a connection that was ended from this side, and report it."""
        self.counters[f"closed_{reason}"] += 1
        self._on_problem(ConnectionProblem(reason, client, message))

    def _swept(self) -> None:
        now = self.loop.time()
        for connection in list(self._connections):
            connection.check(now)
        self._sweep = self.loop.call_later(self.config.sweep_seconds, self._swept)
