"""Production hosts on simulated machines, and what an operator knows: which node belongs to which group."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import ClassVar

from strandline.node.raft.folder_file import FolderKey
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host import RaftHost
from strandline.node.raft.host_settings import HostSettings
from strandline.node.raft.pysyncobj_seam import LEADER
from strandline.node.raft.wal.write_ahead_log import WalCorruption, WalFailed
from tests.simulation.clock import Clock
from tests.simulation.disk import SimCrash
from tests.simulation.leases import holds_lease
from tests.simulation.log.invariants import Ledger
from tests.simulation.log.plan import Plan
from tests.simulation.log.watch import Traffic, WatchedHost, WatchedMap, watched
from tests.simulation.node import SimNode
from tests.simulation.world import World

PORT = 9000
FOLDER = "/data"
_TELL_AGAIN_SECONDS = 0.5


class Cluster:
    """The nodes of one run. A node that goes down is started again, unless somebody holds it down."""

    host_class: ClassVar[type[RaftHost]] = RaftHost
    """Sabotages put another one here."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.ledger = Ledger(lambda: world.now, world.stop, self._on_its_disk)
        self.traffic = Traffic()
        self.hosts: dict[int, WatchedHost] = {}
        """Hosts of the nodes that are up."""

        self.placement: dict[int, dict[int, tuple[int, ...]]] = {node: {} for node in plan.nodes}
        """For every node its groups, with the voters to bootstrap each with."""

        self.rotten: set[int] = set()
        """Nodes with a damaged bit in their log: they may refuse to start."""

        self.ruined: set[int] = set()
        """Nodes that did refuse, and wait for a clean disk."""

        self.wiped: set[int] = set()
        self._emptied: set[int] = set()
        """Nodes whose folder was wiped, and whose disk was not replaced yet: not a member."""
        """Nodes that came back with nothing, and that the operator has not noticed yet."""

        self.held: set[int] = set()
        self.may_fail: set[int] = set()
        """Nodes on which a failed fdatasync was injected: they may stop themselves."""

        self._disks_replaced: dict[int, int] = {}
        self._folders: dict[int, FolderKey] = {}
        """Of each node whose disk was replaced, the folder that is in force."""

        self.may_stop: set[tuple[int, int]] = set()
        """Replicas (node, group) whose state machine was made to fail: they may stop themselves."""

        self.restart_after: Callable[[int], float] = lambda node: 0.2
        self.ledger.leased = self._leased_in
        self._make = watched(self.host_class, self.ledger, self.traffic)
        rng = world.rng("clocks")
        for group in plan.groups:
            self.ledger.add_group(group, plan.voters)
        for node in plan.voters:
            self.placement[node] = dict.fromkeys(plan.groups, plan.voters)
        for node in plan.nodes:
            world.add_node(node, clock=Clock(rng.uniform(0, 1000), rng.uniform(-2e-4, 2e-4)))

    # Nodes.

    def start(self, node: int) -> None:
        if not self.world.nodes[node].alive and node not in self.ruined:
            sim = self.world.nodes[node]
            sim.disk.on_crash = lambda kind: self.crash(node, kind)
            sim.start(self._main)

    def crash(self, node: int, kind: str) -> None:
        """End a node's process; it comes back by itself unless it is held down."""
        sim = self.world.nodes[node]
        if not sim.alive:
            return
        sim.crash(kind)
        self.hosts.pop(node, None)
        self.may_stop = {replica for replica in self.may_stop if replica[0] != node}
        self.world.call_later(self.restart_after(node), self._start_again, node, sim.boot)

    def _start_again(self, node: int, boot: int) -> None:
        if self.world.nodes[node].boot == boot and node not in self.held:
            self.start(node)

    def _main(self, sim: SimNode) -> None:
        rng = sim.rng("raft")
        settings = HostSettings(
            sim.id, "simulated", b"secret", rng.getrandbits(63), FOLDER, sim.host, PORT,
            self.plan.raft, self.plan.wal, self.plan.mesh,
        )  # fmt: skip
        host = self._make(
            settings, loop=sim.loop, disk=sim.disk, wal_executor=None, snapshot_executor=sim.executor,
            rng=rng, nonces=sim.rng("nonces"), on_fatal=lambda error: self._fatal(sim, error),
            on_group_failed=lambda group, error: self._group_failed(sim.id, group, error),
        )  # fmt: skip
        host.boot = sim.boot
        host.limit_backlog(self.plan.backlog_bytes)
        for peer in self.plan.nodes:
            if peer != sim.id:
                host.set_peer(peer, self.world.nodes[peer].host, PORT)
        try:
            host.open()
            self._let_in(host)
            for group, voters in self.placement[sim.id].items():
                host.create_group(group, WatchedMap(self.ledger, sim.id, group), voters)
        except SimCrash:
            raise
        except Exception as error:
            self._could_not_open(sim, error)
            return
        self.hosts[sim.id] = host
        sim.spawn(host.start())

    def _let_in(self, host: RaftHost) -> None:
        """What a controller would do: every node knows which folder is in force after a disk was replaced."""
        node = host.node_id
        generation = self._disks_replaced.get(node, 0)
        if generation and node not in self._folders:
            self._folders[node] = FolderKey(generation, host.folder.id)
            host.give_vote(generation)
            for other in self.hosts:
                if other != node:
                    self._call(other, partial(self._tell_folders, other))
        self._name_folders(host)

    def _tell_folders(self, node: int) -> None:
        self._name_folders(self.hosts[node])

    def _name_folders(self, host: RaftHost) -> None:
        """A full disk does not take it now: again, for as long as this process runs."""

        def stored(error: Exception | None) -> None:
            if error is not None:
                host.loop.call_later(_TELL_AGAIN_SECONDS, self._name_folders, host)

        host.know_folders({other: key for other, key in self._folders.items() if other != host.node_id})
        host.store_folder(stored)

    def _could_not_open(self, sim: SimNode, error: Exception) -> None:
        if isinstance(error, WalCorruption) and sim.id in self.rotten:
            self.world.record(sim.id, f"refuses its log: {error}")
            self.ruined.add(sim.id)
        elif not self._was_injected(sim.id, error):
            self.ledger.broken("recovery", f"node {sim.id} cannot open what it wrote: {error!r}")
        self.crash(sim.id, "kill")

    def _was_injected(self, node: int, error: Exception) -> bool:
        if isinstance(error, WalFailed):
            return node in self.may_fail
        return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO)

    def _fatal(self, sim: SimNode, error: Exception) -> None:
        if not self._was_injected(sim.id, error):
            self.ledger.broken("replica failure", f"node {sim.id} stopped: {error!r}")
        self.world.call_later(0.0, self._end_process, sim.id, sim.boot)

    def _end_process(self, node: int, boot: int) -> None:
        if self.world.nodes[node].boot == boot:
            self.crash(node, "kill")

    def _group_failed(self, node: int, group: RaftGroup, error: Exception) -> None:
        if (node, group.id) not in self.may_stop:
            self.ledger.broken("replica failure", f"group {group.id} on node {node}: {error!r}")

    # Groups.

    def join(self, node: int, group_id: int) -> None:
        """Let a node take part in a group that it will be added to."""
        if group_id not in self.placement[node]:
            self.placement[node][group_id] = ()
            host = self.hosts.get(node)
            if host is not None:
                self._call(node, lambda: self._create(node, group_id))

    def _create(self, node: int, group_id: int) -> None:
        host = self.hosts[node]
        if group_id not in host.groups and group_id in self.placement[node]:
            host.create_group(group_id, WatchedMap(self.ledger, node, group_id), ())

    def leave(self, node: int, group_id: int) -> None:
        """Remove a replica that is no longer a member from its node. The node must be up."""
        del self.placement[node][group_id]
        self._call(node, lambda: self._remove(node, group_id))

    def _remove(self, node: int, group_id: int) -> None:
        self.hosts[node].remove_group(group_id)
        self.ledger.forget_replica(node, group_id)

    def _call(self, node: int, act: Callable[[], None]) -> None:
        self.world.nodes[node].call(act)

    def replace_disk(self, node: int) -> None:
        """Give a node that is down an empty disk; every group has removed it from its members before."""
        self.world.nodes[node].replace_disk()
        for group in self.placement[node]:
            self.ledger.forget_replica(node, group)
        self.placement[node] = {}
        self._disks_replaced[node] = self._disks_replaced.get(node, 0) + 1
        self._folders.pop(node, None)
        self.rotten.discard(node)
        self.ruined.discard(node)
        self._emptied.discard(node)

    def wipe(self, node: int) -> None:
        """Empty a node's disk; it comes back as if it were new, in the groups that it was in."""
        self.crash(node, "kill")
        self.world.nodes[node].replace_disk()
        self.wiped.add(node)
        self._emptied.add(node)
        for group in self.placement[node]:
            self.ledger.forget_replica(node, group)

    # Views.

    def _on_its_disk(self, node: int, group_id: int) -> RaftGroup | None:
        """The replica on a node that is up with the data folder that it had as a member."""
        return None if node in self._emptied else self.group(node, group_id)

    def group(self, node: int, group_id: int) -> RaftGroup | None:
        """The replica on a node, if the node is up and has one."""
        host = self.hosts.get(node)
        return host.groups.get(group_id) if host is not None else None

    def replicas(self, group_id: int) -> list[RaftGroup]:
        """All replicas on nodes that are up."""
        found = [self.group(node, group_id) for node in self.plan.nodes]
        return [group for group in found if group is not None]

    def leader(self, group_id: int) -> RaftGroup | None:
        """The replica that leads in the highest term."""
        leading = [group for group in self.replicas(group_id) if group.role == LEADER]
        return max(leading, key=lambda group: group.term) if leading else None

    def _leased_in(self, node: int, group_id: int) -> int | None:
        replica = self.group(node, group_id)
        return replica.term if replica is not None and holds_lease(self.hosts[node], replica) else None

    def all_led(self) -> bool:
        return all(self.leader(group) is not None for group in self.plan.groups)

    def describe(self) -> str:
        return "; ".join(self.describe_group(group) for group in self.plan.groups)

    def describe_group(self, group_id: int) -> str:
        """Where every replica of a group stands, in one line."""
        states = []
        for node in self.plan.nodes:
            replica = self.group(node, group_id)
            states.append(f"node {node} {'away' if replica is None else describe_replica(replica)}")
        return f"group {group_id}: " + ", ".join(states)


def describe_replica(replica: RaftGroup) -> str:
    status = replica.status()
    return (
        f"{status['role']} term {status['term']} commit {status['commit']} applied {status['applied']}"
        f" last {status['last']} base {status['log_start']} of {status['voters']}+{status['learners']}"
        f" damaged {status['needs_snapshot_from']} quiet {status['quiet']}"
    )
