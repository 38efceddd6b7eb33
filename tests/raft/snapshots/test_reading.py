"""A follower reads a snapshot's state off the loop, and goes on with its own until all of it is there."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from strandline.node.raft.group import RaftGroup
from strandline.node.raft.rules.messages import MessageKind
from strandline.node.raft.rules.replica_state import SafetyViolation
from strandline.node.raft.snapshots.receiving import TURN_SECONDS, SnapshotReceiving
from strandline.node.raft.snapshots.transfer import Status
from strandline.snapshot.document import SnapshotDocument
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.groups.offsets import NO_EXPIRY, CommittedOffset
from strandline.statemachine.machine import ReadState
from tests.raft.fake_host import Sent
from tests.raft.group_with import group_with
from tests.raft.harness import Replica, state_at
from tests.raft.register_map import RegisterMap


class Follower:
    """It applied two of its three entries. A snapshot of five has arrived and is read, but not adopted."""

    def __init__(
        self, group_class: type[RaftGroup] = RaftGroup, document: SnapshotDocument | None = None
    ) -> None:
        self.replica = Replica(terms=[1, 1, 1], group_class=group_class)
        self.replica.append(2, 1, (3, 1), commit=2)
        self.replica.sync()
        self.ended = deque[Callable[[], None]]()
        self.send(document or state_at(5))
        self.arrive()

    def send(self, document: SnapshotDocument, *, term: int = 1) -> list[Sent]:
        """A leader sends all of a snapshot in one chunk."""
        data = document.encode()
        fields = (document.index, document.term, 0, len(data), data[8:40], data, 0.0)
        return self.replica.told(2, MessageKind.SNAPSHOT, term, *fields)

    def arrive(self) -> None:
        """The chunk is written, and the snapshot is read. The loop has yet to hear of that."""
        jobs = self.replica.host.jobs
        while self.group.receiving.taking_in is None:
            job, done = jobs.popleft()
            done(job(), None)
        job, done = jobs.popleft()
        self.ended.append(partial(done, job(), None))

    def hear(self) -> list[int]:
        """The loop hears of it; what is then said of the snapshots."""
        self.replica.take()
        while self.ended:
            self.ended.popleft()()
        self.replica.host.run_jobs()
        self.replica.sync()
        return [said.fields[2] for said in self.replica.take(MessageKind.SNAPSHOT_REPLY)]

    @property
    def group(self) -> RaftGroup:
        return self.replica.group

    @property
    def x(self) -> int:
        value: int = self.replica.machine.registers["x"]
        return value


class ReadsOnTheLoop(SnapshotReceiving):
    """As it was before: read where it is adopted."""

    def install(self, document: SnapshotDocument, read: ReadState | Exception) -> None:
        super().install(document, self.read(document))


class AdoptsInTheThread(SnapshotReceiving):
    def read(self, document: SnapshotDocument) -> ReadState:
        read = super().read(document)
        read.adopt()
        return read


class TakesItAgain(SnapshotReceiving):
    """Knows of no snapshot that is being read."""

    def on_chunk(self, peer: int, chunk: Any) -> None:
        self.taking_in = None
        super().on_chunk(peer, chunk)


def test_a_state_is_read_by_the_job_and_adopted_on_the_loop() -> None:
    class Counts(RegisterMap):
        reads = 0

        def read(self, state: bytes) -> ReadState:
            self.reads += 1
            return super().read(state)

    for receiving, reads in ((SnapshotReceiving, 0), (ReadsOnTheLoop, 1)):
        follower = Follower(group_with(receiving))
        follower.group.machine = counts = Counts()
        assert follower.hear() == [Status.DONE]
        assert counts.reads == reads


@pytest.mark.parametrize(("receiving", "sound"), [(SnapshotReceiving, True), (AdoptsInTheThread, False)])
def test_until_all_of_it_is_there_nothing_has_changed(
    receiving: type[SnapshotReceiving], sound: bool
) -> None:
    follower = Follower(group_with(receiving))
    assert ((follower.x, follower.group.applied) == (2, 2)) == sound
    assert follower.hear() == [Status.DONE]
    assert (follower.group.applied, follower.replica.terms) == (5, [])
    assert (follower.x == 5) == sound


def test_entries_that_come_meanwhile_are_kept_applied_and_acknowledged() -> None:
    follower = Follower()
    follower.replica.append(2, 1, (3, 1), [1, 1, 1, 1], commit=4)
    follower.replica.sync()
    assert (follower.x, follower.replica.durable_terms) == (4, [1] * 7)
    assert follower.hear() == [Status.DONE]
    assert (follower.x, follower.replica.terms) == (5, [1, 1])
    follower.replica.append(2, 1, (7, 1), commit=7)
    assert follower.x == 7
    follower.replica.restart()
    assert (follower.x, follower.replica.terms) == (5, [1, 1])


def test_entries_that_were_committed_meanwhile_are_not_taken_back() -> None:
    follower = Follower()
    follower.replica.append(2, 1, (3, 1), [1, 1, 1], commit=6)
    follower.replica.sync()
    assert follower.hear() == [Status.DONE]
    assert (follower.x, follower.group.applied, follower.replica.terms) == (6, 6, [1] * 6)


def test_votes_and_a_new_leader_are_answered_meanwhile_and_the_snapshot_still_counts() -> None:
    follower = Follower()
    follower.replica.advance(10.0)
    follower.replica.told(3, MessageKind.VOTE, 2, 9, 1, True)
    follower.replica.sync()
    assert (follower.group.term, follower.group.vote) == (2, 3)
    follower.replica.append(3, 2, (3, 1), [2])
    assert follower.hear() == [Status.DONE]
    assert (follower.x, follower.group.term, follower.group.leader) == (5, 2, 3)
    assert follower.replica.terms == [], "the entry of the new leader is no part of this: it comes again"


def test_a_newer_snapshot_that_comes_meanwhile_replaces_it() -> None:
    follower = Follower()
    follower.send(state_at(8))
    follower.arrive()
    assert follower.hear() == [Status.DONE, Status.DONE]
    assert (follower.x, follower.group.applied) == (8, 8)
    follower.replica.restart()
    assert follower.x == 8


def test_an_older_one_that_ends_later_does_not_replace_a_newer_one() -> None:
    follower = Follower()
    follower.send(state_at(8))
    follower.arrive()
    follower.ended.reverse()
    follower.hear()
    assert (follower.x, follower.group.applied) == (8, 8)


@pytest.mark.parametrize(("receiving", "answers"), [(SnapshotReceiving, 0), (TakesItAgain, 1)])
def test_a_chunk_that_is_sent_again_meanwhile_does_not_begin_it_again(
    receiving: type[SnapshotReceiving], answers: int
) -> None:
    """The leader hears nothing for longer than it waits. To be told 0 would make it send all of it again."""
    follower = Follower(group_with(receiving))
    data = state_at(5).encode()
    last = (5, 1, 100, len(data), data[8:40], data[100:], 0.0)
    said = follower.replica.told(2, MessageKind.SNAPSHOT, 1, *last)
    assert len([one for one in said if one.kind is MessageKind.SNAPSHOT_REPLY]) == answers
    assert Status.DONE in follower.hear()
    assert [one.fields[2] for one in follower.send(state_at(5))] == [Status.DONE]


def test_a_replica_that_stops_meanwhile_adopts_nothing() -> None:
    follower = Follower()
    follower.group.stop(None, "the node is stopping")
    follower.group.failure = RuntimeError("stopped")
    assert follower.hear() == []
    assert follower.x == 2


def test_a_crash_meanwhile_leaves_the_whole_snapshot() -> None:
    follower = Follower()
    follower.replica.restart()
    assert follower.x == 5


def test_a_state_that_cannot_be_read_stops_the_replica_only_if_it_is_needed() -> None:
    unreadable = replace(state_at(5), state=b"")
    with pytest.raises(ValueError, match="incomplete"):
        Follower(document=unreadable).hear()
    with pytest.raises(SafetyViolation, match="a snapshot of a counter for a register-map"):
        Follower(document=replace(state_at(5), kind="counter")).hear()
    follower = Follower(document=unreadable)
    follower.replica.append(2, 1, (3, 1), [1, 1], commit=5)
    assert follower.hear() == [Status.DONE]
    assert follower.x == 5


def test_what_is_not_needed_any_more_is_freed_by_a_job() -> None:
    freed: list[str] = []

    class Frees(RegisterMap):
        def read(self, state: bytes) -> ReadState:
            read = super().read(state)
            read.let_go = partial(freed.append, "freed")  # type: ignore[method-assign]
            return read

    for commit in (3, 5):
        follower = Follower()
        follower.replica.append(2, 1, (3, 1), [1, 1], commit=commit)
        receiving, host = follower.group.receiving, follower.replica.host
        follower.group.machine = Frees()
        receiving.install(state_at(5), receiving.read(state_at(5)))
        assert not freed
        host.run_jobs()
        assert freed == ["freed"]
        freed.clear()


def test_threads_take_short_turns_while_a_state_is_read_and_freed_and_usual_ones_then() -> None:
    seen: list[float] = []

    class Sees(RegisterMap):
        def read(self, state: bytes) -> ReadState:
            seen.append(sys.getswitchinterval())
            read = super().read(state)
            read.let_go = lambda: seen.append(sys.getswitchinterval())  # type: ignore[method-assign]
            return read

    usual = sys.getswitchinterval()
    follower = Follower()
    follower.group.machine = Sees()
    follower.hear()
    follower.send(state_at(8))
    follower.arrive()
    assert sys.getswitchinterval() == usual
    follower.hear()
    assert seen == [pytest.approx(TURN_SECONDS)] * 2
    assert sys.getswitchinterval() == usual


def test_the_loop_has_its_turns_while_a_large_state_is_read() -> None:
    large = GroupsMachine(lambda index, captured: None)
    for group in range(4000):
        offsets = large.offsets_of(f"group-{group}")
        for partition in range(4):
            offsets.commit(b"t", "topic", partition, CommittedOffset(group, 1, "", group, NO_EXPIRY, group))
    state = large.snapshot()

    async def turns(job: Callable[[], Any]) -> int:
        turns = 0
        ended = asyncio.get_running_loop().run_in_executor(thread, job)
        while not ended.done():
            turns += 1
            await asyncio.sleep(0.0001)
        return turns

    async def turns_while_it_is_read() -> int:
        read: list[ReadState] = []
        reading = await turns(lambda: read.append(large.read(state)))
        read[0].adopt()
        await turns(read[0].let_go)
        return reading

    with ThreadPoolExecutor(1) as thread:
        assert asyncio.run(turns_while_it_is_read()) > 2
    assert large.snapshot() == state
