"""A set piece about a data folder that is lost when it was needed most."""

from __future__ import annotations

from tests.simulation.log.drill_steps import ELECTION_SECONDS, DrillSteps


class FolderDrills(DrillSteps):
    """A wiped folder under its old node id does not make a majority."""

    def _lost_folder(self) -> None:
        """Two of three acknowledge while the third is away; then one of the two comes back with nothing, and
        the third as it was, while the only node that still has the entries is away."""
        group = self._rng.choice(self.cluster.plan.groups)
        self._for(0.5)
        leader = self._leader(group)
        node = leader.host.node_id
        wiped, behind = [voter for voter in leader.voters if voter != node]
        self._send_away(behind)
        written = [self._write(group) for _ in range(5)]
        self._until(
            "serves with two of three", lambda: all(each.outcome is not None for each in written), 2.0
        )
        self._send_away(node)
        self.cluster.wipe(wiped)
        self._come_back(behind)
        # Long enough for an election; invariants say whether its leader lacks what was committed.
        self._for(2.5)
        self._come_back(node)
        self._until("serves without the wiped folder", self.cluster.all_led, 2 * ELECTION_SECONDS)

    def _send_away(self, node: int) -> None:
        self.cluster.held.add(node)
        self.cluster.crash(node, self._rng.choice(("kill", "power")))

    def _come_back(self, node: int) -> None:
        self.cluster.held.discard(node)
        self.cluster.start(node)
