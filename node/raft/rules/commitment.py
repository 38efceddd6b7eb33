"""Commitment of entries that a majority holds durably, in the leader's own term (Raft §5.3, §5.4.2)."""

from __future__ import annotations

import logging

from strandline.node.raft.rules.progress import majority_of
from strandline.node.raft.rules.replica_state import Part

log = logging.getLogger(__name__)


class Commitment(Part):
    """Advances a leader's commit index."""

    __slots__ = ()

    def advance(self) -> None:
        """Commit entries that a majority holds durably, up to one of the own term (Raft §5.3, §5.4.2)."""
        state = self.state
        commit = state.commit
        # Two of three looks come too early: as an entry comes, and as the first disk has it.
        beyond = sum([progress.match > commit for progress in state.progress.values()])
        if 2 * (beyond + (self.own_match() > commit)) <= len(state.voters):
            return
        index = int(majority_of(self.matches()))
        if index > commit and self.may_commit(index):
            state.commit = index

    def matches(self) -> list[int]:
        """For every voter the index up to which its durable log is known to be the leader's."""
        me = self.host.node_id
        return [self.own_match() if node == me else self.match_of(node) for node in self.state.voters]

    def match_of(self, peer: int) -> int:
        """A newcomer's log counts once it has a vote: until then its folder may have had a predecessor that
        acknowledged more."""
        progress = self.state.progress.get(peer)
        return progress.match if progress is not None and self.state.counts(peer) else 0

    def own_match(self) -> int:
        """The leader counts itself only for entries that its own disk has confirmed."""
        return self.journal.synced

    def may_commit(self, index: int) -> bool:
        """Only entries of the leader's current term are committed by counting replicas (Raft §5.4.2)."""
        state = self.state
        return self.journal.term_at(index) == state.term
