"""The gate before TLS handshakes: a connection that has to wait for its turn, or has none, costs a socket."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Protocol

from strandline.node.kafka.wire.connection import Connection
from strandline.node.kafka.wire.connection_quotas import ConnectionQuotas, Place, TurnedAway
from strandline.node.kafka.wire.hosts import host_of
from strandline.node.kafka.wire.server_config import CloseReason, ServerConfig


class GateOwner(Protocol):
    """The server behind a gate."""

    loop: asyncio.AbstractEventLoop
    quotas: ConnectionQuotas
    config: ServerConfig

    def closed(self, reason: CloseReason, client: str, message: str) -> None:
        """Count a connection that was ended from this side, and report it."""


class Entrance:
    """The way of one socket that may come in."""

    def __init__(
        self,
        make: Callable[[], Connection],
        place: Place,
        turn: asyncio.Future[None],
        on_shaken: Callable[[], None],
    ) -> None:
        self._make = make
        self._place = place
        self._turn = turn
        self._on_shaken = on_shaken

    async def passed(self) -> None:
        """Wait for its turn."""
        if not self._place.inside:
            await self._turn

    def make(self) -> Connection:
        """The connection, which has the place from then on."""
        connection = self._make()
        connection.place = self._place
        return connection

    def shaken(self) -> None:
        """The handshake is over."""
        self._on_shaken()

    def leave(self) -> None:
        """Give the place back: no connection came of it."""
        self._place.leave()


class TlsGate:
    """Of one listener."""

    def __init__(self, server: GateOwner, listener: str, make: Callable[[], Connection]) -> None:
        self._server = server
        self._listener = listener
        self._make = make
        self._delayed: set[socket.socket] = set()
        self._shaking: Counter[str] = Counter()
        """Handshakes of each host, and connections that wait for theirs."""

    def arrived(self, sock: socket.socket, client: str) -> Entrance | None:
        """The way in; None for a socket that is closed, now or in a while."""
        turn, host = self._server.loop.create_future(), host_of(client)
        entered: Place | TurnedAway

        def on_turn() -> None:
            if not turn.done():
                turn.set_result(None)

        most = self._server.config.max_handshakes_of_host
        if self._shaking.get(host, 0) >= most:
            message = f"{most} other TLS handshakes of this host are under way"
            entered = TurnedAway(0.0, CloseReason.FULL, message)
        else:
            entered = self._server.quotas.enter(self._listener, client, on_turn)
        if not isinstance(entered, TurnedAway):
            self._shaking[host] += 1
            return Entrance(self._make, entered, turn, partial(self._shaken, host))
        self._server.closed(entered.reason, client, f"listener {self._listener}: {entered.message}")
        if entered.seconds:
            self._delayed.add(sock)
            self._server.loop.call_later(entered.seconds, self._end, sock)
        else:
            sock.close()
        return None

    def close(self) -> None:
        """Close what is to be closed in a while."""
        for sock in list(self._delayed):
            self._end(sock)

    def _shaken(self, host: str) -> None:
        self._shaking[host] -= 1
        if not self._shaking[host]:
            del self._shaking[host]

    def _end(self, sock: socket.socket) -> None:
        self._delayed.discard(sock)
        sock.close()
