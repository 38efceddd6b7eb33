"""Set pieces among five voters: what is held on a link arrives when it does the most harm."""

from __future__ import annotations

from strandline.node.raft.group import RaftGroup
from tests.simulation.log.drill_steps import ELECTION_SECONDS, DrillSteps


class LateDrills(DrillSteps):
    """What arrives late is taken for no more than it was when it was said."""

    def _late_answers(self) -> None:
        self._for(0.5)
        ways = (self._late_acknowledgements, self._late_pre_votes, self._late_votes)
        self._rng.choice(ways)(self.cluster.plan.groups[0])

    def _late_acknowledgements(self, group: int) -> None:
        """Answers of one term that arrive in a later term of the same leader prove nothing to it."""
        network = self.world.network
        leader = self._leader(group)
        node = leader.host.node_id
        late, *rest = [voter for voter in leader.voters if voter != node]
        network.cut(late, node, both=False, hold=True)
        for other in rest:
            network.cut(node, other)
            network.cut(late, other)
        term = leader.term
        for _ in range(5):
            self._write(group)

        def led_by(nodes: list[int]) -> bool:
            now = self.cluster.leader(group)
            return now is not None and now.term > term and now.host.node_id in nodes

        if not self._until("serves again", lambda: led_by(rest), ELECTION_SECONDS):
            return
        for other in rest:
            network.heal(node, other)
            network.heal(late, other)
        self._for(1.0)
        for _ in range(8):
            successor = self._leader(group)
            term = successor.term - 1
            if led_by([node]):
                break
            self.world.nodes[successor.host.node_id].call(successor.transfer, node)
            self._for(0.25)
            if not self._until("serves again", self.cluster.all_led, ELECTION_SECONDS):
                return
        for other in (late, *rest[1:]):
            network.cut(node, other, both=False)
        for _ in range(8):
            self._write(group)
        self._for(0.02)
        network.heal(late, node, both=False)
        self._for(0.1)
        network.heal_all()
        self._for(1.0)

    def _five(self, group: int) -> tuple[int, int, int, int, int]:
        """The leader of a group, and its four other voters."""
        node = self._leader(group).host.node_id
        a, b, c, d = (voter for voter in self._leader(group).voters if voter != node)
        return node, a, b, c, d

    def _until_asked(self, candidate: RaftGroup, seconds: float) -> bool:
        """Until a replica that hears no leader begins another round of pre-votes, and all have had it."""
        asked = candidate.pre_votes_asked_at
        began = self.world.run_until(lambda: candidate.pre_votes_asked_at != asked, timeout=seconds)
        self._for(0.01)
        return began

    def _late_pre_votes(self, group: int) -> None:
        """An answer to a pre-vote comes after its voter heard the leader again: nobody stands by it."""
        network, raft = self.world.network, self.cluster.plan.raft
        node, lonely, early, late, _ = self._five(group)
        candidate, term = self._replica(lonely, group), self._leader(group).term
        network.cut(node, lonely)
        network.cut(node, early, both=False)
        network.cut(early, lonely, both=False, hold=True)
        self._for(raft.election_max_seconds)
        self._until_asked(candidate, raft.election_max_seconds)  # The one that is early would vote for it.
        network.heal(node, early, both=False)
        self._for(3 * raft.heartbeat_seconds)
        network.cut(node, late)
        self._for(raft.election_max_seconds)
        self._until_asked(candidate, raft.election_max_seconds)  # The one that is late would, in this round.
        network.heal(early, lonely, both=False)
        self._for(0.05)
        network.heal_all()
        self._for(1.0)
        leader = self._leader(group)
        if (leader.host.node_id, leader.term) != (node, term):
            self._broken(
                "a healthy leader stays", f"group {group}: pre-votes of two rounds deposed node {node}"
            )

    def _late_votes(self, group: int) -> None:
        """A voter would vote for a candidate, hears its leader again, is told of the candidate's term by
        another, and only then is asked for its vote: it is too early for that while its leader has a lease.
        """
        network, raft = self.world.network, self.cluster.plan.raft
        node, lonely, voter, second, last = self._five(group)
        candidate, term = self._replica(lonely, group), self._leader(group).term
        network.cut(node, lonely)
        network.cut(node, voter, both=False)
        network.cut(voter, second, both=False, hold=True)
        network.cut(voter, lonely, both=False, hold=True)
        self._for(raft.election_max_seconds + raft.heartbeat_seconds)
        for _ in range(6):
            network.cut(lonely, second, both=False, hold=True)
            network.cut(node, second)
            began = self.world.now
            if self._until_asked(candidate, raft.election_min_seconds - 2 * raft.heartbeat_seconds):
                break
            network.heal(node, second)
            network.heal(lonely, second, both=False)
            self._for(3 * raft.heartbeat_seconds)
        for other in (voter, last):
            network.cut(lonely, other, both=False, hold=True)
        network.heal(node, voter, both=False)
        # Until the second voter's promise has ended; the first one has heard its leader by then.
        self._for(began + raft.election_min_seconds + 0.01 - self.world.now)
        network.heal(lonely, second, both=False)
        network.heal(voter, lonely, both=False)
        told = self._replica(second, group)
        self.world.run_until(lambda: told.term > term, timeout=0.05)
        network.heal(voter, second, both=False)
        heard = self._replica(voter, group)
        self.world.run_until(lambda: heard.term > term, timeout=0.02)
        network.heal(lonely, voter, both=False)
        self._for(0.05)
        network.heal_all()
        self._until("serves again", self.cluster.all_led, ELECTION_SECONDS)
