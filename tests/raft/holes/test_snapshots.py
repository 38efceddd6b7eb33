"""Holes in dumps: taking, storing, sending, receiving and opening them."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host import RaftHost
from strandline.node.raft.rules.following import Following
from strandline.node.raft.rules.messages import MessageKind, SnapshotChunk
from strandline.node.raft.snapshots.receiving import SnapshotReceiving
from strandline.node.raft.snapshots.store import SnapshotStore
from strandline.node.raft.snapshots.taking import SnapshotTaking
from strandline.node.raft.snapshots.transfer import Receiver, Status
from strandline.node.raft.stored_groups import StoredGroups
from strandline.node.raft.wal.recovered_log import RecoveredLog
from strandline.node.raft.wal.write_ahead_log import WalCorruption
from strandline.snapshot.document import SnapshotDamaged, SnapshotDocument, decode
from tests.raft.fake_host import CLUSTER, FOLDER
from tests.raft.harness import GROUP, Replica, state_at
from tests.raft.holes.hole import hole, hole_in
from tests.raft.holes.lone_host import LoneHost, snapshot_files
from tests.raft.register_map import RegisterMap, set_register
from tests.simulation.disk import SimCrash, SimDisk
from tests.simulation.log.sabotaged_parts import SwallowsDamagedSnapshots


def committed(count: int, group_class: type[RaftGroup]) -> Replica:
    follower = Replica(terms=[1] * count, group_class=group_class)
    follower.append(2, 1, (count, 1), commit=count)
    return follower


# A crash between the dump's rename and the journal's trim.


class ClearedLogs(StoredGroups):
    def _load_snapshot(
        self, recovered: RecoveredLog, store: SnapshotStore
    ) -> tuple[SnapshotDocument | None, int | None]:
        found, damaged = super()._load_snapshot(recovered, store)
        if found is not None and found.index != recovered.snapshot_index:
            recovered.entries = [(b"", found.index, found.term)]
        return found, damaged


class ClearsTheLog(RaftHost):
    stored_class = ClearedLogs


@hole(RaftHost, ClearsTheLog)
def test_crash_between_the_snapshots_file_and_its_record_loses_nothing(host_class: type[RaftHost]) -> None:
    first = LoneHost(SimDisk(random.Random(1)), host_class).lead()
    first.write(*range(5))
    early = first.machine.snapshot()
    index, term = first.group.applied, first.group.term
    first.write(*range(5, 9))
    first.host.snapshots.save(
        SnapshotDocument(CLUSTER, "register-map", GROUP, index, term, (1,), (), early)
    )  # And then the power fails, before the log hears of it.
    again = LoneHost(first.killed(), host_class).lead()
    assert again.machine.registers == {str(number): number for number in range(9)}
    assert again.machine.doubled == []


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_crash_at_any_step_of_taking_a_snapshot_loses_nothing(kind: str) -> None:
    step = 0
    while True:
        step += 1
        first = LoneHost(SimDisk(random.Random(step))).lead()
        first.write(*range(5))
        first.disk.crash_at(step, kind)
        first.disk.on_crash = None
        try:
            first.snapshot()
            finished = True
        except SimCrash:
            finished = False
        first.disk.turn_on()
        again = LoneHost(first.killed(kind)).lead()
        assert again.machine.registers == {str(number): number for number in range(5)}
        assert again.machine.doubled == []
        again.write(99)
        if finished:
            break
    assert step > 5


# Nothing is synced before the log is dropped.


class UnsyncedStore(SnapshotStore):
    def save(self, document: SnapshotDocument) -> None:
        name = f"{FOLDER}/{document.group}-{document.index:020d}.snapshot"
        file = self._disk.open(name, create=True)
        file.pwrite(document.encode(), 0)
        file.close()


@hole(SnapshotStore, UnsyncedStore)
def test_snapshot_and_its_folder_are_durable_before_the_log_is_dropped(store: type[SnapshotStore]) -> None:
    follower = committed(3, RaftGroup)
    follower.group.taking.store = store(follower.host.disk, FOLDER, CLUSTER)
    follower.group.taking.take()
    while follower.group.snapshot_index == 0:
        follower.host.run_jobs()
    stored = snapshot_files(follower.host.disk, durable=True)
    assert [decode(data).index for data in stored.values()] == [3]


class DropsFirst(SnapshotTaking):
    def take(self) -> bool:
        term = self.state.journal.term_at(self.state.applied) or 0
        self.state.journal.record_snapshot(self.state.applied, term, self.state.voters, ())
        return super().take()


@hole_in(DropsFirst)
def test_log_is_kept_until_the_snapshot_is_stored(group_class: type[RaftGroup]) -> None:
    follower = committed(3, group_class)
    follower.group.taking.take()
    follower.host.sync()
    follower.restart()  # Before the disk job that stores the snapshot.
    assert follower.terms == [1, 1, 1]


# An older snapshot takes the state back; the log above a snapshot is lost.


class TakesOldSnapshots(SnapshotReceiving):
    def has_applied_enough(self, index: int) -> bool:
        return False


@hole_in(TakesOldSnapshots)
def test_snapshot_at_or_below_the_commit_index_is_ignored(group_class: type[RaftGroup]) -> None:
    follower = committed(4, group_class)
    follower.install(state_at(2))
    assert follower.group.applied == 4
    assert follower.machine.registers == {"x": 4}


class DropsTheSuffix(SnapshotReceiving):
    def keeps_suffix(self, document: SnapshotDocument) -> bool:
        return False


@hole_in(DropsTheSuffix)
def test_install_keeps_the_log_that_follows_the_snapshot(group_class: type[RaftGroup]) -> None:
    follower = Replica(terms=[1, 1, 1, 1], group_class=group_class)  # All acknowledged, none known committed.
    follower.install(state_at(2))
    follower.sync()
    follower.restart()
    assert follower.terms == [1, 1]


# A bad dump is logged and swallowed.


@hole(RaftHost, SwallowsDamagedSnapshots)
def test_bad_snapshot_stops_the_replica_until_its_leader_sends_another(host_class: type[RaftHost]) -> None:
    first = LoneHost(SimDisk(random.Random(1)), host_class).lead()
    first.write(*range(5))
    first.snapshot()
    first.write(5)
    index = first.group.snapshot_index
    disk = first.killed()
    disk.flip_bit(next(iter(snapshot_files(disk))))
    again = LoneHost(disk, host_class).lead()
    assert again.group.damaged_below == index
    assert not again.group.is_leader
    assert again.machine.registers == {}
    assert again.group.applied == index, "what it holds above is not applied to an empty state"


class AcknowledgesWithoutState(Following):
    def on_append(self, peer: int, *fields: Any) -> None:
        self.state.damaged_below = None
        super().on_append(peer, *fields)


@hole_in(AcknowledgesWithoutState)
def test_replica_with_a_bad_snapshot_asks_for_one_and_applies_nothing(group_class: type[RaftGroup]) -> None:
    follower = Replica(terms=[1, 1, 1], group_class=group_class)
    follower.group.damaged_below = 2
    said = follower.append(2, 1, (3, 1), commit=3)
    assert [(message.kind, message.fields[0]) for message in said] == [(MessageKind.NEED_SNAPSHOT, 2)]
    assert follower.machine.applied == {}
    follower.install(state_at(3))
    assert not follower.group.damaged_below
    assert follower.machine.registers == {"x": 3}


# What arrives: acknowledged though it cannot be read, unchecked in the good one's place, chunks unnumbered.


class CallsItDone(SnapshotReceiving):
    def adopted(self, peer: int, chunk: SnapshotChunk, found: Any, error: Any) -> None:
        self.reply(peer, chunk, chunk.total, Status.DONE)


@hole_in(CallsItDone)
def test_snapshot_that_cannot_be_read_is_not_acknowledged(group_class: type[RaftGroup]) -> None:
    follower = Replica(terms=[1, 1], group_class=group_class)
    data = bytearray(state_at(5).encode())
    data[-1] ^= 1
    fields = (5, 1, 0, len(data), bytes(data[8:40]), bytes(data), 0.0)
    follower.told(2, MessageKind.SNAPSHOT, 1, *fields)
    follower.host.run_jobs()
    follower.sync()
    assert [reply.fields[2] for reply in follower.take(MessageKind.SNAPSHOT_REPLY)] == [Status.BAD]
    assert follower.terms == [1, 1]


class AdoptsUnchecked(SnapshotStore):
    def adopt_incoming(self, file: Any, group: int, index: int) -> SnapshotDocument:
        for stored in self.indices().get(group, []):
            self.drop(group, stored + 1)
        return super().adopt_incoming(file, group, index)


@hole(SnapshotStore, AdoptsUnchecked)
def test_snapshot_that_arrives_is_checked_before_it_replaces_another(
    store_class: type[SnapshotStore],
) -> None:
    store = store_class(SimDisk(random.Random(1)), FOLDER, CLUSTER)
    store.save(state_at(3))
    file = store.open_incoming(GROUP)
    file.pwrite(b"garbage", 0)
    with pytest.raises(SnapshotDamaged):
        store.adopt_incoming(file, GROUP, 5)
    assert store.indices() == {GROUP: [3]}
    assert store.load(GROUP, 3) == state_at(3)


class AppendsChunks(Receiver):
    def take(self, offset: int, data: bytes) -> Callable[[], int] | None:
        return super().take(self.expected, data)


@hole(Receiver, AppendsChunks)
def test_lost_or_doubled_chunk_is_noticed(receiver_class: type[Receiver]) -> None:
    file = SnapshotStore(SimDisk(random.Random(1)), FOLDER, CLUSTER).open_incoming(GROUP)
    receiver = receiver_class((5, 1, 12, b"digest"), file)
    for offset, data in [(0, b"aaaa"), (0, b"aaaa"), (8, b"cccc"), (4, b"bbbb"), (8, b"cccc")]:
        job = receiver.take(offset, data)
        if job is not None:
            job()
    assert file.pread(100, 0) == b"aaaabbbbcccc"


# Damage to the log itself.


def test_no_flipped_bit_in_the_log_is_taken_for_a_term_or_vote() -> None:
    """PySyncObj reads a .meta file it cannot parse as term 0 and no vote; a record here has a checksum."""
    first = LoneHost(SimDisk(random.Random(1)), segment_bytes=4096).lead()
    first.write(1, 2)
    term = first.group.term
    disk = first.killed("kill")
    (path,) = [name for name in disk.snapshot() if name.endswith(".log")]
    used = len(disk.snapshot()[path].rstrip(b"\x00"))
    refused = 0
    for offset in range(0, used, 3):
        damaged = SimDisk(random.Random(offset))
        copy(disk, damaged)
        damaged.flip_bit(path, offset)
        try:
            again = LoneHost(damaged, segment_bytes=4096)
        except WalCorruption:
            refused += 1
            continue
        assert again.group.term == term
        assert again.group.vote == 1
    assert refused > used // 3 * 0.8


def copy(source: SimDisk, target: SimDisk) -> None:
    for path, data in source.snapshot().items():
        target.mkdir(path.rpartition("/")[0])
        file = target.open(path, create=True)
        file.pwrite(data, 0)
        file.datasync()
        target.sync_dir(path.rpartition("/")[0])


class Stubborn(RegisterMap):
    def apply(self, index: int, term: int, command: bytes) -> Any:
        raise ValueError("this machine refuses")


class GoesOn(RaftHost):
    def guard(self, group: RaftGroup, call: Callable[..., object], *args: Any) -> None:
        with suppress(ValueError):
            call(*args)


@hole(RaftHost, GoesOn)
def test_machine_that_raises_stops_its_replica_and_no_other(host_class: type[RaftHost]) -> None:
    node = LoneHost(SimDisk(random.Random(1)), host_class, machine=Stubborn())
    other = node.host.create_group(GROUP + 1, RegisterMap(), (1,))
    node.lead()
    other.timeouts.expired()
    node.loop.run()
    future = node.group.replicate(set_register(1, "x", 1), node.group.term)
    node.loop.run()
    assert [str(error) for error in node.failed] == ["this machine refuses"]
    assert future.done()
    assert node.group.failure is not None
    assert other.failure is None
    assert other.is_leader


def test_group_that_was_removed_begins_anew() -> None:
    node = LoneHost(SimDisk(random.Random(1))).lead()
    node.write(1, 2, 3)
    node.snapshot()
    node.host.remove_group(GROUP)
    again = node.host.create_group(GROUP, machine := RegisterMap(), (1,))
    node.loop.run()
    assert (again.journal.base, again.snapshot_index, machine.registers) == (0, 0, {})
