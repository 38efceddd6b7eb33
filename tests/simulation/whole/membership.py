"""Nodes join, are drained and are removed among all other faults; the controller's voters follow.

A joiner is started some time after the faults began, and its machine meets them like any other. One node is
emptied, stopped and removed for good. In some runs folders are wiped and replicas are balanced at the same
time, the last joiner is away for minutes, and the removed node comes back. member_rules.py says what must
never be.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, Final

from strandline.node.controller.voter_choice import wanted_voters
from strandline.statemachine.controller.controller_commands import SetBalancing, SetDraining
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP, REMOVED
from strandline.statemachine.controller.node_folders import removing
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.member_rules import Outcasts, check_leaders, judge_move
from tests.simulation.whole.wiped_folders import WipedFolders

LOOK_SECONDS: Final = 0.2
SUBMIT_SECONDS: Final = 2.0
ENDS_SECONDS: Final = 60.0
"""Until all have joined, one is removed and the votes are where they belong."""
DRAIN_SHARE: Final = 0.03
"""Of the looks, those at which some node is drained, or drained no more."""
AWAY_SHARE: Final = 0.015
"""Of the looks, where more goes on, those at which some node goes away for longer than a voter may."""
AWAY_SECONDS: Final = (3.5, 7.0)
BACK_SECONDS: Final = (0.1, 3.0)
"""Until a removed node comes back, where it does so soon."""
SEEN_SECONDS: Final = 4.0
"""For which it is there at least, before the run may end."""
JOINS_SECONDS: Final = 15.0


class Membership:
    """What an operator does to the nodes, until `heal`; what was begun is still ended."""

    def __init__(
        self, cluster: WholeCluster, counts: Counter[str], wiped: WipedFolders | None = None
    ) -> None:
        self._cluster = cluster
        self._wiped = wiped
        if wiped is not None:
            wiped.lets = self._lets_wipe
        self._upheaval = cluster.plan.upheaval
        self._outcasts = Outcasts(cluster)
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
        self._balanced = False
        self._late: int | None = None
        """The joiner that is away for minutes amid its joining."""
        self._back_at: float | None = None
        """When the removed node is back, or was."""

    def start(self) -> None:
        plan = self._cluster.plan
        if self._upheaval is not None:
            self._ledger.on_controller.append(lambda command: judge_move(self._cluster, command))
        if self._upheaval is not None and self._upheaval.away_seconds:
            self._late = plan.joining[-1]
            self._cluster.kept_down.add(self._late)
        for node in plan.joining:
            if node != self._late:
                self._world.call_later(self._rng.uniform(0.0, 0.6 * plan.fault_seconds), self._begin, node)
        self._remove_at = self._world.now + self._rng.uniform(0.3, 1.0) * plan.fault_seconds
        self._look()

    def heal(self) -> None:
        """Drain no others; what is begun is brought to its end."""
        self._over = True
        self._remove_at = self._world.now
        for node in sorted(self._cluster.kept_down - {self._late}):
            self._cluster.let_up(node)

    def be_away(self) -> None:
        """Let the last joiner begin, and then be away for minutes, at any moment of its joining."""
        node, upheaval = self._late, self._upheaval
        if node is None or upheaval is None:
            return
        world, cluster = self._world, self._cluster
        cluster.let_up(node)
        self._counts["join"] += 1
        moment = self._rng.choice((self._is_named, self._follows, self._has_replicas))
        world.run_until(lambda: bool(cluster.brokers) and moment(node), timeout=JOINS_SECONDS, step=0.002)
        world.run(world.now + self._rng.choice((0.0, 0.0, 0.05)))
        self._counts["away amid joining"] += 1
        world.record(node, "is away amid its joining")
        cluster.keep_down(node, upheaval.away_seconds)
        world.run(world.now + upheaval.away_seconds)
        self._late = None

    def _is_named(self, node: int) -> bool:
        return node in self._cluster.newest().controller.machine.nodes

    def _follows(self, node: int) -> bool:
        leader = self._cluster.leader(CONTROLLER_GROUP)
        return leader is not None and node in leader.host.groups[CONTROLLER_GROUP].configuration.members

    def _has_replicas(self, node: int) -> bool:
        return any(node in move.target for move in self._cluster.newest().controller.machine.moves.values())

    def missing(self) -> str | None:
        """Why the members are not as they are to be; None when they are."""
        nodes = self._cluster.plan.nodes
        if not self._cluster.brokers:
            return "no node is up"
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
        step = machine.balance().step()
        if step is not None:
            return f"the nodes are not even yet: {step}"
        if self._back_at is not None and self._world.now < self._back_at + SEEN_SECONDS:
            return f"node {self._leaves}, which was removed, comes back"
        return None

    def _begin(self, node: int) -> None:
        self._counts["join"] += 1
        self._world.record(node, "joins")
        self._cluster.start(node)

    def _look(self) -> None:
        check_leaders(self._cluster)
        self._check_removed()
        self._outcasts.check()
        if self._world.now >= self._asking_until and self._cluster.brokers:
            self._ask_something()
        self._world.call_later(LOOK_SECONDS, self._look)

    def _ask_something(self) -> None:
        machine = self._cluster.newest().controller.machine
        nodes = self._cluster.plan.nodes
        if self._upheaval is not None and not self._over:
            self._go_away()
        if self._upheaval is not None and self._upheaval.balancing and not machine.balance().on:
            self._submit(SetBalancing(True))
        elif not self._removed and self._world.now >= self._remove_at and set(nodes) <= set(machine.nodes):
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

    def _go_away(self) -> None:
        """Some node goes, now and then, for so long that its vote goes to another."""
        nodes = [node for node in self._cluster.plan.nodes if node in self._cluster.brokers]
        busy = self._cluster.kept_down - {self._late} or self._is_retired()
        if self._rng.random() < AWAY_SHARE and nodes and not busy:
            self._counts["away"] += 1
            self._cluster.keep_down(self._rng.choice(nodes), self._rng.uniform(*AWAY_SECONDS))

    def _is_retired(self) -> bool:
        """Whether a node has gone for good that still counts."""
        return self._leaves in self._cluster.retired and not self._removed

    def _lets_wipe(self) -> bool:
        """While a node is gone that still counts, its disk may be all that is left of what another had."""
        return not self._is_retired() and not self._cluster.kept_down

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
            if machine.replacement is None and (self._wiped is None or self._wiped.is_idle):
                self._cluster.retire(node)
        else:
            self._submit(removing(machine.folders, machine.feature_level, node))

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
        if node is None or self._removed or not self._cluster.brokers:
            return
        folder = self._cluster.newest().controller.machine.folders.get(node)
        if folder is not None and folder.folder == REMOVED:
            self._removed = True
            self._counts["removed"] += 1
            plan = self._cluster.plan
            self._cluster.plan = replace(plan, nodes=tuple(one for one in plan.nodes if one != node))
            self._outcasts.add(node)
            if self._upheaval is not None and self._upheaval.returns != "never":
                seconds = self._rng.uniform(*BACK_SECONDS)
                if self._upheaval.late and self._late is not None:
                    seconds += self._upheaval.away_seconds
                self._back_at = self._world.now + seconds
                self._world.call_later(seconds, self._come_back, node)

    def _come_back(self, node: int) -> None:
        assert self._upheaval is not None
        self._counts[f"removed and back, {self._upheaval.returns}"] += 1
        self._world.record(node, "was removed and comes back")
        self._cluster.come_back(node, empty=self._upheaval.returns == "empty")
