"""Elections (Raft §5.2, §5.4.1), pre-vote and stickiness (thesis §9.6, §4.2.3), transfer (thesis §3.10).

PySyncObj counted votes where voters must be counted, let a returning node depose a healthy leader, and ran
its leadership transfer through ordinary votes that voters which just heard the leader refuse.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from strandline.node.raft.campaigns import Cause
from strandline.node.raft.pysyncobj_seam import CANDIDATE, FOLLOWER, LEADER
from strandline.node.raft.rules.messages import (
    MessageKind,
    PreVoteReply,
    ReplicaOpened,
    RequestPreVote,
    RequestVote,
    TimeoutNow,
    VoteReply,
)
from strandline.node.raft.rules.progress import NEVER
from strandline.node.raft.rules.replica_state import GroupState, SafetyViolation

_MOST_DOUBLINGS: Final = 4


class Elections(GroupState):
    """How a replica comes to lead, and refuses to let another too early."""

    def __init__(self, *args: Any) -> None:
        self.votes: set[int] = set()
        self.pre_votes: set[int] | None = None
        """Who would vote for this node if it asked; None while it is not asking."""
        self.pre_votes_asked_at = NEVER
        """When the newest round of pre-votes was asked. It is the round's name, and every answer bears it."""
        self.timeout_now_at = NEVER
        self.first_tries = 0
        super().__init__(*args)

    # Timing out.

    def begin(self) -> None:
        """A group that never had a leader elects its first one now, and waits for no timeout.

        The first leader asks at once, and again once a peer is connected. A peer that gets the group later
        than it was asked says unasked what it would have answered then, so nothing waits for a retry.
        """
        first = self._first_leader()
        if first == self.host.node_id:
            self.host.later(0.0, self, self.take_offers)
        elif first is not None:
            if self.host.connected(first):
                # Creating many groups keeps a node busy: it is not to be overtaken for that.
                self.deadline += self.settings.election_max_seconds + self.host.many()
            if self.has_vote():
                self.host.send_when_synced(
                    first, PreVoteReply(self.id, MessageKind.PRE_VOTE_REPLY, 0, True, 1, 0.0)
                )
        elif self.term:
            # A leader asks a silent follower ever less often: it need not find out by itself.
            for peer in self.peers:
                self.host.send_when_synced(peer, ReplicaOpened(self.id, MessageKind.HERE, self.term))

    def take_offers(self) -> None:
        """Count the pre-votes that came before this group was here; the others say so when they have it."""
        if self.role != FOLLOWER or self._first_leader() != self.host.node_id:
            return
        self._stand_again_soon()
        if self.may_campaign():
            offered = (peer for peer in self.host.offered(self.id) if peer in self.voters)
            self.pre_votes = {self.host.node_id, *offered}
            self._check_pre_votes()

    def _first_leader(self) -> int | None:
        """The voter that is to lead first, None in a group that ever had a leader or is not known."""
        if self.term or not self.voters:
            return None
        named = self.first_leader
        return named if named in self.voters else self.voters[self.id % len(self.voters)]

    def ask_first(self) -> None:
        """Stand for the first election, if this node is to lead first and nobody has led yet."""
        if self.role == FOLLOWER and self._first_leader() == self.host.node_id:
            self.election_timeout()

    def election_timeout(self) -> None:
        """No leader was heard for a whole timeout: find out whether an election could be won."""
        self.leave_quiet()
        if not self.host.may_stand(self):
            self.deadline = self.host.attentive() + self.settings.heartbeat_seconds * self.host.rng.random()
            return
        if self._first_leader() == self.host.node_id:
            self._stand_again_soon()
        else:
            self.reset_deadline()
        self.leader = None
        if self.role == CANDIDATE:
            self.set_role(FOLLOWER)
        if self.may_campaign():
            self.start_pre_vote()

    def _stand_again_soon(self) -> None:
        """What was asked or offered may be lost, or a majority away: soon again, then ever less often."""
        pause = self.settings.heartbeat_seconds * 2**self.first_tries * (0.5 + self.host.rng.random() / 2)
        self.reset_deadline()
        self.deadline = min(self.deadline, self.host.attentive() + pause)
        self.first_tries = min(self.first_tries + 1, _MOST_DOUBLINGS)

    def stand_in_turn(self, leader: int) -> None:
        """The connection to the leader broke, at every follower at once if it died: do not wait at random.

        No voter may grant anything for the minimum timeout after it last heard the leader, so that is when
        the first one stands; each further one a heartbeat later, or as long as many elections take, when the
        one before has won. The groups take turns, so that a dead node's leaderships spread over those left.
        """
        me = self.host.node_id
        left = [node for node in self.voters if node != leader]
        if me not in left or self._first_leader() is not None:
            return
        turn = (left.index(me) + self.id) % len(left)
        wait = self.settings.heartbeat_seconds * (turn + 0.2 + 0.1 * self.host.rng.random())
        unheard = min(self.host.now() - self.last_heard(), self.settings.election_min_seconds)
        wait += self.settings.election_min_seconds - unheard + turn * self.host.many()
        self.deadline = self.host.attentive() + wait

    def may_campaign(self) -> bool:
        """Only a voter with a whole state and a disk that takes its vote can lead."""
        return (
            self.has_vote()
            and self.host.node_id in self.voters
            and self.damaged_below is None
            and not self.host.disk_stalled()
        )

    def has_vote(self) -> bool:
        """Whether this replica may vote at all.

        One in a folder that may have had a predecessor, and one that was let into a group and has not learned
        who the members are, could have forgotten what they promised (docs/raft.md, "Folders").
        """
        return not self.host.newcomer and bool(self.voters)

    def takes_votes(self, peer: int) -> bool:
        """Whether a peer may vote and its disk takes its vote, as far as is known. It says so in answers to
        the heartbeat of quiet groups; where it has entries to write that it cannot write, it falls behind.
        """
        said_at = self.host.pair(peer).no_votes_at
        unable = self.host.now() - said_at <= 3 * self.settings.heartbeat_seconds
        return not unable and not self.host.is_newcomer(peer)

    def start_pre_vote(self) -> None:
        """Ask whether an election would be won, without raising the term (thesis §9.6)."""
        self.pre_votes = {self.host.node_id}
        asked_at = self.pre_votes_asked_at = self.host.now()
        last, last_term = self.journal.last, self.journal.last_term
        for peer in self.other_voters():
            message = RequestPreVote(self.id, MessageKind.PRE_VOTE, self.term, last, last_term, asked_at)
            self.host.send_when_synced(peer, message)
        self._check_pre_votes()

    def campaign(self, *, transfer: bool = False) -> None:
        """Raise the term, vote for oneself and ask for votes, all once term and vote are durable."""
        self.leave_quiet()
        self.pre_votes = None
        self.votes = set()
        self.leader = None
        self.set_role(CANDIDATE)
        self.reset_deadline()
        # Where messages take long, candidates meet again and again unless they spread ever wider.
        self.lost_campaigns = min(self.lost_campaigns + 1, _MOST_DOUBLINGS)
        self.host.set_active(self, True)
        cause = Cause.HANDED if transfer else Cause.SILENCE if self.term else Cause.FIRST
        self.host.campaigns.counts[self.rank, cause] += 1
        self.set_term(self.term + 1, self.host.node_id)
        term, last, last_term = self.term, self.journal.last, self.journal.last_term
        for peer in self.other_voters():
            self.host.send_when_synced(
                peer, RequestVote(self.id, MessageKind.VOTE, term, last, last_term, transfer)
            )
        self.host.when_synced(partial(self.host.guard, self, self._own_vote_is_durable, term))

    def other_voters(self) -> list[int]:
        me = self.host.node_id
        return [node for node in self.voters if node != me]

    def _own_vote_is_durable(self, term: int) -> None:
        if self.failure is None and self.role == CANDIDATE and self.term == term:
            self.count_vote(self.host.node_id)

    # Votes.

    def hears_leader(self) -> bool:
        """Whether a leader was heard within the minimum election timeout: no vote is granted then.

        It keeps a returning node from deposing a healthy leader, and it is what a leader's lease stands on.
        """
        return self.host.now() - self.last_heard() < self.settings.election_min_seconds

    def last_heard(self) -> float:
        """When a leader of this group was last heard, by its own message or the pair's heartbeat."""
        if self.role == LEADER:
            return self.host.now()
        heard = self.heard_at
        if self.quiet_under is not None:
            heard = max(heard, self.host.pair(self.quiet_under).heard_at)
        return self.still_promised(heard)

    def still_promised(self, heard: float) -> float:
        """When a leader counts as heard that was heard at that time.

        The loop may not have run meanwhile, or the clock have jumped. A promise that had not ended before may
        still be relied on, whether or not the leader that it was given to is known any more: a higher term
        may have been adopted since. So it counts anew from then on.
        """
        before, after = self.host.time_gap
        return max(heard, after) if before - heard < self.settings.election_min_seconds else heard

    def is_up_to_date(self, last: int, last_term: int) -> bool:
        """Whether a log that ends so is at least as up-to-date as ours (Raft §5.4.1)."""
        return (last_term, last) >= (self.journal.last_term, self.journal.last)

    def on_pre_vote(self, peer: int, asked: RequestPreVote) -> None:
        granted = (
            asked.term >= self.term
            and self.has_vote()
            and not self.hears_leader()
            and self.is_up_to_date(asked.last, asked.last_term)
        )
        message = PreVoteReply(
            self.id, MessageKind.PRE_VOTE_REPLY, self.term, granted, asked.term + 1, asked.asked_at
        )
        self.host.send_when_synced(peer, message)

    def on_pre_vote_reply(self, peer: int, reply: PreVoteReply) -> None:
        asked = reply.asked
        if self.role == LEADER and asked == 1:
            # Offered unasked, by a voter that has had the group only since the others elected this node.
            self.on_here(peer)
            return
        if (
            self.pre_votes is None
            or asked != self.term + 1
            or not self.is_of_this_round(asked, reply.asked_at)
        ):
            return
        if reply.granted and peer in self.voters:
            self.pre_votes.add(peer)
            self._check_pre_votes()

    def is_of_this_round(self, asked: int, asked_at: float) -> bool:
        """Whether an answer was given to what is asked now. One to an earlier round may come from a voter
        that has heard a leader since, and would raise the term for nothing.

        A group's first election has had no leader that could have been heard, so any answer counts in it,
        also one that was not asked for (`begin`).
        """
        return asked_at == self.pre_votes_asked_at or asked == 1

    def _check_pre_votes(self) -> None:
        # To stand is to vote for oneself, and this node has promised what the others have.
        if self.pre_votes is not None and self.has_majority(self.pre_votes) and not self.hears_leader():
            self.campaign()

    def ignores_vote(self, transfer: bool) -> bool:
        """Whether a request for a vote in a higher term is not even looked at (thesis §4.2.3).

        A transfer's is: the leader itself asked for that election, and gave up its lease first.
        """
        return not transfer and self.hears_leader()

    def keeps_vote(self, peer: int, transfer: bool) -> bool:
        """Whether this term's vote is held back, because a leader was heard that may still have its lease.

        A voter need not be asked for a vote to come into a term: any answer may have brought it there, just
        after it heard the leader of an earlier one. The promise to that leader is the same in every later
        term. What was given already is given again.
        """
        return self.vote != peer and self.ignores_vote(transfer)

    def on_vote(self, peer: int, asked: RequestVote) -> None:
        term, transfer = asked.term, asked.transfer
        if term > self.term:
            if self.ignores_vote(transfer) or not self.may_record_term():
                return
            self.adopt_term(term)
        granted = (
            term == self.term
            and self.role == FOLLOWER
            and self.has_vote()
            and self.may_vote_for(peer)
            and not self.keeps_vote(peer, transfer)
            and self.is_up_to_date(asked.last, asked.last_term)
            and (self.vote == peer or self.may_record_term())
        )
        if granted:
            if self.vote != peer:
                self.set_term(term, peer)
            self.pre_votes = None
            self.reset_deadline()
        self.host.send_when_synced(peer, VoteReply(self.id, MessageKind.VOTE_REPLY, self.term, granted))

    def may_vote_for(self, peer: int) -> bool:
        """One vote a term, first come first served (Raft §5.2)."""
        return self.vote is None or self.vote == peer

    def on_vote_reply(self, peer: int, reply: VoteReply) -> None:
        if reply.granted and self.role == CANDIDATE and peer in self.voters:
            self.count_vote(peer)

    def count_vote(self, voter: int) -> None:
        """Voters are a set: a doubled answer is still one vote."""
        self.votes.add(voter)
        if self.has_majority(self.votes):
            self.become_leader()

    def has_majority(self, nodes: set[int]) -> bool:
        """Whether a majority of the voters is among `nodes`; a newcomer's word does not count."""
        voters, host = self.voters, self.host
        return sum(1 for node in voters if node in nodes and not host.is_newcomer(node)) * 2 > len(voters)

    # Following.

    def follow(self, peer: int) -> None:
        """A message of the current term's leader: it is one, and it was heard."""
        if self.role == LEADER:
            raise SafetyViolation(f"group {self.id}: node {peer} and this node both lead term {self.term}")
        self.heard_at = self.host.now()
        self.lost_campaigns = 0
        self.pre_votes = None
        if self.role == CANDIDATE:
            self.set_role(FOLLOWER)
        if self.leader != peer:
            self.leader = peer
            self.host.stood(self)
        self.reset_deadline()

    # Leadership transfer.

    def transfer(self, target: int | None = None) -> bool:
        """Hand leadership to `target`, or to the most caught-up voter; whether it was begun.

        It is not when the target could not take over now, and nothing is lost. Once it is, new commands are
        refused, and the lease is given up for the rest of the term, because the target's election skips the
        rule the lease stands on. Ends by itself after one election timeout.
        """
        if self.role != LEADER or self.transfer_target is not None:
            return False
        candidates = [peer for peer in self.other_voters() if self.can_take_over(peer)]
        if target is None and candidates:
            target = max(candidates, key=lambda peer: self.progress[peer].match)
        if target not in candidates:
            return False
        self.transfer_target = target
        self.transfer_deadline = self.host.now() + self.settings.election_max_seconds
        self.lease_allowed = False
        self.host.set_active(self, True)
        self.host.wake(self)
        return True

    def continue_transfer(self) -> None:
        """Send the target to its election once it has the whole log; give up after the deadline."""
        target = self.transfer_target
        if target is None or target not in self.progress or self.host.now() >= self.transfer_deadline:
            self.transfer_target = None
        elif (
            self.progress[target].match == self.journal.last
            and self.transfer_ready()
            and self.host.now() >= self.timeout_now_at + self.settings.heartbeat_seconds
        ):
            self.timeout_now_at = self.host.now()
            self.host.send(target, TimeoutNow(self.id, MessageKind.TIMEOUT_NOW, self.term))

    def nominate(self) -> None:
        """Before stepping down: a follower that still hears this node need not wait for its own timeout.

        Whoever can hear but not be heard would otherwise keep the others from an election by its heartbeats,
        and then for a timeout more.
        """
        reachable = [
            peer
            for peer in self.other_voters()
            if self.host.connected(peer) and peer in self.progress and self.takes_votes(peer)
        ]
        if reachable:
            best = max(reachable, key=lambda peer: self.progress[peer].match)
            self.host.send(best, TimeoutNow(self.id, MessageKind.TIMEOUT_NOW, self.term))

    def transfer_ready(self) -> bool:
        """All that this leader accepted has ended, so a transfer leaves no outcome unknown."""
        return not self.waiting

    def on_timeout_now(self, peer: int, _: TimeoutNow) -> None:
        if self.role == FOLLOWER and self.leader == peer and self.may_campaign():
            self.campaign(transfer=True)

    # Declared here because another layer defines it.

    def can_take_over(self, peer: int) -> bool:
        raise NotImplementedError

    def on_here(self, peer: int) -> None:
        raise NotImplementedError
