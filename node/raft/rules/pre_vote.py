"""Pre-vote (thesis §9.6): a replica whose leader is silent asks first, without raising its term."""

from __future__ import annotations

import logging
from typing import Final

from strandline.node.raft.rules.election import Election
from strandline.node.raft.rules.leader_contact import LeaderContact
from strandline.node.raft.rules.messages import (
    MessageKind,
    PreVoteReply,
    RequestPreVote,
)
from strandline.node.raft.rules.replica_state import Part, ReplicaState

log = logging.getLogger(__name__)

MOST_EARLY: Final = 3
"""Times that a group asks again before its time-out. With doubled pauses that is longer than any promise to a
leader, also one that a pause of the voter's loop has renewed."""


class PreVote(Part):
    """Asking whether an election would be won."""

    __slots__ = ("contact", "election")

    def __init__(self, state: ReplicaState, contact: LeaderContact, election: Election) -> None:
        super().__init__(state)
        self.contact = contact
        self.election = election

    def start(self) -> None:
        """Ask whether an election would be won, without raising the term (thesis §9.6)."""
        state = self.state
        state.pre_votes = {self.host.node_id}
        asked_at = state.pre_votes_asked_at = self.host.now()
        last, last_term = self.journal.last, self.journal.last_term
        for peer in state.other_voters():
            message = RequestPreVote(state.id, MessageKind.PRE_VOTE, state.term, last, last_term, asked_at)
            self.host.send_when_synced(peer, message)
        self.check()

    def on_request(self, peer: int, asked: RequestPreVote) -> None:
        state = self.state
        granted = (
            asked.term >= state.term
            and self.election.has_vote()
            and not self.contact.hears_leader()
            and self.election.is_up_to_date(asked.last, asked.last_term)
        )
        message = PreVoteReply(
            state.id, MessageKind.PRE_VOTE_REPLY, state.term, granted, asked.term + 1, asked.asked_at
        )
        self.host.send_when_synced(peer, message)

    def on_reply(self, peer: int, reply: PreVoteReply) -> None:
        state = self.state
        asked = reply.asked
        if (
            state.pre_votes is None
            or asked != state.term + 1
            or not self.is_of_this_round(asked, reply.asked_at)
        ):
            return
        if not reply.granted:
            self._ask_again_soon()
        elif peer in state.voters:
            state.pre_votes.add(peer)
            self.check()

    def _ask_again_soon(self) -> None:
        """Give the place of an election to another group, and ask again after a heartbeat, then after longer.

        Most voters that deny a pre-vote heard the dead leader a heartbeat later than this node did. On a node
        with thousands of groups a whole time-out is seconds, and the first of them would keep all places
        from the others until then. A voter that still denies it hears a leader that this node does not hear.
        """
        state, pause = self.state, self.settings.heartbeat_seconds
        # Each further voter that denies the same round tells nothing new, and would use up the next try.
        if (
            state.denied_at == state.pre_votes_asked_at
            or state.denials == MOST_EARLY
            or self.host.crowd_seconds() < pause
        ):
            return
        state.denied_at = state.pre_votes_asked_at
        state.deadline = min(state.deadline, self.host.attentive() + pause * 2**state.denials)
        state.denials += 1
        self.host.campaign_ended(state)

    def is_of_this_round(self, asked: int, asked_at: float) -> bool:
        """Whether an answer belongs to the present round. An answer to an earlier round may come from a voter
        that has heard a leader since, and would raise the term for nothing.

        A group's first election has had no leader that could have been heard, so any answer counts in it,
        also one that was not asked for (`begin`).
        """
        return asked_at == self.state.pre_votes_asked_at or asked == 1

    def check(self) -> None:
        state = self.state
        # To stand is to vote for oneself, and this node has promised what the others have.
        if (
            state.pre_votes is not None
            and state.has_majority(state.pre_votes)
            and not self.contact.hears_leader()
        ):
            self.election.campaign()
