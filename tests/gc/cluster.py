"""Whole brokers whose epochs pass quickly and whose collectors are in a hurry."""

from __future__ import annotations

from dataclasses import replace

from strandline.node.broker.broker import Broker
from strandline.node.config.node_config import CollectorSection, NodeConfig
from strandline.node.gc.collectable_epochs import Maximum
from strandline.node.partition.partition import Partition
from strandline.statemachine.controller.controller_state import Topic
from tests.controller.brokers import Brokers
from tests.simulation.node import SimNode

LAG = 3


class GcBrokers(Brokers):
    """One epoch a second; no grace; sweeps twice a second; topics' leftovers are looked for every two.

    The epoch rises all the time, as where something is written in each; with `rests` only while it has to.
    """

    def __init__(self, seed: int = 1, *, rests: bool = False) -> None:
        self.rests = rests
        super().__init__(seed=seed)

    def made(self, sim: SimNode) -> Broker:
        broker = super().made(sim)
        if not self.rests:
            broker.collector._written_epoch = lambda: broker.epoch.current()
        return broker

    def __enter__(self) -> GcBrokers:
        super().__enter__()
        return self

    def config(self, node: int) -> NodeConfig:
        config = super().config(node)
        return replace(
            config,
            cluster=replace(config.cluster, epoch_seconds=1.0),
            collector=CollectorSection(grace_seconds=0.0, sweep_seconds=0.5, advance_lag_epochs=LAG),
            level_one=replace(config.level_one, sweep_seconds=2.0),
            inline=replace(config.inline, max_batch_bytes=0),
        )

    def pass_time(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    def epoch(self) -> int:
        return max(broker.controller.machine.cluster_epoch for broker in self.brokers.values())

    def maximum(self, node: int) -> Maximum:
        return self.brokers[node].collectable.maximum()

    def behind(self) -> int:
        """How far the node that knows least is behind the cluster epoch."""
        return self.epoch() - min(self.maximum(node).epoch for node in self.brokers)

    def leading(self, topic: Topic, number: int = 0) -> tuple[int, Partition]:
        """The node that leads a partition, and the replica there; waits until there is one."""
        group = topic.partitions[number].group

        def found() -> list[tuple[int, Partition]]:
            replicas = [(node, broker.partitions.by_group(group)) for node, broker in self.brokers.items()]
            return [(node, each) for node, each in replicas if each is not None and each.leads]

        self.wait(lambda: len(found()) == 1)
        return found()[0]

    def put(self, names: list[str]) -> None:
        for name in names:
            self.store.put(name, b"x")

    def stored(self, prefix: str = "l0/") -> list[str]:
        return self.store.keys(prefix)
