"""Raft §7 (log compaction)."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from strandline.node.raft.config import RaftConfig
from strandline.node.raft.outcome import Applied, Unknown
from strandline.node.raft.rules.messages import MessageKind
from strandline.node.raft.snapshots.sending import STUCK_SECONDS
from strandline.node.raft.snapshots.taking import SnapshotTaking
from strandline.node.raft.snapshots.transfer import Status
from strandline.statemachine.machine import Captured
from tests.raft.harness import CONFIG, GROUP, Cluster, Replica, entry, membership, state_at

SMALL = replace(CONFIG, trailing_entries=0, snapshot_chunk_bytes=64)


def committed(count: int, *, trailing: int = 0) -> Replica:
    replica = Replica(terms=[1] * count, config=replace(SMALL, trailing_entries=trailing))
    replica.append(2, 1, (count, 1), commit=count)
    replica.sync()
    return replica


def test_7_each_server_snapshots_its_own_committed_entries() -> None:
    replica = committed(5)
    assert replica.group.taking.take()
    replica.host.run_jobs()
    assert (replica.group.snapshot_index, replica.group.snapshot_term) == (5, 1)
    assert (replica.group.journal.base, replica.group.journal.base_term, replica.terms) == (5, 1, [])
    assert replica.host.snapshots.load(GROUP, 5).state == replica.machine.snapshot()


def test_7_the_state_is_written_down_by_a_disk_job_as_it_was_captured() -> None:
    """A large one takes longer than an election; meanwhile entries are applied."""
    replica = committed(5)
    made: list[bytes] = []
    before, capture = replica.machine.snapshot(), replica.machine.capture

    def captured() -> Captured:
        of = capture()

        def make() -> bytes:
            made.append(of())
            return made[-1]

        return make

    replica.machine.capture = captured  # type: ignore[method-assign]
    assert replica.group.taking.take()
    assert made == []
    replica.host.run_jobs()
    assert made == [before]
    assert replica.host.snapshots.load(GROUP, 5).state == before


@pytest.mark.parametrize(("room", "left"), [(10**6, 4), (2, 2), (1, 1), (0, 0)])
def test_7_entries_kept_behind_a_snapshot_are_bounded_in_bytes_too(room: int, left: int) -> None:
    """Entries may have the bytes of batches in them: a thousand of those are no small thing to keep."""
    length = len(entry(1, 1)[0])
    config = replace(SMALL, trailing_entries=4, trailing_bytes=room * length)
    replica = Replica(terms=[1] * 6, config=config)
    replica.append(2, 1, (6, 1), commit=6)
    replica.sync()
    assert replica.group.taking.take()
    replica.host.run_jobs()
    assert replica.terms == [1] * left


def test_7_a_log_that_is_to_be_short_keeps_less_behind_its_snapshot() -> None:
    """Once only; and what stayed behind one that is there already goes without another."""
    length = len(entry(1, 1)[0])
    config = replace(SMALL, trailing_entries=4)
    replica = Replica(terms=[1] * 6, config=config)
    replica.append(2, 1, (6, 1), commit=6)
    replica.sync()
    taking = replica.group.taking
    assert taking.log_bytes == 6 * length
    assert taking.shorten(3 * length)
    assert taking.log_bytes == 0, "it is under way"
    replica.host.run_jobs()
    assert (replica.terms, taking.log_bytes) == ([1] * 3, 3 * length)
    assert not taking.shorten(length)
    assert (replica.terms, taking.log_bytes) == ([1], length)
    replica.append(2, 1, (6, 1), log=[entry(number, 1) for number in range(7, 13)], commit=12)
    replica.sync()
    assert taking.take()
    replica.host.run_jobs()
    assert (replica.terms, taking.log_bytes) == ([1] * 4, 4 * length)


def test_7_a_log_that_is_to_be_short_is_once_the_snapshot_under_way_is_stored() -> None:
    length = len(entry(1, 1)[0])
    replica = Replica(terms=[1] * 6, config=replace(SMALL, trailing_entries=4))
    replica.append(2, 1, (6, 1), commit=6)
    replica.sync()
    taking = replica.group.taking
    assert taking.take()
    assert not taking.shorten(2 * length)
    replica.host.run_jobs()
    assert (replica.terms, taking.log_bytes) == ([1] * 2, 2 * length)


def test_7_nothing_is_discarded_before_the_snapshot_is_durable() -> None:
    replica = committed(5)
    replica.group.taking.take()
    assert replica.terms == [1] * 5
    replica.restart()
    assert replica.terms == [1] * 5


def test_7_snapshot_holds_the_configuration_of_its_index() -> None:
    replica = Replica(terms=[1, 1])
    replica.append(2, 1, (2, 1), log=[membership(3, 1, (1, 2, 3, 4))], commit=2)
    replica.group.taking.take()
    replica.host.run_jobs()
    document = replica.host.snapshots.load(GROUP, 2)
    assert (document.voters, replica.group.voters) == ((1, 2, 3), (1, 2, 3, 4))


def test_7_follower_that_is_far_behind_gets_the_snapshot() -> None:
    cluster = Cluster(config=SMALL)
    cluster.elect(1)
    cluster.cut(3)
    for number in range(20):
        cluster[1].propose(number, number, str(number))
    cluster.settle()
    cluster[1].group.taking.take()
    cluster.settle()
    assert cluster[1].group.journal.base == 21
    cluster.heal()
    cluster.advance(1.0)
    assert cluster[3].group.journal.base == 21
    assert cluster[3].machine.snapshot() == cluster[1].machine.snapshot()
    future = cluster[1].propose(99)
    cluster.settle()
    assert future.done()
    assert cluster[3].durable_terms == [1]


def test_7_snapshot_beyond_the_log_replaces_it() -> None:
    replica = Replica(terms=[1, 1])
    replica.install(state_at(5, 2))
    assert (replica.group.journal.base, replica.terms) == (5, [])
    assert (replica.group.applied, replica.group.commit) == (5, 5)
    assert replica.machine.registers == {"x": 5}


def test_7_snapshot_of_a_prefix_keeps_the_entries_that_follow() -> None:
    replica = Replica(terms=[1, 1, 1, 1])
    replica.install(state_at(2, 1))
    assert (replica.group.journal.base, replica.terms) == (2, [1, 1])
    replica.append(2, 1, (4, 1), [1], commit=4)
    assert replica.machine.registers == {"x": 4}


def test_7_snapshot_that_conflicts_discards_the_entries_that_follow() -> None:
    replica = Replica(terms=[1, 1, 1, 1])
    replica.install(state_at(2, 2))
    assert (replica.group.journal.base, replica.group.journal.base_term, replica.terms) == (2, 2, [])


def test_7_old_snapshot_changes_nothing() -> None:
    replica = committed(4)
    replica.install(state_at(2, 1))
    assert (replica.group.applied, replica.terms) == (4, [1] * 4)
    assert replica.machine.registers == {"x": 4}


def test_7_restart_restores_the_snapshot_and_the_entries_after_it() -> None:
    replica = committed(5)
    replica.group.taking.take()
    replica.host.run_jobs()
    replica.turn()
    replica.append(2, 1, (5, 1), [1, 1])
    replica.sync()
    replica.restart()
    assert (replica.group.journal.base, replica.terms) == (5, [1, 1])
    assert replica.machine.registers == {"x": 5}


def test_7_append_below_the_snapshot_is_taken_from_where_the_log_begins() -> None:
    replica = committed(5)
    replica.group.taking.take()
    replica.host.run_jobs()
    replica.turn()
    replica.sync()
    replies = replica.append(2, 1, (3, 1), [1, 1, 1])
    replica.sync()
    assert replica.terms == [1]
    assert [reply.fields[:2] for reply in (*replies, *replica.take())] == [(True, 6)]


@pytest.mark.parametrize("lost", [0, 64, 128])
def test_7_chunks_are_sent_again_when_lost(lost: int) -> None:
    data = state_at(9, 1).encode()
    replica = Replica(terms=[1])
    digest = data[8:40]
    finished = False
    dropped = False
    offset = 0
    while not finished:
        chunk = data[offset : offset + 64]
        if offset == lost and not dropped:
            dropped = True
            offset += 64
            continue
        fields = (9, 1, offset, len(data), digest, chunk, 0.0)
        replies = replica.told(2, MessageKind.SNAPSHOT, 1, *fields)
        replica.host.run_jobs()
        replica.sync()
        reply = (replies + replica.take())[-1]
        finished = reply.fields[2] == Status.DONE
        offset = reply.fields[1]
    assert replica.machine.registers == {"x": 9}


def test_7_leader_keeps_leading_while_it_sends_a_snapshot() -> None:
    cluster = Cluster(config=replace(SMALL, snapshot_chunk_bytes=8))
    cluster.elect(1)
    cluster.cut(3)
    for number in range(200):
        cluster[1].propose(number, number, str(number))
    cluster.settle()
    cluster[1].group.taking.take()
    cluster.settle()
    cluster.heal()
    cluster.advance(3.0)
    assert cluster.leaders == [1]
    assert cluster[3].machine.snapshot() == cluster[1].machine.snapshot()


def sending_to_3(config: RaftConfig) -> tuple[Replica, int]:
    """A leader that has begun to send node 3 a snapshot, and the snapshot's index."""
    leader = Replica(config=config)
    leader.establish()
    go_on(leader, 5, 2)
    leader.told(3, MessageKind.NEED_SNAPSHOT, leader.group.term, 1, 0.0)
    leader.host.run_jobs()
    assert leader.take(MessageKind.SNAPSHOT)
    return leader, leader.group.snapshot_index


def go_on(leader: Replica, count: int, *peers: int) -> None:
    """Commit so many entries with these followers, and store a snapshot."""
    for number in range(count):
        leader.propose(number)
    leader.sync()
    for peer in peers:
        leader.acknowledge(peer, leader.group.journal.last)
    leader.group.taking.take()
    leader.host.run_jobs()
    leader.sync()
    assert leader.group.snapshot_index == leader.group.journal.last


def test_7_what_follows_a_snapshot_on_its_way_stays_until_its_receiver_is_level() -> None:
    """Else it needs the next one as soon as it has this one, and never gets level while commands come."""
    leader, index = sending_to_3(SMALL)
    group, term = leader.group, leader.group.term
    for _ in range(3):
        go_on(leader, 4, 2)
        assert group.journal.base == index
    total = group.sending.senders[3].total
    leader.told(3, MessageKind.SNAPSHOT_REPLY, term, index, total, int(Status.DONE), 0.0)
    go_on(leader, 4, 2)
    assert group.journal.base == index
    leader.take()
    leader.acknowledge(3, index)
    assert {message.kind for message in leader.take()} == {MessageKind.APPEND}
    go_on(leader, 4, 2, 3)
    assert group.journal.base == group.journal.last
    go_on(leader, 4, 2)
    assert group.journal.base == group.journal.last


def test_7_what_stays_for_the_receiver_of_a_snapshot_is_bounded() -> None:
    """By the bytes after which a snapshot is taken, or less where the node's logs are to be short."""
    length = len(entry(1, 1)[0])
    config = replace(SMALL, trailing_bytes=length, snapshot_bytes=6 * length)
    leader, _ = sending_to_3(config)
    go_on(leader, 20, 2)
    kept = leader.group.journal.after(leader.group.journal.base)
    assert 4 * length < sum(len(command) for command, _, _ in kept) <= 6 * length
    leader, _ = sending_to_3(config)
    go_on(leader, 4, 2)
    assert leader.group.journal.last - leader.group.journal.base == 4
    leader.group.taking.shorten(2 * length)
    kept = leader.group.journal.after(leader.group.journal.base)
    assert 0 < sum(len(command) for command, _, _ in kept) <= 2 * length


def test_7_what_no_longer_serves_a_receiver_does_not_stay() -> None:
    """A follower whose disk is full takes no snapshot: what follows would be kept for as long as it is."""
    length = len(entry(1, 1)[0])
    leader, index = sending_to_3(replace(SMALL, trailing_bytes=length, snapshot_bytes=6 * length))
    group = leader.group
    assert group.sending.since < inf
    go_on(leader, 20, 2)
    assert group.journal.base > index
    assert group.sending.since == inf
    go_on(leader, 4, 2)
    assert group.journal.base >= group.journal.last - 1


def test_7_a_receiver_that_gets_no_further_for_long_has_no_place_while_no_command_comes() -> None:
    """Its disk is full, and its connection stands: it starts over again and again. Once it gets further, it
    has a place again."""
    leader, index = sending_to_3(replace(SMALL, snapshot_chunk_bytes=1))
    group = leader.group
    begun = leader.host.now()

    def answers(*offsets: int) -> None:
        for offset in offsets:
            leader.told(3, MessageKind.SNAPSHOT_REPLY, group.term, index, offset, int(Status.CONTINUE), 0.0)

    answers(2)
    for seconds in (STUCK_SECONDS - 1, 2):
        answers(0, 1, 2)
        group.sending.senders[3].rewind(leader.host.now())
        assert (group.sending.since, group.sending.held_from(index + 9)) == (begun, index)
        leader.advance(seconds)
    answers(0, 1, 2)
    assert group.journal.base == index, "nothing was cut"
    assert (group.sending.since, group.sending.held_from(index + 9)) == (inf, index + 9)
    answers(3)
    assert (group.sending.since, group.sending.held_from(index + 9)) == (begun, index)
    leader.advance(STUCK_SECONDS + 1)
    assert group.sending.since == begun, "it is slow: it has not started over"
    answers(0)
    assert group.sending.since == inf


def test_7_nothing_stays_for_a_receiver_that_is_gone() -> None:
    leader, _ = sending_to_3(SMALL)
    leader.host.away.add(3)
    leader.group.connections.on_disconnect(3)
    go_on(leader, 4, 2)
    assert leader.group.journal.base == leader.group.journal.last


def has_taken_it(leader: Replica, peer: int = 3) -> None:
    """A node has the snapshot that it was sent, and says so."""
    sender, now = leader.group.sending.senders[peer], leader.host.now()
    fields = (sender.index, sender.total, int(Status.DONE), now)
    leader.told(peer, MessageKind.SNAPSHOT_REPLY, leader.group.term, *fields)


def test_7_what_stayed_for_a_receiver_goes_once_it_is_level() -> None:
    """Not only at the next snapshot: the group may be idle from now on."""
    leader, index = sending_to_3(replace(SMALL, max_append_bytes=1, max_inflight_messages=1))
    group = leader.group
    go_on(leader, 4, 2)
    has_taken_it(leader)
    leader.acknowledge(3, index + 2)
    leader.tick()
    assert group.journal.base == index
    assert group.progress[3].next == index + 4, "the last entry is not on its way"
    assert group.sending.held_from(group.journal.last) == index + 2
    leader.acknowledge(3, index + 3)
    leader.tick()
    assert group.journal.base == group.journal.last


def test_7_a_receiver_that_lacks_but_what_the_snapshot_has_not_is_not_level() -> None:
    """What came since would go with the next one."""
    leader, index = sending_to_3(SMALL)
    leader.propose(1)
    leader.sync()
    leader.acknowledge(2, leader.group.journal.last)
    has_taken_it(leader)
    leader.tick()
    go_on(leader, 4, 2)
    assert leader.group.journal.base == index


def test_7_a_voter_that_has_all_entries_and_no_state_is_not_level() -> None:
    """It takes no entry until it has the snapshot, and by then others have come."""
    leader = Replica(config=SMALL)
    leader.establish()
    go_on(leader, 5, 2, 3)
    index = leader.group.snapshot_index
    assert leader.group.progress[3].match == index
    leader.told(3, MessageKind.NEED_SNAPSHOT, leader.group.term, 1, 0.0)
    leader.host.run_jobs()
    leader.tick()
    for _ in range(2):
        go_on(leader, 4, 2)
    assert leader.group.journal.base == index
    has_taken_it(leader)
    leader.take()
    leader.acknowledge(3, index)
    assert {message.kind for message in leader.take()} == {MessageKind.APPEND}


@pytest.mark.parametrize("given_up", [False, True])
def test_7_a_learner_that_is_added_is_not_level_before_it_has_its_vote(given_up: bool) -> None:
    """What is on its way to it may be lost, and would take another snapshot; but not if it is given up."""
    leader = Replica(config=replace(SMALL, catch_up_seconds=0.2))
    group = leader.group
    leader.establish()
    go_on(leader, 5, 2)
    added = group.add_member(4)
    leader.sync()
    leader.acknowledge(2, group.journal.last)
    leader.told(4, MessageKind.NEED_SNAPSHOT, group.term, 1, 0.0)
    leader.host.run_jobs()
    index = group.snapshot_index
    go_on(leader, 4, 2)
    has_taken_it(leader, 4)
    leader.acknowledge(4, index)
    leader.tick()
    assert group.progress[4].next == group.journal.last + 1
    assert group.journal.base == index
    if given_up:
        leader.advance(0.3)
    leader.acknowledge(2, group.journal.last)
    leader.acknowledge(4, group.journal.last)
    leader.tick()
    if not given_up:
        assert group.voters == (1, 2, 3, 4)
        assert group.journal.base == index
        leader.sync()
        leader.acknowledge(2, group.journal.last)
        leader.acknowledge(4, group.journal.last)
        leader.tick()
    assert isinstance(added.result(), Unknown if given_up else Applied)
    assert group.journal.base == group.snapshot_index


def test_7_what_stayed_goes_with_the_removal_of_its_receiver() -> None:
    leader, index = sending_to_3(SMALL)
    group = leader.group
    go_on(leader, 4, 2)
    snapshot = group.snapshot_index
    group.remove_member(3)
    leader.sync()
    leader.tick()
    assert group.journal.base == index
    leader.acknowledge(2, group.journal.last)
    leader.tick()
    assert group.journal.base == snapshot


def test_7_what_stayed_for_a_receiver_that_is_gone_goes_once_the_group_is_idle() -> None:
    """Not before: under load it would need a snapshot after each loss of its connection."""
    leader, index = sending_to_3(SMALL)
    group = leader.group
    go_on(leader, 4, 2)
    leader.host.away.add(3)
    group.connections.on_disconnect(3)
    leader.tick()
    assert group.journal.base == index
    leader.advance(2 * SMALL.heartbeat_seconds)
    leader.acknowledge(2, group.journal.last)
    leader.tick()
    assert group.journal.base == group.snapshot_index


def test_7_what_stayed_goes_with_the_leadership() -> None:
    leader, index = sending_to_3(SMALL)
    go_on(leader, 4, 2)
    assert leader.group.journal.base == index
    leader.group.roles.step_down()
    assert leader.group.journal.base == leader.group.snapshot_index


def test_7_a_receiver_is_forgotten_with_the_leadership_also_while_a_snapshot_is_stored() -> None:
    """In the next one it is a follower like any other, which may have got all from another leader."""
    leader, _ = sending_to_3(SMALL)
    group = leader.group
    for number in range(4):
        leader.propose(number)
    leader.sync()
    leader.acknowledge(2, group.journal.last)
    assert group.taking.take()
    group.roles.step_down()
    leader.lead()
    leader.sync()
    leader.acknowledge(2, group.journal.last)
    leader.host.run_jobs()
    assert group.journal.base == group.snapshot_index


def test_7_a_receiver_that_is_sent_another_snapshot_counts_from_then() -> None:
    """Where there is no room for all of them it is the last: it may be one that never gets level."""
    leader, _ = sending_to_3(SMALL)
    group = leader.group
    assert group.sending.since == leader.host.now()
    leader.propose(1)
    leader.sync()
    leader.acknowledge(2, group.journal.last)
    leader.advance(0.1)
    has_taken_it(leader)
    assert group.sending.since < leader.host.now()
    leader.told(3, MessageKind.NEED_SNAPSHOT, group.term, 1, 0.0)
    assert group.sending.since == leader.host.now()


def test_7_what_stays_for_several_receivers_goes_once_the_last_of_them_is_level() -> None:
    """Till then the group counts as one that began when the first of them was sent its snapshot."""
    leader = Replica(voters=(1, 2, 3, 4, 5), config=SMALL)
    leader.establish()
    group, begun = leader.group, list[float]()
    for peer in (3, 5):
        leader.advance(0.1)
        go_on(leader, 4, 2, 4)
        leader.told(peer, MessageKind.NEED_SNAPSHOT, group.term, 1, 0.0)
        leader.host.run_jobs()
        begun.append(leader.host.now())
    first, second = (group.sending.senders[peer].index for peer in (3, 5))
    go_on(leader, 4, 2, 4)
    assert (group.sending.since, group.journal.base) == (begun[0], first)
    has_taken_it(leader)
    leader.acknowledge(3, group.journal.last)
    leader.tick()
    assert (group.sending.since, group.journal.base) == (begun[1], first)
    assert group.sending.held_from(group.journal.last) == second
    has_taken_it(leader, 5)
    leader.acknowledge(5, group.journal.last)
    leader.tick()
    assert (group.sending.since, group.journal.base) == (inf, group.journal.last)


def test_7_a_tick_lets_go_only_once_where_followers_got_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with ten thousand groups has as many ticks, nearly all of groups that bring nobody up."""
    leader, _ = sending_to_3(SMALL)
    dropped: list[int] = []
    monkeypatch.setattr(SnapshotTaking, "drop_covered", lambda _, index: dropped.append(index))
    leader.tick()
    assert dropped == []
    has_taken_it(leader)
    leader.acknowledge(3, leader.group.journal.last)
    for _ in range(3):
        leader.tick()
    assert dropped == [leader.group.snapshot_index]
