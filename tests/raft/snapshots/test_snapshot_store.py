"""Where snapshots are kept: a crash at any step leaves the old one, the new one, or both, never a half."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from strandline.node.raft.snapshots.store import SnapshotStore
from strandline.snapshot.document import SnapshotDamaged, SnapshotDocument, SnapshotTooNew
from tests.simulation.disk import SimCrash, SimDisk

FOLDER = "/data/snapshots"
OLD = SnapshotDocument("c", "kind", 7, 10, 1, (1, 2, 3), (), b"old" * 400)
NEW = replace(OLD, index=20, term=2, state=b"new" * 400)


def save(store: SnapshotStore) -> None:
    store.save(NEW)


def receive(store: SnapshotStore) -> None:
    data = NEW.encode()
    file = store.open_incoming(NEW.group)
    for offset in range(0, len(data), 500):
        file.pwrite(data[offset : offset + 500], offset)
    assert store.adopt_incoming(file, NEW.group, NEW.index) == NEW


def save_and_drop(store: SnapshotStore) -> None:
    store.save(NEW)
    store.drop(NEW.group, NEW.index)


@pytest.mark.parametrize("kind", ["kill", "power"])
@pytest.mark.parametrize("work", [save, receive, save_and_drop])
def test_crash_between_every_two_steps(work: Callable[[SnapshotStore], None], kind: str) -> None:
    for seed in range(5):
        step, finished = 0, False
        while not finished:
            step += 1
            disk = SimDisk(random.Random(seed * 1000 + step))
            store = SnapshotStore(disk, FOLDER, "c")
            store.save(OLD)
            disk.crash_at(step, kind)
            try:
                work(store)
                finished = True
            except SimCrash:
                pass
            disk.crash(kind)
            again = SnapshotStore(disk, FOLDER, "c")
            stored = again.indices()[7]
            for index in stored:
                assert again.load(7, index) == (OLD if index == 10 else NEW)
            assert stored in ([10], [20], [10, 20])
            if finished and work is not save_and_drop:
                assert 20 in stored
            assert not [name for name in disk.listdir(FOLDER) if not name.endswith(".snapshot")]
        assert step > 4


def test_old_snapshot_is_there_until_the_new_one_is_durable() -> None:
    disk = SimDisk(random.Random(0))
    store = SnapshotStore(disk, FOLDER, "c")
    store.save(OLD)
    store.save(NEW)
    assert len([path for path in disk.snapshot(durable=True) if path.startswith(FOLDER)]) == 2
    store.drop(7, 20)
    assert store.indices() == {7: [20]}
    store.drop(7, None)
    assert store.indices() == {}


@pytest.mark.parametrize("operation", ["create", "pwrite", "datasync", "rename", "sync_dir"])
def test_failed_save_leaves_what_was_there_and_can_be_repeated(operation: str) -> None:
    disk = SimDisk(random.Random(0))
    store = SnapshotStore(disk, FOLDER, "c")
    store.save(OLD)
    disk.fail_next(operation, errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        store.save(NEW)
    assert store.load(7, 10) == OLD
    store.save(NEW)
    assert store.load(7, 20) == NEW


def test_damaged_file_is_named() -> None:
    disk = SimDisk(random.Random(0))
    store = SnapshotStore(disk, FOLDER, "c")
    store.save(OLD)
    (path,) = disk.snapshot()
    disk.flip_bit(path)
    with pytest.raises(SnapshotDamaged, match=path):
        store.load(7, 10)


@pytest.mark.parametrize("change", [{"cluster": "d"}, {"group": 8}, {"index": 11}])
def test_file_of_another_cluster_group_or_index_is_refused(change: dict[str, object]) -> None:
    disk = SimDisk(random.Random(0))
    store = SnapshotStore(disk, FOLDER, "c")
    store.save(OLD)
    (path,) = disk.snapshot()
    other = replace(OLD, **change)  # type: ignore[arg-type]
    file = disk.open(path)
    file.pwrite(other.encode(), 0)
    with pytest.raises(SnapshotDamaged, match="moved or renamed"):
        store.load(7, 10)


def test_what_arrives_damaged_is_gone_and_nothing_else_changed() -> None:
    store = SnapshotStore(SimDisk(random.Random(0)), FOLDER, "c")
    store.save(OLD)
    file = store.open_incoming(7)
    file.pwrite(NEW.encode()[:-1], 0)
    with pytest.raises(SnapshotDamaged):
        store.adopt_incoming(file, 7, 20)
    assert store.indices() == {7: [10]}
    receive(store)


def test_newer_format_is_told_apart_from_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk(random.Random(0))
    store = SnapshotStore(disk, FOLDER, "c")
    with monkeypatch.context() as patch:
        patch.setattr("strandline.snapshot.document.FORMAT_VERSION", 3)
        store.save(replace(OLD, folders=((1, 7),)))
    with pytest.raises(SnapshotTooNew, match="upgrade this node"):
        store.load(7, 10)


def test_opened_snapshot_stays_readable_when_it_is_dropped() -> None:
    store = SnapshotStore(SimDisk(random.Random(0)), FOLDER, "c")
    store.save(OLD)
    file = store.open(7, 10)
    store.drop(7, None)
    assert file.pread(file.size(), 0) == OLD.encode()


def test_arrival_can_start_over() -> None:
    store = SnapshotStore(SimDisk(random.Random(0)), FOLDER, "c")
    first = store.open_incoming(7)
    first.pwrite(b"half of it", 0)
    store.discard_incoming(first, 7)
    store.open_incoming(7).pwrite(b"again half", 0)
    receive(store)
    assert store.load(7, 20) == NEW


def test_snapshot_that_is_found_when_opening_survives_a_power_cut_from_then_on() -> None:
    """The process before was killed between the rename and the sync of the folder."""
    for seed in range(20):
        disk = SimDisk(random.Random(seed))
        store = SnapshotStore(disk, FOLDER, "c")
        disk.fail_next("sync_dir", errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            store.save(NEW)
        disk.crash("kill")
        found = SnapshotStore(disk, FOLDER, "c").indices()
        disk.crash("power")
        assert SnapshotStore(disk, FOLDER, "c").indices() == found == {7: [20]}
