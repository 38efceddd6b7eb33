"""The small steps that drills are made of."""

from __future__ import annotations

from collections.abc import Callable

from strandline.node.raft.group import RaftGroup
from tests.simulation.log.clients import Clients, Command
from tests.simulation.log.cluster import Cluster

ELECTION_SECONDS = 3.0


class DrillEnded(Exception):
    """A finding left the drill without what it needs to go on."""


class DrillSteps:
    """What a drill does with a cluster without faults whose groups are all led."""

    def __init__(self, cluster: Cluster, clients: Clients) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self._clients = clients
        self._rng = self.world.rng("drills")

    def _broken(self, check: str, text: str) -> None:
        self.cluster.ledger.broken(check, text)

    def _for(self, seconds: float) -> None:
        if not self.cluster.ledger.findings:
            self.world.run(self.world.now + seconds)

    def _until(self, check: str, done: Callable[[], bool], seconds: float) -> bool:
        ledger = self.cluster.ledger
        if self.world.run_until(lambda: bool(ledger.findings) or done(), timeout=seconds):
            return not ledger.findings
        self._broken(check, f"not within {seconds:.2f} s")
        return False

    def _leader(self, group: int) -> RaftGroup:
        leader = self.cluster.leader(group)
        if leader is None:
            self._broken("a healthy leader stays", f"nobody leads group {group} in calm")
            raise DrillEnded
        return leader

    def _replica(self, node: int, group: int) -> RaftGroup:
        replica = self.cluster.group(node, group)
        if replica is None:
            self._broken("a healthy leader stays", f"node {node} is away in calm")
            raise DrillEnded
        return replica

    def _write(self, group: int) -> Command:
        leader = self._leader(group)
        self._clients.believe(group, leader.host.node_id)
        return self._clients.write(0, group, f"drill{group}")

    def _terms(self) -> dict[int, int]:
        return {group: self._leader(group).term for group in self.cluster.plan.groups}

    def _others(self, node: int) -> list[int]:
        return [other for other in self.cluster.plan.nodes if other != node]
