"""Holes in elections, leases, leadership transfer and the heartbeats of idle groups."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from strandline.node.raft.group import RaftGroup
from strandline.node.raft.outcome import Applied, NotLeader, Outcome
from strandline.node.raft.pysyncobj_seam import CANDIDATE
from strandline.node.raft.rules.election import Election
from strandline.node.raft.rules.leader_contact import LeaderContact
from strandline.node.raft.rules.leader_tick import LeaderTick
from strandline.node.raft.rules.leadership_transfer import LeadershipTransfer
from strandline.node.raft.rules.lease import Lease
from strandline.node.raft.rules.messages import MessageKind, Quiesce, VoteReply
from strandline.node.raft.rules.pre_vote import PreVote
from strandline.node.raft.rules.progress import NEVER, Progress
from strandline.node.raft.rules.quiescence import Quiescence
from strandline.node.raft.rules.read_index import ReadIndex
from strandline.node.raft.rules.shared_heartbeats import HEARTBEAT, SharedHeartbeats
from tests.raft.fake_host import FakeHost
from tests.raft.group_with import group_with
from tests.raft.harness import CONFIG, GROUP, Cluster, Replica
from tests.raft.holes.hole import hole, hole_in
from tests.simulation.log.sabotaged_parts import AcceptsAnyHeartbeat
from tests.simulation.log.sabotaged_rules import (
    CountsPreVotesOfAnyRound,
    LeaseFromReceiveTime,
    VotesInTermsItWasToldOf,
    VotesRightAfterRestart,
)

APPEND, VOTE, VOTE_REPLY = MessageKind.APPEND, MessageKind.VOTE, MessageKind.VOTE_REPLY


# Votes are counted, not voters.


class CountsVotes(Election):
    count = 0

    def count_vote(self, voter: int) -> None:
        self.count += 1
        if self.count * 2 > len(self.state.voters):
            self.roles.become_leader()


@hole_in(CountsVotes)
def test_doubled_vote_is_one_vote(group_class: type[RaftGroup]) -> None:
    candidate = Replica(voters=(1, 2, 3, 4, 5), terms=[1], group_class=group_class)
    term = candidate.stand()
    for _ in range(3):
        candidate.told(2, VOTE_REPLY, term, True)
    assert candidate.role == "candidate"


class _TakesAnyVote(Election):
    def on_vote_reply(self, peer: int, reply: VoteReply) -> None:
        if reply.granted:
            self.count_vote(peer)


class CountsStrangers(group_with(_TakesAnyVote)):  # type: ignore[misc]
    def has_majority(self, nodes: set[int]) -> bool:
        return len(nodes) * 2 > len(self.voters)


@hole(RaftGroup, CountsStrangers)
def test_vote_of_a_node_that_is_no_voter_does_not_count(group_class: type[RaftGroup]) -> None:
    candidate = Replica(terms=[1], group_class=group_class)
    term = candidate.stand()
    candidate.told(9, VOTE_REPLY, term, True)
    assert candidate.role == "candidate"


class AnswersOnce(Election):
    def may_vote_for(self, peer: int) -> bool:
        return self.state.vote is None


@hole_in(AnswersOnce)
def test_vote_whose_answer_was_lost_is_given_again(group_class: type[RaftGroup]) -> None:
    voter = Replica(terms=[1], group_class=group_class)
    voter.advance(CONFIG.election_min_seconds)
    for _ in range(2):
        replies = voter.told(2, VOTE, 2, 1, 1, False)
        voter.sync()
        assert [reply.fields for reply in (*replies, *voter.take())] == [(True,)]


# A returning node deposes a healthy leader.


class StandsAtOnce(PreVote):
    def start(self) -> None:
        self.election.campaign()


@hole_in(StandsAtOnce)
def test_returning_node_does_not_depose_the_leader(group_class: type[RaftGroup]) -> None:
    cluster = Cluster(group_class=group_class)
    cluster.elect(1)
    term = cluster[1].group.term
    cluster.cut(3)
    cluster.advance(5.0)
    cluster.heal()
    cluster.advance(2.0)
    assert (cluster.leaders, cluster[1].group.term) == ([1], term)


class AlwaysListens(Election):
    def ignores_vote(self, transfer: bool) -> bool:
        return False


@hole_in(AlwaysListens)
def test_no_vote_while_a_leader_is_heard(group_class: type[RaftGroup]) -> None:
    voter = Replica(terms=[1], group_class=group_class)
    voter.append(2, 1, (1, 1))
    voter.advance(CONFIG.election_min_seconds * 0.9)
    voter.told(3, VOTE, 9, 9, 9, False)
    assert (voter.group.vote, voter.group.term) == (None, 1)


@hole_in(VotesInTermsItWasToldOf)
def test_no_vote_in_a_term_that_an_answer_brought_while_a_leader_was_heard(
    group_class: type[RaftGroup],
) -> None:
    """Its leader's lease counts on it, whatever the term it has come into since."""
    voter = Replica(voters=(1, 2, 3, 4, 5), terms=[1], group_class=group_class)
    voter.append(2, 1, (1, 1))
    heard = voter.host.now()
    voter.told(4, MessageKind.PRE_VOTE_REPLY, 2, False, 2, heard)
    assert voter.group.term == 2
    voter.advance(CONFIG.election_min_seconds * 0.9)
    voter.told(3, VOTE, 2, 9, 9, False)
    voter.sync()
    assert voter.group.vote is None
    voter.advance(CONFIG.election_min_seconds * 0.2)
    voter.told(3, VOTE, 2, 9, 9, False)
    voter.sync()
    assert voter.group.vote == 3, "the promise has an end"


_NEWS_OF_TERM_2: list[tuple[MessageKind, tuple[Any, ...]]] = [
    (MessageKind.APPEND_REPLY, (False, 0, 0, 0, 0.0)),
    (MessageKind.VOTE_REPLY, (False,)),
    (MessageKind.PRE_VOTE_REPLY, (False, 2, 0.0)),
    (MessageKind.SNAPSHOT_REPLY, (1, 0, 0, 0.0)),
    (MessageKind.NEED_SNAPSHOT, (1, 0.0)),
    (MessageKind.TIMEOUT_NOW, ()),
]


@pytest.mark.parametrize(("kind", "fields"), _NEWS_OF_TERM_2, ids=lambda value: getattr(value, "name", ""))
def test_no_message_that_brings_a_term_ends_a_promise(kind: MessageKind, fields: tuple[Any, ...]) -> None:
    """The same, for each message that is not its new leader's own word."""
    voter = Replica(voters=(1, 2, 3, 4, 5), terms=[1])
    voter.append(2, 1, (1, 1))
    voter.told(4, kind, 2, *fields)
    assert (voter.group.term, voter.group.vote) == (2, None)
    for restarted in (False, True):
        if restarted:
            voter.sync()
            voter.restart()
        voter.told(3, VOTE, 2, 9, 9, False)
        voter.sync()
        assert voter.group.vote is None


class VotesForItselfAnyTime(PreVote):
    def check(self) -> None:
        if self.state.pre_votes is not None and self.state.has_majority(self.state.pre_votes):
            self.election.campaign()


@hole_in(VotesForItselfAnyTime)
def test_no_vote_for_oneself_while_a_leader_is_heard(group_class: type[RaftGroup]) -> None:
    """Whatever made it time out: a lease counts on this node's own vote as on any other."""
    replica = Replica(voters=(1, 2, 3, 4, 5), terms=[1], group_class=group_class)
    replica.append(2, 1, (1, 1))
    replica.advance(CONFIG.election_min_seconds * 0.9)
    replica.group.timeouts.expired()
    for peer in (3, 4):
        replica.pre_vote_from(peer)
    assert (replica.role, replica.group.term) == ("follower", 1)


def test_vote_that_was_given_is_given_again_though_a_leader_is_heard_since() -> None:
    voter = Replica(voters=(1, 2, 3, 4, 5), terms=[1])
    voter.advance(CONFIG.election_min_seconds)
    voter.told(3, VOTE, 2, 1, 1, False)
    voter.sync()
    voter.take()
    voter.append(4, 2, (1, 1))
    assert [reply.fields for reply in voter.told(3, VOTE, 2, 1, 1, False)] == [(True,)]


def test_a_transfers_vote_is_given_in_a_term_that_an_answer_brought() -> None:
    """The leader gave up its lease before it sent its successor to that election."""
    voter = Replica(voters=(1, 2, 3, 4, 5), terms=[1])
    voter.append(2, 1, (1, 1))
    voter.told(4, MessageKind.APPEND_REPLY, 2, False, 0, 0, 0, 0.0)
    voter.told(3, VOTE, 2, 9, 9, True)
    assert (voter.group.term, voter.group.vote) == (2, 3)


@hole_in(CountsPreVotesOfAnyRound)
def test_pre_vote_of_an_earlier_round_does_not_count(group_class: type[RaftGroup]) -> None:
    """A voter that has heard its leader since would not grant it now, and the term would rise for nothing."""
    replica = Replica(terms=[1], group_class=group_class)
    replica.time_out()
    earlier = replica.group.pre_votes_asked_at
    replica.time_out()
    replica.told(2, MessageKind.PRE_VOTE_REPLY, 1, True, 2, earlier)
    assert (replica.role, replica.group.term) == ("follower", 1)
    replica.pre_vote_from(2)
    assert replica.role == "candidate"


def test_pre_vote_for_a_groups_first_term_counts_in_any_round() -> None:
    """No leader can have been heard since it was given. It may be one that was not even asked for."""
    replica = Replica()
    replica.time_out()
    replica.told(2, MessageKind.PRE_VOTE_REPLY, 0, True, 1, 0.0)
    assert replica.role == "candidate"


@hole(RaftGroup, VotesRightAfterRestart)
def test_restarted_node_grants_no_vote_while_a_lease_may_run(group_class: type[RaftGroup]) -> None:
    voter = Replica(terms=[1], group_class=group_class)
    voter.append(2, 1, (1, 1))
    voter.restart()
    voter.advance(CONFIG.lease_seconds)
    voter.told(3, VOTE, 2, 1, 1, False)
    assert voter.group.vote is None


class RenewsItsWordToKnownLeaders(LeaderContact):
    def still_promised(self, heard: float) -> float:
        return heard if self.state.leader is None else super().still_promised(heard)


@hole_in(RenewsItsWordToKnownLeaders)
def test_jump_of_the_clock_ends_no_promise_though_an_answer_brought_a_term_without_a_leader(
    group_class: type[RaftGroup],
) -> None:
    voter = Replica(voters=(1, 2, 3, 4, 5), terms=[1], group_class=group_class)
    voter.append(2, 1, (1, 1))
    voter.told(4, MessageKind.PRE_VOTE_REPLY, 2, False, 2, 0.0)
    before = voter.host.now()
    voter.advance(5.0)  # No time at all, but for its clock.
    voter.host.time_gap = (before, voter.host.now())
    voter.told(3, VOTE, 3, 9, 9, False)
    assert (voter.group.term, voter.group.vote) == (2, None)


def test_jump_of_the_clock_renews_no_promise_that_had_ended() -> None:
    """Or a loop that is slow again and again would keep its group from having a leader."""
    voter = Replica(terms=[1])
    voter.append(2, 1, (1, 1))
    voter.advance(CONFIG.election_min_seconds)
    before = voter.host.now()
    voter.advance(5.0)
    voter.host.time_gap = (before, voter.host.now())
    voter.told(3, VOTE, 2, 9, 9, False)
    assert voter.group.vote == 3


class ForgetsTheSharedHeartbeat(Quiescence):
    def leave(self) -> None:
        heard_at = self.state.heard_at
        super().leave()
        self.state.heard_at = heard_at


@hole_in(ForgetsTheSharedHeartbeat)
def test_follower_of_a_quiet_group_that_is_woken_has_heard_its_leader_by_the_shared_heartbeat(
    group_class: type[RaftGroup],
) -> None:
    follower = Replica(node=2, terms=[1], group_class=group_class)
    follower.append(1, 1, (1, 1))
    follower.told(1, MessageKind.QUIESCE, 1, 1)
    for _ in range(10):
        follower.advance(CONFIG.heartbeat_seconds)
        followed = follower.host.peer_heartbeat(1).followed
        follower.host.heartbeats.on_frame(1, [HEARTBEAT, 1.0, len(followed.terms), followed.digest])
    assert follower.group.status()["quiet"]
    follower.group.connections.on_disconnect(1)
    assert not follower.group.status()["quiet"]
    follower.advance(CONFIG.election_min_seconds * 0.9)
    follower.told(3, VOTE, 2, 9, 9, False)
    assert follower.group.vote is None


class StandsThoughRemoved(Election):
    def may_campaign(self) -> bool:
        return True


@hole_in(StandsThoughRemoved)
def test_node_that_is_no_voter_stands_for_nothing(group_class: type[RaftGroup]) -> None:
    removed = Replica(node=4, voters=(1, 2, 3), terms=[1], group_class=group_class)
    for _ in range(3):
        removed.time_out()
    assert removed.take() == []


# A leader without a quorum leads on; its lease.


class LeadsOnAlone(Lease):
    def lost_quorum(self) -> bool:
        return False


@hole_in(LeadsOnAlone)
def test_leader_without_a_quorum_steps_down_within_an_election_timeout(group_class: type[RaftGroup]) -> None:
    cluster = Cluster(group_class=group_class)
    cluster.elect(1)
    cluster.cut(1)
    cluster.advance(CONFIG.election_max_seconds + 3 * CONFIG.heartbeat_seconds)
    assert 1 not in cluster.leaders


class SleepsWhileQuiet(LeaderTick):
    def check_quorum(self) -> None:
        pass


@hole_in(SleepsWhileQuiet)
def test_quorum_that_falls_silent_in_quiet_is_missed_within_an_election_timeout(
    group_class: type[RaftGroup],
) -> None:
    """A read had the group answered by itself after the last shared heartbeat: the quorum lasts longer."""
    cluster = Cluster(group_class=group_class)
    cluster.elect(1)
    cluster.advance(1.0)
    assert not cluster[1].host.active, "the pair's heartbeat stands for the group"
    cluster[1].group.lease_allowed = False
    while cluster[1].host.peer_heartbeat(2).sent_at == cluster.loop.now:
        cluster.advance(CONFIG.heartbeat_seconds / 2)
    read = cluster[1].read()
    cluster.settle()
    assert isinstance(read.step(), Applied)
    cluster.mute = {1}
    cluster.advance(CONFIG.election_min_seconds + 3 * CONFIG.heartbeat_seconds)
    assert 1 not in cluster.leaders


@hole_in(LeaseFromReceiveTime)
def test_lease_runs_from_when_the_acknowledged_message_was_sent(group_class: type[RaftGroup]) -> None:
    leader = Replica(terms=[1], group_class=group_class)
    leader.establish()
    leader.propose()
    leader.turn()
    sent_at = leader.host.now()
    leader.host.loop.advance(3.0)  # Paused: meanwhile another may have been elected.
    leader.acknowledge(2, 3, sent_at=sent_at)
    assert not leader.group.lease.holds()


class ReadsWhatItHas(ReadIndex):
    async def barrier(self) -> Outcome:
        if self.state.role == CANDIDATE or not self.state.is_leader:
            return self.state.not_leader()
        return Applied(None, self.state.applied, self.state.term)


@hole_in(ReadsWhatItHas)
def test_read_on_a_deposed_leader_is_not_answered(group_class: type[RaftGroup]) -> None:
    cluster = Cluster(group_class=group_class)
    cluster.elect(1)
    with patch.object(Lease, "lost_quorum", lambda lease: False):
        cluster.cut(1)
        cluster.advance(3.0)
    new = next(node for node in cluster.leaders if node != 1)
    written = cluster[new].propose()
    cluster.settle()
    assert isinstance(written.result(), Applied)
    assert not isinstance(cluster[1].read().outcome, Applied)


class CountsEarlierHeartbeats(Lease):
    def acked_at(self, peer: int) -> float:
        progress = self.state.progress.get(peer)
        if progress is None:
            return NEVER
        if progress.quiesced_since is not None:
            return max(self.host.peer_heartbeat(peer).acked_sent_at, progress.acked_sent_at)
        return progress.acked_sent_at


@hole_in(CountsEarlierHeartbeats)
def test_heartbeat_sent_before_a_group_fell_quiet_says_nothing_of_it(group_class: type[RaftGroup]) -> None:
    """Both happen at one time, in one tick: the heartbeat left first, and did not stand for the group."""
    leader = Replica(terms=[1], group_class=group_class)
    leader.establish()
    leader.advance(1.0)
    now = leader.host.now()
    for peer in (2, 3):
        leader.group.quiescence.begin_towards(peer, leader.group.progress[peer], now)
        leader.host.peer_heartbeat(peer).acked_sent_at = now
    assert not leader.group.lease.holds()


# Leadership transfer by ordinary votes.


class OrdinaryTransfer(Election):
    def ignores_vote(self, transfer: bool) -> bool:
        return self.contact.hears_leader()


@hole_in(OrdinaryTransfer)
def test_transfer_takes_no_timeout(group_class: type[RaftGroup]) -> None:
    cluster = Cluster(group_class=group_class)
    cluster.elect(1)
    assert cluster[1].group.transfer(2)
    cluster.settle()
    assert cluster.leaders == [2]


class WritesDuringTransfer(RaftGroup):
    def replicate(self, command: bytes, term: int) -> asyncio.Future[Outcome]:
        target, self.transfer_target = self.transfer_target, None
        try:
            return super().replicate(command, term)
        finally:
            self.transfer_target = target


@hole(RaftGroup, WritesDuringTransfer)
def test_leader_stops_writes_when_it_hands_over(group_class: type[RaftGroup]) -> None:
    leader = Replica(terms=[1], group_class=group_class)
    leader.establish()
    leader.group.transfer(2)
    future = leader.propose()
    assert future.done()
    assert future.result() == NotLeader(2, "leadership is being handed over")


class KeepsItsLease(Lease):
    def holds(self) -> bool:
        return self.start() + self.settings.lease_seconds > self.host.now()


@hole_in(KeepsItsLease)
def test_leader_gives_up_its_lease_when_it_hands_over(group_class: type[RaftGroup]) -> None:
    leader = Replica(terms=[1], group_class=group_class)
    leader.establish()
    assert leader.group.lease.holds()
    leader.group.transfer(2)
    assert not leader.group.lease.holds()


class HandsOverAtOnce(LeadershipTransfer):
    def is_ready(self) -> bool:
        return True


@hole_in(HandsOverAtOnce)
def test_transfer_waits_until_every_accepted_command_has_ended(group_class: type[RaftGroup]) -> None:
    leader = Replica(voters=(1, 2, 3, 4, 5), terms=[1], group_class=group_class)
    leader.establish()
    future = leader.propose()
    leader.sync()
    leader.group.transfer(2)
    leader.acknowledge(2, 3)
    assert leader.take(MessageKind.TIMEOUT_NOW) == []
    leader.acknowledge(3, 3)
    assert isinstance(future.result(), Applied)
    assert [sent.peer for sent in leader.take(MessageKind.TIMEOUT_NOW)] == [2]


class HandsOverToAnyConnected(LeadershipTransfer):
    def can_take_over(self, peer: int) -> bool:
        return self.host.connected(peer)


@hole_in(HandsOverToAnyConnected)
def test_leader_gives_up_nothing_for_a_target_whose_disk_is_full(group_class: type[RaftGroup]) -> None:
    cluster = Cluster(group_class=group_class)
    cluster.elect(1)
    cluster.advance(1.0)
    assert not cluster[1].host.active, "the pair's heartbeat stands for the group, and says nothing of logs"
    cluster[2].host.stalled = True
    cluster.advance(2 * CONFIG.heartbeat_seconds)
    leader = cluster[1].group
    assert not leader.keeps_up(2)
    assert not leader.transfer(2)
    assert (leader.transfer_target, leader.lease_allowed) == (None, True)
    cluster[2].host.stalled = False
    cluster.advance(4 * CONFIG.heartbeat_seconds)
    assert leader.transfer(2)
    cluster.settle()
    assert cluster.leaders == [2]


class _LeadsThoughItLeaves(Election):
    def may_campaign(self) -> bool:
        leaving, self.host.leaving = self.host.leaving, False
        try:
            return super().may_campaign()
        finally:
            self.host.leaving = leaving


class _HearsNoRefusal(LeadershipTransfer):
    def on_declined(self, peer: int) -> None:
        pass


@hole_in(_LeadsThoughItLeaves)
def test_a_node_that_is_about_to_stop_is_given_no_leadership(group_class: type[RaftGroup]) -> None:
    """Two that stop together would hand it to each other and back, a term each time, until one is gone."""
    cluster = Cluster(group_class=group_class)
    cluster.elect(1)
    cluster[2].host.leaving = True
    assert cluster[1].group.transfer(2)
    cluster.settle()
    assert cluster.leaders == [1]


@hole_in(_HearsNoRefusal)
def test_a_leader_asks_another_once_its_target_has_declined(group_class: type[RaftGroup]) -> None:
    cluster = Cluster(group_class=group_class)
    cluster.elect(1)
    leader = cluster[1].group
    cluster[2].host.leaving = True
    assert leader.transfer(2)
    cluster.settle()
    assert leader.transfer_target is None
    assert not leader.transfer(2)
    assert leader.transfer()
    cluster.settle()
    assert cluster.leaders == [3]


@hole_in(_LeadsThoughItLeaves)
def test_a_node_that_is_about_to_stop_does_not_stand_and_votes(group_class: type[RaftGroup]) -> None:
    replica = Replica(terms=[1], group_class=group_class)
    replica.host.leaving = True
    replica.time_out()
    replica.sync()
    assert replica.take(MessageKind.PRE_VOTE) == []
    replica.told(3, VOTE, 2, 1, 1, False)
    replica.sync()
    (vote,) = replica.take(VOTE_REPLY)
    assert vote.fields == (True,)


def test_a_quiet_node_that_is_about_to_stop_is_not_even_asked() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.advance(1.0)
    assert not cluster[1].host.active
    cluster[2].host.leaving = True
    cluster.advance(2 * CONFIG.heartbeat_seconds)
    assert not cluster[1].group.transfer(2)


class StandsWithAFullDisk(Election):
    def may_campaign(self) -> bool:
        return self.has_vote() and self.host.node_id in self.state.voters


@hole_in(StandsWithAFullDisk)
def test_node_whose_disk_takes_nothing_does_not_stand(group_class: type[RaftGroup]) -> None:
    """Its vote would never be durable, and each term that it stands in is a record that waits."""
    cluster = Cluster(group_class=group_class)
    cluster.elect(1)
    follower = cluster[2]
    follower.host.stalled = True
    term = follower.group.term
    follower.told(1, MessageKind.TIMEOUT_NOW, term)
    assert follower.group.term == term


@hole_in(HandsOverToAnyConnected)
def test_leader_gives_up_nothing_for_a_target_that_may_not_vote(group_class: type[RaftGroup]) -> None:
    """Also in its first moments, in which a target need not have answered yet."""
    leader = Replica(terms=[1], group_class=group_class)
    leader.establish()
    leader.host.newcomers = {2}
    assert not leader.group.transfer(2)
    assert leader.group.lease_allowed


@hole_in(HandsOverToAnyConnected)
def test_leader_gives_up_nothing_for_a_target_that_answers_nothing(group_class: type[RaftGroup]) -> None:
    cluster = Cluster(group_class=group_class)
    cluster.elect(1)
    cluster.mute = {2}
    cluster.advance(4 * CONFIG.heartbeat_seconds)
    assert not cluster[1].group.transfer(2)
    assert cluster[1].group.lease_allowed


@hole_in(HandsOverToAnyConnected)
def test_leader_gives_up_nothing_for_a_target_that_needs_a_snapshot(group_class: type[RaftGroup]) -> None:
    leader = Replica(terms=[1], group_class=group_class)
    leader.establish()
    leader.told(2, MessageKind.NEED_SNAPSHOT, leader.group.term, 1, leader.host.now())
    assert not leader.group.transfer(2)
    assert leader.group.lease_allowed
    assert leader.group.transfer(), "to the other one"
    assert leader.group.transfer_target == 3


# Heartbeats for each group.


class NeverQuiet(Quiescence):
    def may_begin(self, peer: int, progress: Progress, now: float) -> bool:
        return False


@hole_in(NeverQuiet)
def test_idle_group_sends_nothing(group_class: type[RaftGroup]) -> None:
    cluster = Cluster(group_class=group_class)
    cluster.elect(1)
    cluster.advance(1.0)
    sent = [len(cluster[node].host.history) for node in (1, 2, 3)]
    cluster.advance(5.0)
    assert [len(cluster[node].host.history) for node in (1, 2, 3)] == sent
    assert cluster.leaders == [1]
    assert not any(cluster[node].host.active for node in (1, 2, 3))


@hole(SharedHeartbeats, AcceptsAnyHeartbeat)
def test_heartbeat_of_a_restarted_leader_refreshes_nothing(heartbeats: type[SharedHeartbeats]) -> None:
    follower = Replica(node=2, terms=[1])
    follower.host.heartbeats = heartbeats(follower.host.heartbeats._host)
    follower.append(1, 1, (1, 1))
    follower.told(1, MessageKind.QUIESCE, 1, 1)
    assert follower.group.quiesced_under == 1
    for _ in range(8):  # The leader has restarted: it leads nothing, and says so.
        follower.advance(CONFIG.heartbeat_seconds)
        follower.host.heartbeats.on_frame(1, [HEARTBEAT, 1.0, 0, 0])
        follower.host.heartbeats.tick(follower.host.now())
    assert follower.group.quiesced_under is None


class AgreesToAnything(Quiescence):
    def on_quiesce(self, peer: int, _: Quiesce) -> None:
        self.contact.follow(peer)
        self.state.quiesced_under = peer
        self.host.peer_heartbeat(peer).follow(self.state.id, self.state.term, self.host.now())
        self.host.set_active(self.state, False)


@hole_in(AgreesToAnything)
def test_follower_that_lacks_an_entry_does_not_fall_quiet(group_class: type[RaftGroup]) -> None:
    follower = Replica(node=2, terms=[1], group_class=group_class)
    follower.append(1, 1, (1, 1))
    follower.told(1, MessageKind.QUIESCE, 1, 2)
    assert follower.group.quiesced_under is None
    assert follower.host.active


class QuietUncommitted(Quiescence):
    def is_idle(self) -> bool:
        return not self.state.readers


@hole_in(QuietUncommitted)
def test_group_with_an_uncommitted_entry_is_not_idle(group_class: type[RaftGroup]) -> None:
    leader = Replica(voters=(1, 2, 3, 4, 5), terms=[1], group_class=group_class)
    leader.establish()
    leader.propose()
    leader.sync()
    leader.acknowledge(2, 3)
    leader.take()
    leader.advance(2 * CONFIG.heartbeat_seconds)
    leader.acknowledge(2, 3)
    leader.tick()
    assert leader.take(MessageKind.QUIESCE) == []


def test_two_sets_of_quiet_groups_are_told_apart() -> None:
    host = FakeHost(1, Replica().host.loop, CONFIG, Replica().host.disk)
    pair = host.peer_heartbeat(2)
    pair.lead(GROUP, 3, 0.0)
    ours = pair.heartbeat()
    pair.follow(GROUP, 3, 0.0)
    assert pair.matches(*ours)
    pair.follow(GROUP, 4, 0.0)
    assert not pair.matches(*ours)
