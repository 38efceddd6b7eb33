"""A leader's lease, and check-quorum (thesis §6.4.1, §6.2).

A lease runs from the *send* time of a round that a majority answered. PySyncObj took the time an answer
came in, so a leader that had been paused could read old answers and go on leading; it also led on for 30
seconds without a quorum.
"""

from __future__ import annotations

import logging

from strandline.node.raft.rules.progress import NEVER, majority_of
from strandline.node.raft.rules.replica_state import Part

log = logging.getLogger(__name__)


class Lease(Part):
    """Until when no other node can have been elected, as a leader knows it."""

    __slots__ = ()

    def acked_at(self, peer: int) -> float:
        """Send time, by this node's clock, of the newest message that the peer answered in this term."""
        progress = self.state.progress.get(peer)
        if progress is None or not self.state.counts(peer):
            return NEVER
        if progress.quiesced_since is not None:
            shared = self.host.peer_heartbeat(peer).acked_sent_at
            # A heartbeat sent exactly at `quiesced_since` may have been built earlier in the same tick, and
            # lack this group.
            if shared > progress.quiesced_since:
                return max(shared, progress.acked_sent_at)
        return progress.acked_sent_at

    def quorum_heard_at(self) -> float:
        """The latest time at which a majority of the voters, counting this one, still took us for leader."""
        now, me = self.host.now(), self.host.node_id
        return majority_of(now if node == me else self.acked_at(node) for node in self.state.voters)

    def holds(self) -> bool:
        """Whether no other node can have been elected yet, so that a read needs no round of its own."""
        if not self.state.lease_allowed:
            return False
        return self.start() + self.settings.lease_seconds > self.host.now()

    def start(self) -> float:
        return self.quorum_heard_at()

    def lost_quorum(self) -> bool:
        """Check-quorum (thesis §6.2): a leader steps down if no majority answers for an election timeout."""
        now, patience = self.host.now(), self.settings.election_min_seconds + self.host.crowd_seconds()
        if now - self.state.leader_since <= patience:
            return False
        heard = max(self.quorum_heard_at(), self.state.leader_since)
        return now - heard > patience and self.host.attention.since(heard, now) > patience
