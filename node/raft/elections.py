"""Elections (Raft §5.2, §5.4.1), pre-vote and stickiness (thesis §9.6, §4.2.3), transfer (thesis §3.10).

PySyncObj counted votes where voters must be counted, let a returning node depose a healthy leader, and ran
its leadership transfer through ordinary votes that voters which just heard the leader refuse.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from node.raft.group_state import GroupState, SafetyViolation
from node.raft.messages import MessageKind
from node.raft.progress import NEVER
from node.raft.pysyncobj_seam import CANDIDATE, FOLLOWER, LEADER

_MOST_DOUBLINGS: Final = 4


class Elections(GroupState):
    """How a replica comes to lead, and refuses to let another too early."""

    def __init__(self, *args: Any) -> None:
        self.votes: set[int] = set()
        self.pre_votes: set[int] | None = None
        """Who would vote for this node if it asked; None while it is not asking."""
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
            self.host.later(0.0, self, self.ask_first)
        elif first is not None:
            if self.host.connected(first):
                # Creating many groups keeps a node busy: it is not to be overtaken for that.
                self.deadline += self.settings.election_max_seconds
            self.host.send_when_synced(first, [self.id, MessageKind.PRE_VOTE_REPLY, 0, True, 1])

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
        self.reset_deadline()
        if self._first_leader() == self.host.node_id:
            # What was asked or offered was lost, or a majority is away: soon again, then ever less often.
            pause = self.settings.heartbeat_seconds * 2**self.first_tries * (0.5 + self.host.rng.random() / 2)
            self.deadline = min(self.deadline, self.host.now() + pause)
            self.first_tries = min(self.first_tries + 1, _MOST_DOUBLINGS)
        self.leader = None
        if self.role == CANDIDATE:
            self.set_role(FOLLOWER)
        if self.may_campaign():
            self.start_pre_vote()

    def stand_in_turn(self, leader: int) -> None:
        """The connection to the leader broke, at every follower at once if it died: do not wait at random.

        No voter may grant anything for the minimum timeout after it last heard the leader, so that is when
        the first one stands; each further one a heartbeat later, when the one before has won. The groups
        take turns, so that a dead node's leaderships spread over those that are left.
        """
        me = self.host.node_id
        left = [node for node in self.voters if node != leader]
        if me not in left or self._first_leader() is not None:
            return
        turn = (left.index(me) + self.id) % len(left)
        wait = self.settings.heartbeat_seconds * (turn + 0.2 + 0.1 * self.host.rng.random())
        self.deadline = self.host.now() + self.settings.election_min_seconds + wait

    def may_campaign(self) -> bool:
        """Only a voter with a whole state and a disk that takes its vote can lead."""
        return (
            self.host.node_id in self.voters and self.damaged_below is None and not self.host.disk_stalled()
        )

    def start_pre_vote(self) -> None:
        """Ask whether an election would be won, without raising the term (thesis §9.6)."""
        self.pre_votes = {self.host.node_id}
        last, last_term = self.journal.last, self.journal.last_term
        for peer in self.other_voters():
            self.host.send_when_synced(peer, [self.id, MessageKind.PRE_VOTE, self.term, last, last_term])
        self._check_pre_votes()

    def campaign(self, *, transfer: bool = False) -> None:
        """Raise the term, vote for oneself and ask for votes, all once term and vote are durable."""
        self.leave_quiet()
        self.pre_votes = None
        self.votes = set()
        self.leader = None
        self.set_role(CANDIDATE)
        self.reset_deadline()
        self.host.set_active(self, True)
        self.set_term(self.term + 1, self.host.node_id)
        term, last, last_term = self.term, self.journal.last, self.journal.last_term
        for peer in self.other_voters():
            self.host.send_when_synced(peer, [self.id, MessageKind.VOTE, term, last, last_term, transfer])
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
        if self.quiet_under is not None:
            return max(self.heard_at, self.host.pair(self.quiet_under).heard_at)
        return self.heard_at

    def is_up_to_date(self, last: int, last_term: int) -> bool:
        """Whether a log that ends so is at least as up-to-date as ours (Raft §5.4.1)."""
        return (last_term, last) >= (self.journal.last_term, self.journal.last)

    def on_pre_vote(self, peer: int, term: int, last: int, last_term: int) -> None:
        granted = term >= self.term and not self.hears_leader() and self.is_up_to_date(last, last_term)
        self.host.send_when_synced(peer, [self.id, MessageKind.PRE_VOTE_REPLY, self.term, granted, term + 1])

    def on_pre_vote_reply(self, peer: int, granted: bool, asked: int) -> None:
        if granted and self.pre_votes is not None and asked == self.term + 1 and peer in self.voters:
            self.pre_votes.add(peer)
            self._check_pre_votes()

    def _check_pre_votes(self) -> None:
        if self.pre_votes is not None and self.has_majority(self.pre_votes):
            self.campaign()

    def ignores_vote(self, transfer: bool) -> bool:
        """Whether a request for a vote in a higher term is not even looked at (thesis §4.2.3).

        A transfer's is: the leader itself asked for that election, and gave up its lease first.
        """
        return not transfer and self.hears_leader()

    def on_vote(self, peer: int, term: int, last: int, last_term: int, transfer: bool) -> None:
        if term > self.term:
            if self.ignores_vote(transfer):
                return
            self.adopt_term(term)
        granted = (
            term == self.term
            and self.role == FOLLOWER
            and self.may_vote_for(peer)
            and self.is_up_to_date(last, last_term)
        )
        if granted:
            if self.vote != peer:
                self.set_term(term, peer)
            self.pre_votes = None
            self.reset_deadline()
        self.host.send_when_synced(peer, [self.id, MessageKind.VOTE_REPLY, self.term, granted])

    def may_vote_for(self, peer: int) -> bool:
        """One vote a term, first come first served (Raft §5.2)."""
        return self.vote is None or self.vote == peer

    def on_vote_reply(self, peer: int, granted: bool) -> None:
        if granted and self.role == CANDIDATE and peer in self.voters:
            self.count_vote(peer)

    def count_vote(self, voter: int) -> None:
        """Voters are a set: a doubled answer is still one vote."""
        self.votes.add(voter)
        if self.has_majority(self.votes):
            self.become_leader()

    def has_majority(self, nodes: set[int]) -> bool:
        voters = self.voters
        return sum(1 for node in voters if node in nodes) * 2 > len(voters)

    # Following.

    def follow(self, peer: int) -> None:
        """A message of the current term's leader: it is one, and it was heard."""
        if self.role == LEADER:
            raise SafetyViolation(f"group {self.id}: node {peer} and this node both lead term {self.term}")
        self.heard_at = self.host.now()
        self.pre_votes = None
        if self.role == CANDIDATE:
            self.set_role(FOLLOWER)
        self.leader = peer
        self.reset_deadline()

    # Leadership transfer.

    def transfer(self, target: int | None = None) -> bool:
        """Hand leadership to `target`, or to the most caught-up voter; whether it was begun.

        New commands are refused from here on. The lease is given up for the rest of the term, because the
        target's election skips the rule the lease stands on. Ends by itself after one election timeout.
        """
        if self.role != LEADER or self.transfer_target is not None:
            return False
        candidates = [peer for peer in self.other_voters() if self.host.connected(peer)]
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
            self.host.send(target, [self.id, MessageKind.TIMEOUT_NOW, self.term])

    def nominate(self) -> None:
        """Before stepping down: a follower that still hears this node need not wait for its own timeout.

        Whoever can hear but not be heard would otherwise keep the others from an election by its heartbeats,
        and then for a timeout more.
        """
        reachable = [
            peer for peer in self.other_voters() if self.host.connected(peer) and peer in self.progress
        ]
        if reachable:
            best = max(reachable, key=lambda peer: self.progress[peer].match)
            self.host.send(best, [self.id, MessageKind.TIMEOUT_NOW, self.term])

    def transfer_ready(self) -> bool:
        """All that this leader accepted has ended, so a transfer leaves no outcome unknown."""
        return not self.waiting

    def on_timeout_now(self, peer: int) -> None:
        if self.role == FOLLOWER and self.leader == peer and self.may_campaign():
            self.campaign(transfer=True)
