"""Nodes whose work takes time: a simulated loop that stands still for as long as its callbacks would take.

In the simulator a callback takes no time at all, so nothing is ever overloaded. Here each call into a group
(a message, a timer, a turn's work) costs some of the node's time, and what comes in meanwhile waits.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from strandline.node.controller.replica_manager import PAUSE_SECONDS, SLICE
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host import RaftHost
from strandline.node.raft.wal.write_ahead_log import WalConfig
from tests.raft.register_map import RegisterMap
from tests.raft.small_cluster import BUSY, SmallCluster
from tests.simulation.node import SimNode

WAL = WalConfig(segment_bytes=1 << 20, max_buffered_bytes=512 << 10)
CHEAP = 0.05
"""What a look at a timer or a peer's coming and going costs of a message's work, about as on real nodes."""


class SlowHost(RaftHost):
    """A host whose calls into groups cost `call_seconds` each."""

    call_seconds: ClassVar[float] = 0.0
    sim: SimNode
    longest: float = 0.0
    """The longest that the loop stood still in one go for its own work."""
    _owed = 0.0

    def guard(self, group: RaftGroup, call: Callable[..., object], *args: Any) -> None:
        if not self._owed and self.call_seconds:
            self.sim.world.call_later(0.0, self._pay)
        cheap = getattr(call, "__name__", "") in ("tick", "on_connect", "on_disconnect")
        self._owed += self.call_seconds * (CHEAP if cheap else 1.0)
        super().guard(group, call, *args)

    def _pay(self) -> None:
        """After the callbacks of this moment: nothing else runs until they would have been done."""
        seconds, self._owed = self._owed, 0.0
        self.longest = max(self.longest, seconds)
        stand_still(self.sim, seconds)


def stand_still(sim: SimNode, seconds: float) -> None:
    """Let a node's loop run nothing for a while, unless it does not run anyway."""
    if sim.alive and not sim.paused:
        boot = sim.boot
        sim.pause()

        def go_on() -> None:
            if sim.alive and sim.boot == boot and sim.paused:
                sim.resume()

        sim.world.call_later(seconds, go_on)


class SlowCluster(SmallCluster):
    """Three nodes with many groups, all of whose work takes time."""

    def __init__(self, groups: int, call_seconds: float, *, seed: int = 1) -> None:
        self.slow: type[SlowHost] = type("_SlowHost", (SlowHost,), {"call_seconds": call_seconds})
        super().__init__(seed, groups=tuple(range(1, groups + 1)), raft=BUSY, host_class=self.slow)

        self.settings = {node: {"wal": WAL} for node in self.voters}

    def make_host(self, sim: SimNode) -> RaftHost:
        host = super().make_host(sim)
        assert isinstance(host, SlowHost)
        host.sim = sim
        return host

    def leaders(self, group: int = 1) -> list[int]:
        """As the others have it, but a loop that stands still for a moment leads on."""
        return [
            node
            for node, host in self.hosts.items()
            if (replica := host.groups.get(group)) is not None and replica.is_leader
        ]

    def _main(self, sim: SimNode) -> None:
        """As Hosting does it: a few groups in a turn."""
        host = self.make_host(sim)
        host.open()
        self.hosts[sim.id] = host
        waiting = list(self.group_ids)

        def create() -> None:
            for _ in range(min(SLICE, len(waiting))):
                host.create_group(waiting.pop(0), RegisterMap(), self.voters)
            if waiting:
                sim.loop.call_later(PAUSE_SECONDS if host.crowded() else 0.0, create)

        async def main() -> None:
            await host.start()
            create()

        sim.spawn(main())

    def terms(self) -> int:
        """Of all replicas that are up, added up: it grows with each election."""
        return sum(group.term for host in self.hosts.values() for group in host.groups.values())

    @contextmanager
    def overload(self, rng: random.Random, *, stalls: float, call_seconds: float) -> Iterator[None]:
        """All work takes `call_seconds` a call, and each loop stands still for 0.05 to `stalls` seconds again
        and again."""
        calm, self.slow.call_seconds = self.slow.call_seconds, call_seconds
        on = True

        def stall(node: int) -> None:
            if on:
                seconds = rng.uniform(0.05, stalls)
                stand_still(self.world.nodes[node], seconds)
                self.world.call_later(seconds + rng.uniform(0.02, 0.3), stall, node)

        for node in self.voters:
            stall(node)
        yield
        on = False
        self.slow.call_seconds = calm
