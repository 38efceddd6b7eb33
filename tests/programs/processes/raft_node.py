"""A node process with the production classes: uvloop, the real disk, the mesh, and a set of groups.

It does what its driver asks, one JSON line for each request; see the methods of `Node` for what can be asked.
"""

from __future__ import annotations

import asyncio
import cProfile
import hashlib
import io
import json
import os
import pstats
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import uvloop

from strandline.node.raft.config import RaftConfig
from strandline.node.raft.disk import RealDisk
from strandline.node.raft.host import RaftHost
from strandline.node.raft.host_settings import HostSettings
from strandline.node.raft.outcome import Applied, NotLeader, Outcome, Overloaded
from strandline.node.raft.wal.write_ahead_log import WalConfig
from strandline.statemachine.machine import StateMachine
from tests.programs.processes import child
from tests.programs.processes.counter import Counter, count, grow
from tests.programs.processes.load import ClosedLoop
from tests.raft.register_map import RegisterMap, set_register

SECRET: Final = b"only for tests on the loopback"
_MACHINES: dict[str, Callable[[], StateMachine]] = {"counter": Counter, "register-map": RegisterMap}


class Node:
    """One node of a cluster; a method without an underscore is what a request's `do` names."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._profile: cProfile.Profile | None = None
        self._probe = StallProbe(self._loop)
        began = time.monotonic()
        system = random.SystemRandom()
        self._host = RaftHost(
            HostSettings(
                settings["node"], "processes", SECRET, system.getrandbits(63), settings["folder"],
                raft=RaftConfig(**settings.get("raft", {})), wal=WalConfig(**settings.get("wal", {})),
            ),
            loop=self._loop,
            disk=RealDisk(),
            wal_executor=ThreadPoolExecutor(1, "wal"),
            snapshot_executor=ThreadPoolExecutor(1, "snapshots"),
            rng=random.Random(system.getrandbits(64)),
            nonces=system,
            on_fatal=lambda error: self._die(f"the node stopped: {error!r}"),
            on_group_failed=lambda group, error: self._die(f"group {group.id} stopped: {error!r}"),
        )  # fmt: skip
        self._host.open()
        machine = _MACHINES[settings["machine"]]
        for group in range(settings["groups"]):
            self._host.create_group(group, machine(), tuple(settings["voters"]))
        self._opened_seconds = time.monotonic() - began

    def _die(self, reason: str) -> None:
        """A node that cannot go on must not seem to: its driver sees the process end."""
        print(reason, file=sys.stderr, flush=True)
        os._exit(1)

    async def _serve(self) -> None:
        await self._host.start()
        reader = asyncio.StreamReader(limit=1 << 20)
        await self._loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        child.answer(0, port=self._host.mesh.port, opened_seconds=self._opened_seconds)
        reading = self._loop.create_task(self._read(reader))
        await self._stopping.wait()
        reading.cancel()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        tasks: set[asyncio.Task[None]] = set()
        while line := await reader.readline():
            task = self._loop.create_task(self._answer(json.loads(line)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        self._stopping.set()

    async def _answer(self, request: dict[str, Any]) -> None:
        number, do = request.pop("id"), request.pop("do")
        try:
            fields = await getattr(self, do)(**request)
        except Exception as error:
            child.answer(number, error=f"{do}: {error!r}")
        else:
            child.answer(number, **(fields or {}))

    # What can be asked.

    async def quit(self) -> None:
        await self._host.stop(hand_over_seconds=0.0)
        self._stopping.set()

    async def connect(self, peers: dict[str, int]) -> None:
        """Where the other nodes listen on the loopback."""
        for peer, port in peers.items():
            self._host.set_peer(int(peer), "127.0.0.1", port)

    async def usage(self) -> dict[str, float]:
        return child.usage()

    async def groups(self) -> dict[str, Any]:
        """Which groups this node leads, how many have a leader, and how many need no attention at all."""
        leaders = self._host.leaders()
        return {
            "led": [group for group, leader in leaders.items() if leader == self._host.node_id],
            "with_leader": sum(leader is not None for leader in leaders.values()),
            "active": len(self._host.ticker.active),
        }

    async def status(self, group: int) -> dict[str, Any]:
        return self._host.groups[group].status()

    async def first_commit(self, group: int) -> dict[str, Any]:
        """Propose a command as soon as this node leads; time.monotonic() at which it was applied."""
        raft = self._host.groups[group]
        leading = self._loop.create_future()
        raft.on_leadership(lambda leads, _: None if leading.done() or not leads else leading.set_result(None))
        if not raft.is_leader:
            await leading
        outcome = await raft.replicate(count(200), raft.term)
        return {"applied": isinstance(outcome, Applied), "at": time.monotonic()}

    async def load(
        self, groups: list[int], in_flight: int, warmup: float, seconds: float, size: int
    ) -> dict[str, Any]:
        """Commands of `size` bytes, `in_flight` at a time in each of the groups, all led by this node."""
        raft_groups = [self._host.groups[group] for group in groups]
        return await ClosedLoop(raft_groups, in_flight, size).run(warmup, seconds)

    async def propose(self, group: int, command: int, key: str) -> dict[str, Any]:
        """One command with an id of its own, for a RegisterMap: how it ended."""
        raft = self._host.groups[group]
        outcome = await raft.replicate(set_register(command, key, command), raft.term)
        return _told(outcome)

    async def grow(self, group: int, size: int) -> dict[str, Any]:
        """Make the state large."""
        raft = self._host.groups[group]
        outcome = await raft.replicate(grow(size), raft.term)
        if not isinstance(outcome, Applied):
            raise RuntimeError(str(outcome))
        return {"index": outcome.index}

    async def snapshot(self, group: int) -> None:
        """Begin a snapshot."""
        self._host.groups[group].taking.take()

    async def holds(self, group: int) -> dict[str, Any]:
        """How large the state is, and whether the log begins with a snapshot."""
        raft = self._host.groups[group]
        assert isinstance(raft.machine, Counter)
        return {"ballast": len(raft.machine.ballast), "snapshotted": raft.journal.base > 0}

    async def counts(self) -> dict[str, Any]:
        """How many commands each group's counter has seen."""
        machines = [group.machine for group in self._host.groups.values()]
        return {"counts": [machine.count for machine in machines if isinstance(machine, Counter)]}

    async def state(self, group: int) -> dict[str, Any]:
        """How often each command was applied, and whether the replicas are the same byte for byte."""
        raft = self._host.groups[group]
        machine = raft.machine
        assert isinstance(machine, RegisterMap)
        return {
            "applied": raft.applied,
            "ids": list(machine.applied),
            "doubled": machine.doubled,
            "digest": hashlib.sha256(machine.snapshot()).hexdigest(),
        }

    async def stall(self) -> dict[str, Any]:
        """The longest time, in seconds, that the loop did not turn since this was last asked."""
        return {"seconds": self._probe.take()}

    async def profile_start(self) -> None:
        self._profile = cProfile.Profile()
        self._profile.enable()

    async def profile_end(self, lines: int) -> dict[str, Any]:
        """The functions that took the most time themselves."""
        assert self._profile is not None
        self._profile.disable()
        text = io.StringIO()
        pstats.Stats(self._profile, stream=text).sort_stats("tottime").print_stats(lines)
        return {"profile": text.getvalue()}


class StallProbe:
    """Notices how late a timer of 5 ms fires."""

    PERIOD: Final = 0.005

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._longest = 0.0
        self._due = 0.0
        self._running = False

    def take(self) -> float:
        """The longest delay since the last call; the first call starts the watch."""
        longest, self._longest = self._longest, 0.0
        if not self._running:
            self._running = True
            self._arm()
        return longest

    def _arm(self) -> None:
        self._due = time.perf_counter() + self.PERIOD
        self._loop.call_later(self.PERIOD, self._fire)

    def _fire(self) -> None:
        self._longest = max(self._longest, time.perf_counter() - self._due)
        self._arm()


def _told(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, Applied):
        return {"outcome": "applied"}
    if isinstance(outcome, NotLeader):
        return {"outcome": "rejected", "leader": outcome.hint}
    return {"outcome": "rejected" if isinstance(outcome, Overloaded) else "unknown"}


async def _main(settings: dict[str, Any]) -> None:
    await Node(settings)._serve()


if __name__ == "__main__":
    uvloop.run(_main(child.settings()))
