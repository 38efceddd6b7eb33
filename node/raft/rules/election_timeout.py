"""Election timeouts (Raft §5.2). A group's first election, and the one after a leader dies, wait for none."""

from __future__ import annotations

import logging

from strandline.node.raft.pysyncobj_seam import CANDIDATE, FOLLOWER, LEADER
from strandline.node.raft.rules.election import MOST_DOUBLINGS, Election
from strandline.node.raft.rules.leader_contact import LeaderContact
from strandline.node.raft.rules.messages import (
    MessageKind,
    PreVoteReply,
    ReplicaOpened,
)
from strandline.node.raft.rules.pre_vote import PreVote
from strandline.node.raft.rules.quiescence import Quiescence
from strandline.node.raft.rules.replica_state import Part, ReplicaState

log = logging.getLogger(__name__)

_ROUNDING_SECONDS = 1e-6
"""A timer that is late by this finds the deadline reached, however its seconds were rounded."""


class ElectionTimeout(Part):
    """Decides when a replica stands for election."""

    __slots__ = ("contact", "election", "first_tries", "pre_vote", "quiescence")

    def __init__(
        self,
        state: ReplicaState,
        contact: LeaderContact,
        quiescence: Quiescence,
        election: Election,
        pre_vote: PreVote,
    ) -> None:
        super().__init__(state)
        self.contact = contact
        self.quiescence = quiescence
        self.election = election
        self.pre_vote = pre_vote
        self.first_tries: int = 0

    def begin(self) -> None:
        """A group that never had a leader elects its first one now, and waits for no timeout.

        The first leader asks at once, and again once a peer is connected. A peer that gets the group later
        than it was asked says unasked what it would have answered then, so nothing waits for a retry.
        """
        state = self.state
        first = self.elected_first()
        if first == self.host.node_id:
            self.host.later(0.0, state, self.take_offers)
        elif first is not None:
            if self.host.connected(first):
                # Creating many groups keeps a node busy: it is not to be overtaken for that.
                state.deadline += self.settings.election_max_seconds + self.host.crowd_seconds()
            if self.election.has_vote():
                self.host.send_when_synced(
                    first, PreVoteReply(state.id, MessageKind.PRE_VOTE_REPLY, 0, True, 1, 0.0)
                )
        elif state.term:
            # A leader asks a silent follower ever less often: it need not find out by itself.
            for peer in state.peers:
                self.host.send_when_synced(peer, ReplicaOpened(state.id, MessageKind.OPENED, state.term))

    def take_offers(self) -> None:
        """Count the pre-votes that came before this group was here; the others say so when they have it."""
        state = self.state
        if state.role != FOLLOWER or self.elected_first() != self.host.node_id:
            return
        self._stand_again_soon()
        if self.election.may_campaign():
            offered = (peer for peer in self.host.offered_pre_votes(state.id) if peer in state.voters)
            state.pre_votes = {self.host.node_id, *offered}
            self.pre_vote.check()

    def elected_first(self) -> int | None:
        """The voter that is to lead first, None in a group that ever had a leader or is not known."""
        state = self.state
        if state.term or not state.voters:
            return None
        named = state.first_leader
        return named if named in state.voters else state.voters[state.id % len(state.voters)]

    def ask_first(self) -> None:
        """Stand for the first election, if this node is to lead first and the group never had a leader."""
        if self.state.role == FOLLOWER and self.elected_first() == self.host.node_id:
            self.expired()

    def tick(self) -> None:
        """Let time pass; called every `tick_seconds`.

        A timeout that ends between two ticks ends at its own time. Were it rounded up to the next tick, two
        replicas whose ticks come together would often stand in the same moment and split the votes, again and
        again (Raft §5.2 spreads timeouts so that they rarely do).
        """
        left = self.state.deadline - self.host.attentive()
        if left <= 0:
            self.expired()
        elif left < self.settings.tick_seconds:
            self.host.later(left + _ROUNDING_SECONDS, self.state, self._stand_when_due)

    def _stand_when_due(self) -> None:
        """The deadline may have moved since the tick, and this replica may lead now or have quiesced."""
        state = self.state
        timed = state.failure is None and state.role != LEADER and state.quiesced_under is None
        if timed and self.host.attentive() >= state.deadline:
            self.expired()

    def expired(self) -> None:
        """Start a pre-vote after a whole timeout without a leader, to learn if an election can be won."""
        state = self.state
        self.quiescence.leave()
        if not self.host.admit_campaign(state):
            state.deadline = self.host.attentive() + self.settings.election_max_seconds
            near = {node for node in state.voters if node == self.host.node_id or self.host.connected(node)}
            self.host.campaigns.wait(state.id, state.deadline, hopeless=not state.has_majority(near))
            return
        if self.elected_first() == self.host.node_id:
            self._stand_again_soon()
        else:
            state.reset_deadline()
        state.leader = None
        if state.role == CANDIDATE:
            state.set_role(FOLLOWER)
        if self.election.may_campaign():
            self.pre_vote.start()

    def place_is_free(self, deadline: float) -> None:
        """Stand for election after a wait in line, unless the deadline has moved: a leader was heard, say."""
        state = self.state
        if state.role != LEADER and state.quiesced_under is None and state.deadline == deadline:
            self.expired()

    def _stand_again_soon(self) -> None:
        """Set the next try soon, and each further one later: messages may be lost, or a majority away."""
        state = self.state
        pause = self.settings.heartbeat_seconds * 2**self.first_tries * (0.5 + self.host.rng.random() / 2)
        state.reset_deadline()
        state.deadline = min(state.deadline, self.host.attentive() + pause)
        self.first_tries = min(self.first_tries + 1, MOST_DOUBLINGS)

    def stand_in_turn(self, leader: int) -> None:
        """The connection to the leader broke, at every follower at once if it died: do not wait at random.

        No voter may grant anything for the minimum timeout after it last heard the leader, so that is when
        the first one stands; each further one a heartbeat later, or as long as many elections take, when the
        one before has won. The groups take turns, so that a dead node's leaderships spread over those left.
        """
        state = self.state
        me = self.host.node_id
        left = [node for node in state.voters if node != leader]
        if me not in left or self.elected_first() is not None:
            return
        turn = (left.index(me) + state.id) % len(left)
        wait = self.settings.heartbeat_seconds * (turn + 0.2 + 0.1 * self.host.rng.random())
        unheard = min(self.host.now() - self.contact.last_heard(), self.settings.election_min_seconds)
        wait += self.settings.election_min_seconds - unheard + turn * self.host.crowd_seconds()
        state.deadline = self.host.attentive() + wait
