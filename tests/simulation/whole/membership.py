"""Nodes join, are drained and are removed among all other faults; the controller's voters follow.

A joiner is started some time after the faults began, and its machine meets them like any other. One node is
emptied, stopped and removed for good. The checks say what must never be: two configurations under way in one
group, a learner that is made a voter without the log, a leader without a vote that goes on, and a process of
a removed node that is heard again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from strandline.node.controller.voter_choice import wanted_voters
from strandline.node.raft.rules.membership_change import MembershipChange
from strandline.statemachine.controller.controller_commands import RemoveNode, SetDraining
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP, REMOVED
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.ledger import Ledger

LOOK_SECONDS: Final = 0.2
SUBMIT_SECONDS: Final = 2.0
ENDS_SECONDS: Final = 60.0
"""Until all have joined, one is removed and the votes are where they belong."""
DRAIN_SHARE: Final = 0.03
"""Of the looks, those at which some node is drained, or drained no more."""


class Membership:
    """What an operator does to the nodes, until `heal`; what was begun is still ended."""

    def __init__(self, cluster: WholeCluster, counts: Counter[str]) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._ledger = cluster.ledger
        self._counts = counts
        self._rng = cluster.world.rng("membership")
        self._over = False
        self._asking_until = 0.0
        self._leaves: int | None = None
        """The node that is to be removed."""
        self._removed = False
        self._remove_at = 0.0

    def start(self) -> None:
        plan = self._cluster.plan
        for node in plan.joining:
            self._world.call_later(self._rng.uniform(0.0, 0.6 * plan.fault_seconds), self._begin, node)
        self._remove_at = self._world.now + self._rng.uniform(0.3, 1.0) * plan.fault_seconds
        self._look()

    def heal(self) -> None:
        """Drain no others; what is begun is brought to its end."""
        self._over = True
        self._remove_at = self._world.now

    def missing(self) -> str | None:
        """Why the members are not as they are to be; None when they are."""
        nodes = self._cluster.plan.nodes
        newest = self._cluster.newest()
        machine = newest.controller.machine
        if not self._removed:
            return f"node {self._leaves} is to be removed: {sorted(machine.nodes)}, {set(machine.draining)}"
        if set(machine.nodes) != set(nodes) or machine.replacement is not None:
            return f"the nodes are {sorted(machine.nodes)}, not {nodes}; {machine.replacement}"
        if machine.draining:
            return f"nodes {set(machine.draining)} are drained"
        leader = self._cluster.leader(CONTROLLER_GROUP)
        if leader is None:
            return "the controller has no leader"
        members = leader.host.groups[CONTROLLER_GROUP].configuration
        if set(members.members) != set(nodes) or len(members.voters) != wanted_voters(len(nodes)):
            return f"the controller's voters are {members.voters}, its learners {members.learners}"
        return None

    def _begin(self, node: int) -> None:
        self._counts["join"] += 1
        self._world.record(node, "joins")
        self._cluster.start(node)

    def _look(self) -> None:
        self._check_leaders()
        self._check_removed()
        if self._world.now >= self._asking_until and self._cluster.brokers:
            self._ask_something()
        self._world.call_later(LOOK_SECONDS, self._look)

    def _ask_something(self) -> None:
        machine = self._cluster.newest().controller.machine
        nodes = self._cluster.plan.nodes
        if not self._removed and self._world.now >= self._remove_at and set(nodes) <= set(machine.nodes):
            if self._leaves is None:
                self._leaves = self._rng.choice(nodes)
            self._go_on(self._leaves)
        elif self._over and self._removed:
            for node in sorted(machine.draining):
                self._submit(SetDraining(node, False))
        elif self._rng.random() < DRAIN_SHARE and machine.nodes:
            node = self._rng.choice(sorted(machine.nodes))
            self._counts["drain"] += 1
            self._submit(SetDraining(node, node not in machine.draining))

    def _go_on(self, node: int) -> None:
        """The next step of a removal: drained, stopped, dead, removed."""
        machine = self._cluster.newest().controller.machine
        others = [other for other in machine.draining if other != node]
        if node not in machine.draining:
            self._submit(SetDraining(others[0], False) if others else SetDraining(node, True))
        elif others:
            self._submit(SetDraining(others[0], False))
        elif any(node in part.replicas for topic in machine.topics for part in topic.partitions):
            return
        elif node not in self._cluster.retired:
            self._cluster.retire(node)
        else:
            self._submit(RemoveNode(node))

    def _submit(self, command: Any) -> None:
        """Ask at some node; the answer may be lost, and the next look asks again."""
        asked = [broker for broker in self._cluster.brokers.values() if not broker.sim.paused]
        if not asked:
            return
        broker = self._rng.choice(asked)
        boot = broker.boot
        self._asking_until = self._world.now + 2 * SUBMIT_SECONDS

        async def ask() -> None:
            await broker.controller.submit(command, SUBMIT_SECONDS)
            self._asking_until = 0.0

        broker.sim.call(lambda: broker.sim.spawn(ask()) if broker.boot == boot else None)

    # Rules.

    def _check_removed(self) -> None:
        """Once a removal is in the log, the node is one no more."""
        node = self._leaves
        if node is None or self._removed:
            return
        folder = self._cluster.newest().controller.machine.folders.get(node)
        if folder is not None and folder.folder == REMOVED:
            self._removed = True
            self._counts["removed"] += 1
            plan = self._cluster.plan
            self._cluster.plan = replace(plan, nodes=tuple(one for one in plan.nodes if one != node))

    def _check_leaders(self) -> None:
        for broker in self._cluster.brokers.values():
            for group in broker.host.groups.values():
                members = group.configuration
                if group.is_leader and members.index <= group.applied and broker.node_id not in group.voters:
                    self._ledger.broken(
                        "members", f"node {broker.node_id} leads group {group.id} of {members.voters}"
                    )


@contextmanager
def watched_members(ledger: Ledger) -> Iterator[None]:
    """Every configuration that a leader proposes, judged before it is in the log."""
    propose = MembershipChange.propose

    def watched(self: MembershipChange, voters: Any, learners: Any) -> int:
        state = self.state
        if state.configuration.index > state.commit:
            ledger.broken("members", f"group {state.id}: two configurations are under way")
        for node in set(voters) - set(state.voters):
            progress = state.progress.get(node)
            if progress is None or progress.match < state.configuration.index:
                ledger.broken("members", f"group {state.id}: node {node} is to vote and lacks the log")
        return propose(self, voters, learners)

    with patch.object(MembershipChange, "propose", watched):
        yield
