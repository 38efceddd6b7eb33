"""Whole brokers on simulated machines, and what happens to their processes: start, crash, clean restart."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from strandline.node.broker import parts as broker_parts
from strandline.node.broker.settings import host_settings
from strandline.node.config.authorization import AuthorizationSection
from strandline.node.config.listeners import ListenerSection
from strandline.node.config.node_config import (
    AdminSection,
    CheckpointsSection,
    ClusterSection,
    CoordinatorSection,
    KafkaSection,
    LogSection,
    MeshSection,
    NodeConfig,
    NodeSection,
    PeerAddress,
    PublishSection,
    RetentionSection,
    SeedAddress,
    StorageSection,
    TopicsSection,
)
from strandline.node.controller.registration import Displaced
from strandline.node.objectstore.hedging import Hedging
from strandline.node.objectstore.retries import RetryingStore
from strandline.node.objectstore.storage_owner import KEY, ForeignStorage
from strandline.node.objectstore.store import Buffer
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host_settings import HostSettings
from strandline.node.raft.wal.write_ahead_log import WalConfig
from strandline.statemachine.controller.controller import Controller
from tests.simulation.clock import Clock
from tests.simulation.disk import SimCrash, SimDisk
from tests.simulation.leases import holds_lease
from tests.simulation.node import SimNode
from tests.simulation.store import SimStore, SimStoreClient
from tests.simulation.whole.ledger import Ledger, Unheard
from tests.simulation.whole.plan import Plan
from tests.simulation.whole.retention import START_MS
from tests.simulation.whole.sim_broker import Mishaps, SimBroker
from tests.simulation.world import World

MESH_PORT, KAFKA_PORT, LOGIN_PORT, ADMIN_PORT = 9000, 9092, 9093, 9644
STOP_SECONDS = 20.0
CALM_EPOCH_SECONDS = 0.25
CLOCKS_WRONG_MS = 1_000_000
"""Where clocks jump, nothing is said about retention by time."""
REFUSED_SECONDS = 0.6
"""At least so long after its end a process of the cluster before is started again: all that it gets is a
refusal, and a thousand of them in a run show no more than thirty."""


def _listeners(host: str) -> tuple[ListenerSection, ...]:
    """One without logins, and one where clients log in."""
    by = ("SCRAM-SHA-256", "PLAIN")
    return (
        ListenerSection("kafka", host, KAFKA_PORT),
        ListenerSection("login", host, LOGIN_PORT, protocol="SASL_PLAINTEXT", mechanisms=by),
    )


class _Watched(SimStoreClient):
    """The way to the store of a machine that may change nothing there."""

    def __init__(self, store: SimStore, sim: SimNode, cluster: WholeCluster) -> None:
        super().__init__(store, sim)
        self._machine, self._boot, self._cluster = sim.id, sim.boot, cluster

    def _tell(self, what: str) -> None:
        self._cluster.on_change_of_before(self._machine, what)

    async def get(self, key: str) -> Buffer:
        got = await super().get(key)
        if key == KEY:
            self._cluster.told_before.setdefault((self._machine, self._boot), self._cluster.world.now)
        return got

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        self._tell(f"put {key}")
        await super().put(key, parts)

    async def delete_many(self, keys: Sequence[str]) -> None:
        self._tell(f"delete {keys}")
        await super().delete_many(keys)


class WholeCluster:
    """The nodes of one run. A node that goes down is started again."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.founders = tuple(node for node in plan.nodes if node not in plan.joining)
        self.ledger = Ledger(lambda: world.now, world.stop)
        self.store = SimStore(world)
        self.store.delay_seconds = plan.store_delay
        self.store.late_seconds = plan.late_seconds
        self.brokers: dict[int, SimBroker] = {}
        """Of the nodes that are up."""
        self.ledger.objects.watch(self.store, self.brokers.values)
        if any(kind.startswith("clock") for kind in plan.faults):
            self.ledger.retention.clock_error_ms = CLOCKS_WRONG_MS
        self.retired: set[int] = set()
        """Nodes that are not started again."""
        self.kept_down: set[int] = set()
        """Nodes that are not started for a while."""
        self.outcast: set[int] = set()
        """Nodes that were removed and came back."""
        self.ghosts: dict[int, SimBroker] = {}
        """Those of the outcast that are up: they are no part of the cluster."""
        self.of_before: dict[int, int] = {}
        """Machines with a folder of the cluster before the restored one, and the ids of their nodes."""
        self.on_change_of_before: Callable[[int, str], None] = lambda machine, what: None
        """Hears of each change of the store that such a machine asks for."""
        self.told_before: dict[tuple[int, int], float] = {}
        """By such a machine and its boot: when the store first told it the owner, in virtual seconds."""
        self.mishaps = Mishaps()
        self.epoch_seconds = plan.epoch_seconds
        self.restart_after: Callable[[int], float] = lambda node: 0.2
        self.on_crash: Callable[[SimBroker], None] = lambda broker: None
        self.on_broker: Callable[[SimBroker], None] = lambda broker: None
        """Gets each broker before it opens."""
        self.on_wiped: list[Callable[[int, SimDisk], None]] = []
        """Get the node whose disk was replaced, and the old disk."""
        rng = world.rng("clocks")
        self._clock_starts: dict[int, float] = {}
        for node in plan.nodes:
            start = self._clock_starts[node] = rng.uniform(0, 1000)
            world.add_node(node, clock=Clock(start, rng.uniform(-2e-4, 2e-4)))

    # Processes.

    def start(self, node: int) -> None:
        sim = self.world.nodes[node]
        if not sim.alive and node not in self.retired and node not in self.kept_down:
            sim.disk.on_crash = lambda kind: self.crash(node, kind)
            sim.start(self._main)

    def crash(self, node: int, kind: str) -> None:
        sim = self.world.nodes[node]
        if not sim.alive:
            return
        sim.crash(kind)
        self.ghosts.pop(node, None)
        broker = self.brokers.pop(node, None)
        if broker is not None:
            self.on_crash(broker)
        seconds = self.restart_after(node)
        if node in self.of_before:
            seconds = max(seconds, REFUSED_SECONDS)
        self.world.call_later(seconds, self._start_again, node, sim.boot)

    def _start_again(self, node: int, boot: int) -> None:
        if self.world.nodes[node].boot == boot:
            self.start(node)

    def retire(self, node: int) -> None:
        """End a node's process for good."""
        self.retired.add(node)
        self.crash(node, "kill")

    def clock_start(self, node: int) -> float:
        """What a node's monotonic clock shows when a run begins."""
        return self._clock_starts[self.of_before.get(node, node)]

    def come_back(self, node: int, *, empty: bool) -> None:
        """Start a retired node once more, which is none of the cluster's; `empty`: its disk is another."""
        if empty:
            self.world.nodes[node].replace_disk()
        self.retired.remove(node)
        self.outcast.add(node)
        self.start(node)

    def keep_down(self, node: int, seconds: float) -> None:
        """End a node's process, and start it again only so much later."""
        self.kept_down.add(node)
        self.crash(node, "kill")
        self.world.call_later(seconds, self.let_up, node)

    def let_up(self, node: int) -> None:
        """Start a node that was kept down, if it still is."""
        if node in self.kept_down:
            self.kept_down.remove(node)
            self.start(node)

    def restart(self, node: int) -> bool:
        """Stop cleanly, then end the process; it comes back."""
        broker = self.brokers.get(node)
        sim = self.world.nodes[node]
        if broker is None or sim.paused:
            return False
        boot = sim.boot

        async def stop() -> None:
            await broker.stop(0.5)
            self.world.call_later(0.0, self._end_process, node, boot)

        sim.call(lambda: sim.spawn(stop()))
        return True

    def _main(self, sim: SimNode) -> None:
        loop, plan = sim.loop, self.plan

        def settings(config: NodeConfig, boot_id: int, wal: WalConfig) -> HostSettings:
            # All at once: limits are checked against each other.
            made = host_settings(config, boot_id, WalConfig())
            return replace(made, raft=plan.raft, wal=wal, mesh=plan.mesh)

        hedging = Hedging(loop=loop, puts=True) if plan.hedging else None
        client = self.store.client(sim)
        if sim.id in self.of_before:
            client = _Watched(self.store, sim, self)
        store = RetryingStore(client, plan.retries, loop=loop, rng=sim.rng("retries"), hedging=hedging)
        ledger = Unheard(self.ledger) if sim.id in self.of_before else self.ledger
        with patch.object(broker_parts, "host_settings", settings):
            broker = SimBroker(
                self._config(sim), ledger=ledger, sim=sim, mishaps=self.mishaps, loop=loop,
                disk=sim.disk, store=store, wal_executor=None, snapshot_executor=sim.executor,
                rng=sim.rng("broker"), nonces=sim.rng("nonces"), boot_id=1 + sim.rng("boot").getrandbits(60),
                wall_ms=lambda: START_MS + int(1000 * (loop.time() - self.clock_start(sim.id))),
                on_fatal=lambda error: self._fatal(sim, error), wal=plan.wal,
            )  # fmt: skip
        if not plan.leader_claims:
            broker.keeper._leads = lambda: True  # type: ignore[method-assign]
        if not plan.epochs_rest:
            broker.controller_leader._newer_epoch_is_needed = _always_needed  # type: ignore[method-assign]
        self._watch_groups(broker)
        self.on_broker(broker)
        try:
            broker.open()
        except SimCrash:
            raise
        except Exception as error:
            self._fatal(sim, error)
            return
        (self.ghosts if sim.id in self.outcast or sim.id in self.of_before else self.brokers)[sim.id] = broker
        sim.spawn(self._run(sim, broker))

    async def _run(self, sim: SimNode, broker: SimBroker) -> None:
        try:
            await broker.start()
        except (OSError, ForeignStorage) as error:
            self._fatal(sim, error)

    def _watch_groups(self, broker: SimBroker) -> None:
        tell = broker.host._on_group_failed

        def failed(group: RaftGroup, error: Exception) -> None:
            self.ledger.broken("replica failure", f"group {group.id} on node {broker.node_id}: {error!r}")
            tell(group, error)

        broker.host._on_group_failed = failed
        create = broker.host.create_group

        def created(*arguments: Any, **named: Any) -> RaftGroup:
            group = create(*arguments, **named)
            group.on_leadership(lambda leading, term: self._check_leases(broker, group) if leading else None)
            return group

        broker.host.create_group = created  # type: ignore[method-assign]

    def _check_leases(self, elected: SimBroker, group: RaftGroup) -> None:
        """Nobody is elected while the lease of an earlier leader runs: a read there would be stale."""
        if elected.sim.id in self.of_before:
            return  # judged by what its leaders do
        if elected.node_id in self.outcast:
            self.ledger.broken("members", f"node {elected.node_id} was removed and leads group {group.id}")
        for broker in self.brokers.values():
            other = broker.host.groups.get(group.id)
            if other is not None and other.term < group.term and holds_lease(broker.host, other):
                self.ledger.broken(
                    "leases",
                    f"group {group.id}: node {elected.node_id} leads term {group.term} while the lease of"
                    f" node {broker.node_id} runs",
                )

    def _config(self, sim: SimNode) -> NodeConfig:
        plan = self.plan
        return NodeConfig(
            NodeSection(self.of_before.get(sim.id, sim.id), "/data"),
            self._section(sim.id),
            MeshSection(sim.host, MESH_PORT),
            KafkaSection(sim.host, KAFKA_PORT),
            AdminSection(sim.host, ADMIN_PORT),
            StorageSection("memory://"),
            TopicsSection(replication_factor=3),
            plan.batching,
            plan.cache,
            LogSection(),
            checkpoints=CheckpointsSection(plan.checkpoints_kept, interval=0.0),
            publish=PublishSection(plan.tails),
            level_one=plan.level_one,
            collector=plan.collector,
            retention=RetentionSection(plan.retention_seconds),
            coordinator=CoordinatorSection(plan.coordinators),
            groups=plan.groups,
            compaction=plan.compaction,
            inline=plan.inline,
            authorization=AuthorizationSection(plan.acls, allow_everyone_if_no_acl_found=plan.acls),
            named_listeners=_listeners(sim.host) if plan.acls else (),
        )

    def _section(self, node: int) -> ClusterSection:
        """Founders name each other, as they did at first; a node that joins names them as seeds."""
        hosts = {each: self.world.nodes[each].host for each in self.founders}
        if node in self.of_before:
            node = self.of_before[node]
            hosts |= {each: self.world.nodes[machine].host for machine, each in self.of_before.items()}
        replaces = self.plan.upheaval is not None and self.plan.upheaval.replaces_disks
        peers: tuple[PeerAddress, ...] = ()
        seeds: tuple[SeedAddress, ...] = ()
        if node in hosts and not self._joins_anew(node):
            peers = tuple(PeerAddress(each, host, MESH_PORT) for each, host in hosts.items())
        else:
            seeds = tuple(SeedAddress(host, MESH_PORT) for host in hosts.values())
        return ClusterSection(
            "simulated", "secret", peers, self.epoch_seconds, replace_lost_disks=replaces, seeds=seeds
        )

    def _joins_anew(self, node: int) -> bool:
        """Whether a node that was removed comes back as a machine that joins."""
        upheaval = self.plan.upheaval
        return node in self.outcast and upheaval is not None and upheaval.returns == "empty"

    def _fatal(self, sim: SimNode, error: Exception) -> None:
        """A process gives up: after a full disk rightly so, and where its node was removed."""
        rightly = sim.id in self.outcast and isinstance(error, Displaced)
        # It is told by the storage, or by a node that knows another process by its id.
        rightly = rightly or (sim.id in self.of_before and isinstance(error, (ForeignStorage, RuntimeError)))
        if not rightly and not (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO)):
            self.ledger.broken("node failure", f"node {sim.id} stopped: {error!r}")
        self.world.call_later(0.0, self._end_process, sim.id, sim.boot)

    def _end_process(self, node: int, boot: int) -> None:
        if self.world.nodes[node].boot == boot:
            self.crash(node, "kill")

    def hurry(self) -> None:
        """From now on epochs pass at a pace at which little of them is needed and none is long."""
        self.epoch_seconds = CALM_EPOCH_SECONDS
        for broker in self.brokers.values():
            broker.controller_leader._epoch_seconds = CALM_EPOCH_SECONDS

    # Views.

    def leader(self, group: int) -> SimBroker | None:
        """The node that leads a group in its highest term, as far as a replica believes it."""
        leading = [
            (hosted.term, broker.node_id)
            for broker in self.brokers.values()
            if (hosted := broker.host.groups.get(group)) is not None and hosted.is_leader
        ]
        return self.brokers[max(leading)[1]] if leading else None

    def groups(self) -> list[int]:
        """Every group that some node hosts."""
        found: dict[int, None] = {}
        for broker in self.brokers.values():
            found |= dict.fromkeys(broker.host.groups)
        return sorted(found)

    def newest(self) -> SimBroker:
        """The broker whose controller replica knows most."""
        return max(
            self.brokers.values(),
            key=lambda broker: (broker.controller.machine.applied_index, -broker.node_id),
        )

    def describe(self) -> str:
        lines = []
        for node in self.plan.nodes:
            broker = self.brokers.get(node)
            if broker is None:
                lines.append(f"node {node} down")
                continue
            states = []
            for group in broker.host.groups.values():
                s = group.status()
                states.append(
                    f"{group.id}:{s['role']} t{s['term']} c{s['commit']} a{s['applied']} l{s['last']}"
                )
            lines.append(f"node {node} {', '.join(states)}")
        return "; ".join(lines)


async def _always_needed(machine: Controller) -> bool:
    """As if something were stored in each epoch."""
    return True
