"""A small cluster in the simulated world, and a client that remembers what it was told.

For tests of one fault each: the scenario is written out, the client only keeps the cluster busy and knows
afterwards what was acknowledged, what was definitely refused, and whether a linearizable read ever missed an
acknowledged command.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

from strandline.node.raft.config import RaftConfig
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host import RaftHost
from strandline.node.raft.host_settings import HostSettings
from strandline.node.raft.outcome import Applied, Outcome, Unknown
from strandline.node.raft.wal.write_ahead_log import WalConfig
from tests.raft.register_map import RegisterMap, set_register
from tests.simulation.node import SimNode
from tests.simulation.world import World

PORT = 9000
SETTLE = 10.0
"""Virtual seconds in which a cluster without faults must serve again, retries of the disk included."""

BUSY = RaftConfig(
    snapshot_entries=150,
    trailing_entries=10,
    snapshot_chunk_bytes=2048,
    max_append_bytes=16_384,
    max_entry_bytes=65_536,
    max_wal_segments=3,
)
WAL = WalConfig(segment_bytes=32 * 1024, max_buffered_bytes=512 * 1024, full_retry_seconds=0.5)


class SmallCluster:
    """Nodes with one replica each of every group; `settings` changes the host settings of a node."""

    def __init__(
        self,
        seed: int = 1,
        *,
        nodes: tuple[int, ...] = (1, 2, 3),
        groups: tuple[int, ...] = (1, 2),
        raft: RaftConfig = BUSY,
        host_class: type[RaftHost] = RaftHost,
    ) -> None:
        self.world = World(seed)
        self.voters = nodes
        self.group_ids = groups
        self.raft = raft
        self.host_class = host_class
        self.settings: dict[int, dict[str, Any]] = {}
        self.voters_of: dict[int, tuple[int, ...]] = {}
        """The voters that a node bootstraps groups with, where it does not with all nodes."""
        self.prepare: dict[int, Callable[[RaftHost], None]] = {}
        """Called with the host of a node before it starts."""
        self.hosts: dict[int, RaftHost] = {}
        self.refusals: dict[int, Exception] = {}
        """Why a node did not open, by the simulated machine's number, as in all of these."""
        self.fatal: dict[int, list[str]] = {}
        self.failed: list[tuple[int, int, str]] = []
        self.problems: dict[int, list[str]] = {}
        self.acked: dict[int, list[int]] = {group: [] for group in groups}
        self.refused: dict[int, list[int]] = {group: [] for group in groups}
        self.unknown = 0
        self.reads = 0
        self.stale: list[str] = []
        self._commands = 0
        self._loading = False
        for node in nodes:
            self.world.add_node(node)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.world.close()

    # Nodes.

    def start(self, *nodes: int) -> None:
        for node in nodes or self.voters:
            self.world.nodes[node].start(self._main)

    def serve(self) -> None:
        """Start all nodes, and go on once every group has a leader."""
        self.start()
        assert self.world.run_until(self.all_led, timeout=SETTLE)

    def stop(self, node: int, kind: str = "kill") -> None:
        self.world.nodes[node].crash(kind)
        self.hosts.pop(node, None)

    def make_host(self, sim: SimNode) -> RaftHost:
        rng = sim.rng("raft")
        settings = HostSettings(
            sim.id, "blue", b"secret", rng.getrandbits(63), "/data",
            listen_host=sim.host, listen_port=PORT, raft=self.raft, wal=WAL,
        )  # fmt: skip
        host = self.host_class(
            replace(settings, **self.settings.get(sim.id, {})),
            loop=sim.loop,
            disk=sim.disk,
            wal_executor=None,
            snapshot_executor=sim.executor,
            rng=rng,
            nonces=sim.rng("nonces"),
            on_fatal=lambda error: self.fatal.setdefault(sim.id, []).append(str(error)),
            on_group_failed=lambda group, error: self.failed.append((sim.id, group.id, str(error))),
        )
        host.on_problem = lambda problem: self.problems.setdefault(sim.id, []).append(str(problem))
        for peer in self.voters:
            if peer != host.node_id:
                host.set_peer(peer, self.world.nodes[peer].host, PORT)
        return host

    def _main(self, sim: SimNode) -> None:
        host = self.make_host(sim)
        if sim.id in self.prepare:
            self.prepare[sim.id](host)
        try:
            host.open()
        except Exception as error:
            self.refusals[sim.id] = error
            return
        self.hosts[sim.id] = host
        for group in self.group_ids:
            host.create_group(group, RegisterMap(), self.voters_of.get(sim.id, self.voters))
        sim.spawn(host.start())

    # Looking at it.

    def group(self, node: int, group: int = 1) -> RaftGroup:
        return self.hosts[node].groups[group]

    def machine(self, node: int, group: int = 1) -> RegisterMap:
        machine = self.group(node, group).machine
        assert isinstance(machine, RegisterMap)
        return machine

    def leaders(self, group: int = 1) -> list[int]:
        """Nodes that are up and believe that they lead."""
        nodes = self.world.nodes
        return [
            node
            for node, host in self.hosts.items()
            if nodes[node].alive
            and not nodes[node].paused
            and group in host.groups
            and host.groups[group].is_leader
        ]

    def leader(self, group: int = 1) -> int:
        return self.leaders(group)[0]

    def followers(self, group: int = 1) -> list[int]:
        return [node for node in self.hosts if node not in self.leaders(group)]

    def all_led(self) -> bool:
        return all(self.leaders(group) for group in self.group_ids)

    def run(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    # The client.

    def load(self, *, pause: float = 0.01, size: int = 0) -> None:
        """Propose and read on every node that believes it leads, until `unload`; sizes in bytes."""
        self._loading = True
        self.world.call_later(0.0, self._round, pause, size)

    def unload(self) -> None:
        self._loading = False

    def _round(self, pause: float, size: int) -> None:
        if not self._loading:
            return
        for group in self.group_ids:
            for node in self.leaders(group):
                sim = self.world.nodes[node]
                sim.call(self.propose, node, group, size)
                sim.call(self._start_read, sim, group)
        self.world.call_later(pause, self._round, pause, size)

    def propose(self, node: int, group: int = 1, size: int = 0) -> None:
        """One command, on the node's loop."""
        self._commands += 1
        command = self._commands
        replica = self.group(node, group)
        future = replica.replicate(set_register(command, f"r{command % 50}", bytes(size)), replica.term)
        future.add_done_callback(lambda ended: self._ended(group, command, ended.result()))

    def _ended(self, group: int, command: int, outcome: Outcome) -> None:
        if isinstance(outcome, Applied):
            self.acked[group].append(command)
        elif isinstance(outcome, Unknown):
            self.unknown += 1
        else:
            self.refused[group].append(command)

    def _start_read(self, sim: SimNode, group: int) -> None:
        sim.spawn(self._read(sim.id, group))

    async def _read(self, node: int, group: int) -> None:
        known = self.acked[group][-50:]
        replica = self.group(node, group)
        machine = self.machine(node, group)
        if isinstance(await replica.barrier(), Applied):
            self.reads += 1
            missed = [command for command in known if command not in machine.applied]
            if missed:
                self.stale.append(f"t={self.world.now:.3f} node {node} group {group} missed {missed}")

    # The verdict.

    def level(self) -> bool:
        """All groups led, and all replicas on all nodes that are up the same."""
        return self.all_led() and all(
            len({self.machine(node, group).snapshot() for node in self.hosts}) == 1
            and all(self.group(node, group).damaged_below is None for node in self.hosts)
            for group in self.group_ids
        )

    def settle(self, *, nodes: int | None = None, seconds: float = SETTLE) -> None:
        """End the load; then all nodes that are up serve, agree, and hold what was acknowledged, once."""
        self.unload()
        self.run(1.0)
        before = {group: len(self.acked[group]) for group in self.group_ids}
        assert self.world.run_until(self.level, timeout=seconds), [
            self.group(node, group).status() for node in self.hosts for group in self.group_ids
        ]
        for group in self.group_ids:
            node = self.leader(group)
            self.world.nodes[node].call(self.propose, node, group)
        self.run(1.0)
        assert self.world.run_until(self.level, timeout=seconds)
        assert len(self.hosts) == (nodes or len(self.voters))
        for group in self.group_ids:
            assert len(self.acked[group]) > before[group], "does not serve"
            for node in self.hosts:
                machine = self.machine(node, group)
                assert [c for c in self.acked[group] if c not in machine.applied] == [], "lost"
                assert [c for c in self.refused[group] if c in machine.applied] == [], "refused, yet applied"
                assert machine.doubled == []
        assert self.stale == []
        self.world.check()
