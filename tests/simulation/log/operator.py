"""The cluster's operator: adds and removes members, and replaces a node whose log is damaged.

One membership change of the operator's is under way at a time for a group; rejected or unknown ones are
simply asked for again or given up. The operator never damages, removes or replaces so much that a majority
of whole replicas is gone for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strandline.node.raft.group import RaftGroup
from strandline.node.raft.outcome import Applied, Outcome
from strandline.snapshot.document import SnapshotDamaged, decode
from tests.simulation.log.cluster import Cluster
from tests.simulation.log.plan import WIPED

_AGAIN_SECONDS = 0.25
_GIVE_UP_SECONDS = 4.0

Request = Callable[[RaftGroup], "asyncio.Future[Outcome] | None"]
"""Asks a leader for a change; None while it is too early for that."""


class Operator:
    """Changes of membership, and care for damaged nodes."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.applied = 0
        """Membership changes that were made."""

        self._rng = cluster.world.rng("operator")
        self._busy: set[int] = set()
        self._damage: tuple[int, str] | None = None
        self._noticed = False
        self._look_after()

    # Members.

    def change_membership(self) -> bool:
        """Begin to add or remove a member of some group."""
        free = [group for group in self.cluster.plan.groups if group not in self._busy]
        if not free or self._damage is not None or self.cluster.wiped:
            return False
        group = self._rng.choice(free)
        leader = self.cluster.leader(group)
        if leader is None:
            return False
        voters = leader.voters
        outside = [node for node in self.cluster.plan.nodes if node not in voters]
        if outside and (len(voters) <= 3 or self._rng.random() < 0.5):
            self._add(group, self._rng.choice(outside))
        elif len(voters) > 2:
            self._remove(group, self._rng.choice(voters))
        else:
            return False
        if self._rng.random() < 0.3:
            # Somebody else wants another change at the same time: it must wait or be refused.
            other = self._rng.choice(self.cluster.plan.nodes)
            self._call(leader, lambda leading: leading.remove_member(other) if len(voters) > 3 else None)
        return True

    def _call(self, leader: RaftGroup, act: Callable[[RaftGroup], object]) -> None:
        self.cluster.world.nodes[leader.host.node_id].call(act, leader)

    def _add(self, group: int, node: int) -> None:
        self.cluster.join(node, group)

        def add(leader: RaftGroup) -> asyncio.Future[Outcome] | None:
            # The entry names the folder of the leader's connection. One to the process before the node's disk
            # was replaced would name that disk, and no answer of the new one would count.
            services, joining = self.cluster.hosts[leader.host.node_id], self.cluster.hosts.get(node)
            seen = joining is not None and services.folder_of(node) == joining.folder_of(node)
            return leader.add_member(node) if seen or node in leader.configuration.members else None

        self._ask(group, add, lambda: None)

    def _remove(self, group: int, node: int) -> None:
        leave = self._rng.random() < 0.5
        self._ask(
            group,
            lambda leader: leader.remove_member(node),
            lambda: self._leave(node, group) if leave else None,
        )

    def _leave(self, node: int, group: int) -> None:
        leader = self.cluster.leader(group)
        settled = leader is not None and node not in leader.configuration.members
        if settled and node in self.cluster.hosts and group in self.cluster.placement[node]:
            self.cluster.leave(node, group)

    def _ask(self, group: int, request: Request, then: Callable[[], None]) -> None:
        """Ask whoever leads until the change is made, or for a while."""
        self._busy.add(group)
        end = self.cluster.world.now + _GIVE_UP_SECONDS
        asked: list[asyncio.Future[Outcome]] = []

        def ask(leading: RaftGroup) -> None:
            if (future := request(leading)) is not None:
                asked.append(future)

        def attempt() -> None:
            if any(future.done() and isinstance(future.result(), Applied) for future in asked):
                self.applied += 1
                self._busy.discard(group)
                then()
                return
            if self.cluster.world.now > end:
                self._busy.discard(group)
                return
            leader = self.cluster.leader(group)
            if leader is not None:
                self._call(leader, ask)
            self.cluster.world.call_later(_AGAIN_SECONDS, attempt)

        attempt()

    # Damage.

    def may_damage(self, node: int) -> bool:
        """Whether a node's disk may rot now: no other is damaged, and every group can do without this one."""
        if self._damage is not None or self._busy or self.cluster.wiped:
            return False
        for group in self.cluster.placement[node]:
            leader = self.cluster.leader(group)
            if leader is None or (node in leader.voters and len(leader.voters) < 3):
                return False
        return True

    def damaged(self, node: int, path: str) -> None:
        """A bit of a file on this node was flipped."""
        self._damage = node, path

    def _notice_wiped(self, node: int) -> None:
        """What the node has made of its empty folder meanwhile goes, and it waits for its replacement."""
        if self._damage == (node, WIPED):
            self.cluster.ruined.add(node)
            self.cluster.crash(node, "kill")

    def _look_after(self) -> None:
        if self._damage is None and self.cluster.wiped:
            node = self.cluster.wiped.pop()
            self._damage = node, WIPED
            self.cluster.world.call_later(self._rng.uniform(2.0, 4.0), self._notice_wiped, node)
        if self._damage is not None:
            node, path = self._damage
            if node in self.cluster.ruined:
                self._replace(node)
            elif path == WIPED:
                pass  # not noticed yet
            elif self._is_whole(node, path):
                self.cluster.rotten.discard(node)
                self._damage = None
        self.cluster.world.call_later(0.1, self._look_after)

    def _is_whole(self, node: int, path: str) -> bool:
        """The damaged bytes are gone, and no replica of the node waits for a state."""
        host = self.cluster.hosts.get(node)
        if host is None:
            return False
        waiting = [group for group in host.groups.values() if group.damaged_below is not None]
        if waiting:
            for lost in waiting:
                leader = self.cluster.leader(lost.id)
                if leader is not None and node not in leader.configuration.members:
                    self._leave(node, lost.id)  # nobody will send it a snapshot
            return False
        if not path.endswith(".snapshot"):
            return True  # the log was read and found whole: the bit lay where nothing is
        group, _, index = path.rsplit("/", 1)[1].removesuffix(".snapshot").partition("-")
        replica = self.cluster.group(node, int(group))
        if replica is None or replica.snapshot_index != int(index):
            return True  # the file is not the replica's snapshot, and goes with the next one
        files = self.cluster.world.nodes[node].disk.snapshot()
        try:
            decode(files.get(path, b""))
        except SnapshotDamaged:
            return False
        return True

    def _replace(self, node: int) -> None:
        """Remove a ruined node from its groups; once none counts on it, give it an empty disk and add it.

        A node with an empty disk has forgotten its votes and acknowledgements. So nobody may be left who
        still takes it for a voter of old: neither a member that lags, nor a replica that was removed.
        """
        placed = list(self.cluster.placement[node])
        let_go = [self._is_let_go(node, group) for group in placed]
        if self._busy or not all(let_go):
            return
        self.cluster.replace_disk(node)
        self._damage = None
        self.cluster.start(node)
        for group in placed:
            self._add(group, node)

    def _is_let_go(self, node: int, group: int) -> bool:
        """Whether no replica anywhere counts the node as a member; does what it takes to get there."""
        leader = self.cluster.leader(group)
        if leader is None or group in self._busy:
            return False
        if node in leader.configuration.members:
            self._ask(group, lambda leading: leading.remove_member(node), lambda: None)
            return False
        let_go = leader.configuration.index <= leader.commit
        for other in self.cluster.plan.nodes:
            if other == node or group not in self.cluster.placement[other]:
                continue
            lagging = self.cluster.group(other, group)
            if lagging is None or node in lagging.configuration.members:
                let_go = False
            if other not in leader.configuration.members:
                self._leave(other, group)
                let_go = False
        return let_go

    # The end.

    def settle(self) -> bool:
        """Whether every change and repair has ended; replicas of nodes that are no members are removed."""
        if self._damage is not None and self._damage[1].endswith(".snapshot") and not self._noticed:
            # Nobody has read the damaged file yet: let its own node be the first.
            self._noticed = True
            self.cluster.crash(self._damage[0], "kill")
        if self._busy or self._damage is not None or self.cluster.ruined or self.cluster.wiped:
            return False
        for group in self.cluster.plan.groups:
            leader = self.cluster.leader(group)
            if leader is None or leader.configuration.index > leader.commit:
                return False
            for node in self.cluster.plan.nodes:
                if group in self.cluster.placement[node] and node not in leader.configuration.members:
                    self._leave(node, group)
        return True
