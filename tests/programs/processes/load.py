"""A closed loop of commands inside the leader's process: as many in flight as asked, by callbacks alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from strandline.node.raft.group import RaftGroup
from strandline.node.raft.outcome import Applied, Outcome
from tests.programs.processes.counter import count
from tests.programs.processes.latencies import histogram

_DRAIN_SECONDS = 10.0


class ClosedLoop:
    """Each of its slots proposes a command, and the next one when the answer came."""

    def __init__(self, groups: Sequence[RaftGroup], in_flight: int, command_bytes: int) -> None:
        self.command = count(command_bytes)
        self.latencies: list[float] = []
        self.acknowledged = 0
        self.refusals: list[str] = []
        self.running = True
        self.drained = asyncio.Event()
        self._slots = [_Slot(self, group) for group in groups for _ in range(in_flight)]
        self._open = len(self._slots)

    async def run(self, warmup: float, seconds: float) -> dict[str, Any]:
        """What happened in `seconds`, after `warmup` seconds that do not count towards rate and latency."""
        for slot in self._slots:
            slot.propose()
        await asyncio.sleep(warmup)
        self.latencies = []
        started = perf_counter()
        await asyncio.sleep(seconds)
        measured, took = self.latencies, perf_counter() - started
        self.latencies = []
        self.running = False
        if self._open:
            await asyncio.wait_for(self.drained.wait(), _DRAIN_SECONDS)
        return {
            "rate": len(measured) / took,
            "latencies": histogram(measured),
            "acknowledged": self.acknowledged,
            "refused": len(self.refusals),
            "refusals": self.refusals[:3],
        }

    def end_slot(self) -> None:
        self._open -= 1
        if not self._open:
            self.drained.set()


class _Slot:
    __slots__ = ("done", "group", "load", "started")

    def __init__(self, load: ClosedLoop, group: RaftGroup) -> None:
        self.load = load
        self.group = group
        self.started = 0.0
        self.done = self._done

    def propose(self) -> None:
        self.started = perf_counter()
        group = self.group
        group.replicate(self.load.command, group.term).add_done_callback(self.done)

    def _done(self, future: asyncio.Future[Outcome]) -> None:
        load = self.load
        outcome = future.result()
        if type(outcome) is not Applied:
            load.refusals.append(str(outcome))
            load.end_slot()
            return
        load.latencies.append(perf_counter() - self.started)
        load.acknowledged += 1
        if load.running:
            self.propose()
        else:
            load.end_slot()
