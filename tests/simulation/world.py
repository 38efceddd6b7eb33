"""The simulated world: one virtual clock, one queue of events, some nodes, one seed.

Nodes run real asyncio code on loops of their own; the world runs their callbacks one at a time, in an order
that is a function of the seed alone. Scenarios act from outside through `call_at` and the methods of nodes,
network and disks. See docs/simulation.md.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import random
import traceback
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from zlib import crc32

from tests.simulation.clock import Clock
from tests.simulation.disk import SimCrash
from tests.simulation.loop import DEAD, PAUSED, Call, Entry, SimHandle, SimLoop, SimTimer
from tests.simulation.network import SimNetwork
from tests.simulation.node import SimNode

MAX_FAILURES = 100
INK = 1 << 16  # figures that wait to be hashed


@dataclass(frozen=True)
class Failure:
    """What no run may contain: an exception that reached a node's loop, or a rule a scenario saw broken."""

    time: float
    node: int
    boot: int
    message: str
    traceback: str

    def __str__(self) -> str:
        return f"t={self.time:.6f} node {self.node} boot {self.boot}: {self.message}\n{self.traceback}"


class SimulationFailed(AssertionError):
    """A run ended with failures; the text has the seed and all of them."""


class SimulationStuck(AssertionError):
    """More events than the limit: callbacks that call each other without end."""


class World:
    """Everything there is, and the queue that moves it. Close it (or use `with`) when the run is over."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.seed = seed
        self.now = 0.0
        self.nodes: dict[int, SimNode] = {}
        self.failures: list[Failure] = []
        self.trace: list[str] | None = [] if tracing else None
        self.context = contextvars.Context()
        self.loops: list[SimLoop] = []
        self.events = 0
        self.next_seq = itertools.count(1).__next__
        self.soon: deque[Entry] = deque()
        self._heap: list[Entry] = []
        self._cancelled = 0
        self._stopping = False
        self._running = False
        self._rngs: dict[str, random.Random] = {}
        self._ink: list[float] = []
        self._hash = sha256()
        self._kinds: dict[str, int] = {}
        self.network = SimNetwork(self)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # For scenarios.

    def rng(self, purpose: str) -> random.Random:
        """The world's stream of random numbers for one purpose; streams do not influence each other."""
        stream = self._rngs.get(purpose)
        if stream is None:
            stream = self._rngs[purpose] = random.Random(f"{self.seed} {purpose}")
        return stream

    def add_node(self, node_id: int, *, clock: Clock | None = None) -> SimNode:
        if node_id in self.nodes:
            raise ValueError(f"there is a node {node_id} already")
        node = self.nodes[node_id] = SimNode(self, node_id, clock or Clock())
        self.network.add_host(node)
        return node

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Call:
        """Run a scenario's callback at a virtual time. What it raises ends the run."""
        call = Call(self.context, callback, args)
        self.push(when, None, call)
        return call

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Call:
        return self.call_at(self.now + delay, callback, *args)

    def stop(self) -> None:
        """Let `run` return after the event under way."""
        self._stopping = True

    def run(self, until: float | None = None, *, max_events: int = 20_000_000) -> None:
        """Run events until virtual time `until` (seconds), or until none are left, or until `stop()`."""
        if self._running:
            raise RuntimeError("the world runs already")
        heap, soon, pop, enter = self._heap, self.soon, heapq.heappop, asyncio._set_running_loop
        end = float("inf") if until is None else until
        current: SimLoop | None = None
        self._running, self._stopping = True, False
        count = 0
        try:
            while not self._stopping:
                if soon and not (heap and heap[0] < soon[0]):
                    entry = soon.popleft()
                elif heap and heap[0][0] <= end:
                    entry = pop(heap)
                    self.now = entry[0]
                else:
                    if until is not None:
                        self.now = max(self.now, until)
                    return
                loop, call = entry[2], entry[3]
                callback = call._callback
                if callback is None:
                    continue
                if loop is not current:
                    enter(loop)
                    current = loop
                if loop is not None and loop.state:
                    self._hold(loop, entry)
                    continue
                count += 1
                try:
                    call._context.run(callback, *call._args)
                except BaseException as error:
                    self._caught(loop, callback, error)
                if count > max_events:
                    raise SimulationStuck(f"seed {self.seed}: {max_events} events, now t={self.now}")
        finally:
            enter(None)
            self._running = False
            self.events += count

    def run_until(self, done: Callable[[], bool], *, timeout: float, step: float = 0.01) -> bool:
        """Run until `done()`, looked at every `step` virtual seconds, or `timeout` is over; was it done?"""
        end = self.now + timeout
        while not done():
            if self.now >= end:
                return False
            self.run(min(end, self.now + step))
        return True

    def fail(self, node: SimNode | None, message: str, error: BaseException | None = None) -> None:
        """Record a failure of the run."""
        if len(self.failures) < MAX_FAILURES:
            text = "".join(traceback.format_exception(error)) if error is not None else ""
            place = (node.id, node.boot) if node is not None else (0, 0)
            self.failures.append(Failure(self.now, *place, message, text))

    def check(self) -> None:
        """Raise SimulationFailed if anything went wrong so far."""
        for loop in self.loops:
            if loop.state != DEAD:
                loop.report_unretrieved()
        if self.failures:
            text = "\n".join(str(failure) for failure in self.failures)
            raise SimulationFailed(f"seed {self.seed}, {len(self.failures)} failures:\n{text}")

    def close(self) -> None:
        """End everything. Coroutines that are left are closed here, in order, without any effect."""
        for node in self.nodes.values():
            node.disk.turn_off()
        for loop in self.loops:
            loop.state = DEAD
            loop.backlog.clear()
        self._heap.clear()
        self.soon.clear()
        for loop in self.loops:
            loop.bury()

    # The record of the run.

    def note(self, kind: str, a: int, b: int, c: int) -> None:
        """Add an event that matters to the digest, and to the trace if there is one."""
        code = self._kinds.get(kind)
        if code is None:
            code = self._kinds[kind] = crc32(kind.encode())
        ink = self._ink
        ink += (self.now, code, a, b, c)
        if len(ink) >= INK:
            self._blot()
        if self.trace is not None:
            self.trace.append(f"{self.now:.6f} {kind} {a} {b} {c:x}")

    def record(self, node_id: int, text: str) -> None:
        """Add a line of a scenario's own."""
        self.note("record", node_id, len(text), crc32(text.encode()))
        if self.trace is not None:
            self.trace[-1] = f"{self.now:.6f} node {node_id} {text}"

    def digest(self) -> str:
        """Hex digest of all that was noted so far: equal runs have equal digests."""
        self._blot()
        return self._hash.hexdigest()

    def _blot(self) -> None:
        # A list takes five figures in a fifth of the time of an array.
        self._hash.update(array("d", self._ink).tobytes())
        self._ink.clear()

    # For loops, nodes and the network.

    def push(self, when: float, loop: SimLoop | None, call: Call | SimHandle | SimTimer) -> None:
        heapq.heappush(self._heap, (when if when > self.now else self.now, self.next_seq(), loop, call))

    def requeue(self, loop: SimLoop) -> None:
        """Queue what a paused loop missed, in order; timers that a clock jump has put off wait on."""
        backlog, loop.backlog = loop.backlog, []
        for _, _, _, call in backlog:
            when = self.now
            if isinstance(call, SimTimer):
                when = max(when, loop.node.clock.when(call._when))
            self.push(when, loop, call)

    def retime(self, clock: Clock) -> None:
        """Move a node's timers to where its changed clock puts them."""
        for i, (_, seq, loop, call) in enumerate(self._heap):
            if loop is not None and loop.node.clock is clock and isinstance(call, SimTimer):
                self._heap[i] = (max(self.now, clock.when(call._when)), seq, loop, call)
        heapq.heapify(self._heap)

    def timer_cancelled(self) -> None:
        """Drop cancelled timers once they may be half of the queue."""
        self._cancelled += 1
        if self._cancelled > 64 and 2 * self._cancelled > len(self._heap):
            self._cancelled = 0
            self._heap[:] = [entry for entry in self._heap if entry[3]._callback is not None]
            heapq.heapify(self._heap)

    def _hold(self, loop: SimLoop, entry: Entry) -> None:
        if loop.state == PAUSED:
            loop.backlog.append(entry)
            return
        gone = getattr(entry[3], "dead", None)
        if gone is not None:
            gone()

    def _caught(self, loop: SimLoop | None, callback: Callable[..., object], error: BaseException) -> None:
        if loop is None or not isinstance(error, (Exception, asyncio.CancelledError, SimCrash)):
            raise error
        name = getattr(callback, "__qualname__", type(callback).__name__)
        loop.call_exception_handler({"message": f"exception in {name}", "exception": error})
