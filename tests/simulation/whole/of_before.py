"""Nodes of the cluster that was before a restored one: their disks were not lost after all, and they start.

They run on machines of their own, with the ids and disks that they had, and know the new nodes' addresses.
What they apply is nothing that the cluster did, so no rule of the ledger counts for them; these do.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from typing import Final

from tests.simulation.clock import Clock
from tests.simulation.disk import SimDisk
from tests.simulation.whole.cluster import WholeCluster

CHECK: Final = "nodes of before"
MACHINES_FROM: Final = 70
"""The machine of a node of before has this number, and its node's."""
BOOTS_FROM: Final = 1000
"""Processes of such machines are others than those that wrote the folder."""
BACK_SECONDS: Final = (0.0, 6.0)
LOOK_SECONDS: Final = 0.1
ENDS_SECONDS: Final = 0.1
"""A node that was told of another owner has ended within this time."""


class OfBefore:
    """Those of the nodes of before that come back, and the rules for them."""

    def __init__(
        self, cluster: WholeCluster, left: Mapping[int, tuple[SimDisk, int]], rng: random.Random
    ) -> None:
        """`left`: by node, the disk as it was left and the identity of the folder there."""
        self._cluster = cluster
        self._world = cluster.world
        self._left = left
        self._rng = rng
        self._folders = {folder for _, folder in left.values()}

    def come_back(self, counts: Counter[str]) -> None:
        """Start some of them: one, a majority, or all."""
        cluster, world = self._cluster, self._world
        nodes = sorted(self._left)
        if not nodes:
            return
        for node in self._rng.sample(nodes, self._rng.choice((1, len(nodes) // 2 + 1, len(nodes)))):
            machine = MACHINES_FROM + node
            world.add_node(machine, clock=Clock(cluster.clock_start(node), 0.0))
            sim = world.nodes[machine]
            sim.disk, sim.boot = self._left[node][0], BOOTS_FROM
            sim.disk.slow = 1.0
            sim.disk.empty()
            sim.disk.forget_faults()
            cluster.of_before[machine] = node
            counts["of before and back"] += 1
        cluster.on_change_of_before = self._changes
        for machine in cluster.of_before:
            world.call_later(self._rng.uniform(*BACK_SECONDS), cluster.start, machine)
        self._look()

    def _broken(self, text: str) -> None:
        self._cluster.ledger.broken(CHECK, text)

    def _changes(self, machine: int, what: str) -> None:
        self._broken(f"node {self._cluster.of_before[machine]} of before asks the store for {what}")

    def _look(self) -> None:
        """None that knows the owner is registered, and none has a connection with a node of the cluster.

        A majority of them that the store does not answer cannot know of the restored cluster. It serves until
        it is answered, as a cluster does whose nodes start while the store is away.
        """
        cluster = self._cluster
        for machine, node in cluster.of_before.items():
            broker = cluster.ghosts.get(machine)
            if broker is None:
                continue
            told = cluster.told_before.get((machine, self._world.nodes[machine].boot), math.inf)
            if broker.registered and self._world.now > told + ENDS_SECONDS:
                self._broken(f"node {node} of before is registered, and knows the owner")
            for other, peer in broker.host.mesh._peers.items():
                if peer.link is not None and peer.link.standing.key.folder not in self._folders:
                    self._broken(f"node {node} of before hears node {other} of the restored cluster")
        for broker in cluster.brokers.values():
            for other, peer in broker.host.mesh._peers.items():
                if peer.link is not None and peer.link.standing.key.folder in self._folders:
                    self._broken(f"node {broker.node_id} hears node {other} of before")
        self._world.call_later(LOOK_SECONDS, self._look)
