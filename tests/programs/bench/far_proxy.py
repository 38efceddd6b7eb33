"""Makes a store on loopback one that is far away: every answer is held back, with the bandwidth as it is.

    python -m tests.programs.bench.far_proxy --to PORT --ms 60 --jitter 40

Prints the port it listens on, and ends when its standard input does. What goes to the store goes at once;
each answer leaves `--ms` after it came, and an exponential `--jitter` later, in the order of its connection.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
from collections import deque
from typing import Final, cast

HELD_BYTES: Final = 16 * 1024 * 1024
"""Held of one connection; the store waits then, as behind a full link."""


class FarProxy:
    """The proxy in a process of its own. `close` ends it."""

    def __init__(self, to: int, milliseconds: float, jitter: float) -> None:
        command = [
            sys.executable, "-P", "-m", "tests.programs.bench.far_proxy",
            "--to", str(to), "--ms", str(milliseconds), "--jitter", str(jitter),
        ]  # fmt: skip
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=20)


class _Side(asyncio.Protocol):
    """One of the two connections of a pair; `other` gets what comes here, after `delay()` seconds."""

    def __init__(self, delay: tuple[float, float] | None) -> None:
        self.other: _Side | None = None
        self.transport: asyncio.Transport | None = None
        self._delay = delay
        self._held: deque[bytes] = deque()
        self._held_bytes = 0
        self._last = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        if self._delay is None:
            self.other.write(data)
            return
        loop = asyncio.get_running_loop()
        least, jitter = self._delay
        late = least + (random.expovariate(1 / jitter) if jitter else 0.0)
        self._last = max(self._last, loop.time() + late)
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > HELD_BYTES and self.transport is not None:
            self.transport.pause_reading()
        loop.call_at(self._last, self._release)

    def _release(self) -> None:
        data = self._held.popleft()
        self._held_bytes -= len(data)
        if self.transport is not None and self._held_bytes <= HELD_BYTES:
            self.transport.resume_reading()
        if self.other is not None:
            self.other.write(data)

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        # Behind the last answer that is held back.
        asyncio.get_running_loop().call_at(self._last + 0.001, self._end_other)

    def _end_other(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class _Client(_Side):
    """A client's side: its bytes wait until the store is connected."""

    def __init__(self, to: int, delay: tuple[float, float]) -> None:
        super().__init__(None)
        self._to = to
        self._answers = delay
        self._early: list[bytes] = []
        """What came before the store was connected: Python 3.11.2 reads on in spite of a pause this early."""
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        cast(asyncio.Transport, transport).pause_reading()
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._early.append(data)
        else:
            super().data_received(data)

    async def _connect(self) -> None:
        store = _Side(self._answers)
        store.other = self
        try:
            await asyncio.get_running_loop().create_connection(lambda: store, "127.0.0.1", self._to)
        except OSError:
            if self.transport is not None:
                self.transport.abort()
            return
        self.other = store
        if self.transport is None:
            assert store.transport is not None
            store.transport.close()
        else:
            store.write(b"".join(self._early))
            self._early.clear()
            self.transport.resume_reading()


async def _run(to: int, delay: tuple[float, float]) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Client(to, delay), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=int, required=True, help="port of the store on 127.0.0.1")
    parser.add_argument("--ms", type=float, default=60.0)
    parser.add_argument("--jitter", type=float, default=40.0)
    options = parser.parse_args()
    asyncio.run(_run(options.to, (options.ms / 1000, options.jitter / 1000)))


if __name__ == "__main__":
    main()
