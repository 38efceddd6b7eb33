"""Raft §5.1 (terms), §5.2 (leader election) and §5.4.1 (election restriction)."""

from __future__ import annotations

import pytest

from strandline.node.raft.pysyncobj_seam import LEADER
from strandline.node.raft.rules.messages import MessageKind
from tests.raft.harness import CONFIG, Cluster, Replica

APPEND, APPEND_REPLY = MessageKind.APPEND, MessageKind.APPEND_REPLY
VOTE, VOTE_REPLY = MessageKind.VOTE, MessageKind.VOTE_REPLY
PRE_VOTE = MessageKind.PRE_VOTE


def of_role(role: str) -> Replica:
    replica = Replica(terms=[1], term=1)
    if role == "candidate":
        replica.stand()
    elif role == "leader":
        replica.establish()
    assert replica.role == role
    return replica


# 5.1 Terms.


@pytest.mark.parametrize("role", ["follower", "candidate", "leader"])
def test_5_1_higher_term_is_adopted_and_makes_a_follower(role: str) -> None:
    replica = of_role(role)
    term = replica.group.term + 4
    replica.told(3, APPEND, term, 1, 1, 0, b"", 0.0)
    assert (replica.role, replica.group.term, replica.group.leader) == ("follower", term, 3)


@pytest.mark.parametrize("role", ["candidate", "leader"])
def test_5_1_reply_of_a_higher_term_deposes(role: str) -> None:
    replica = of_role(role)
    term = replica.group.term + 1
    replica.told(3, VOTE_REPLY, term, False)
    assert (replica.role, replica.group.term, replica.group.vote) == ("follower", term, None)


def test_5_1_stale_append_is_rejected_with_the_current_term() -> None:
    replica = Replica(terms=[1], term=5)
    replica.host.now()
    replies = replica.append(2, 4, (1, 1), [4])
    assert replica.terms == [1]
    assert [(reply.peer, reply.kind, reply.term, reply.fields[0]) for reply in replies] == [
        (2, APPEND_REPLY, 5, False)
    ]


def test_5_1_stale_vote_request_is_refused_with_the_current_term() -> None:
    replica = Replica(terms=[1], term=5)
    replies = replica.told(2, VOTE, 4, 9, 4, False)
    assert [(reply.kind, reply.term, reply.fields) for reply in replies] == [(VOTE_REPLY, 5, (False,))]
    assert replica.group.vote is None


def test_5_1_stale_reply_is_ignored() -> None:
    replica = Replica(terms=[1], term=3)
    replica.lead()
    replica.acknowledge(2, 2, term=3)
    assert replica.group.progress[2].match == 0


def test_5_1_term_and_vote_are_durable_before_anything_tells_of_them() -> None:
    replica = Replica(terms=[1], term=1)
    replica.advance(1.0)
    assert replica.told(2, VOTE, 2, 1, 1, False) == []
    replica.sync()
    assert [(reply.term, reply.fields) for reply in replica.take()] == [(2, (True,))]
    replica.restart()
    assert (replica.group.term, replica.group.vote) == (2, 2)


# 5.2 Leader election.


def test_5_2_start_as_follower() -> None:
    assert Replica(terms=[1, 2], term=3, vote=1).role == "follower"


def test_5_2_restarts_as_follower_even_when_it_led() -> None:
    replica = of_role("leader")
    replica.restart()
    assert replica.role == "follower"


def test_5_2_follower_that_hears_its_leader_starts_no_election() -> None:
    replica = Replica(terms=[1], term=1)
    for _ in range(50):
        replica.append(2, 1, (1, 1))
        replica.advance(CONFIG.heartbeat_seconds)
        replica.tick()
    assert replica.take(PRE_VOTE, VOTE) == []
    assert (replica.role, replica.group.leader) == ("follower", 2)


def test_5_2_follower_starts_an_election_after_a_timeout() -> None:
    replica = Replica(terms=[1, 1], term=3)
    replica.time_out()
    assert [(asked.peer, asked.term, asked.fields) for asked in replica.take(PRE_VOTE)] == [
        (2, 3, (2, 1, replica.host.now())),
        (3, 3, (2, 1, replica.host.now())),
    ]
    assert replica.group.term == 3, "a pre-vote raises no term (thesis §9.6)"
    replica.pre_vote_from(2)
    assert (replica.role, replica.group.term, replica.group.vote) == ("candidate", 4, 1)


def test_5_2_candidate_asks_all_voters_once_its_own_vote_is_durable() -> None:
    replica = Replica(voters=(1, 2, 3, 4, 5), terms=[1, 1], term=3)
    replica.time_out()
    for peer in (2, 3):
        replica.pre_vote_from(peer)
    assert replica.role == "candidate"
    assert replica.take(VOTE) == []
    replica.sync()
    asked = replica.take(VOTE)
    assert [(vote.peer, vote.term, vote.fields) for vote in asked] == [
        (peer, 4, (2, 1, False)) for peer in (2, 3, 4, 5)
    ]


@pytest.mark.parametrize(
    ("size", "granted", "role"),
    [
        (1, 0, "leader"),
        (2, 0, "candidate"),
        (2, 1, "leader"),
        (3, 0, "candidate"),
        (3, 1, "leader"),
        (4, 1, "candidate"),
        (4, 2, "leader"),
        (5, 1, "candidate"),
        (5, 2, "leader"),
        (5, 4, "leader"),
    ],
)
def test_5_2_candidate_with_votes_of_a_majority_leads(size: int, granted: int, role: str) -> None:
    replica = Replica(voters=tuple(range(1, size + 1)))
    term = replica.stand()
    for peer in range(2, 2 + granted):
        replica.told(peer, VOTE_REPLY, term, True)
    assert replica.role == role


def test_5_2_refusals_do_not_elect() -> None:
    replica = Replica(voters=(1, 2, 3, 4, 5))
    term = replica.stand()
    for peer in (2, 3, 4, 5):
        replica.told(peer, VOTE_REPLY, term, False)
    assert replica.role == "candidate"


def test_5_2_vote_at_most_once_per_term() -> None:
    replica = Replica(terms=[1], term=1)
    replica.advance(1.0)
    replica.told(2, VOTE, 2, 1, 1, False)
    replica.sync()
    assert replica.take()[0].fields == (True,)
    assert replica.told(3, VOTE, 2, 1, 1, False)[0].fields == (False,), "first come, first served"
    assert replica.told(2, VOTE, 2, 1, 1, False)[0].fields == (True,), "the same answer to the same candidate"
    replica.restart()
    replica.advance(1.0)
    assert replica.told(3, VOTE, 2, 1, 1, False)[0].fields == (False,), "a restart forgets no vote"


def test_5_2_candidate_votes_for_nobody_else() -> None:
    replica = Replica(terms=[1], term=1)
    term = replica.stand()
    assert [reply.fields for reply in replica.told(2, VOTE, term, 9, 1, False)] == [(False,)]


@pytest.mark.parametrize("term", [2, 3])
def test_5_2_candidate_falls_back_when_another_leads(term: int) -> None:
    replica = Replica(terms=[1], term=1)
    assert replica.stand() == 2
    replica.append(3, term, (1, 1), [term])
    replica.sync()
    assert (replica.role, replica.group.term, replica.group.leader) == ("follower", term, 3)
    assert replica.terms == [1, term]


def test_5_2_candidate_starts_a_new_election_after_a_split_vote() -> None:
    replica = Replica(terms=[1], term=1)
    assert replica.stand() == 2
    assert replica.stand() == 3
    assert [(vote.peer, vote.term) for vote in replica.take(VOTE)][-2:] == [(2, 3), (3, 3)]


@pytest.mark.parametrize("role", ["follower", "candidate"])
def test_5_2_election_timeout_is_randomized(role: str) -> None:
    replica = of_role(role)
    drawn = []
    for _ in range(400):
        replica.group.reset_deadline()
        drawn.append(replica.group.deadline - replica.host.now())
    low, high = CONFIG.election_min_seconds, CONFIG.election_max_seconds
    assert low <= min(drawn) < low + 0.1 * (high - low)
    assert high - 0.1 * (high - low) < max(drawn) <= high


def test_5_2_few_split_votes() -> None:
    """Timeouts of different nodes seldom fall so close together that both stand."""
    firsts = []
    for seed in range(200):
        replicas = [Replica(node=node, terms=[1]) for node in (1, 2, 3)]
        for replica in replicas:
            replica.host.rng.seed(seed * 10 + replica.node)
            replica.group.reset_deadline()
        deadlines = sorted(replica.group.deadline for replica in replicas)
        firsts.append(deadlines[1] - deadlines[0] > 0.01)
    assert sum(firsts) > 180


def between_two_ticks() -> Replica:
    """A follower that was just ticked, and whose timeout ends before its next tick."""
    replica = Replica(terms=[1], term=1)
    replica.group.deadline = replica.host.attentive() + CONFIG.tick_seconds / 3
    replica.tick()
    assert not replica.take(PRE_VOTE)
    return replica


def test_5_2_timeout_ends_at_its_own_time_and_not_at_the_next_tick() -> None:
    """Timeouts that are rounded up to ticks are drawn from few values, and votes are often split."""
    replica = between_two_ticks()
    replica.advance(CONFIG.tick_seconds / 4)
    assert not replica.take(PRE_VOTE)
    replica.advance(CONFIG.tick_seconds / 6)
    assert [asked.peer for asked in replica.take(PRE_VOTE)] == [2, 3]


def test_5_2_timeout_is_forgotten_when_a_leader_is_heard_before_the_next_tick() -> None:
    replica = between_two_ticks()
    replica.append(2, 1, (1, 1))
    replica.advance(CONFIG.tick_seconds / 2)
    assert not replica.take(PRE_VOTE)


def test_5_2_timeout_is_forgotten_by_a_follower_that_quiesced_before_the_next_tick() -> None:
    replica = between_two_ticks()
    replica.group.quiesced_under = 2
    replica.advance(CONFIG.tick_seconds / 2)
    assert not replica.take(PRE_VOTE)


def test_5_2_timeout_is_forgotten_by_a_replica_that_leads_before_the_next_tick() -> None:
    replica = between_two_ticks()
    replica.group.role = LEADER
    replica.advance(CONFIG.tick_seconds / 2)
    assert not replica.take(PRE_VOTE)


def test_5_2_leader_sends_heartbeats() -> None:
    replica = of_role("leader")
    times = {2: 0, 3: 0}
    for _ in range(20):
        replica.advance(CONFIG.heartbeat_seconds / 2)
        replica.propose()
        replica.tick()
        replica.turn()
        for sent in replica.take(APPEND):
            times[sent.peer] += 1
        for peer in (2, 3):
            replica.acknowledge(peer, 2)
    assert min(times.values()) >= 9, "each hears its leader within every heartbeat interval"


def test_5_2_at_most_one_leader_per_term() -> None:
    cluster = Cluster(logs={1: [1], 2: [1], 3: [1]})
    for node in (1, 2, 3):
        cluster[node].stand()
    assert {cluster[node].group.term for node in (1, 2, 3)} == {2}
    cluster.settle()
    assert cluster.leaders == []


@pytest.mark.parametrize("term", [1, 2])
def test_6_voter_that_hears_a_leader_does_not_vote_in_its_term_or_a_later_one(term: int) -> None:
    """Section 6, and the thesis's leases (§6.4.1): it is told of term 2 by one that is no candidate."""
    voter = Replica(voters=(1, 2, 3, 4, 5), terms=[1])
    voter.append(2, 1, (1, 1))
    voter.told(4, MessageKind.APPEND_REPLY, term, False, 0, 0, 0, 0.0)
    voter.told(3, VOTE, term, 9, 9, False)
    voter.sync()
    assert (voter.group.term, voter.group.vote) == (term, None)
    voter.advance(CONFIG.election_min_seconds)
    voter.told(3, VOTE, term, 9, 9, False)
    voter.sync()
    assert (voter.group.term, voter.group.vote) == (term, 3)


# 5.4.1 Election restriction.


@pytest.mark.parametrize(
    ("own", "last", "last_term", "granted"),
    [
        ([1], 1, 1, True),
        ([1], 2, 1, True),
        ([1, 1], 1, 1, False),
        ([1], 1, 2, True),
        ([1, 1], 1, 2, True),
        ([2], 1, 1, False),
        ([2], 2, 1, False),
        ([1, 1, 2], 9, 1, False),
        ([], 0, 0, True),
    ],
)
def test_5_4_1_voter_denies_a_candidate_whose_log_is_behind(
    own: list[int], last: int, last_term: int, granted: bool
) -> None:
    replica = Replica(terms=own, term=3)
    replica.advance(1.0)
    replica.told(2, VOTE, 4, last, last_term, False)
    replica.sync()
    assert [reply.fields for reply in replica.take(VOTE_REPLY)] == [(granted,)]
    assert replica.group.term == 4


def test_5_4_1_pre_vote_has_the_same_restriction() -> None:
    replica = Replica(terms=[1, 2], term=3)
    replica.advance(1.0)
    assert replica.told(2, PRE_VOTE, 3, 1, 2, 7.5)[0].fields == (False, 4, 7.5)
    assert replica.told(2, PRE_VOTE, 3, 2, 2, 7.5)[0].fields == (True, 4, 7.5)


def test_5_4_1_a_node_without_the_committed_entries_is_not_elected() -> None:
    cluster = Cluster(logs={1: [1, 1], 2: [1, 1], 3: [1]})
    cluster.advance(CONFIG.election_min_seconds)
    cluster[3].time_out()
    cluster.settle()
    assert cluster[3].role == "follower"
    cluster.elect(2)
    assert cluster[3].terms[:2] == [1, 1]
