"""Whole brokers on simulated machines: production classes, a virtual clock, a simulated network and store."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any

from strandline.node.broker.broker import Broker
from strandline.node.config.node_config import (
    AdminSection,
    CacheSection,
    ClusterSection,
    KafkaSection,
    LogSection,
    MeshSection,
    NodeConfig,
    NodeSection,
    PeerAddress,
    SeedAddress,
    StorageSection,
    TopicsSection,
)
from strandline.node.level_zero.batcher_config import BatcherConfig
from strandline.node.raft.wal.write_ahead_log import WalConfig
from strandline.statemachine.controller.controller_commands import CreateTopic
from strandline.statemachine.controller.controller_state import Topic
from tests.simulation.node import SimNode
from tests.simulation.store import SimStore
from tests.simulation.world import World

MESH_PORT, KAFKA_PORT, ADMIN_PORT = 9000, 9092, 9644
WAL = WalConfig(segment_bytes=1 << 20)


class Brokers:
    """Nodes 1..n of one cluster. Close it, or use `with`, when the run is over."""

    def __init__(
        self,
        nodes: int = 3,
        seed: int = 1,
        *,
        start: bool = True,
        leader_rebalance: bool = True,
        replace_lost_disks: bool = False,
        racks: Mapping[int, str] | None = None,
    ) -> None:
        """`nodes` found the cluster; `join` adds others."""
        self.world = World(seed)
        self.store = SimStore(self.world)
        self.brokers: dict[int, Broker] = {}
        self.fatal: dict[int, Exception] = {}
        self.nodes = range(1, nodes + 1)
        """Those that found the cluster."""
        self.secret = "secret"
        self.secrets: dict[int, str] = {}
        """Other secrets, of nodes that are configured wrongly."""
        self.seeds: tuple[int, ...] = tuple(self.nodes)
        """Those that a node which joins asks."""
        self.mesh_ports: dict[int, int] = {}
        """Other ports than MESH_PORT, of nodes that listen there."""
        self.leader_rebalance = leader_rebalance
        self.replace_lost_disks = replace_lost_disks
        self.racks = racks or {}
        for node in self.nodes:
            self.world.add_node(node)
        if start:
            for node in self.nodes:
                self.start(node)
            self.wait(self.all_know_all)

    def __enter__(self) -> Brokers:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.world.check()
        self.world.close()

    def config(self, node: int) -> NodeConfig:
        peers = tuple(PeerAddress(each, self.world.nodes[each].host, MESH_PORT) for each in self.nodes)
        host = self.world.nodes[node].host
        return NodeConfig(
            NodeSection(node, "/data", self.racks.get(node, "")),
            self._cluster(node, peers),
            MeshSection(host, self.mesh_ports.get(node, MESH_PORT)),
            KafkaSection(host, KAFKA_PORT),
            AdminSection(host, ADMIN_PORT),
            StorageSection("memory://"),
            TopicsSection(replication_factor=min(3, len(self.nodes)), leader_rebalance=self.leader_rebalance),
            BatcherConfig(),
            CacheSection(),
            LogSection(),
        )

    def _cluster(self, node: int, founders: tuple[PeerAddress, ...]) -> ClusterSection:
        replaces = self.replace_lost_disks
        if node in self.nodes:
            return ClusterSection("simulated", self.secret, founders, replace_lost_disks=replaces)
        seeds = tuple(SeedAddress(self.world.nodes[each].host, MESH_PORT) for each in self.seeds)
        secret = self.secrets.get(node, self.secret)
        return ClusterSection("simulated", secret, seeds=seeds, replace_lost_disks=replaces)

    # Nodes.

    def join(self, node: int) -> None:
        """Start a machine that joins by seeds; it is a member some time later."""
        self.world.add_node(node)
        self.start(node)

    def start(self, node: int) -> None:
        """Power on, or start again after a crash or a stop."""
        self.world.nodes[node].start(self._main)

    def _main(self, sim: SimNode) -> None:
        broker = self.brokers[sim.id] = self.made(sim)
        broker.open()
        sim.spawn(broker.start())

    def made(self, sim: SimNode) -> Broker:
        """A node's broker, on a machine that is on; it is not opened yet."""
        loop = sim.loop
        return Broker(
            self.config(sim.id), loop=loop, disk=sim.disk, store=self.store.client(sim), wal_executor=None,
            snapshot_executor=sim.executor, rng=sim.rng("broker"), nonces=sim.rng("nonces"),
            boot_id=1 + sim.rng("boot").getrandbits(60), wall_ms=lambda: int(1000 * loop.time()),
            on_fatal=lambda error: self.fatal.__setitem__(sim.id, error), wal=WAL,
        )  # fmt: skip

    def crash(self, node: int, kind: str = "kill") -> None:
        self.world.nodes[node].crash(kind)
        self.brokers.pop(node, None)

    def stop(self, node: int) -> float:
        """Stop a node cleanly; the virtual seconds it took."""
        began = self.world.now
        self.run(node, self.brokers[node].stop())
        took = self.world.now - began
        self.crash(node)
        return took

    def all_know_all(self) -> bool:
        """Whether all are registered, and every node's replica of the controller has heard of it."""
        versions = {broker.controller.machine.version for broker in self.brokers.values()}
        return len(versions) == 1 and all(self.registered(node) for node in self.nodes)

    def registered(self, node: int) -> bool:
        broker = self.brokers.get(node)
        return broker is not None and broker.registered

    # Work.

    def wait(self, done: Any, seconds: float = 20.0) -> None:
        """Let virtual time pass until `done()`."""
        assert self.world.run_until(done, timeout=seconds), f"not within {seconds} s"

    def run(self, node: int, coro: Coroutine[Any, Any, Any], seconds: float = 60.0) -> Any:
        """The result of a coroutine that runs on a node."""
        task = self.world.nodes[node].spawn(coro)
        self.wait(task.done, seconds)
        return task.result()

    def submit(self, node: int, command: Any, seconds: float = 10.0) -> Any:
        return self.run(node, self.brokers[node].controller.submit(command, seconds))

    def create_topic(self, node: int, name: str, partitions: int = 1, replicas: int = 3) -> Topic:
        broker = self.brokers[node]
        topic_id = broker.rng.randbytes(16)
        made_at = broker.controller.machine.applied_index
        topic = self.submit(node, CreateTopic(topic_id, name, partitions, replicas, None, [], made_at))
        assert isinstance(topic, Topic), topic
        return topic

    def leader(self) -> int:
        """The node that leads the controller; waits until there is exactly one."""

        def leading() -> list[int]:
            return [node for node, broker in self.brokers.items() if broker.host.groups[0].is_leader]

        self.wait(lambda: len(leading()) == 1)
        return leading()[0]

    def follower(self) -> int:
        """Some node that does not lead the controller."""
        leader = self.leader()
        return next(node for node in self.brokers if node != leader)
