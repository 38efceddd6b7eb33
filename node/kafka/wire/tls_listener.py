"""A TLS port: accepts, shakes hands, and only then makes a Connection.

What a stranger may cost before it has proved anything is bounded here: the number of handshakes under way,
and the time that each may take. Clients beyond that number wait in the system's own queue of the port, so
that a node which all clients come back to at once turns none of them away.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Protocol

from strandline.node.kafka.wire.connection import Connection
from strandline.node.kafka.wire.listener import Listener
from strandline.node.kafka.wire.principal import NoName
from strandline.node.kafka.wire.server_config import CloseReason
from strandline.node.kafka.wire.session import Session
from strandline.node.kafka.wire.tls import TlsKeeper

_BACKLOG: Final = 100
"""As asyncio's servers have it."""
_RETRY_SECONDS: Final = 1.0
"""Pause after an accept that failed: as a rule the process has no file descriptor left."""


class TlsServer(Listener, Protocol):
    """The server, as a TLS port uses it."""

    handshakes: Counter[str]
    handshakes_under_way: int


class _TlsConnection(Connection):
    """A connection whose client may have a name by its certificate."""

    def __init__(self, server: Listener, listener: str, keeper: TlsKeeper) -> None:
        super().__init__(server, Session(listener))
        self._keeper = keeper

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        certificate: dict[str, Any] | None = transport.get_extra_info("peercert")
        if certificate:
            try:
                self.session.principal = self._keeper.settings.rules.principal(certificate)
            except NoName as error:
                self.close(CloseReason.HANDSHAKE, f"listener {self.session.listener}: {error}")


class TlsListener:
    """One address on which clients speak TLS."""

    def __init__(
        self, server: TlsServer, name: str, keeper: TlsKeeper, make: Callable[[], Connection] | None
    ) -> None:
        """`make` gives the connection of a client that logs in; None where a certificate is its name."""
        self._server = server
        self._make = make or (lambda: _TlsConnection(server, name, keeper))
        self._name = name
        self._keeper = keeper
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(server.config.max_handshakes)

    @property
    def port(self) -> int:
        """The port that it has taken."""
        return int(self._sockets[0].getsockname()[1])

    async def bind(self, host: str, port: int) -> None:
        """Take the address, and let no client in yet. Raises OSError."""
        found = await self._server.loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            self._sockets.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)

    def accept(self) -> None:
        """Let clients in."""
        for sock in self._sockets:
            sock.listen(_BACKLOG)
            self._spawn(self._accepting(sock))

    def close(self) -> None:
        """Let none in any more, and end the handshakes under way."""
        for task in self._tasks:
            task.cancel()
        for sock in self._sockets:
            sock.close()

    def _spawn(self, work: Any) -> None:
        task = self._server.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accepting(self, listening: socket.socket) -> None:
        while True:
            await self._places.acquire()
            try:
                sock, address = await self._server.loop.sock_accept(listening)
            except OSError:
                self._places.release()
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            self._spawn(self._shake(sock, str(address[0])))

    async def _shake(self, sock: socket.socket, client: str) -> None:
        server, config = self._server, self._server.config
        server.handshakes_under_way += 1
        try:
            await server.loop.connect_accepted_socket(
                self._make,
                sock,
                ssl=self._keeper.context,
                ssl_handshake_timeout=config.handshake_seconds,
                ssl_shutdown_timeout=config.tls_shutdown_seconds,
            )
        except OSError as error:  # ssl.SSLError, time-outs and lost connections are such
            server.handshakes["failed"] += 1
            message = _refusal(error, config.handshake_seconds)
            server.closed(CloseReason.HANDSHAKE, client, f"listener {self._name}: {message}")
        else:
            server.handshakes["done"] += 1
        finally:
            server.handshakes_under_way -= 1
            self._places.release()


_CAUSES = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client showed no certificate, and one is required",
    "UNSUPPORTED_PROTOCOL": "the client's versions of TLS are older than tls_version",
    "NO_SHARED_CIPHER": "the client and this node have no cipher in common",
    "HTTP_REQUEST": "the client speaks HTTP, and no TLS",
    "WRONG_VERSION_NUMBER": "the client does not speak TLS",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the authority of this node's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept this node's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client finds this node's certificate expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client finds this node's certificate bad: it must name its address",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the client does not speak the versions of TLS that this node does",
}
"""By OpenSSL's name of the reason."""


def _refusal(error: OSError, seconds: float) -> str:
    """The cause of a failed handshake, for the operator's log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        return f"no TLS handshake: {_CAUSES.get(reason, reason)}"
    if isinstance(error, ConnectionAbortedError) and "longer than" in str(error):
        return f"no TLS handshake within {seconds:g} s"
    return "the client left during the TLS handshake"
