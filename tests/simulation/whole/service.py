"""When a cluster is in service: every node registered and up to date, every partition led and followed."""

from __future__ import annotations

from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from tests.simulation.whole.cluster import WholeCluster


class Service:
    """One wait for all nodes to be in service.

    Idle partitions learn of epochs all the time, so that at one moment all their replicas may never be equal.
    What each group had applied when this looked first is therefore what each replica must have applied, and
    states are compared where two replicas are, at whatever moments, at the same entry.
    """

    def __init__(self, cluster: WholeCluster) -> None:
        self._cluster = cluster
        self._wanted: dict[int, int] = {}
        """The last entry a group had applied anywhere when it was looked at first."""

    def missing(self) -> str | None:
        """Why not every node is in service; None when all are."""
        cluster = self._cluster
        for node in cluster.plan.nodes:
            broker = cluster.brokers.get(node)
            if broker is None or not broker.registered:
                return f"node {node} is not registered"
        newest = cluster.newest()
        machine = newest.controller.machine
        for broker in cluster.brokers.values():
            if broker.controller.machine.version != machine.version:
                return f"node {broker.node_id} knows less than node {newest.node_id} of the cluster"
            wanted = machine.group_changes(broker.node_id, ()).create
            groups = {place.group for place in wanted} | {CONTROLLER_GROUP}
            if broker.host.groups.keys() != groups or broker.replica_manager.failed:
                return f"node {broker.node_id} hosts {sorted(broker.host.groups)}, not {sorted(groups)}"
            stored = [
                group
                for group in broker.host.stored_groups()
                if not machine.moved_away(broker.node_id, group)
            ]
            if stored:
                return f"node {broker.node_id} still stores {stored}"
        if machine.moves:
            return f"groups {sorted(machine.moves)} are on their way to {list(machine.moves.values())}"
        fenced = [node for node, registration in machine.nodes.items() if registration.fenced]
        if fenced:
            return f"nodes {fenced} are fenced"
        balance = machine.balance()
        step = balance.step() if balance.on else None
        if step is not None:  # a node that was away meanwhile is filled again, move by move
            return f"the nodes are not even yet: {step}"
        for topic in machine.topics:
            for number, partition in enumerate(topic.partitions):
                why = self._not_served(topic.topic_id, number, partition.group)
                if why is not None:
                    return f"{topic.name}-{number} (group {partition.group}): {why}"
        return None

    def _not_served(self, topic_id: bytes, number: int, group: int) -> str | None:
        brokers = self._cluster.brokers.values()
        replicas = [
            (broker, replica)
            for broker in brokers
            if (replica := broker.partitions.get(topic_id, number) or broker.coordinators.by_group(group))
            is not None
        ]
        leading = [broker.node_id for broker, replica in replicas if replica.leads]
        if len(leading) != 1:
            return f"led by {leading}"
        for broker in brokers:
            told = broker.leaders.leader_of(group)
            if told is None or told.node != leading[0]:
                return f"node {broker.node_id} takes {told} for its leader, not node {leading[0]}"
        applied = {broker.node_id: broker.host.groups[group].applied for broker, _ in replicas}
        for broker, replica in replicas:
            node = broker.node_id
            self._cluster.ledger.state(group, applied[node], replica.machine.snapshot(), f"node {node}")
        wanted = self._wanted.setdefault(group, max(applied.values()))
        behind = [node for node, index in applied.items() if index < wanted]
        return f"nodes {behind} have not applied entry {wanted}" if behind else None
