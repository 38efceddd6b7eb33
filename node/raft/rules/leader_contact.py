"""Hearing a leader: a replica that heard one grants no vote for a while (Raft §6, thesis §4.2.3).

This promise is what a leader's lease stands on, so a restart, a paused loop or a clock that jumped renews it.
"""

from __future__ import annotations

import logging

from strandline.node.raft.pysyncobj_seam import CANDIDATE, FOLLOWER, LEADER
from strandline.node.raft.rules.replica_state import Part, SafetyViolation

log = logging.getLogger(__name__)


class LeaderContact(Part):
    """Remembers when this replica heard its leader, and the promise that it made by that."""

    __slots__ = ()

    def hears_leader(self) -> bool:
        """Whether a leader was heard within the minimum election timeout: no vote is granted then.

        It keeps a returning node from deposing a healthy leader, and it is what a leader's lease stands on.
        """
        return self.host.now() - self.last_heard() < self.settings.election_min_seconds

    def last_heard(self) -> float:
        """When a leader of this group was last heard, by its own message or the pair's heartbeat."""
        state = self.state
        if state.role == LEADER:
            return self.host.now()
        heard = state.heard_at
        if state.quiesced_under is not None:
            heard = max(heard, self.host.peer_heartbeat(state.quiesced_under).heard_at)
        return self.still_promised(heard)

    def still_promised(self, heard: float) -> float:
        """Time from which a promise to a leader counts that was last heard at `heard`.

        The loop may have been paused since, or the clock have jumped. A leader may still rely on a promise
        that had not ended before the gap. That holds even if this node no longer knows the leader, because it
        has adopted a higher term since. So such a promise restarts at the end of the gap.
        """
        before, after = self.host.time_gap
        return max(heard, after) if before - heard < self.settings.election_min_seconds else heard

    def follow(self, peer: int) -> None:
        """A message of the current term's leader: it is one, and it was heard."""
        state = self.state
        if state.role == LEADER:
            raise SafetyViolation(f"group {state.id}: node {peer} and this node both lead term {state.term}")
        state.heard_at = self.host.now()
        state.lost_campaigns = 0
        state.pre_votes = None
        if state.role == CANDIDATE:
            state.set_role(FOLLOWER)
        if state.leader != peer:
            state.leader = peer
            state.denials = 0
            self.host.campaign_ended(state)
        state.reset_deadline()
