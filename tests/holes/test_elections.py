"""Holes in elections, leases, leadership transfer and the heartbeats of idle groups."""

from __future__ import annotations

import asyncio
from typing import Any

from node.raft.group import RaftGroup
from node.raft.messages import MessageKind
from node.raft.outcome import Applied, NotLeader, Outcome
from node.raft.pairs import Pair
from node.raft.progress import NEVER, Progress
from node.raft.pysyncobj_seam import CANDIDATE
from node.raft.quiet_heartbeats import HEARTBEAT, QuietHeartbeats
from tests.fake_host import FakeHost
from tests.holes.hole import hole
from tests.raft_harness import CONFIG, GROUP, Cluster, Replica

APPEND, VOTE, VOTE_REPLY = MessageKind.APPEND, MessageKind.VOTE, MessageKind.VOTE_REPLY


# Votes are counted, not voters.


class CountsVotes(RaftGroup):
    count = 0

    def count_vote(self, voter: int) -> None:
        self.count += 1
        if self.count * 2 > len(self.voters):
            self.become_leader()


@hole(RaftGroup, CountsVotes)
def test_doubled_vote_is_one_vote(group_class: type[RaftGroup]) -> None:
    candidate = Replica(voters=(1, 2, 3, 4, 5), terms=[1], group_class=group_class)
    term = candidate.stand()
    for _ in range(3):
        candidate.told(2, VOTE_REPLY, term, True)
    assert candidate.role == "candidate"


class CountsStrangers(RaftGroup):
    def on_vote_reply(self, peer: int, granted: bool) -> None:
        if granted and self.role == CANDIDATE:
            self.count_vote(peer)

    def has_majority(self, nodes: set[int]) -> bool:
        return len(nodes) * 2 > len(self.voters)


@hole(RaftGroup, CountsStrangers)
def test_vote_of_a_node_that_is_no_voter_does_not_count(group_class: type[RaftGroup]) -> None:
    candidate = Replica(terms=[1], group_class=group_class)
    term = candidate.stand()
    candidate.told(9, VOTE_REPLY, term, True)
    assert candidate.role == "candidate"


class AnswersOnce(RaftGroup):
    def may_vote_for(self, peer: int) -> bool:
        return self.vote is None


@hole(RaftGroup, AnswersOnce)
def test_vote_whose_answer_was_lost_is_given_again(group_class: type[RaftGroup]) -> None:
    voter = Replica(terms=[1], group_class=group_class)
    voter.advance(CONFIG.election_min_seconds)
    for _ in range(2):
        replies = voter.told(2, VOTE, 2, 1, 1, False)
        voter.sync()
        assert [reply.fields for reply in (*replies, *voter.take())] == [(True,)]


# A returning node deposes a healthy leader.


class StandsAtOnce(RaftGroup):
    def start_pre_vote(self) -> None:
        self.campaign()


@hole(RaftGroup, StandsAtOnce)
def test_returning_node_does_not_depose_the_leader(group_class: type[RaftGroup]) -> None:
    cluster = Cluster(group_class=group_class)
    cluster.elect(1)
    term = cluster[1].group.term
    cluster.cut(3)
    cluster.advance(5.0)
    cluster.heal()
    cluster.advance(2.0)
    assert (cluster.leaders, cluster[1].group.term) == ([1], term)


class AlwaysListens(RaftGroup):
    def ignores_vote(self, transfer: bool) -> bool:
        return False


@hole(RaftGroup, AlwaysListens)
def test_no_vote_while_a_leader_is_heard(group_class: type[RaftGroup]) -> None:
    voter = Replica(terms=[1], group_class=group_class)
    voter.append(2, 1, (1, 1))
    voter.advance(CONFIG.election_min_seconds * 0.9)
    voter.told(3, VOTE, 9, 9, 9, False)
    assert (voter.group.vote, voter.group.term) == (None, 1)


class PromisesNothing(RaftGroup):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.heard_at = NEVER


@hole(RaftGroup, PromisesNothing)
def test_restarted_node_grants_no_vote_while_a_lease_may_run(group_class: type[RaftGroup]) -> None:
    voter = Replica(terms=[1], group_class=group_class)
    voter.append(2, 1, (1, 1))
    voter.restart()
    voter.advance(CONFIG.lease_seconds)
    voter.told(3, VOTE, 2, 1, 1, False)
    assert voter.group.vote is None


class StandsThoughRemoved(RaftGroup):
    def may_campaign(self) -> bool:
        return True


@hole(RaftGroup, StandsThoughRemoved)
def test_node_that_is_no_voter_stands_for_nothing(group_class: type[RaftGroup]) -> None:
    removed = Replica(node=4, voters=(1, 2, 3), terms=[1], group_class=group_class)
    for _ in range(3):
        removed.time_out()
    assert removed.take() == []


# A leader without a quorum leads on; its lease.


class LeadsOnAlone(RaftGroup):
    def lost_quorum(self) -> bool:
        return False


@hole(RaftGroup, LeadsOnAlone)
def test_leader_without_a_quorum_steps_down_within_an_election_timeout(group_class: type[RaftGroup]) -> None:
    cluster = Cluster(group_class=group_class)
    cluster.elect(1)
    cluster.cut(1)
    cluster.advance(CONFIG.election_max_seconds + 3 * CONFIG.heartbeat_seconds)
    assert 1 not in cluster.leaders


class QuietWithTheSilent(RaftGroup):
    def may_quiet(self, peer: int, progress: Progress, now: float) -> bool:
        return progress.match == self.journal.last and self.is_idle()


@hole(RaftGroup, QuietWithTheSilent)
def test_quorum_that_falls_silent_in_quiet_is_missed_within_an_election_timeout(
    group_class: type[RaftGroup],
) -> None:
    """A read had the group answered by itself after the last shared heartbeat: the quorum lasts longer."""
    cluster = Cluster(group_class=group_class)
    cluster.elect(1)
    cluster.advance(1.0)
    assert not cluster[1].host.active, "the pair's heartbeat stands for the group"
    cluster[1].group.lease_allowed = False
    while cluster[1].host.pair(2).sent_at == cluster.loop.now:
        cluster.advance(CONFIG.heartbeat_seconds / 2)
    read = cluster[1].read()
    cluster.settle()
    assert isinstance(read.step(), Applied)
    cluster.mute = {1}
    cluster.advance(CONFIG.election_min_seconds + 3 * CONFIG.heartbeat_seconds)
    assert 1 not in cluster.leaders


class LeasesFromReceipt(RaftGroup):
    def on_append_reply(
        self, peer: int, accepted: bool, index: int, hint: int, hint_term: int, sent_at: float
    ) -> None:
        super().on_append_reply(peer, accepted, index, hint, hint_term, self.host.now())


@hole(RaftGroup, LeasesFromReceipt)
def test_lease_runs_from_when_the_acknowledged_message_was_sent(group_class: type[RaftGroup]) -> None:
    leader = Replica(terms=[1], group_class=group_class)
    leader.establish()
    leader.propose()
    leader.turn()
    sent_at = leader.host.now()
    leader.host.loop.advance(3.0)  # Paused: meanwhile another may have been elected.
    leader.acknowledge(2, 3, sent_at=sent_at)
    assert not leader.group.has_lease()


class ReadsWhatItHas(RaftGroup):
    async def barrier(self) -> Outcome:
        if self.role == CANDIDATE or not self.is_leader:
            return self.not_leader()
        return Applied(None, self.applied, self.term)


@hole(RaftGroup, ReadsWhatItHas)
def test_read_on_a_deposed_leader_is_not_answered(group_class: type[RaftGroup]) -> None:
    cluster = Cluster(group_class=group_class)
    cluster.elect(1)
    cluster[1].group.lost_quorum = lambda: False  # type: ignore[method-assign]
    cluster.cut(1)
    cluster.advance(3.0)
    new = next(node for node in cluster.leaders if node != 1)
    written = cluster[new].propose()
    cluster.settle()
    assert isinstance(written.result(), Applied)
    assert not isinstance(cluster[1].read().outcome, Applied)


class CountsEarlierHeartbeats(RaftGroup):
    def acked_at(self, peer: int) -> float:
        progress = self.progress.get(peer)
        if progress is None:
            return NEVER
        if progress.quiet_since is not None:
            return max(self.host.pair(peer).acked_sent_at, progress.acked_sent_at)
        return progress.acked_sent_at


@hole(RaftGroup, CountsEarlierHeartbeats)
def test_heartbeat_sent_before_a_group_fell_quiet_says_nothing_of_it(group_class: type[RaftGroup]) -> None:
    """Both happen at one time, in one tick: the heartbeat left first, and did not stand for the group."""
    leader = Replica(terms=[1], group_class=group_class)
    leader.establish()
    leader.advance(1.0)
    now = leader.host.now()
    for peer in (2, 3):
        leader.group.begin_quiet_towards(peer, leader.group.progress[peer], now)
        leader.host.pair(peer).acked_sent_at = now
    assert not leader.group.has_lease()


# Leadership transfer by ordinary votes.


class OrdinaryTransfer(RaftGroup):
    def ignores_vote(self, transfer: bool) -> bool:
        return self.hears_leader()


@hole(RaftGroup, OrdinaryTransfer)
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


class KeepsItsLease(RaftGroup):
    def has_lease(self) -> bool:
        return self.lease_start() + self.settings.lease_seconds > self.host.now()


@hole(RaftGroup, KeepsItsLease)
def test_leader_gives_up_its_lease_when_it_hands_over(group_class: type[RaftGroup]) -> None:
    leader = Replica(terms=[1], group_class=group_class)
    leader.establish()
    assert leader.group.has_lease()
    leader.group.transfer(2)
    assert not leader.group.has_lease()


class HandsOverAtOnce(RaftGroup):
    def transfer_ready(self) -> bool:
        return True


@hole(RaftGroup, HandsOverAtOnce)
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


# Heartbeats for each group.


class NeverQuiet(RaftGroup):
    def may_quiet(self, peer: int, progress: Progress, now: float) -> bool:
        return False


@hole(RaftGroup, NeverQuiet)
def test_idle_group_sends_nothing(group_class: type[RaftGroup]) -> None:
    cluster = Cluster(group_class=group_class)
    cluster.elect(1)
    cluster.advance(1.0)
    sent = [len(cluster[node].host.history) for node in (1, 2, 3)]
    cluster.advance(5.0)
    assert [len(cluster[node].host.history) for node in (1, 2, 3)] == sent
    assert cluster.leaders == [1]
    assert not any(cluster[node].host.active for node in (1, 2, 3))


class AcceptsAnyHeartbeat(QuietHeartbeats):
    def accepts(self, pair: Pair, count: int, digest: int) -> bool:
        return True


@hole(QuietHeartbeats, AcceptsAnyHeartbeat)
def test_heartbeat_of_a_restarted_leader_refreshes_nothing(heartbeats: type[QuietHeartbeats]) -> None:
    follower = Replica(node=2, terms=[1])
    follower.host.quiet = heartbeats(follower.host.quiet._host)
    follower.append(1, 1, (1, 1))
    follower.told(1, MessageKind.QUIET, 1, 1)
    assert follower.group.quiet_under == 1
    for _ in range(8):  # The leader has restarted: it leads nothing, and says so.
        follower.advance(CONFIG.heartbeat_seconds)
        follower.host.quiet.on_frame(1, [HEARTBEAT, 1.0, 0, 0])
        follower.host.quiet.tick(follower.host.now())
    assert follower.group.quiet_under is None


class AgreesToAnything(RaftGroup):
    def on_quiet(self, peer: int, last: int) -> None:
        self.follow(peer)
        self.quiet_under = peer
        self.host.pair(peer).follow(self.id, self.term, self.host.now())
        self.host.set_active(self, False)


@hole(RaftGroup, AgreesToAnything)
def test_follower_that_lacks_an_entry_does_not_fall_quiet(group_class: type[RaftGroup]) -> None:
    follower = Replica(node=2, terms=[1], group_class=group_class)
    follower.append(1, 1, (1, 1))
    follower.told(1, MessageKind.QUIET, 1, 2)
    assert follower.group.quiet_under is None
    assert follower.host.active


class QuietUncommitted(RaftGroup):
    def is_idle(self) -> bool:
        return not self.readers


@hole(RaftGroup, QuietUncommitted)
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
    assert leader.take(MessageKind.QUIET) == []


def test_two_sets_of_quiet_groups_are_told_apart() -> None:
    host = FakeHost(1, Replica().host.loop, CONFIG, Replica().host.disk)
    pair = host.pair(2)
    pair.lead(GROUP, 3, 0.0)
    ours = pair.heartbeat()
    pair.follow(GROUP, 3, 0.0)
    assert pair.matches(*ours)
    pair.follow(GROUP, 4, 0.0)
    assert not pair.matches(*ours)
