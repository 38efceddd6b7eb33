"""The connections between the nodes run through here, so that a direction of one can be cut.

A cut holds back what is sent and delivers it late, as a network does that comes back: no connection ends
by it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

_CHUNK_BYTES = 1 << 16


class Link:
    """Every connection that one node opens to another; a gate for each direction."""

    def __init__(self, dialler: int, target: int) -> None:
        self.ends = (dialler, target)
        self.port = 0
        self.target_port = 0
        """Where the target listens now; it may change when the target is started again."""
        self._gates = {dialler: asyncio.Event(), target: asyncio.Event()}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.heal()

    async def open(self) -> None:
        """Listen on a free port of the loopback."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self, senders: Iterable[int]) -> None:
        """Let nothing through any more that one of these nodes sends."""
        for sender in senders:
            self._gates[sender].clear()

    def heal(self) -> None:
        for gate in self._gates.values():
            gate.set()

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
        dialler, target = self.ends
        onward = None
        try:
            await self._gates[dialler].wait()
            back, onward = await asyncio.open_connection("127.0.0.1", self.target_port)
            await asyncio.gather(
                _pump(reader, onward, self._gates[dialler]), _pump(back, writer, self._gates[target])
            )
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for stream in (writer, onward):
                if stream is not None:
                    stream.close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, gate: asyncio.Event) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(_CHUNK_BYTES):
            await gate.wait()
            sink.write(data)
            await sink.drain()
    await gate.wait()
    sink.close()
