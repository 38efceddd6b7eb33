"""What keeps an old segment and cannot move by itself is carried along, and nothing of it is lost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from strandline.node.raft.configuration import Configuration
from strandline.node.raft.entries import EntryKind
from strandline.node.raft.stored_groups import StoredGroups
from strandline.node.raft.wal.carrying import Carrying, GroupLog
from strandline.node.raft.wal.raft_log import RaftLog
from strandline.node.raft.wal.recovered_log import RecoveredLog
from strandline.node.raft.wal.segment_use import SegmentUse
from strandline.node.raft.wal.write_ahead_log import RecordKind
from strandline.statemachine.machine import ReadState, StateMachine
from tests.raft.harness import Replica, entry, membership
from tests.raft.register_map import RegisterMap, set_register
from tests.raft.small_cluster import BUSY, WAL, SmallCluster

GROUP = 7
VOTERS = (1, 2, 3)


def members_at(index: int) -> Configuration:
    """Others at every index: which of them come back tells where the log begins."""
    return Configuration(index, (*VOTERS, index + 4), (index + 5,)) if index else Configuration(0, VOTERS)


COMMAND = bytes([EntryKind.REGULAR]) + b"x"


class Log:
    """A log of many segments with one group's journal in it, as it is after each of its records."""

    def __init__(self, chance: random.Random | None = None) -> None:
        """With `chance`, segments end between any two records."""
        self.chance = chance
        self.segment = 1
        self.first = 1
        self.use = SegmentUse()
        self.records: list[tuple[int, RecordKind, bytes]] = []
        self.snapshot = Configuration(0, VOTERS)
        self.snapshot_term = 0
        self.carrying = Carrying(stuck_seconds=0.0, part_bytes=2)
        self.room = 0
        self.journal = RaftLog(self.record, RecoveredLog(GROUP), 1 << 20)
        self.journal.reset(0, 0, VOTERS, ())
        self.journal.setCurrentTerm(1, None)

    def record(self, kind: RecordKind, payload: bytes) -> int:
        if self.chance is not None and self.chance.random() < 0.2:
            self.segment += 1
        self.records.append((self.segment, kind, payload))
        self.use.note(self.segment, GROUP, kind, self.journal.last if hasattr(self, "journal") else 0)
        self.room -= 1
        return len(self.records)

    def held(self, _: int) -> GroupLog:
        return GroupLog(self.journal, self.snapshot, self.snapshot_term)

    def carry(self, records: int) -> None:
        """Carry the group along, so many records of it."""
        self.room = records
        self.carrying.round([GROUP], self.held, 0.0, lambda: self.room > 0)

    def carry_unclaimed(self, records: int) -> None:
        """As `carry`, after a start in which nobody has taken the group up yet."""
        stored = self.restart()
        self.room = records
        self.carrying.round(
            [GROUP], lambda group: stored.group_log(group, self.record), 0.0, lambda: self.room > 0
        )

    def take_snapshot(self, index: int) -> None:
        if self.snapshot.index < index <= self.journal.last:
            term = self.journal.term_at(index)
            assert term is not None
            self.snapshot, self.snapshot_term = members_at(index), term
            self.journal.record_snapshot(index, term, self.snapshot.voters, self.snapshot.learners)
            self.journal.deleteEntriesTo(index - self.journal.base)

    def install(self, index: int) -> None:
        """A leader's snapshot takes the place of the whole log, which contradicts it or ends before it."""
        journal = self.journal
        if index > self.snapshot.index:
            journal.setCurrentTerm(journal.getCurrentTerm() + 1, None)
            self.snapshot, self.snapshot_term = members_at(index), journal.getCurrentTerm()
            journal.reset(index, self.snapshot_term, self.snapshot.voters, self.snapshot.learners)

    def leave_and_join(self) -> None:
        """The replica is removed from this node, and another of the same group comes."""
        self.record(RecordKind.FORGET, b"")
        self.carrying.forget(GROUP)
        self.snapshot, self.snapshot_term = members_at(0), 0
        self.journal = RaftLog(self.record, RecoveredLog(GROUP), 1 << 20)
        self.journal.reset(0, 0, VOTERS, ())
        self.journal.setCurrentTerm(1, None)

    def state(self) -> Any:
        """What must come back."""
        journal = self.journal
        return (
            journal.getCurrentTerm(), journal.getVotedForNodeId(), self.snapshot.index,
            [entry for entry in journal.after(self.snapshot.index) if entry[1] <= journal.written],
        )  # fmt: skip

    def check(self) -> None:
        """Drop the segments that may go; what a start then finds is what there is."""
        self.first = max(
            self.first, self.use.first_needed(self.first, self.segment, lambda _: self.snapshot.index)
        )
        found = self.replayed(SegmentUse()).log(GROUP)
        assert found is not None
        above = [entry for entry in found.entries[1:] if entry[1] > self.snapshot.index]
        assert (found.term, found.vote, found.snapshot_index, above) == self.state()
        assert (found.voters, found.learners) == (self.snapshot.voters, self.snapshot.learners)

    def replayed(self, use: SegmentUse) -> StoredGroups:
        """What a start makes of the records."""
        stored = StoredGroups(use)
        for segment, kind, payload in self.records:
            if segment >= self.first:
                stored.replay(GROUP, kind, segment, payload)
        stored.finish()
        return stored

    def restart(self) -> StoredGroups:
        """Go on with what a start makes of the records."""
        self.use = SegmentUse()
        stored = self.replayed(self.use)
        found = stored.log(GROUP)
        assert found is not None
        self.journal = RaftLog(self.record, found, 1 << 20)
        self.carrying = Carrying(stuck_seconds=0.0, part_bytes=2)
        return stored

    def step(self, chance: random.Random) -> None:
        journal = self.journal
        what = chance.choices(
            [
                "add",
                "truncate",
                "snapshot",
                "term",
                "carry",
                "roll",
                "restart",
                "unclaimed",
                "install",
                "leave",
            ],
            [12, 6, 3, 3, 24, 15, 3, 3, 1, 1],
        )[0]
        if what == "add":
            for _ in range(chance.randint(1, 4)):
                journal.add(COMMAND, journal.last + 1, journal.getCurrentTerm())
            if chance.random() < 0.8:
                journal.write()
        elif what == "truncate":
            index = journal.last + 1 - chance.randint(1, 6)
            if self.snapshot.index < index <= journal.last:
                journal.setCurrentTerm(journal.getCurrentTerm() + 1, None)
                journal.deleteEntriesFrom(index - journal.base)
        elif what == "snapshot":
            self.take_snapshot(chance.choice([journal.last, chance.randint(journal.base, journal.last)]))
        elif what == "term":
            journal.setCurrentTerm(journal.getCurrentTerm() + 1, chance.choice([None, 1, 2, 3]))
        elif what == "carry":
            self.carry(chance.randint(1, 6))
        elif what == "roll":
            self.segment += 1
        elif what == "unclaimed":
            self.carry_unclaimed(chance.randint(1, 6))
        elif what == "install":
            self.install(journal.last + chance.randint(-3, 3))
        elif what == "leave":
            self.leave_and_join()
        else:
            self.restart()


@pytest.mark.parametrize("seed", range(150))
def test_whatever_happens_while_it_is_carried_the_log_of_a_group_comes_back(seed: int) -> None:
    chance = random.Random(seed)
    log = Log(chance)
    for _ in range(80):
        log.step(chance)
        log.check()


def test_a_group_that_is_stuck_lets_its_old_segments_go() -> None:
    log = Log()
    log.journal.setCurrentTerm(3, 2)
    for index in range(1, 21):
        log.journal.add(COMMAND, index, 3)
    log.journal.write()
    log.segment = 9
    log.check()
    assert log.first == 1
    log.carry(100)
    log.check()
    assert log.first == 9
    assert log.carrying.bytes > 40
    log.take_snapshot(20)
    log.carrying.settle(lambda _, last: last <= 20)
    assert log.carrying.bytes == 0


def test_a_log_that_changed_and_is_as_long_as_before_is_carried_anew() -> None:
    log = Log()
    for index in range(1, 21):
        log.journal.add(COMMAND, index, 1)
    log.journal.write()
    log.segment = 5
    log.carry(19)
    log.journal.setCurrentTerm(2, None)
    log.journal.deleteEntriesFrom(15)
    for index in range(15, 21):
        log.journal.add(COMMAND, index, 2)
    log.journal.write()
    log.carry(100)
    log.check()


def test_members_that_are_not_committed_yet_are_no_part_of_what_is_carried_as_the_base() -> None:
    """They may be taken back: then those before them count again, also after a restart."""
    replica = Replica(log=[entry(1, 1), membership(2, 1, (1, 2, 3, 4), (5,))])
    assert replica.group.voters == (1, 2, 3, 4)
    log = replica.group.log_keeping.group_log()
    assert (log.base.index, log.base.voters, log.base.learners, log.base_term) == (0, VOTERS, (), 0)


def test_what_is_half_carried_counts_for_nothing() -> None:
    log = Log()
    for index in range(1, 21):
        log.journal.add(COMMAND, index, 1)
    log.journal.write()
    log.segment = 5
    log.carry(12)
    log.segment = 6
    log.check()
    assert log.first == 1
    log.carry(100)
    log.check()
    assert log.first == 5, "the first part lies there"


# In a cluster.


def segments(cluster: SmallCluster, node: int) -> int:
    wal = cluster.hosts[node].wal
    return wal.current_segment - wal.first_segment + 1


def most_segments(cluster: SmallCluster, node: int, seconds: int) -> int:
    most = 0
    for _ in range(seconds):
        cluster.run(1.0)
        most = max(most, segments(cluster, node))
    return most


def start(cluster: SmallCluster, node: int) -> None:
    cluster.start(node)
    cluster.run(0.01)
    assert node in cluster.hosts, cluster.refusals


def break_replica(cluster: SmallCluster, node: int, group: int) -> None:
    def bad(*_: object) -> None:
        raise RuntimeError("a bug in apply")

    cluster.machine(node, group).apply = bad  # type: ignore[method-assign,assignment]


LONGEST = 60
"""Segments: what the load writes in the ten seconds or so until what is stuck has moved."""


def test_a_replica_that_stopped_lets_the_log_go_on_and_comes_back_whole() -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        cluster.load(size=1000)
        cluster.run(2.0)
        node = cluster.followers(2)[0]
        break_replica(cluster, node, 2)
        cluster.run(1.0)
        stopped = cluster.group(node, 2)
        assert [one[:2] for one in cluster.failed] == [(node, 2)]
        kept = stopped.term, stopped.vote, stopped.journal.synced
        assert kept[2] > stopped.snapshot_index, "it holds entries that were counted on"
        assert most_segments(cluster, node, 30) < LONGEST
        assert cluster.hosts[node].carrying.bytes > 0
        cluster.stop(node, "power")
        start(cluster, node)
        again = cluster.group(node, 2)
        assert (again.term, again.vote) >= kept[:2]
        assert again.journal.last >= kept[2]
        cluster.run(3.0)
        cluster.failed.clear()
        cluster.settle()


def test_many_replicas_that_stopped_are_carried_again_and_again_within_bounds() -> None:
    """What they hold is several times the length the log should have: it must not be all that is written."""
    raft = replace(BUSY, snapshot_entries=2000)
    with SmallCluster(groups=tuple(range(1, 11)), raft=raft) as cluster:
        cluster.serve()
        cluster.load(pause=0.05, size=2000)
        cluster.run(5.0)
        for group in range(3, 11):
            break_replica(cluster, 1, group)
        most_segments(cluster, 1, 20)
        cluster.unload()
        cluster.run(0.1)
        cluster.load(pause=0.2, size=2000)
        most_segments(cluster, 1, 60)
        host = cluster.hosts[1]
        carried = host.carrying.bytes
        assert carried > 4 * BUSY.max_wal_segments * WAL.segment_bytes
        written: Counter[RecordKind] = Counter()
        append = host.wal.append

        def count(group: int, kind: RecordKind, payload: bytes) -> int:
            written[kind] += len(payload)
            return append(group, kind, payload)

        host.wal.append = count  # type: ignore[method-assign]
        assert most_segments(cluster, 1, 60) < 3 * carried / WAL.segment_bytes + LONGEST / 4
        assert host.carrying.bytes == carried
        assert carried < written[RecordKind.CARRY] < written[RecordKind.ENTRIES]


@pytest.mark.parametrize("seed", range(3))
def test_a_node_that_dies_again_and_again_meanwhile_loses_nothing(seed: int) -> None:
    with SmallCluster(seed) as cluster:
        cluster.serve()
        cluster.load(size=1000)
        cluster.run(2.0)
        node = cluster.followers(2)[0]
        chance = cluster.world.rng("deaths")
        kept = 0
        for _ in range(6):
            cluster.run(0.5)
            break_replica(cluster, node, 2)
            cluster.run(chance.uniform(0.5, 2.0))
            kept = max(kept, cluster.group(node, 2).journal.synced)
            cluster.run(chance.uniform(4.0, 9.0))
            cluster.stop(node, chance.choice(["power", "kill"]))
            start(cluster, node)
            assert cluster.group(node, 2).journal.last >= kept
        cluster.run(3.0)
        cluster.settle()


def _no_machine() -> StateMachine:
    class Unreadable(RegisterMap):
        def read(self, state: bytes) -> ReadState:
            raise ValueError("a bug in read")

    return Unreadable()


@pytest.mark.parametrize("take_up", [None, _no_machine])
def test_a_group_that_nobody_takes_up_lets_the_log_go_on_and_keeps_its_entries(
    take_up: Callable[[], StateMachine] | None,
) -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        cluster.load(size=1000)
        cluster.run(4.0)
        node = cluster.followers(2)[0]
        kept = cluster.group(node, 2).journal.synced
        cluster.stop(node)
        cluster.group_ids = (1,)
        start(cluster, node)
        host = cluster.hosts[node]
        if take_up is not None:
            with pytest.raises(ValueError, match="a bug in read"):
                host.create_group(2, take_up(), VOTERS)
        assert host.stored_groups() == [2]
        assert most_segments(cluster, node, 30) < LONGEST
        cluster.stop(node, "power")
        cluster.group_ids = (1, 2)
        start(cluster, node)
        assert cluster.group(node, 2).journal.last >= kept
        cluster.run(3.0)
        cluster.settle()


def test_entries_that_a_new_leader_took_back_do_not_keep_the_log_of_an_idle_group() -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        cluster.run(1.0)
        old = cluster.leader(2)
        cluster.world.network.isolate(old)
        for _ in range(20):
            cluster.world.nodes[old].call(cluster.propose, old, 2, 100)
        cluster.run(3.0)
        taken_back = cluster.group(old, 2).journal.last
        cluster.world.network.heal_all()
        cluster.run(2.0)
        assert cluster.group(old, 2).journal.last < taken_back
        cluster.group_ids = (1,)
        cluster.load(size=1000)
        assert most_segments(cluster, old, 30) < LONGEST
        cluster.group_ids = (1, 2)
        cluster.settle()


def test_what_was_carried_and_taken_back_since_makes_the_log_no_longer() -> None:
    """A new leader truncated it, and the group is idle: it never comes to that entry again."""
    with SmallCluster() as cluster:
        cluster.serve()
        cluster.load(size=1000)
        cluster.run(3.0)
        cluster.group_ids = (1,)
        cluster.run(1.0)
        host, replica = cluster.hosts[1], cluster.group(1, 2)
        cluster.world.nodes[1].call(replica.taking.take)
        host.carrying.carried[2] = replica.journal.last + 5, 1000 * WAL.segment_bytes
        assert most_segments(cluster, 1, 20) < LONGEST
        assert host.carrying.bytes == 0


def test_all_segments_of_what_is_carried_of_a_group_that_nobody_takes_up_stay() -> None:
    """One that fills several of them: the last record says so, but the entries lie in all."""
    with SmallCluster(raft=replace(BUSY, snapshot_entries=10_000)) as cluster:
        cluster.serve()
        cluster.load(size=1000)
        cluster.run(3.0)
        node = cluster.followers(2)[0]
        stored = cluster.group(node, 2)
        kept = stored.journal.synced
        assert (kept - stored.snapshot_index) * 1000 > 2 * WAL.segment_bytes
        cluster.stop(node)
        cluster.group_ids = (1,)
        start(cluster, node)
        host = cluster.hosts[node]
        begun: list[int] = []
        needed: list[int] = []
        note = host.records._use.note

        def noted(segment: int, group: int, kind: RecordKind, last: int) -> None:
            if group == 2 and kind == RecordKind.CARRY:
                begun.append(segment)
            elif group == 2 and kind == RecordKind.CARRIED:
                needed.append(begun[0])
                begun.clear()
            note(segment, group, kind, last)

        host.records._use.note = noted  # type: ignore[method-assign,assignment]
        for _ in range(60):
            cluster.run(0.5)
            assert not needed or host.wal.first_segment <= needed[-1]
        assert len(needed) > 2
        assert host.wal.first_segment >= needed[0], "but not for ever"
        cluster.stop(node, "power")
        cluster.group_ids = (1, 2)
        start(cluster, node)
        assert cluster.group(node, 2).journal.last >= kept
        cluster.run(3.0)
        cluster.settle()


def test_a_group_without_a_majority_does_not_keep_the_log_of_the_others() -> None:
    with SmallCluster(groups=(1,)) as cluster:
        cluster.serve()
        for node in (1, 2):
            cluster.hosts[node].create_group(9, RegisterMap(), (1, 2), first_leader=1)
        cluster.run(1.0)
        replica = cluster.group(1, 9)
        assert replica.is_leader
        cluster.stop(2)
        outcomes = [
            replica.replicate(set_register(number, "r", b"x" * 500), replica.term) for number in range(9)
        ]
        cluster.load(size=1000)
        assert most_segments(cluster, 1, 30) < LONGEST
        assert replica.applied < replica.journal.last, "they are not committed, and not lost"
        start(cluster, 2)
        cluster.hosts[2].create_group(9, RegisterMap(), (1, 2))
        cluster.run(3.0)
        assert all(outcome.done() for outcome in outcomes)
        assert [number for number in range(9) if number not in cluster.machine(1, 9).applied] == []
        cluster.settle()
