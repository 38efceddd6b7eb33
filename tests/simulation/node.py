"""One simulated machine: its clock, its disk, and the process that runs on it, if one does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any
from zlib import crc32

from tests.simulation.clock import Clock
from tests.simulation.disk import SimDisk
from tests.simulation.loop import DEAD, PAUSED, RUNNING, SimExecutor, SimLoop

if TYPE_CHECKING:
    from tests.simulation.transport import SimServer, SimTransport
    from tests.simulation.world import World


class SimNode:
    """One simulated machine and the process on it."""

    def __init__(self, world: World, node_id: int, clock: Clock) -> None:
        self.world = world
        self.id = node_id
        self.clock = clock
        self.host = f"10.0.{node_id >> 8}.{node_id & 255}"
        self.disk = SimDisk(world.rng(f"disk {node_id}"), self._disk_note)
        self.disk.on_crash = self.crash
        self.executor = SimExecutor()
        self.boot = 0
        self.powered = True
        self.listeners: dict[int, SimServer] = {}
        self.ends: dict[int, SimTransport] = {}
        self._loop: SimLoop | None = None
        self._name_codes: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<SimNode {self.id} boot={self.boot} alive={self.alive} paused={self.paused}>"

    @property
    def alive(self) -> bool:
        return self._loop is not None

    @property
    def paused(self) -> bool:
        return self._loop is not None and self._loop.state == PAUSED

    @property
    def loop(self) -> SimLoop:
        """The loop of the process that runs now; an error when none does."""
        if self._loop is None:
            raise RuntimeError(f"node {self.id} is down")
        return self._loop

    def rng(self, purpose: str) -> random.Random:
        """The stream of random numbers for one purpose in this boot."""
        return self.world.rng(f"node {self.id} boot {self.boot} {purpose}")

    def start(self, main: Callable[[SimNode], object]) -> None:
        """Power on if need be, and run `main(node)` on a fresh loop as the new process's first callback."""
        if self._loop is not None:
            raise RuntimeError(f"node {self.id} runs already")
        self.boot += 1
        self.powered = True
        self.disk.turn_on()
        self._loop = SimLoop(self)  # type: ignore[abstract]
        self.world.loops.append(self._loop)
        self.world.note("start", self.id, self.boot, 0)
        self._loop.call_soon(main, self)

    def restart(self, main: Callable[[SimNode], object]) -> None:
        """Start anew, killing the process first if it still runs."""
        if self._loop is not None:
            self.crash("kill")
        self.start(main)

    def pause(self) -> None:
        """As SIGSTOP: nothing of the process runs; its host's kernel still takes connections and data."""
        if self.loop.state == RUNNING:
            self.world.note("pause", self.id, self.boot, 0)
            self.loop.state = PAUSED

    def resume(self) -> None:
        """As SIGCONT: all that came due meanwhile runs now, in order."""
        if self.loop.state == PAUSED:
            self.world.note("resume", self.id, self.boot, 0)
            self.loop.state = RUNNING
            self.world.requeue(self.loop)

    def crash(self, kind: str) -> None:
        """End the process: "kill" as by kill -9; "power" takes the page cache and silences the host."""
        if kind == "power":
            self.powered = False
        loop = self._loop
        if loop is None and kind == "kill":
            return
        self.world.note("crash", self.id, self.boot, crc32(kind.encode()))
        self._loop = None
        if loop is not None:
            loop.state = DEAD
            loop.backlog.clear()
            self.world.network.process_died(self, kind)
        self.disk.crash(kind)
        self.disk.turn_off()

    def replace_disk(self) -> None:
        """Put an empty disk into a machine that is down."""
        if self._loop is not None:
            raise RuntimeError(f"node {self.id} is up: crash it first")
        self.world.note("new disk", self.id, self.boot, 0)
        self.disk = SimDisk(self.world.rng(f"disk {self.id} after boot {self.boot}"), self._disk_note)
        self.disk.on_crash = self.crash
        self.disk.turn_off()

    def call(self, callback: Callable[..., object], *args: Any) -> None:
        """Run a callback in the process, as soon as possible."""
        self.loop.call_soon(callback, *args)

    def spawn(self, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in the process. An exception that nobody fetches from the task is a failure."""
        return self.loop.create_task(coro)

    def jump_clock(self, seconds: float) -> None:
        self.world.note("jump", self.id, self.boot, crc32(repr(seconds).encode()))
        self.clock.jump(self.world.now, seconds)
        self.world.retime(self.clock)

    def set_drift(self, drift: float) -> None:
        """Let the clock run faster than true time by this fraction (negative: slower)."""
        self.world.note("drift", self.id, self.boot, crc32(repr(drift).encode()))
        self.clock.set_drift(self.world.now, drift)
        self.world.retime(self.clock)

    def _disk_note(self, operation: str, name: str, value: int) -> None:
        code = self._name_codes.get(name)
        if code is None:
            code = self._name_codes[name] = crc32(name.encode())
        self.world.note(operation, self.id, value, code)
