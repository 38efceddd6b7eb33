"""The simulated disk: it keeps what was synced, and loses the rest in every way a real one may."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.simulation.disk import SimCrash, SimDisk, differences

if TYPE_CHECKING:
    from strandline.node.raft.disk import Disk

    _is_a_disk: Callable[[SimDisk], Disk] = lambda disk: disk  # noqa: E731


def disk_of(seed: int = 0) -> SimDisk:
    return SimDisk(random.Random(seed))


def durable_file(disk: SimDisk, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    file.pwrite(data, 0)
    file.datasync()
    file.close()
    disk.sync_dir(".")


def states(
    prepare: Callable[[SimDisk], None], read: Callable[[SimDisk], object], runs: int = 300
) -> set[object]:
    """Every state in which a power cut after `prepare` was seen to leave the disk."""
    found = set()
    for seed in range(runs):
        disk = disk_of(seed)
        prepare(disk)
        disk.crash("power")
        found.add(read(disk))
    return found


def content(disk: SimDisk, path: str = "a") -> bytes | None:
    return disk.read(path) if disk.exists(path) else None


def test_operations_behave_as_a_file_system() -> None:
    disk = disk_of()
    disk.mkdir("/data/deep")
    disk.mkdir("/data/deep")
    file = disk.open("/data/deep/a", create=True)
    file.pwrite(memoryview(b"cd"), 2)
    file.pwrite(bytearray(b"a"), 0)
    assert file.pread(10, 0) == b"a\0cd"
    assert file.pread(2, 2) == b"cd"
    file.preallocate(6)
    assert (file.size(), disk.read("/data/deep/a")) == (6, bytes(6))
    file.close()
    disk.open("/data/b", create=True).pwrite(b"b", 0)
    assert disk.listdir("/data") == ["b", "deep"]
    disk.rename("/data/b", "/data/deep/a")
    assert disk.read("/data/deep/../deep/a") == b"b"
    disk.unlink("/data/deep/a")
    assert disk.listdir("/data/deep") == []
    for broken in (
        lambda: disk.open("/data/none"),
        lambda: disk.read("/data/none"),
        lambda: disk.unlink("/data/none"),
        lambda: disk.rename("/data/none", "/data/x"),
        lambda: disk.open("/none/x", create=True),
        lambda: disk.sync_dir("/none"),
        lambda: disk.listdir("/none"),
    ):
        with pytest.raises(FileNotFoundError):
            broken()
    disk.open("/data/c", create=True)
    with pytest.raises(FileExistsError):
        disk.open("/data/c", create=True)
    with pytest.raises(OSError, match="Bad file"):
        file.pread(1, 0)


def test_a_lock_is_held_until_it_is_released_or_its_process_dies() -> None:
    disk = disk_of()
    release = disk.lock("lock")
    with pytest.raises(BlockingIOError):
        disk.lock("lock")
    release()
    stale = disk.lock("lock")
    disk.crash("kill")
    disk.lock("lock")
    stale()
    with pytest.raises(BlockingIOError):
        disk.lock("lock")


def test_what_was_synced_survives() -> None:
    def prepare(disk: SimDisk) -> None:
        durable_file(disk, "a", b"x" * 5_000)
        disk.open("a").pwrite(b"y" * 3_000, 5_000)
        disk.open("a").pwrite(b"z" * 1_000, 6_500)

    assert all(isinstance(c, bytes) and c[:5_000] == b"x" * 5_000 for c in states(prepare, content))


def test_a_kill_costs_nothing_that_was_written() -> None:
    disk = disk_of()
    disk.open("a", create=True).pwrite(b"unsynced", 0)
    stale = disk.open("a")
    disk.crash("kill")
    assert disk.read("a") == b"unsynced"
    with pytest.raises(OSError, match="Bad file"):
        stale.pwrite(b"late", 0)
    stale.close()
    assert disk.unsynced() == ["a: 8 bytes at 0", "name: nothing > a"]
    disk.crash("power")
    assert disk.unsynced() == []


def test_unsynced_bytes_may_vanish_stay_tear_and_turn_to_garbage() -> None:
    def prepare(disk: SimDisk) -> None:
        durable_file(disk, "a", bytes(4_096))
        file = disk.open("a")
        file.pwrite(b"1" * 1_000, 512)
        file.pwrite(b"2" * 1_000, 1_512)

    found = {c for c in states(prepare, content) if isinstance(c, bytes)}
    whole = bytes(512) + b"1" * 1_000 + b"2" * 1_000 + bytes(4_096 - 2_512)
    assert {bytes(4_096), whole} <= found
    assert all(len(c) == 4_096 and not any(c[:512]) and not any(c[2_512:]) for c in found)
    assert any(0 < c.count(b"1") < 1_000 for c in found)
    later_without_earlier = bytes(1_024), b"2" * 464
    assert any((c[:1_024], c[2_048:2_512]) == later_without_earlier for c in found)
    garbage = [{at // 512 for at, byte in enumerate(c) if byte not in b"\x0012"} for c in found]
    assert {len(sectors) for sectors in garbage} == {0, 1}


def test_without_reordering_a_power_cut_keeps_a_prefix() -> None:
    def prepare(disk: SimDisk) -> None:
        disk.reorders_writes = False
        durable_file(disk, "a", bytes(100))
        for n in range(100):
            disk.open("a").pwrite(b"1", n)

    found = {c for c in states(prepare, content) if isinstance(c, bytes)}
    assert all(c == b"1" * c.count(b"1") + bytes(100 - c.count(b"1")) for c in found)
    assert len(found) > 20


def test_a_new_name_may_be_lost_until_its_folder_is_synced() -> None:
    def create(disk: SimDisk) -> None:
        file = disk.open("a", create=True)
        file.pwrite(b"data", 0)
        file.datasync()

    def create_and_sync(disk: SimDisk) -> None:
        create(disk)
        disk.sync_dir(".")

    assert states(create, content) == {None, b"data"}
    assert states(create_and_sync, content) == {b"data"}


def test_a_rename_may_be_lost_until_its_folder_is_synced() -> None:
    def rename(disk: SimDisk) -> None:
        durable_file(disk, "a", b"old")
        durable_file(disk, "a.tmp", b"new")
        disk.rename("a.tmp", "a")

    def both(disk: SimDisk) -> object:
        return content(disk), content(disk, "a.tmp")

    def rename_and_sync(disk: SimDisk) -> None:
        rename(disk)
        disk.sync_dir(".")

    assert states(rename, both) == {(b"old", b"new"), (b"new", None)}
    assert states(rename_and_sync, both) == {(b"new", None)}


def test_an_unlinked_file_may_come_back_until_its_folder_is_synced() -> None:
    def unlink(disk: SimDisk) -> None:
        durable_file(disk, "a", b"data")
        disk.unlink("a")

    assert states(unlink, content) == {None, b"data"}


def test_syncing_one_folder_leaves_another_alone() -> None:
    def prepare(disk: SimDisk) -> None:
        disk.mkdir("x")
        disk.mkdir("y")
        disk.open("x/a", create=True)
        disk.open("y/a", create=True)
        disk.sync_dir("y")

    assert states(prepare, lambda disk: (disk.exists("x/a"), disk.exists("y/a"))) == {
        (False, True),
        (True, True),
    }


def replace(disk: SimDisk) -> None:
    """The pattern that production code must get right."""
    file = disk.open("a.tmp", create=True)
    file.pwrite(b"new" * 400, 0)
    file.datasync()
    file.close()
    disk.rename("a.tmp", "a")
    disk.sync_dir(".")


def replace_without_sync(disk: SimDisk) -> None:
    """The classic mistake: the new name is durable before the new bytes."""
    file = disk.open("a.tmp", create=True)
    file.pwrite(b"new" * 400, 0)
    disk.rename("a.tmp", "a")
    disk.sync_dir(".")


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_a_crash_at_each_operation_reaches_each_state_in_between(kind: str) -> None:
    found: dict[int, set[object]] = {}
    for seed in range(100):
        for k in range(1, 7):
            disk = disk_of(seed)
            durable_file(disk, "a", b"old")
            disk.crash_at(k, kind)
            try:
                replace(disk)
            except SimCrash:
                with pytest.raises(SimCrash):
                    disk.exists("a")
                disk.crash(kind)
            tmp = content(disk, "a.tmp")
            state = (
                "none" if tmp is None else "empty" if not tmp else "torn" if tmp != b"new" * 400 else "whole"
            )
            found.setdefault(k, set()).add((content(disk, "a") == b"old", state))
    old, new = True, False
    assert found[1] == {(old, "none")}
    assert (old, "torn") in found[2]
    assert (old, "whole") in found[3]
    assert found[6] == {(new, "none")}
    if kind == "kill":
        assert found[4] == {(old, "whole")}
        assert found[5] == {(new, "none")}
    else:
        assert found[3] >= {(old, "none"), (old, "empty"), (old, "torn"), (old, "whole")}
        assert found[4] == {(old, "none"), (old, "whole")}
        assert found[5] == {(old, "none"), (old, "whole"), (new, "none")}


def test_the_classic_mistake_is_found() -> None:
    def prepare(disk: SimDisk) -> None:
        durable_file(disk, "a", b"old")
        replace_without_sync(disk)

    assert b"" in states(prepare, content)


def test_a_full_disk_takes_a_part_and_recovers() -> None:
    disk = disk_of()
    durable_file(disk, "a", bytes(100))
    disk.fill(50)
    file = disk.open("a")
    file.pwrite(b"overwriting needs no space", 0)
    with pytest.raises(OSError, match="No space") as full:
        file.pwrite(b"x" * 80, 90)
    assert full.value.errno == errno.ENOSPC
    assert file.size() == 150
    assert file.pread(70, 90) == b"x" * 60
    with pytest.raises(OSError, match="No space"):
        disk.open("b", create=True).preallocate(10)
    disk.unlink("a")
    disk.open("b").preallocate(150)
    with pytest.raises(OSError, match="No space"):
        disk.open("b").pwrite(b"y", 150)
    disk.fill(10, overwrites_count=True)
    with pytest.raises(OSError, match="No space"):
        disk.open("b").pwrite(b"y" * 11, 0)
    disk.empty()
    disk.open("b").pwrite(b"y" * 1_000, 0)


def test_a_failed_sync_forgets_the_pages() -> None:
    def prepare(disk: SimDisk) -> None:
        durable_file(disk, "a", b"old")
        file = disk.open("a")
        file.pwrite(b"new", 0)
        disk.fail_next("datasync", errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            file.datasync()
        file.datasync()
        assert disk.read("a") == b"new"

    assert states(prepare, content, runs=50) == {b"old"}


def test_a_flipped_bit_is_one_bit() -> None:
    disk = disk_of()
    durable_file(disk, "a", bytes(1_000))
    offset, bit = disk.flip_bit("a")
    assert disk.read("a")[offset] == 1 << bit
    assert sum(disk.read("a")) == 1 << bit
    disk.crash("power")
    assert sum(disk.read("a")) == 1 << bit
    disk.flip_bit("a", 7)
    assert disk.read("a")[7]


def test_it_counts_and_compares() -> None:
    disk = disk_of()
    durable_file(disk, "a", b"abc")
    before = disk.snapshot()
    disk.open("a").pwrite(b"X", 1)
    disk.open("b", create=True)
    assert differences(before, disk.snapshot()) == ["a: 3 > 3 bytes, first difference at 1", "b: only after"]
    assert differences(before, disk.snapshot(durable=True)) == []
    assert (disk.bytes_written, disk.bytes_synced, disk.operations) == (4, 3, 6)
    assert disk.counts == {"create": 2, "pwrite": 2, "datasync": 1, "sync_dir": 1, "open": 1}


def test_only_an_empty_folder_can_be_removed() -> None:
    disk = disk_of()
    disk.mkdir("/data/deep")
    durable_file(disk, "/data/deep/a", b"x")
    for path in ("/data/deep", "/data"):
        with pytest.raises(OSError, match="not empty"):
            disk.rmdir(path)
    with pytest.raises(NotADirectoryError):
        disk.listdir("/data/deep/a")
    disk.unlink("/data/deep/a")
    disk.rmdir("/data/deep")
    assert disk.listdir("/data") == []
    disk.crash("power")
    assert not disk.exists("/data/deep/a")
