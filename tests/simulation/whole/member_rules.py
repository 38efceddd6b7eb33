"""What must never be while nodes join and leave.

Two configurations under way in one group; a learner that is made a voter without the log; a leader without a
vote that goes on; a move that leaves a group with fewer members than before and after; a process of a removed
node that is heard again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

from strandline.node.raft.rules.membership_change import MembershipChange
from strandline.statemachine.controller.controller_commands import MoveReplicas, decode
from strandline.statemachine.controller.controller_state import REMOVED
from tests.simulation.whole.cluster import WholeCluster
from tests.simulation.whole.sim_broker import SimBroker

LOOKS: Final = 10
"""Looks in a row that may see a connection to a removed node: it is cut once the folders are on the disk."""


class Outcasts:
    """Nodes that were removed: no process of theirs counts again."""

    def __init__(self, cluster: WholeCluster) -> None:
        self._cluster = cluster
        self._ledger = cluster.ledger
        self._removed: dict[int, int] = {}
        """The log index that the controller had applied when the removal was seen, by node."""
        self._heard: Counter[tuple[int, int]] = Counter()
        """By node and outcast, the looks in a row that saw a connection."""

    def add(self, node: int) -> None:
        self._removed[node] = self._cluster.newest().controller.machine.applied_index

    def check(self) -> None:
        """Judge what is there now."""
        for node, known in self._removed.items():
            self._check_unknown(node, known)
            for broker in self._cluster.brokers.values():
                self._check_unheard(broker, node)

    def _check_unknown(self, node: int, known: int) -> None:
        if not self._cluster.brokers:
            return
        machine = self._cluster.newest().controller.machine
        if machine.applied_index < known:
            return  # all nodes that know of the removal are down; one that is up has still to read of it
        if node in machine.nodes or machine.folders[node].folder != REMOVED:
            self._ledger.broken("members", f"node {node} was removed and is {machine.nodes.get(node)} again")
        ghost = self._cluster.ghosts.get(node)
        if ghost is not None and ghost.registered:
            self._ledger.broken("members", f"node {node} was removed and is registered")

    def _check_unheard(self, broker: SimBroker, node: int) -> None:
        folder = broker.controller.machine.folders.get(node)
        peer = broker.host.mesh._peers.get(node)
        heard = folder is not None and folder.folder == REMOVED and peer is not None and peer.link is not None
        at = broker.node_id, node
        self._heard[at] = self._heard[at] + 1 if heard and not broker.sim.paused else 0
        if self._heard[at] > LOOKS:
            self._ledger.broken("members", f"node {broker.node_id} hears node {node}, which was removed")


def check_leaders(cluster: WholeCluster) -> None:
    """No leader goes on without a vote once that is applied."""
    for broker in cluster.brokers.values():
        for group in broker.host.groups.values():
            members = group.configuration
            if group.is_leader and members.index <= group.applied and broker.node_id not in group.voters:
                cluster.ledger.broken(
                    "members", f"node {broker.node_id} leads group {group.id} of {members.voters}"
                )


@contextmanager
def watched_members(cluster: WholeCluster) -> Iterator[None]:
    """Every configuration that a leader proposes, judged before it is in the log."""
    propose, ledger = MembershipChange.propose, cluster.ledger

    def watched(self: MembershipChange, voters: Any, learners: Any) -> int:
        state = self.state
        if state.configuration.index > state.commit:
            ledger.broken("one change at a time", f"group {state.id}: two configurations are under way")
        for node in set(voters) - set(state.voters):
            progress = state.progress.get(node)
            if progress is None or progress.match < state.configuration.index:
                ledger.broken("catch-up first", f"group {state.id}: node {node} is to vote and lacks the log")
        if len(voters) < len(state.voters):
            _check_enough(cluster, self.host.node_id, state.id, len(voters))
        return propose(self, voters, learners)

    with patch.object(MembershipChange, "propose", watched):
        yield


def _check_enough(cluster: WholeCluster, leader: int, group: int, voters: int) -> None:
    """A group that moves never has fewer members than before or after; one that a node leaves may."""
    broker = cluster.brokers.get(leader)
    if broker is None or not cluster.brokers:
        return
    machine, newest = broker.controller.machine, cluster.newest().controller.machine
    moves = machine.moves.get(group), newest.moves.get(group)
    if machine.replacement is not None or newest.replacement is not None:
        return
    if all(move is not None and voters < min(len(move.original), len(move.target)) for move in moves):
        cluster.ledger.broken(
            "members", f"group {group} is left with {voters} members by its move {moves[1]}"
        )


def judge_move(cluster: WholeCluster, command: bytes) -> None:
    """Whatever asks for a move, it asks for as many replicas as a partition has at least."""
    decoded = decode(command)
    if not isinstance(decoded, MoveReplicas) or decoded.target is None:
        return
    if len(decoded.target) < cluster.plan.fewest:
        cluster.ledger.broken("members", f"a partition is to have the replicas {decoded.target} only")
