"""What an earlier process, folder or replica of this node may have applied: `committed_before`."""

from __future__ import annotations

from tests.raft.harness import Replica


def test_a_replica_that_begins_without_a_log_takes_the_leaders_word_for_what_was_committed() -> None:
    replica = Replica()
    replica.append(2, 1, (0, 0), [1, 1], commit=90)
    assert (replica.group.applied, replica.group.committed_before) == (2, 90)
    replica.append(2, 1, (2, 1), [1], commit=91)
    assert replica.group.committed_before == 90, "the first word counts: what came since is new"


def test_a_leader_that_has_committed_nothing_of_its_own_term_may_not_know_it() -> None:
    replica = Replica()
    replica.append(2, 7, (0, 0), [1, 1, 7], commit=2)
    assert (replica.group.applied, replica.group.committed_before) == (2, None)
    replica.append(2, 7, (3, 7), commit=9)
    assert replica.group.committed_before == 9


def test_a_restart_asks_again() -> None:
    """An entry may be applied before it is on the own disk."""
    replica = Replica(terms=[1])
    replica.sync()
    replica.append(2, 1, (1, 1), [1], commit=2)
    assert replica.group.applied == 2
    replica.restart()
    assert (replica.group.journal.last, replica.group.committed_before) == (1, None)
    replica.append(2, 1, (1, 1), [1], commit=2)
    assert replica.group.committed_before == 2


def test_a_leader_has_all_of_it_below_its_first_entry() -> None:
    replica = Replica(terms=[1, 1])
    replica.establish()
    assert replica.group.committed_before == replica.group.term_start == 3
    replica.append(2, 9, (3, 2), [9], commit=4)
    assert (replica.group.commit, replica.group.committed_before) == (4, 3), "known since it led"
