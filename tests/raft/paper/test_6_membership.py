"""Raft §6 (cluster membership changes), with the single-server changes of thesis §4."""

from __future__ import annotations

import pytest

from strandline.node.raft.outcome import Applied, NotLeader, Overloaded, Unknown
from strandline.node.raft.rules.messages import MessageKind
from tests.raft.harness import CONFIG, Cluster, Replica, entry, membership


def test_6_newest_configuration_in_the_log_counts_before_it_is_committed() -> None:
    replica = Replica(terms=[1])
    replica.append(2, 1, (1, 1), log=[membership(2, 1, (1, 2, 3, 4))])
    assert (replica.group.voters, replica.group.commit) == ((1, 2, 3, 4), 0)


def test_6_truncation_brings_the_configuration_before_it_back() -> None:
    replica = Replica(terms=[1])
    replica.append(2, 1, (1, 1), log=[membership(2, 1, (1, 2, 3, 4)), entry(3, 1)])
    replica.append(3, 2, (1, 1), [2])
    assert replica.group.voters == (1, 2, 3)


def test_6_restart_keeps_an_uncommitted_configuration() -> None:
    replica = Replica(terms=[1])
    replica.append(2, 1, (1, 1), log=[membership(2, 1, (1, 2, 3, 4))])
    replica.sync()
    replica.restart()
    assert replica.group.voters == (1, 2, 3, 4)


def test_6_new_server_catches_up_without_a_vote() -> None:
    cluster = Cluster(others=(4,))
    cluster.elect(1)
    cluster.cut(4)
    future = cluster[1].group.add_member(4)
    cluster.advance(0.3)
    assert (cluster[1].group.voters, cluster[1].group.configuration.learners) == ((1, 2, 3), (4,))
    proposed = cluster[1].propose()
    cluster.settle()
    assert isinstance(proposed.result(), Applied), "a learner that is away holds nothing up"
    assert not future.done()
    cluster.heal()
    cluster.advance(0.5)
    assert isinstance(future.result(), Applied)
    assert all(cluster[node].group.voters == (1, 2, 3, 4) for node in (1, 2, 3, 4))
    assert cluster[4].machine.registers == cluster[1].machine.registers


def test_6_new_server_that_is_lost_while_it_catches_up_can_be_removed_at_once() -> None:
    cluster = Cluster(others=(4,))
    cluster.elect(1)
    cluster.cut(4)
    added = cluster[1].group.add_member(4)
    cluster.advance(0.3)
    assert not added.done()
    removed = cluster[1].group.remove_member(4)
    cluster.advance(0.3)
    assert isinstance(added.result(), Unknown)
    assert isinstance(removed.result(), Applied)
    assert cluster[1].group.configuration.members == (1, 2, 3)


def test_6_acknowledgement_of_a_learner_does_not_commit() -> None:
    replica = Replica(learners=(4,), terms=[1])
    replica.establish()
    future = replica.propose()
    replica.turn()
    replica.sync()
    replica.acknowledge(4, 3)
    assert not future.done()
    replica.acknowledge(2, 3)
    assert future.done()


def test_6_learner_neither_stands_nor_elects() -> None:
    learner = Replica(node=4, learners=(4,), terms=[1])
    learner.time_out()
    assert learner.take() == []
    candidate = Replica(learners=(4,), terms=[1])
    term = candidate.stand()
    assert all(vote.peer != 4 for vote in candidate.take(MessageKind.VOTE))
    candidate.told(4, MessageKind.VOTE_REPLY, term, True)
    assert candidate.role == "candidate"


def test_6_one_change_at_a_time() -> None:
    replica = Replica(terms=[1])
    replica.establish()
    first, second = replica.group.remove_member(3), replica.group.remove_member(2)
    assert not first.done()
    assert isinstance(second.result(), Overloaded)
    replica.sync()
    replica.acknowledge(2, replica.group.journal.last)
    assert isinstance(first.result(), Applied)


def test_6_no_change_before_an_entry_of_the_own_term_is_committed() -> None:
    """The erratum of 2015 to the thesis: else two leaders' first changes need not have a common majority."""
    replica = Replica(terms=[1])
    replica.lead()
    assert isinstance(replica.group.remove_member(3).result(), Overloaded)
    replica.sync()
    replica.acknowledge(2, 2)
    assert not replica.group.remove_member(3).done()


def test_6_old_and_new_majorities_overlap() -> None:
    for size in range(1, 8):
        before = set(range(size))
        for after in (before | {size}, before - {0}):
            if after:
                need = len(before) // 2 + 1 + len(after) // 2 + 1
                assert need > len(before | after)


def test_6_leader_that_is_not_in_the_new_configuration_steps_down_once_it_is_committed() -> None:
    replica = Replica(terms=[1])
    replica.establish()
    future = replica.group.remove_member(1)
    replica.sync()
    assert replica.role == "leader"
    replica.acknowledge(2, 3)
    assert (replica.role, replica.group.commit) == ("leader", 2), "it manages a majority it is not part of"
    replica.acknowledge(3, 3)
    assert replica.role == "follower"
    assert isinstance(future.result(), Applied)
    replica.take()
    replica.time_out()
    assert replica.take() == [], "and never stands again"


def test_6_removed_server_cannot_disrupt_the_cluster() -> None:
    cluster = Cluster(voters=(1, 2, 3, 4))
    cluster.elect(1)
    cluster.cut(4)
    removed = cluster[1].group.remove_member(4)
    cluster.advance(0.5)
    assert isinstance(removed.result(), Applied)
    cluster.heal()  # It never learned of its removal, and goes on asking.
    term = cluster[1].group.term
    cluster.advance(5.0)
    assert (cluster.leaders, cluster[1].group.term) == ([1], term)


@pytest.mark.parametrize("heard", [True, False])
def test_6_no_vote_while_a_current_leader_is_heard(heard: bool) -> None:
    replica = Replica(terms=[1], term=1)
    replica.append(2, 1, (1, 1))
    replica.advance(CONFIG.election_min_seconds * (0.9 if heard else 1.1))
    replica.told(3, MessageKind.VOTE, 5, 9, 4, False)
    replica.sync()
    assert (replica.group.vote, replica.group.term) == ((None, 1) if heard else (3, 5))
    assert bool(replica.take()) is not heard


def test_6_restarted_server_grants_no_vote_for_a_minimum_election_timeout() -> None:
    replica = Replica(terms=[1], term=1)
    replica.restart()
    assert replica.told(3, MessageKind.VOTE, 5, 9, 4, False) == []
    replica.advance(CONFIG.election_min_seconds)
    replica.told(3, MessageKind.VOTE, 5, 9, 4, False)
    assert replica.group.vote == 3


def test_6_change_ends_as_unknown_when_leadership_is_lost() -> None:
    replica = Replica(terms=[1])
    replica.establish()
    future = replica.group.remove_member(3)
    replica.append(2, 9, (2, 2), [9])
    assert isinstance(future.result(), Unknown)
    assert replica.group.voters == (1, 2, 3)


def test_6_only_a_leader_changes_members() -> None:
    replica = Replica(terms=[1], term=1)
    replica.append(2, 1, (1, 1))
    assert replica.group.add_member(4).result() == NotLeader(2)


def test_6_last_voter_cannot_be_removed() -> None:
    replica = Replica(voters=(1,))
    replica.establish()
    assert isinstance(replica.group.remove_member(1).result(), Overloaded)
