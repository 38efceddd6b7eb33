"""The driver's side of a node process: start it, ask it, stop it hard, and leave nothing of it behind.

Every wait has a limit, and every process is ended by its own id. A node process ends by itself when its
standard input does, so none outlives its driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import psutil

_LONGEST_LINE = 64 << 20
_START_SECONDS = 120.0


class NodeDied(ConnectionError):
    """The process ended before it answered."""


class NodeFailed(RuntimeError):
    """The process could not do what it was asked."""


class NodeProcess:
    """One node process. `settings` go to it as JSON; what it logs goes to a file in its folder."""

    def __init__(self, module: str, settings: dict[str, Any], folder: Path) -> None:
        self.module = module
        self.settings = settings
        self.folder = folder
        self.log = folder.with_suffix(".log")
        self.started_at = 0.0
        """time.monotonic() just before the process was started."""
        self.ready_at = 0.0
        """time.monotonic() when it said that it was ready."""
        self.hello: dict[str, Any] = {}
        """The first thing it said, when it was ready."""
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = itertools.count(1)

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it and wait until it is ready; again after it has ended."""
        assert not self.alive
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        hello = self._waiting[0] = asyncio.get_running_loop().create_future()
        self.started_at = time.monotonic()
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", self.module, json.dumps(self.settings),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, limit=_LONGEST_LINE,
            )  # fmt: skip
        self._reading = asyncio.create_task(self._read(self._process))
        self.hello = await asyncio.wait_for(hello, _START_SECONDS)
        self.ready_at = time.monotonic()

    def request(self, do: str, **fields: Any) -> asyncio.Future[dict[str, Any]]:
        """Ask without waiting; the future ends with the answer, NodeFailed or NodeDied."""
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        stdin = self._process.stdin if self._process is not None else None
        if not self.alive or stdin is None or stdin.is_closing():
            future.set_exception(NodeDied(f"{self.folder.name} is not running"))
            return future
        number = next(self._numbers)
        self._waiting[number] = future
        stdin.write(json.dumps({"id": number, "do": do, **fields}).encode() + b"\n")
        return future

    async def ask(self, do: str, *, within: float = 10.0, **fields: Any) -> dict[str, Any]:
        """Ask and wait, at most `within` seconds."""
        try:
            return await asyncio.wait_for(self.request(do, **fields), within)
        except TimeoutError:
            raise NodeFailed(f"{self.folder.name} did not answer {do!r} within {within:g} s") from None

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            answer = json.loads(line)
            future = self._waiting.pop(answer["id"], None)
            if future is None or future.done():
                continue
            if "error" in answer:
                future.set_exception(NodeFailed(f"{self.folder.name}: {answer['error']}"))
            else:
                future.set_result(answer)
        await process.wait()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(NodeDied(f"{self.folder.name} ended with {process.returncode}"))

    def pause(self) -> None:
        """SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    async def kill(self) -> None:
        """SIGKILL, and wait until everything it still said is read."""
        self._signal(signal.SIGKILL)
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=10.0)

    async def quit(self, within: float = 10.0) -> None:
        """Let it stop in order; kill it when it does not within `within` seconds."""
        if self.alive:
            with contextlib.suppress(NodeDied, NodeFailed):
                await self.ask("quit", within=within)
            assert self._process is not None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), 2.0)
        await self.kill()

    def _signal(self, number: signal.Signals) -> None:
        if self.alive:
            assert self._process is not None
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def resident_bytes(self) -> int:
        """Memory it has in use."""
        assert self._process is not None
        return int(psutil.Process(self._process.pid).memory_info().rss)

    def threads(self) -> int:
        assert self._process is not None
        return int(psutil.Process(self._process.pid).num_threads())

    def last_words(self, lines: int = 5) -> str:
        """The end of its log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


@contextlib.asynccontextmanager
async def running(nodes: Sequence[NodeProcess]) -> AsyncIterator[None]:
    """Start all nodes at once, and end whatever still runs of them at the end."""
    try:
        async with asyncio.TaskGroup() as starting:
            for node in nodes:
                starting.create_task(node.start())
        yield
    finally:
        for node in nodes:
            await node.kill()
