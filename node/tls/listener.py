"""A TLS port: accepts, shakes hands, and only then makes a protocol's connection.

What a stranger may cost before it has proved anything is bounded here: the number of handshakes under way,
and the time that each may take. Beyond that number further clients either wait in the system's own queue of
the port, so that a node which all clients come back to at once turns none of them away; or the oldest
handshake ends, since an honest one takes milliseconds.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from strandline.node.tls.keeper import TlsKeeper

_BACKLOG: Final = 100
"""As asyncio's servers have it."""
_RETRY_SECONDS: Final = 1.0
"""Pause after an accept that failed: as a rule the process has no file descriptor left."""


def not_listening(section: str, host: str, port: int, error: OSError) -> str:
    """One line with cause and cure: the address in this section of the configuration cannot be bound."""
    cure = f"configure another {section}.host, which is an address of this machine, or {section}.port"
    if error.errno == errno.EADDRINUSE:
        cure = f"stop the process that has it, or configure another {section}.host or {section}.port"
    return f"{section}: cannot listen on {host}:{port}: {error.strerror or error}: {cure}"


class HandshakeOwner(Protocol):
    """The server of a TLS port."""

    def handshake_ended(self, client: str, failure: str | None) -> None:
        """Take note of a handshake with this address, and of the reason why it failed, if it did."""


class Entrance(Protocol):
    """The way in of one socket."""

    async def passed(self) -> None:
        """Wait until it may shake hands."""

    def make(self) -> asyncio.BaseProtocol:
        """The protocol of its connection."""

    def shaken(self) -> None:
        """The handshake is over, however it ended."""

    def leave(self) -> None:
        """No connection came of it."""


class Gate(Protocol):
    """A look at each socket before its handshake."""

    def arrived(self, sock: socket.socket, client: str) -> Entrance | None:
        """Its way in; None for one that the gate keeps, and closes."""


class OpenGate:
    """Lets every socket in."""

    def __init__(self, make: Callable[[], asyncio.BaseProtocol]) -> None:
        self.make = make

    def arrived(self, sock: socket.socket, client: str) -> Entrance | None:
        return self

    async def passed(self) -> None:
        return

    def shaken(self) -> None:
        return

    def leave(self) -> None:
        return


class TlsListener:
    """One address on which the other side speaks TLS."""

    def __init__(
        self,
        owner: HandshakeOwner,
        keeper: TlsKeeper,
        gate: Gate,
        *,
        loop: asyncio.AbstractEventLoop,
        places: int,
        handshake_seconds: float,
        shutdown_seconds: float,
        other: str = "the client",
        waits: bool = True,
    ) -> None:
        """Of `places` handshakes at a time, the oldest ends for one more unless that `waits`. `other` is the
        other side's name in messages."""
        self._owner = owner
        self._keeper = keeper
        self._gate = gate
        self._loop = loop
        self._handshake_seconds = handshake_seconds
        self._shutdown_seconds = shutdown_seconds
        self._other = other
        self._waits = waits
        self._sockets: list[socket.socket] = []
        self._accepters: set[asyncio.Task[None]] = set()
        self._shaking: dict[asyncio.Task[None], None] = {}
        self._most = places
        self._places = asyncio.Semaphore(places)

    @property
    def port(self) -> int:
        """The port that it has taken."""
        return int(self._sockets[0].getsockname()[1])

    @property
    def under_way(self) -> int:
        """Handshakes that have begun and not ended."""
        return len(self._shaking)

    def adopt(self, sock: socket.socket) -> None:
        """Use a socket that has an address already."""
        sock.setblocking(False)
        self._sockets.append(sock)

    async def bind(self, host: str, port: int) -> None:
        """Take all addresses of the name, and let no client in yet. Raises OSError that tells which fails."""
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            self._sockets.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                sock.bind(address)
            except OSError as error:
                for taken in self._sockets:
                    taken.close()
                self._sockets.clear()
                raise OSError(error.errno, f"{address[0]}: {error.strerror or error}") from error

    def accept(self) -> None:
        """Let clients in."""
        for sock in self._sockets:
            sock.listen(_BACKLOG)
            task = self._loop.create_task(self._accepting(sock))
            self._accepters.add(task)

    def close(self) -> None:
        """Let none in any more, and end the handshakes under way."""
        for task in (*self._accepters, *self._shaking):
            task.cancel()
        for sock in self._sockets:
            sock.close()

    async def _accepting(self, listening: socket.socket) -> None:
        while True:
            if self._waits:
                await self._places.acquire()
            try:
                sock, address = await self._loop.sock_accept(listening)
            except OSError:
                if self._waits:
                    self._places.release()
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            client = str(address[0])
            entrance = self._gate.arrived(sock, client)
            if entrance is not None:
                self._begin(sock, client, entrance)
            elif self._waits:
                self._places.release()
            await asyncio.sleep(0)  # an accept that need not wait gives no other task a turn

    def _begin(self, sock: socket.socket, client: str, entrance: Entrance) -> None:
        if not self._waits and len(self._shaking) >= self._most:
            oldest = next(iter(self._shaking))
            oldest.cancel()
            del self._shaking[oldest]
        task = self._loop.create_task(self._shake(sock, client, entrance))
        self._shaking[task] = None
        task.add_done_callback(partial(self._shaken, entrance))

    def _shaken(self, entrance: Entrance, task: asyncio.Task[None]) -> None:
        self._shaking.pop(task, None)
        entrance.shaken()
        if self._waits:
            self._places.release()

    async def _shake(self, sock: socket.socket, client: str, entrance: Entrance) -> None:
        failure = None
        try:
            await entrance.passed()
        except asyncio.CancelledError:
            sock.close()
            entrance.leave()
            raise
        try:
            await self._loop.connect_accepted_socket(
                entrance.make,
                sock,
                ssl=self._keeper.context,
                ssl_handshake_timeout=self._handshake_seconds,
                ssl_shutdown_timeout=self._shutdown_seconds,
            )
        except OSError as error:  # ssl.SSLError, time-outs and lost connections are such
            failure = f"{self._keeper.port}: {refusal(error, self._handshake_seconds, self._other)}"
            entrance.leave()
        except asyncio.CancelledError:
            entrance.leave()
            raise
        self._owner.handshake_ended(client, failure)


_CAUSES = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "{other} showed no certificate, and one is required",
    "UNSUPPORTED_PROTOCOL": "{other}'s versions of TLS are older than tls_version",
    "NO_SHARED_CIPHER": "{other} and this node have no cipher in common",
    "HTTP_REQUEST": "{other} speaks HTTP, and no TLS",
    "WRONG_VERSION_NUMBER": "{other} does not speak TLS",
    "TLSV1_ALERT_UNKNOWN_CA": "{other} does not trust the authority of this node's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "{other} does not accept this node's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "{other} finds this node's certificate expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "{other} finds this node's certificate bad: it must name its address",
    "TLSV1_ALERT_PROTOCOL_VERSION": "{other} does not speak the versions of TLS that this node does",
}
"""By OpenSSL's name of the reason."""


def refusal(error: OSError, seconds: float, other: str) -> str:
    """The cause of a failed handshake with `other` ("the client"), for the operator's log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{other}'s certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        return f"no TLS handshake: {_CAUSES.get(reason, reason).format(other=other)}"
    if isinstance(error, ConnectionAbortedError) and "longer than" in str(error):
        return f"no TLS handshake within {seconds:g} s"
    return f"{other} left during the TLS handshake"
