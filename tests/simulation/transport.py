"""The ends of a simulated connection, as asyncio's transports: what protocols call and what calls them."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from zlib import crc32

from tests.simulation.loop import DEAD, SimLoop

if TYPE_CHECKING:
    from tests.simulation.network import Link, SimNetwork

SOCKET_BUFFER = 256 * 1024
HIGH_WATER = 64 * 1024


class SimServer(asyncio.AbstractServer):
    """A listening port. `sockets[0].getsockname()` tells which, as with asyncio's own servers."""

    def __init__(self, loop: SimLoop, factory: Callable[[], asyncio.BaseProtocol], port: int) -> None:
        self._loop = loop
        self.factory = factory
        self.port = port
        self.accepts = True
        """Whether connections are taken yet."""
        self.sockets: tuple[SimSocket, ...] = (SimSocket((loop.node.host, port)),)

    def close(self) -> None:
        listeners = self._loop.node.listeners
        if listeners.get(self.port) is self:
            del listeners[self.port]
        self.sockets = ()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def is_serving(self) -> bool:
        return bool(self.sockets)

    async def start_serving(self) -> None:
        """Take connections; most servers do from the moment they are made."""
        self.accepts = True

    async def wait_closed(self) -> None:
        """Nothing is left to wait for: connections live on without their server."""


class SimSocket:
    """What code may ask of a transport's or a server's socket."""

    def __init__(self, name: tuple[str, int]) -> None:
        self._name = name

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def setsockopt(self, *option: Any) -> None:
        """Options make no difference here."""


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    peer: SimTransport

    def __init__(
        self,
        network: SimNetwork,
        number: int,
        loop: SimLoop,
        link: Link,
        local: tuple[str, int],
        remote: tuple[str, int],
    ) -> None:
        super().__init__({"sockname": local, "peername": remote, "socket": SimSocket(local)})
        self.number = number
        self.loop = loop
        self.link = link
        self.floor = 0.0  # nothing arrives before: the peer learns then that it is connected
        self.last = 0.0  # arrival of the newest unit that keeps its place in line
        self.horizon = 0.0  # latest arrival of any unit
        self._network = network
        self._protocol: Any = None
        self._buffered = False
        self._closed = False
        self._gone = False
        self._eof_sent = False
        self._eof_seen = False
        self._reading = True
        self._inbox: list[bytes | None] = []
        self._in_flight = 0
        self._full = False
        self.set_write_buffer_limits()

    def __repr__(self) -> str:
        return f"<SimTransport {self.number} {self.loop.node.id} to {self.peer.loop.node.id}>"

    # What protocols call.

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._eof_sent:
            raise RuntimeError("cannot write after write_eof()")
        if self._closed or self.loop.state == DEAD or not data:
            return
        self._in_flight += len(data)
        self._network.send(self, bytes(data))
        if self._in_flight > SOCKET_BUFFER + self._high and not self._full:
            self._full = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        """What the two sockets' buffers do not hold."""
        return max(0, self._in_flight - SOCKET_BUFFER)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = (HIGH_WATER if low is None else 4 * low) if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def write_eof(self) -> None:
        if not self._eof_sent and not self._closed and self.loop.state != DEAD:
            self._eof_sent = True
            self._network.send_end(self, None)

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        if self._closed or self.loop.state == DEAD:
            return
        self._closed = True
        self._network.send_end(self, None)
        self.loop.call_soon(self._lost, None)

    def abort(self) -> None:
        if self._gone or self.loop.state == DEAD:
            return
        self._closed = True
        self._network.send_end(self, reset_error())
        self.loop.call_soon(self._lost, None)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol  # type: ignore[no-any-return]

    def is_reading(self) -> bool:
        return self._reading and not self._closed

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self.loop.call_soon(self._drain)

    # What the network calls, on this end's loop.

    def open(self, protocol: asyncio.BaseProtocol) -> None:
        self.set_protocol(protocol)
        protocol.connection_made(self)

    def arrive(self, data: bytes, first: bool) -> None:
        """A unit is here; `first` says it is not a duplicate's second coming."""
        sender = self.peer
        if first:
            sender.left(len(data))
        network = self._network
        if self._closed:
            network.send_end(self, reset_error())
            return
        network.world.note("deliver", sender.loop.node.id, self.loop.node.id, crc32(data, self.number))
        network.counts["delivered"] += 1
        if self._inbox or not self._reading:
            self._inbox.append(data)
        else:
            self._feed(data)

    def left(self, size: int) -> None:
        """`size` bytes are no longer on their way from here."""
        self._in_flight -= size
        if self._full and self.get_write_buffer_size() <= self._low:
            self._full = False
            self.loop.call_soon(self._writable)

    def ended(self, error: OSError | None) -> None:
        """The other end closed (None) or the connection was reset."""
        if self._closed:
            return
        if error is not None:
            self._closed = True
            self._lost(error)
        elif not self._eof_seen:
            self._eof_seen = True
            self._inbox.append(None)
            self._drain()

    def _writable(self) -> None:
        if not self._closed:
            self._protocol.resume_writing()

    def _drain(self) -> None:
        while self._inbox and self._reading and not self._closed:
            data = self._inbox.pop(0)
            if data is not None:
                self._feed(data)
            elif not self._protocol.eof_received():
                self.close()

    def _feed(self, data: bytes) -> None:
        link = self.peer.link
        if link.split and len(data) > 1 and link.rng.random() < link.split:
            at = link.rng.randrange(1, len(data))
            self._hand_over(data[:at])
            self._hand_over(data[at:])
        else:
            self._hand_over(data)

    def _hand_over(self, data: bytes) -> None:
        if self._closed:
            return
        if not self._buffered:
            self._protocol.data_received(data)
            return
        while data and not self._closed:
            buffer = memoryview(self._protocol.get_buffer(len(data)))
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            data = data[size:]
            self._protocol.buffer_updated(size)

    def _lost(self, error: OSError | None) -> None:
        if not self._gone:
            self._gone = True
            self.loop.node.ends.pop(self.number, None)
            if self._protocol is not None:
                self._protocol.connection_lost(error)


def reset_error() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
