"""Raft §5.3 (log replication) and §5.4.2 (committing entries from previous terms), figures 7 and 8."""

from __future__ import annotations

import pytest

from strandline.node.raft.entries import unpack_entries
from strandline.node.raft.outcome import Applied
from strandline.node.raft.rules.messages import MessageKind
from strandline.node.raft.rules.replica_state import SafetyViolation
from tests.raft.harness import CONFIG, Cluster, Replica

APPEND, APPEND_REPLY = MessageKind.APPEND, MessageKind.APPEND_REPLY


def shape(packed: bytes) -> list[tuple[int, int]]:
    """(index, term) of the entries in an append message."""
    return [(index, term) for _, index, term in unpack_entries(packed)] if packed else []


# 5.3 Log replication.


def test_5_3_leader_appends_and_sends_in_parallel() -> None:
    replica = Replica(voters=(1, 2, 3, 4, 5), terms=[1])
    replica.establish()
    replica.propose()
    replica.turn()
    assert [(sent.peer, sent.fields[:2], shape(sent.fields[3])) for sent in replica.take(APPEND)] == [
        (peer, (2, 2), [(3, 2)]) for peer in (2, 3, 4, 5)
    ]


@pytest.mark.parametrize(
    ("size", "acknowledged", "committed"),
    [(1, 0, True), (3, 0, False), (3, 1, True), (3, 2, True), (5, 1, False), (5, 2, True), (5, 3, True)],
)
def test_5_3_leader_commits_what_a_majority_stored(size: int, acknowledged: int, committed: bool) -> None:
    replica = Replica(voters=tuple(range(1, size + 1)), terms=[1])
    replica.establish()
    future = replica.propose()
    replica.turn()
    replica.sync()
    for peer in range(2, 2 + acknowledged):
        replica.acknowledge(peer, 3)
    assert (replica.group.commit == 3) is committed
    assert future.done() is committed


def test_5_3_leader_counts_itself_only_when_its_entry_is_durable() -> None:
    replica = Replica(terms=[1])
    replica.establish()
    future = replica.propose()
    replica.turn()
    replica.acknowledge(2, 3)
    assert not future.done()
    replica.sync()
    assert isinstance(future.result(), Applied)


def test_5_3_followers_alone_are_a_majority_before_the_leader_synced() -> None:
    replica = Replica(terms=[1])
    replica.establish()
    future = replica.propose()
    replica.turn()
    for peer in (2, 3):
        replica.acknowledge(peer, 3)
    assert isinstance(future.result(), Applied)


@pytest.mark.parametrize("log", [[], [1], [1, 2], [1, 1, 2]])
def test_5_3_committing_an_entry_commits_all_preceding_ones(log: list[int]) -> None:
    replica = Replica(terms=log, term=2)
    term = replica.establish()
    assert term == 3
    assert replica.group.commit == replica.group.applied == len(log) + 1
    assert sorted(replica.machine.applied.values()) == list(range(1, len(log) + 1))


def test_5_3_follower_learns_what_is_committed_and_applies_in_order() -> None:
    replica = Replica(terms=[1])
    replica.append(2, 1, (1, 1), [1, 1], commit=2)
    assert (replica.group.commit, replica.group.applied) == (2, 2)
    replica.append(2, 1, (3, 1), commit=3)
    assert list(replica.machine.applied.values()) == [1, 2, 3]


def test_5_3_follower_answers_only_when_the_entries_are_durable() -> None:
    replica = Replica(terms=[1])
    assert replica.append(2, 1, (1, 1), [1]) == []
    assert replica.durable_terms == [1]
    replica.sync()
    assert [reply.fields[:2] for reply in replica.take(APPEND_REPLY)] == [(True, 2)]
    assert replica.durable_terms == [1, 1]


@pytest.mark.parametrize(
    ("previous", "accepted"),
    [((0, 0), True), ((1, 1), True), ((2, 2), True), ((1, 2), False), ((2, 1), False), ((3, 3), False)],
)
def test_5_3_follower_checks_the_entry_before_the_new_ones(previous: tuple[int, int], accepted: bool) -> None:
    replica = Replica(terms=[1, 2], term=3)
    replies = replica.append(2, 3, previous)
    assert [reply.fields[0] for reply in replies] == [accepted]
    assert replica.terms == [1, 2]


@pytest.mark.parametrize(
    ("previous", "terms", "after"),
    [
        ((2, 2), [3], [1, 2, 3]),
        ((1, 1), [3, 4], [1, 3, 4]),
        ((0, 0), [1], [1, 2]),
        ((0, 0), [3], [3]),
        ((1, 1), [2, 2], [1, 2, 2]),
    ],
)
def test_5_3_follower_appends_and_deletes_from_the_first_conflict(
    previous: tuple[int, int], terms: list[int], after: list[int]
) -> None:
    replica = Replica(terms=[1, 2], term=3)
    replica.append(2, 4, previous, terms)
    assert replica.terms == after
    replica.sync()
    assert replica.durable_terms == after


FIGURE_7 = {
    "a": [1, 1, 1, 4, 4, 5, 5, 6, 6],
    "b": [1, 1, 1, 4],
    "c": [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6],
    "d": [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7],
    "e": [1, 1, 1, 4, 4, 4, 4],
    "f": [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3],
}


@pytest.mark.parametrize("follower", list(FIGURE_7))
def test_5_3_figure_7_leader_brings_every_log_to_its_own(follower: str) -> None:
    leader = [1, 1, 1, 4, 4, 5, 5, 6, 6, 6]
    cluster = Cluster(logs={1: leader, 2: FIGURE_7[follower], 3: leader})
    cluster[1].group.set_term(7, None)
    cluster.settle()
    cluster.elect(1)
    assert cluster[1].terms == [*leader, 8]
    assert cluster[2].terms == cluster[1].terms
    assert cluster[2].durable_terms == cluster[1].terms
    cluster.advance(CONFIG.heartbeat_seconds)
    assert cluster[2].machine.applied == cluster[1].machine.applied


@pytest.mark.parametrize("follower", list(FIGURE_7))
def test_5_3_the_point_where_two_logs_part_is_found_in_a_few_messages(follower: str) -> None:
    """One round at most for each term that differs (the optimisation at the end of §5.3)."""
    leader = [1, 1, 1, 4, 4, 5, 5, 6, 6, 6]
    replica, other = Replica(terms=leader, term=7), Replica(node=2, terms=FIGURE_7[follower], term=7)
    replica.lead()
    rounds = 0
    while replica.group.progress[2].match < 11:
        rounds += 1
        assert rounds < 10
        for sent in replica.take(APPEND):
            if sent.peer == 2:
                other.told(1, sent.kind, sent.term, *sent.fields)
                other.sync()
        for reply in other.take():
            replica.told(2, reply.kind, reply.term, *reply.fields)
            replica.turn()
        replica.advance(CONFIG.heartbeat_seconds)
        replica.tick()
        replica.turn()
    assert rounds <= 5


def test_5_3_leader_never_overwrites_its_own_log() -> None:
    replica = Replica(terms=[1, 2], term=2)
    replica.establish()
    with pytest.raises(SafetyViolation, match="both lead term 3"):
        replica.append(2, 3, (1, 1), [3])
    assert replica.terms == [1, 2, 3]


def test_5_3_appends_are_idempotent() -> None:
    replica = Replica(terms=[1])
    for _ in range(3):
        replies = replica.append(2, 1, (1, 1), [1, 1], commit=2)
        replica.sync()
        assert [reply.fields[:2] for reply in (*replies, *replica.take())] == [(True, 3)]
    assert replica.terms == replica.durable_terms == [1, 1, 1]
    assert len(replica.machine.applied) == 2


def test_5_3_leader_retries_until_every_follower_stored_all() -> None:
    cluster = Cluster()
    cluster.elect(1)
    cluster.cut(3)
    futures = [cluster[1].propose(number) for number in range(5)]
    cluster.advance(1.0)
    assert all(future.done() for future in futures)
    assert cluster[3].terms == [1]
    cluster.heal()
    cluster.advance(0.5)
    assert cluster[3].durable_terms == cluster[1].terms


def test_5_3_log_matching() -> None:
    """Entries of one index and term are the same command, and all before them are the same too."""
    cluster = Cluster()
    for leader in (1, 2, 3, 1):
        cluster.elect(leader)
        cluster[leader].propose(leader)
        cluster.settle()
    logs = [cluster[node].group.journal.after(0) for node in (1, 2, 3)]
    assert logs[0] == logs[1] == logs[2]


def test_5_3_committed_entries_are_never_deleted() -> None:
    replica = Replica(terms=[1, 1], term=1)
    replica.append(2, 1, (2, 1), commit=2)
    with pytest.raises(SafetyViolation, match="committed"):
        replica.group.following.truncate(2)
    replica.append(3, 2, (0, 0), [2, 2, 2])
    assert replica.terms == [1, 1, 2], "what is committed is in every later leader's log (§5.4.3)"


# 5.4.2 Committing entries from previous terms.


@pytest.mark.parametrize(("index", "committed"), [(1, 0), (2, 0), (3, 3)])
def test_5_4_2_leader_only_commits_log_from_current_term(index: int, committed: int) -> None:
    replica = Replica(terms=[1, 2], term=2)
    assert replica.lead() == 3
    replica.sync()
    replica.acknowledge(2, index)
    assert replica.group.commit == committed


def test_5_4_2_figure_8() -> None:
    """An entry of term 2 that a majority holds can still be overwritten, so it is not committed."""
    logs = {1: [1, 2], 2: [1, 2], 3: [1], 4: [1], 5: [1]}
    cluster = Cluster(voters=(1, 2, 3, 4, 5), logs=logs)
    cluster.cut(1, 2)
    s5 = cluster[5]  # (b) S5 leads term 3 with votes from S3 and S4, and writes one entry.
    for node in (3, 4, 5):
        cluster[node].group.set_term(2, None)
    cluster.advance(CONFIG.election_min_seconds)
    s5.lead()
    s5.sync()
    s5.take()
    assert s5.terms == [1, 3]
    s1 = cluster[1]  # (c) S1 leads term 4, and a majority gets the entry of term 2, not yet that of term 4.
    s1.group.set_term(3, None)
    s1.lead()
    s1.sync()
    for peer in (2, 3):
        s1.acknowledge(peer, 2)
    assert s1.terms == [1, 2, 4]
    assert s1.group.commit == 0, "a majority holds the entry of term 2, but it can still be overwritten"
    for term in ([2], [2, 4]):  # (d) or (e): S5 would be elected against [1, 2], but not against [1, 2, 4].
        voter = Replica(node=2, voters=(1, 2, 3, 4, 5), terms=[1, *term], term=4)
        voter.advance(1.0)
        voter.told(5, MessageKind.VOTE, 5, 2, 3, False)
        voter.sync()
        assert voter.take()[-1].fields == (term == [2],)
    s1.acknowledge(2, 3)
    s1.acknowledge(3, 3)
    assert s1.group.commit == 3, "with an entry of its own term all before it are committed too"


def test_5_4_2_old_entries_are_committed_indirectly() -> None:
    cluster = Cluster(logs={1: [1, 1, 2], 2: [1], 3: []})
    cluster.elect(1)
    assert cluster[1].group.commit == 4
    assert len(cluster[1].machine.applied) == 3


def test_5_4_3_leader_completeness() -> None:
    """Whoever is elected after an entry was committed holds it, whichever majority that takes."""
    for committed_on, elected in [((1, 2), 2), ((1, 3), 3)]:
        logs = {node: [1, 1] if node in committed_on else [1] for node in (1, 2, 3)}
        for candidate in (2, 3):
            cluster = Cluster(logs=logs)
            cluster.cut(1)
            cluster.advance(2.0)
            assert cluster.leaders == [elected], candidate


# 5.5 and 5.6.


def test_5_5_messages_may_be_repeated_and_reordered() -> None:
    replica = Replica(terms=[])
    first = ((0, 0), [1, 1])
    second = ((2, 1), [1, 1])
    replica.append(2, 1, second[0], second[1], commit=0)
    assert replica.terms == []
    for previous, terms in (first, second, first, second):
        replica.append(2, 1, previous, terms, commit=1)
    assert replica.terms == [1, 1, 1, 1]


def test_5_6_timing_requirement_is_checked() -> None:
    with pytest.raises(ValueError, match="heartbeat_seconds"):
        type(CONFIG)(heartbeat_seconds=0.3)
    with pytest.raises(ValueError, match="election_min_seconds"):
        type(CONFIG)(election_max_seconds=0.4)
