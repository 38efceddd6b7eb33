"""Elections (Raft §5.2, §5.4.1), with stickiness (Raft §6, thesis §4.2.3).

PySyncObj counted votes where voters must be counted, and let a returning node depose a healthy leader.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from strandline.node.raft.campaigns import Cause
from strandline.node.raft.pysyncobj_seam import CANDIDATE, FOLLOWER
from strandline.node.raft.rules.leader_contact import LeaderContact
from strandline.node.raft.rules.messages import (
    MessageKind,
    RequestVote,
    VoteReply,
)
from strandline.node.raft.rules.quiescence import Quiescence
from strandline.node.raft.rules.replica_state import Part, ReplicaState
from strandline.node.raft.rules.roles import Roles

log = logging.getLogger(__name__)


MOST_DOUBLINGS: Final = 4


class Election(Part):
    """Stands for election, and votes."""

    __slots__ = ("contact", "quiescence", "roles")

    def __init__(
        self, state: ReplicaState, contact: LeaderContact, roles: Roles, quiescence: Quiescence
    ) -> None:
        super().__init__(state)
        self.contact = contact
        self.roles = roles
        self.quiescence = quiescence

    def may_campaign(self) -> bool:
        """Only a voter with a whole state and a disk that takes its vote can lead, and none that leaves."""
        state = self.state
        return (
            self.has_vote()
            and self.host.node_id in state.voters
            and state.damaged_below is None
            and not self.host.disk_stalled()
            and not self.host.leaving
        )

    def has_vote(self) -> bool:
        """Whether this replica may vote at all.

        A replica in a folder that may have had a predecessor, and one that was let into a group and has not
        learned its members, could have forgotten a promise (docs/raft.md, "Folders"). So could one whose
        newest members name another folder of this node.
        """
        state = self.state
        return bool(state.voters) and not self.host.newcomer and state.counts(self.host.node_id)

    def campaign(self, *, transfer: bool = False) -> None:
        """Raise the term, vote for oneself and ask for votes, all once term and vote are durable."""
        state = self.state
        self.quiescence.leave()
        state.pre_votes = None
        state.votes = set()
        state.leader = None
        state.set_role(CANDIDATE)
        state.reset_deadline()
        # Where messages take long, candidates meet again and again unless they spread ever wider.
        state.lost_campaigns = min(state.lost_campaigns + 1, MOST_DOUBLINGS)
        self.host.set_active(state, True)
        cause = Cause.HANDED if transfer else Cause.SILENCE if state.term else Cause.FIRST
        self.host.campaigns.counts[state.rank, cause] += 1
        state.set_term(max(state.term, state.earlier_terms) + 1, self.host.node_id)
        term, last, last_term = state.term, self.journal.last, self.journal.last_term
        for peer in state.other_voters():
            self.host.send_when_synced(
                peer, RequestVote(state.id, MessageKind.VOTE, term, last, last_term, transfer)
            )
        self.host.when_synced(partial(self.host.guard, state, self._own_vote_is_durable, term))

    def _own_vote_is_durable(self, term: int) -> None:
        state = self.state
        if state.failure is None and state.role == CANDIDATE and state.term == term:
            self.count_vote(self.host.node_id)

    def is_up_to_date(self, last: int, last_term: int) -> bool:
        """Whether a log that ends so is at least as up-to-date as ours (Raft §5.4.1)."""
        return (last_term, last) >= (self.journal.last_term, self.journal.last)

    def ignores_vote(self, transfer: bool) -> bool:
        """Whether a request for a vote in a higher term is not even looked at (thesis §4.2.3).

        A transfer's is: the leader itself asked for that election, and gave up its lease first.
        """
        return not transfer and self.contact.hears_leader()

    def keeps_vote(self, peer: int, transfer: bool) -> bool:
        """Whether this term's vote is held back, because a leader was heard that may still have its lease.

        A voter need not be asked for a vote to come into a term: any answer may have brought it there, just
        after it heard the leader of an earlier one. The promise to that leader is the same in every later
        term. A vote that was given already is given again.
        """
        return self.state.vote != peer and self.ignores_vote(transfer)

    def on_vote(self, peer: int, asked: RequestVote) -> None:
        state = self.state
        term, transfer = asked.term, asked.transfer
        if term > state.term:
            if self.ignores_vote(transfer) or not state.may_record_term():
                return
            self.roles.adopt_term(term)
        granted = (
            term == state.term
            and state.role == FOLLOWER
            and self.has_vote()
            and self.may_vote_for(peer)
            and not self.keeps_vote(peer, transfer)
            and self.is_up_to_date(asked.last, asked.last_term)
            and (state.vote == peer or state.may_record_term())
        )
        if granted:
            if state.vote != peer:
                state.set_term(term, peer)
            state.pre_votes = None
            state.reset_deadline()
        self.host.send_when_synced(peer, VoteReply(state.id, MessageKind.VOTE_REPLY, state.term, granted))

    def may_vote_for(self, peer: int) -> bool:
        """One vote a term, first come first served (Raft §5.2)."""
        state = self.state
        return state.vote is None or state.vote == peer

    def on_vote_reply(self, peer: int, reply: VoteReply) -> None:
        state = self.state
        if reply.granted and state.role == CANDIDATE and peer in state.voters:
            self.count_vote(peer)

    def count_vote(self, voter: int) -> None:
        """Voters are a set: a duplicated answer is still one vote."""
        state = self.state
        state.votes.add(voter)
        if state.has_majority(state.votes):
            self.roles.become_leader()

    def on_timeout_now(self, peer: int) -> None:
        """Stand for election at the leader's word, or decline, so that it need not wait for another's."""
        state = self.state
        if state.role != FOLLOWER or state.leader != peer:
            return
        if self.may_campaign():
            self.campaign(transfer=True)
        else:
            self.host.send(peer, VoteReply(state.id, MessageKind.VOTE_REPLY, state.term, False))
