"""Raft §8 (client interaction): the leader's first entry, linearizable reads, what a client is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.node.raft.entries import EntryKind, unpack_entries
from strandline.node.raft.outcome import Applied, NotLeader, Overloaded, Unknown
from strandline.node.raft.rules.messages import MessageKind
from tests.raft.harness import CONFIG, Cluster, Replica
from tests.raft.register_map import set_register

NO_LEASE = replace(CONFIG, lease_fraction=1e-9)


def test_8_leader_begins_with_an_entry_of_its_term() -> None:
    replica = Replica(terms=[1, 1])
    term = replica.lead()
    packed = replica.take(MessageKind.APPEND)[0].fields[3]
    assert [(command[0], index, at) for command, index, at in unpack_entries(packed)] == [
        (EntryKind.BEGIN_TERM, 3, term)
    ]
    replica.sync()
    replica.acknowledge(2, 3)
    assert (replica.machine.term, replica.machine.leader) == (term, 1)


def test_8_client_is_told_who_leads() -> None:
    replica = Replica(terms=[1], term=1)
    replica.append(3, 1, (1, 1))
    assert replica.group.replicate(set_register(1, "x", 1), 1).result() == NotLeader(3)


def test_8_read_on_a_follower_is_refused() -> None:
    replica = Replica(terms=[1], term=1)
    replica.append(3, 1, (1, 1))
    assert replica.read().outcome == NotLeader(3)


def test_8_read_waits_for_the_first_commit_of_the_term() -> None:
    """A new leader does not know yet which entries are committed."""
    replica = Replica(terms=[1, 1])
    replica.lead()
    replica.sync()
    reading = replica.read()
    replica.acknowledge(2, 2)
    assert reading.step() is None
    replica.acknowledge(2, 3)
    assert isinstance(reading.step(), Applied)
    assert replica.machine.registers == {"x": 2}


def test_8_read_confirms_leadership_with_a_majority() -> None:
    replica = Replica(voters=(1, 2, 3, 4, 5), config=NO_LEASE)
    replica.establish()
    replica.advance(0.05)
    reading = replica.read()
    asked = replica.take(MessageKind.APPEND)
    assert sorted(sent.peer for sent in asked) == [2, 3, 4, 5]
    replica.acknowledge(2, 1)
    assert reading.step() is None
    replica.acknowledge(3, 1)
    assert isinstance(reading.step(), Applied)


def test_8_answers_to_older_messages_confirm_nothing() -> None:
    replica = Replica(config=NO_LEASE)
    replica.establish()
    before = replica.host.now()
    replica.advance(0.05)
    reading = replica.read()
    replica.acknowledge(2, 1, sent_at=before)
    replica.acknowledge(3, 1, sent_at=before)
    assert reading.step() is None
    replica.acknowledge(3, 1)
    assert isinstance(reading.step(), Applied)


def test_8_lease_answers_reads_without_a_round() -> None:
    replica = Replica()
    replica.establish()
    replica.advance(CONFIG.lease_seconds * 0.9)
    assert isinstance(replica.read().outcome, Applied)
    assert replica.take() == []


def test_8_lease_runs_out() -> None:
    replica = Replica()
    replica.establish()
    replica.advance(CONFIG.lease_seconds * 1.1)
    assert replica.read().outcome is None


def test_8_lease_ends_before_another_can_be_elected() -> None:
    """Whoever answered the leader refuses to vote for longer than the lease lasts, by clocks that drift."""
    assert CONFIG.lease_seconds * 1.5 < CONFIG.election_min_seconds


def test_8_deposed_leader_answers_no_read() -> None:
    cluster = Cluster(config=NO_LEASE)
    cluster.elect(1)
    cluster.loop.advance(0.01)
    cluster.cut(1)
    reading = cluster[1].read()
    cluster.advance(3.0)
    assert isinstance(reading.step(), NotLeader)
    assert cluster.leaders
    assert cluster.leaders != [1]


def test_8_read_sees_every_write_acknowledged_before_it() -> None:
    cluster = Cluster()
    for leader in (1, 2, 3):
        cluster.elect(leader)
        written = cluster[leader].propose(leader, leader)
        cluster.settle()
        assert isinstance(written.result(), Applied)
        reading = cluster[leader].read()
        cluster.settle()
        assert isinstance(reading.step(), Applied)
        assert cluster[leader].machine.registers["x"] == leader


def test_8_each_command_is_applied_once_on_every_replica() -> None:
    cluster = Cluster()
    for number, leader in enumerate((1, 2, 3, 2, 1)):
        cluster.elect(leader)
        cluster[leader].propose(number)
        cluster.settle()
    cluster.advance(1.0)
    for node in (1, 2, 3):
        assert len(cluster[node].machine.applied) == 5
        assert cluster[node].machine.doubled == []


@pytest.mark.parametrize("fate", ["applied", "replaced", "never heard"])
def test_8_command_of_a_deposed_leader_ends_as_what_happened(fate: str) -> None:
    replica = Replica(terms=[1])
    replica.establish()
    future = replica.propose()
    replica.turn()
    if fate == "applied":
        replica.append(2, 9, (3, 2), [9], commit=4)
        assert isinstance(future.result(), Applied)
    elif fate == "replaced":
        replica.append(2, 9, (2, 2), [9], commit=3)
        assert isinstance(future.result(), NotLeader)
    else:
        replica.append(2, 9, (2, 2))
        assert not future.done()
        replica.advance(CONFIG.command_grace_seconds)
        assert isinstance(future.result(), Unknown)


def test_8_bounds_reject_at_once() -> None:
    replica = Replica(voters=(1, 2), config=replace(CONFIG, max_pending_commands=2))
    replica.establish()
    futures = [replica.propose(number) for number in range(3)]
    assert [future.done() for future in futures] == [False, False, True]
    assert isinstance(futures[2].result(), Overloaded)
