"""All nodes lose their disks, and the bucket is kept: what is left of it is not served, and not touched."""

from __future__ import annotations

from strandline.node.objectstore.storage_owner import KEY
from tests.simulation.whole.cluster import WholeCluster

SETTLES_SECONDS = 5.0
"""Until the last request of the old processes has come to the store, beyond what comes late."""
AFTER_SECONDS = 25.0
NEVER_SECONDS = 1e9


class LostCluster:
    """The end of a run: nothing comes after it."""

    def __init__(self, cluster: WholeCluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._ledger = cluster.ledger
        self._rng = cluster.world.rng("all folders")
        self._kept: dict[str, bytes] = {}
        self._acknowledged: set[bytes] = set()

    def run(self) -> None:
        """Lose all folders, and see what becomes of the nodes and the store."""
        cluster, world = self._cluster, self._world
        cluster.restart_after = lambda node: NEVER_SECONDS
        for node in cluster.plan.nodes:
            cluster.crash(node, "power")
        cluster.store.land_within(1.0)
        world.run(world.now + cluster.plan.late_seconds + SETTLES_SECONDS)
        if KEY not in cluster.store.objects:
            self._ledger.broken("lost cluster", "the storage does not say whose it is")
            return
        self._kept = dict(cluster.store.objects)
        self._acknowledged = {body for body, batch in self._ledger.sent.items() if batch.acked is not None}
        cluster.store.on_delete = self._deletes
        for node in cluster.plan.nodes:
            world.nodes[node].replace_disk()
        cluster.restart_after = lambda node: self._rng.choice((0.05, 0.5, 2.0))
        if self._rng.random() < 0.3:
            # Whose it is cannot be seen for a while.
            cluster.store.stall()
            world.call_later(self._rng.uniform(1.0, 8.0), cluster.store.unstall)
        for node in cluster.plan.nodes:
            world.call_later(self._rng.uniform(0.0, 2.0), cluster.start, node)
        world.call_later(self._rng.uniform(3.0, 10.0), self._crash)
        ends = world.now + AFTER_SECONDS
        while world.now < ends and not self._ledger.findings:
            world.run(world.now + 0.1)
            self._look()
        if not self._ledger.findings:
            self._check_told()

    def _crash(self) -> None:
        self._cluster.crash(self._rng.choice(self._cluster.plan.nodes), self._rng.choice(("kill", "power")))

    def _deletes(self, name: str) -> None:
        self._ledger.broken("lost cluster", f"{name} is deleted")

    def _look(self) -> None:
        """Nothing is led, registered or acknowledged, and nothing came into the store or changed there."""
        broken = self._ledger.broken
        for node, broker in self._cluster.brokers.items():
            if broker.registered:
                broken("lost cluster", f"node {node} is registered")
            led = [group.id for group in broker.host.groups.values() if group.is_leader]
            if led:
                broken("lost cluster", f"node {node} leads groups {led}")
        if self._cluster.store.objects != self._kept:
            broken("lost cluster", "what is in the store has changed")
        for body, batch in self._ledger.sent.items():
            if batch.acked is not None and body not in self._acknowledged:
                broken("lost cluster", f"{batch} was acknowledged")

    def _check_told(self) -> None:
        for node in self._cluster.plan.nodes:
            broker = self._cluster.brokers.get(node)
            told = None if broker is None else broker.keeper.waits_for()
            if told is None or "the storage already belongs to cluster 'simulated'" not in told:
                self._ledger.broken("lost cluster", f"node {node} does not say why it waits: {told}")
