"""Becoming a leader and ceasing to be one (Raft §5.1, §5.2, §8)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from strandline.node.raft.entries import EntryKind
from strandline.node.raft.pysyncobj_seam import FOLLOWER, LEADER
from strandline.node.raft.rules.progress import Progress
from strandline.node.raft.rules.quiescence import Quiescence
from strandline.node.raft.rules.replica_state import Part, ReplicaState

log = logging.getLogger(__name__)


class Roles(Part):
    """The changes between leader, candidate and follower that concern every rule."""

    __slots__ = ("leadership_ends", "quiescence")

    def __init__(self, state: ReplicaState, quiescence: Quiescence) -> None:
        super().__init__(state)
        self.quiescence = quiescence
        self.leadership_ends: tuple[Callable[[], None], ...] = ()
        """Called in this order when a leadership ends."""

    def adopt_term(self, term: int) -> None:
        """See a higher term: take it, without a vote, as a follower (Raft §5.1)."""
        state = self.state
        assert term > state.term
        self.step_down()
        state.set_term(term, None)
        state.leader = None

    def step_down(self) -> None:
        """Become a follower; commands proposed here end soon, as applied, rejected or unknown."""
        state = self.state
        self.quiescence.leave()
        was_leader = state.role == LEADER
        if state.role != FOLLOWER:
            state.set_role(FOLLOWER)
        state.reset_deadline()
        self.host.set_active(state, True)
        self.host.campaign_ended(state)
        if was_leader:
            state.leader = None
            self._end_leadership()

    def _end_leadership(self) -> None:
        state = self.state
        for peer, progress in state.progress.items():
            if progress.quiesced_since is not None:
                self.host.peer_heartbeat(peer).unlead(state.id)
        state.progress.clear()
        state.transfer_target = None
        for end in self.leadership_ends:
            end()
        state.tell_leadership(False)

    def become_leader(self) -> None:
        """Start a term: no follower is known to match, and an entry of the own term opens it (Raft §8)."""
        state = self.state
        now = self.host.now()
        state.set_role(LEADER)
        self.host.campaign_ended(state)
        state.lost_campaigns = state.denials = 0
        state.leader = self.host.node_id
        state.leader_since = now
        state.lease_allowed = True
        state.lost_acknowledged.clear()
        state.progress = {peer: Progress(self.journal.last + 1) for peer in state.peers}
        state.append(bytes([EntryKind.BEGIN_TERM]) + self.host.node_id.to_bytes(8, "big"))
        state.term_start = self.journal.last
        if state.committed_before is None:
            state.committed_before = state.term_start
        state.tell_leadership(True)
