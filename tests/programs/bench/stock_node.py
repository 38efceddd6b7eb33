"""A node process of stock PySyncObj 0.3.17, as its users run it: a thread and a port for each group.

It answers the same requests as `tests.programs.processes.raft_node`, so that one measurement serves both.
Settings are PySyncObj's defaults with a journal file and a dump file; that journal is never synced to the
disk.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, replicated

from tests.programs.processes import child
from tests.programs.processes.counter import count, incompressible
from tests.programs.processes.latencies import histogram

_DRAIN_SECONDS: Final = 30.0


class StockCounter(SyncObj):
    """What `tests.programs.processes.counter.Counter` is, as a PySyncObj."""

    def __init__(self, address: str, others: Sequence[str], conf: SyncObjConf) -> None:
        super().__init__(address, others, conf)
        self.count = 0
        self.ballast = b""

    @replicated
    def add(self, command: bytes) -> int:
        self.count += 1
        return self.count

    @replicated
    def grow(self, size: int) -> None:
        self.count += 1
        self.ballast = incompressible(size)

    def snapshotted(self) -> bool:
        """Whether the log begins with what a dump stands for."""
        return self._SyncObj__raftLog[0][1] > 1


class ClosedLoop:
    """As `tests.programs.processes.load.ClosedLoop`, by PySyncObj's callbacks, which its threads call."""

    def __init__(self, groups: Sequence[StockCounter], in_flight: int, size: int) -> None:
        self.command = count(size)
        self.latencies: list[float] = []
        self.refusals: list[str] = []
        self.running = True
        self.drained = threading.Event()
        self._slots = [_Slot(self, group) for group in groups for _ in range(in_flight)]
        self._open = len(self._slots)
        self._closing = threading.Lock()

    def run(self, warmup: float, seconds: float) -> dict[str, Any]:
        for slot in self._slots:
            slot.propose()
        time.sleep(warmup)
        warming = len(self.latencies)
        started = time.perf_counter()
        time.sleep(seconds)
        end = len(self.latencies)
        took = time.perf_counter() - started
        self.running = False
        if self._slots and not self.drained.wait(_DRAIN_SECONDS):
            self.refusals += [f"no answer within {_DRAIN_SECONDS:g} s"] * self._open
        return {
            "rate": (end - warming) / took,
            "latencies": histogram(self.latencies[warming:end]),
            "acknowledged": len(self.latencies),
            "refused": len(self.refusals),
            "refusals": self.refusals[:3],
        }

    def end_slot(self) -> None:
        with self._closing:
            self._open -= 1
            if not self._open:
                self.drained.set()


class _Slot:
    __slots__ = ("group", "load", "started")

    def __init__(self, load: ClosedLoop, group: StockCounter) -> None:
        self.load = load
        self.group = group
        self.started = 0.0

    def propose(self) -> None:
        self.started = time.perf_counter()
        self.group.add(self.load.command, callback=self._done)  # type: ignore[call-arg]

    def _done(self, _: Any, reason: int) -> None:
        load = self.load
        if reason != FAIL_REASON.SUCCESS:
            load.refusals.append(f"FAIL_REASON {reason}")
            load.end_slot()
            return
        load.latencies.append(time.perf_counter() - self.started)
        if load.running:
            self.propose()
        else:
            load.end_slot()


class Node:
    """One process with a StockCounter for each group; methods are what a request's `do` names."""

    def __init__(self, settings: dict[str, Any]) -> None:
        folder = Path(settings["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        self._groups = [
            StockCounter(
                f"127.0.0.1:{own}",
                [f"127.0.0.1:{port}" for port in others],
                SyncObjConf(
                    journalFile=str(folder / f"{group}.journal"),
                    fullDumpFile=str(folder / f"{group}.dump"),
                ),
            )
            for group, (own, *others) in enumerate(settings["ports"])
        ]
        self._opened_seconds = time.monotonic() - began
        self._ticked_at = 0.0
        self._longest = 0.0

    def serve(self) -> None:
        """Answer until standard input ends."""
        child.answer(0, opened_seconds=self._opened_seconds)
        for line in sys.stdin:
            request = json.loads(line)
            number, do = request.pop("id"), request.pop("do")
            try:
                fields = getattr(self, do)(**request)
            except Exception as error:
                child.answer(number, error=f"{do}: {error!r}")
            else:
                child.answer(number, **(fields or {}))
            if do == "quit":
                break
        os._exit(0)

    def quit(self) -> None:
        for group in self._groups:
            group.destroy()

    def usage(self) -> dict[str, float]:
        return child.usage()

    def groups(self) -> dict[str, Any]:
        return {
            "led": [group for group, counter in enumerate(self._groups) if counter._isLeader()],
            "with_leader": sum(counter._getLeader() is not None for counter in self._groups),
            "active": 0,
        }

    def counts(self) -> dict[str, Any]:
        return {"counts": [counter.count for counter in self._groups]}

    def first_commit(self, group: int) -> dict[str, Any]:
        applied = threading.Event()
        reasons: list[int] = []

        def done(_: Any, reason: int) -> None:
            reasons.append(reason)
            applied.set()

        self._groups[group].add(count(200), callback=done)  # type: ignore[call-arg]
        applied.wait(60.0)
        return {"applied": reasons == [FAIL_REASON.SUCCESS], "at": time.monotonic()}

    def load(
        self, groups: list[int], in_flight: int, warmup: float, seconds: float, size: int
    ) -> dict[str, Any]:
        return ClosedLoop([self._groups[group] for group in groups], in_flight, size).run(warmup, seconds)

    def grow(self, group: int, size: int) -> dict[str, Any]:
        applied = threading.Event()
        counter = self._groups[group]
        counter.grow(size, callback=lambda *_: applied.set())  # type: ignore[call-arg]
        if not applied.wait(30.0):
            raise RuntimeError("not applied within 30 s")
        return {}

    def snapshot(self, group: int) -> None:
        self._groups[group].forceLogCompaction()

    def holds(self, group: int) -> dict[str, Any]:
        counter = self._groups[group]
        return {"ballast": len(counter.ballast), "snapshotted": counter.snapshotted()}

    def stall(self) -> dict[str, Any]:
        """As of raft_node; a tick of PySyncObj that waits its whole period for a socket is no stall."""
        longest, self._longest = self._longest, 0.0
        if not self._ticked_at:
            self._ticked_at = time.perf_counter()
            self._groups[0].addOnTickCallback(self._ticked)
        return {"seconds": longest}

    def _ticked(self) -> None:
        now = time.perf_counter()
        self._longest = max(self._longest, now - self._ticked_at - self._groups[0].conf.autoTickPeriod)
        self._ticked_at = now


if __name__ == "__main__":
    Node(child.settings()).serve()
