"""The way to the object store runs through here, so that the store can refuse, break off and be slow.

It forwards bytes and knows of HTTP only where a request begins, which is enough to hold single requests up.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Callable

_CHUNK_BYTES = 1 << 16
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)

HoldRule = Callable[[str], bool]


class StoreProxy:
    """In front of a store at 127.0.0.1. All settings may be changed at any moment; `calm` ends them all."""

    def __init__(self, rng: random.Random) -> None:
        self.port = 0
        self.target_port = 0
        self.refusing = False
        """No connection is taken, and those there are break."""
        self.reset_chance = 0.0
        """Of a request to be answered by a broken connection, before or after the store has had it."""
        self.delays = (0.0, 0.0)
        """Least and most seconds that a request waits on its way."""
        self.hold: HoldRule | None = None
        """Which requests, by their first line, wait until `calm` or `release`."""
        self.held: list[str] = []
        """First lines of the requests that wait."""
        self._rng = rng
        self._released = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen on a free port of the loopback."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Break every connection, and each new one."""
        self.refusing = True
        for writer in list(self._writers):
            _reset(writer)

    def release(self) -> None:
        """Let the requests held go on, and hold no more."""
        self.hold = None
        self.held.clear()
        self._released.set()
        self._released = asyncio.Event()

    def calm(self) -> None:
        """As if nothing were between the nodes and the store."""
        self.refusing = False
        self.reset_chance = 0.0
        self.delays = (0.0, 0.0)
        self.release()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        onward = None
        try:
            if self.refusing:
                _reset(writer)
                return
            back, onward = await asyncio.open_connection("127.0.0.1", self.target_port)
            await asyncio.gather(self._requests(reader, onward, writer), _answers(back, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            for stream in (writer, onward):
                if stream is not None:
                    stream.close()

    async def _requests(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, answers: asyncio.StreamWriter
    ) -> None:
        while data := await source.read(_CHUNK_BYTES):
            line = data.partition(b"\r\n")[0]
            if line.endswith((b"HTTP/1.1", b"HTTP/1.0")):
                if self._rng.random() < self.reset_chance:
                    if self._rng.random() < 0.5:
                        sink.write(data)
                        await sink.drain()
                        await asyncio.sleep(self._rng.uniform(0.0, 0.02))
                    _reset(answers)
                    return
                await self._wait(line.decode("ascii", "replace"))
            sink.write(data)
            await sink.drain()
        sink.close()

    async def _wait(self, line: str) -> None:
        if self.hold is not None and self.hold(line):
            self.held.append(line)
            await self._released.wait()
        least, most = self.delays
        if most:
            await asyncio.sleep(self._rng.uniform(least, most))


async def _answers(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(_CHUNK_BYTES):
            sink.write(data)
            await sink.drain()
    sink.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection as a crash does: what was under way is gone."""
    there: socket.socket | None = writer.get_extra_info("socket")
    if there is not None:
        with contextlib.suppress(OSError):
            there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
