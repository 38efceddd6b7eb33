"""A local log on the simulated disk: a crash, an error, a full disk at each of its operations; damage."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from strandline.node.compaction import local_log, manifest
from strandline.node.compaction.local_log import Floors, LocalLog, LocalLogUnknown, open_log, reset_log
from strandline.node.compaction.log_folders import MANIFEST, log_folder, stored_logs
from strandline.node.compaction.manifest import NONE, LogIdentity, Manifest, ManifestDamaged, Segment
from strandline.node.compaction.segment_files import (
    LocalLogDamaged,
    disk_reason,
    keep_reserve,
    segment_unique,
    write_made,
)
from strandline.node.raft.disk import DiskUsage, RealDisk
from strandline.snapshot.level_one_writer import EncodedObject, LevelOneWriter
from strandline.snapshot.object_frame import BadObject
from tests.level_one.stamped import sent, stamped
from tests.level_zero.samples import TOPIC
from tests.open_files import open_below
from tests.simulation.disk import OPERATIONS, SimCrash, SimDisk
from tests.simulation.inode import SimFile

WHOSE = LogIdentity("harbour", TOPIC, 3)
FOLDER = log_folder("/data", TOPIC, 3)
Contents = tuple[tuple[int, bytes], ...]
"""Base offset and bytes of each batch."""


def made(number: int, base: int, end: int, kept: range) -> tuple[EncodedObject, Contents]:
    """A segment of one batch for each offset that is kept."""
    writer = LevelOneWriter(TOPIC, 3, 0, segment_unique(number), 200)
    writer.allow_holes(base, end)
    there = []
    for offset in kept:
        batch = sent(b"%d of %d" % (offset, number))
        writer.add(batch.data, offset, offset + 1, 3, 0)
        there.append((offset, stamped(batch, offset)))
    return writer.finish(), tuple(there)


def contents(log: LocalLog) -> list[Contents]:
    """What is in each segment, block by block."""
    found = []
    for one in log.view.segments:
        data = b"".join(one.read(block) for block in one.footer.blocks)
        batches = []
        while data:
            length = int.from_bytes(data[8:12], "big") + 12
            batches.append((int.from_bytes(data[:8], "big"), data[:length]))
            data = data[length:]
        found.append(tuple(batches))
    return found


class Run:
    """Steps of a log's life on a disk; `done` is what the last step that returned left, `doing` the next."""

    def __init__(self, disk: Any) -> None:
        self.disk = disk
        self.log: LocalLog | None = None
        self.done: tuple[Manifest, list[Contents]] | None = None
        self.doing: tuple[Manifest, list[Contents]] | None = None
        self.held: list[Contents] = []

    def reset(self, start: int, floor: int) -> None:
        if self.log is not None:
            self.log.close()
        self.doing = Manifest(WHOSE, 9, floor, floor, start, start, 0, ()), []
        self.log = reset_log(
            self.disk, FOLDER, WHOSE, reset_index=9, start_offset=start, floors=Floors(floor, floor)
        )
        self.done = self.log.manifest, []

    def change(self, keep: int, ranges: list[tuple[int, int, range]], clean_end: int, drop: int = 0) -> None:
        """Keep some segments from the front, but for those dropped, and write others behind them."""
        log = self.log
        assert log is not None
        assert self.done is not None
        old, there = self.done
        segments, parts = list(old.segments[drop:keep]), there[drop:keep]
        for base, end, kept in ranges:
            number = log.next_number()
            encoded, content = made(number, base, end, kept)
            write_made(self.disk, FOLDER, number, log.maker, encoded.parts)
            segments.append(Segment(number, base, end, encoded.size, len(kept), NONE, NONE, 5))
            parts.append(content)
        log_end = segments[-1].end_offset if segments else old.log_end
        self.doing = old._replace(segments=tuple(segments), clean_end=clean_end, log_end=log_end), parts
        change = log.replace(segments, clean_end)
        log.take(change)
        log.remove(change)
        self.done = log.manifest, parts

    def all(self) -> None:
        self.reset(10, 4)
        self.change(0, [(10, 20, range(10, 20))], 10)
        self.change(1, [(20, 25, range(20, 25))], 10)
        # A last segment that is small is written again with what is new.
        self.change(1, [(20, 30, range(20, 30)), (30, 40, range(30, 40))], 10)
        # A round: two segments lose records, the third is kept as a file.
        self.change(0, [(10, 20, range(15, 17))], 10)
        assert self.done is not None
        self.change(1, [(20, 40, range(39, 40))], 20)
        self.change(2, [(40, 50, range(40, 50))], 40)
        # The start moves.
        self.change(3, [], 40, drop=1)
        self.change(2, [(50, 60, range(0))], 60)
        self.reset(70, 33)
        self.change(0, [(70, 80, range(75, 80))], 70)


def like(one: Manifest) -> Manifest:
    """Without what a crash may change: numbers that were given in vain."""
    return one._replace(next_number=0)


def judged(run: Run, disk: Any) -> str | None:
    """What is wrong with what the next process finds, if anything."""
    try:
        log = open_log(disk, FOLDER, WHOSE)
    except LocalLogDamaged as error:
        return None if run.done is None and "no manifest" in str(error) else f"it had to be reset: {error}"
    try:
        found = like(log.manifest), contents(log)
    except BadObject as error:
        return f"it has a block that was never durable: {error}"
    wanted = [(like(one[0]), one[1]) for one in (run.done, run.doing) if one is not None]
    if found not in wanted:
        return f"{found[0]} is neither the log of before nor that of after"
    named = {f"{one.number:020d}.seg" for one in log.manifest.segments} | {MANIFEST}
    if set(disk.listdir(FOLDER)) != named:
        return f"{disk.listdir(FOLDER)} in place of {named}"
    run.log, run.done = log, (log.manifest, found[1])
    end = log.manifest.log_end
    run.change(len(found[1]), [(end, end + 5, range(end, end + 5))], log.manifest.clean_end)
    log.close()
    try:
        again = open_log(disk, FOLDER, WHOSE)
    except LocalLogDamaged as error:
        return f"it does not go on: {error}"
    assert contents(again) == run.done[1], "it goes on"
    again.close()
    return None


def findings(kinds: tuple[str, ...] = ("kill", "power"), seeds: int = 4) -> list[str]:
    """Crash at each operation of all steps, and look."""
    found = []
    for kind in kinds:
        for seed in range(seeds):
            number = 0
            while True:
                number += 1
                disk = SimDisk(random.Random(seed))
                disk.mkdir("/data")
                disk.crash_at(number, kind)
                run = Run(disk)
                try:
                    run.all()
                except SimCrash:
                    disk.turn_on()
                    disk.crash(kind)
                else:
                    break
                problem = judged(run, disk)
                if problem is not None:
                    found.append(f"{kind} at operation {number}, seed {seed}: {problem}")
            assert number > 60, "there are many operations to die in"
    return found


def test_a_crash_at_any_operation_leaves_the_log_of_before_or_of_after() -> None:
    assert findings() == []


def _unlinks_first(self: LocalLog, data: bytes) -> None:
    for one in self.view.segments:
        with contextlib.suppress(OSError):
            self._disk.unlink(os.path.join(self.folder, f"{one.segment.number:020d}.seg"))
    _replace_manifest(self, data)


def _syncs_no_segment(self: SimFile) -> None:
    if MANIFEST in self._name:
        _datasync(self)


_replace_manifest, _datasync = LocalLog._replace_manifest, SimFile.datasync
SABOTAGES: dict[str, Callable[[], Any]] = {
    "removes before the manifest is there": lambda: patch.object(
        LocalLog, "_replace_manifest", _unlinks_first
    ),
    "does not sync segments": lambda: patch.object(SimFile, "datasync", _syncs_no_segment),
    "does not sync names": lambda: patch.object(SimDisk, "sync_dir", lambda self, path: None),
    "does not sweep": lambda: patch.object(local_log, "_sweep", lambda disk, folder, manifest: None),
    "writes the manifest in place": lambda: patch.object(local_log, "write_new", _in_place),
}


def _in_place(disk: Any, path: str, parts: Any) -> None:
    """The bytes go to the name itself; the rename that follows has nothing to do."""
    for name in (path, path.removesuffix(".part")):
        with contextlib.suppress(OSError):
            disk.unlink(name)
    for name in (path, path.removesuffix(".part")):
        file = disk.open(name, create=True)
        file.write_durably(parts)
        file.close()


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_each_rule_of_the_order_of_writing_is_needed(sabotage: str) -> None:
    with SABOTAGES[sabotage]():
        assert findings() != []


@pytest.mark.parametrize("operation", [one for one in OPERATIONS if one not in ("rmdir", "mkdir")])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_an_error_of_the_disk_changes_nothing_or_is_told_to_be_unknown(operation: str, code: int) -> None:
    for nth in range(12):
        disk = SimDisk(random.Random(nth))
        disk.mkdir("/data")
        run = Run(disk)
        run.reset(10, 4)
        run.change(0, [(10, 20, range(10, 20)), (20, 30, range(20, 30))], 10)
        assert run.log is not None
        assert run.done is not None
        seen = disk.counts.get(operation, 0)
        begin = disk.begin

        def failing(
            name: str, *args: Any, at: int = seen + nth + 1, begin: Any = begin, counts: Any = disk.counts
        ) -> None:
            begin(name, *args)
            if name == operation and counts[operation] == at:
                raise OSError(code, os.strerror(code))

        disk.begin = failing  # type: ignore[method-assign, assignment]
        failed = unknown = False
        try:
            run.change(1, [(20, 30, range(25, 27)), (30, 40, range(30, 40))], 20)
        except OSError:
            failed = True
        except LocalLogUnknown:
            unknown = True
        disk.begin = begin  # type: ignore[method-assign]
        if failed:
            assert (run.log.manifest, contents(run.log)) == run.done, "nothing has changed"
            left = {name for name in disk.listdir(FOLDER) if not name.startswith("manifest")}
            named = {f"{one.number:020d}.seg" for one in run.log.manifest.segments}
            assert left >= named
        if unknown:
            with pytest.raises(LocalLogUnknown):
                run.log.empty(10, Floors(0, 0), 9)
        run.log.close()
        assert judged(run, disk) is None


def test_a_full_disk_leaves_the_log_as_it_is_and_room_lets_it_go_on() -> None:
    for free in range(0, 3000, 37):
        disk = SimDisk(random.Random(1))
        disk.mkdir("/data")
        run = Run(disk)
        run.reset(10, 4)
        run.change(0, [(10, 20, range(10, 20))], 10)
        before = run.done
        assert run.log is not None
        disk.fill(free)
        try:
            run.change(1, [(20, 30, range(20, 30)), (30, 40, range(30, 40))], 10)
        except OSError:
            assert (run.log.manifest, contents(run.log)) == before
        disk.empty()
        run.doing = run.done = (run.log.manifest, contents(run.log))
        end = run.log.manifest.log_end
        run.change(len(run.done[1]), [(end, end + 10, range(end, end + 10))], 10)
        run.log.close()
        assert judged(run, disk) is None


def test_a_reader_keeps_what_it_holds() -> None:
    disk = SimDisk(random.Random(1))
    disk.mkdir("/data")
    run = Run(disk)
    run.reset(10, 4)
    run.change(0, [(10, 20, range(10, 20))], 10)
    assert run.log is not None
    held, before = run.log.view.hold(), contents(run.log)
    [old] = held.segments
    run.change(0, [(10, 20, range(19, 20))], 20)
    assert run.log.view is not held
    assert not disk.exists_now(f"{FOLDER}/{0:020d}.seg")
    assert b"".join(old.read(block) for block in old.footer.blocks) == b"".join(one for _, one in before[0])
    files = [old._file]
    with patch.object(SimFile, "close", autospec=True) as close:
        held.release()
    assert [call.args[0] for call in close.call_args_list] == files, "closed with its last reader"
    [new] = run.log.view.segments
    assert run.log.view.segment_at(9) is None
    assert run.log.view.segment_at(10) is run.log.view.segment_at(19) is new
    assert run.log.view.segment_at(20) is None


def test_a_change_that_ends_after_the_log_was_closed_leaves_no_file_open(tmp_path: Path) -> None:
    """A replica leaves while its log is filled: the disk space of an open file stays taken, and a reader
    that has the view of before must keep it."""
    folder = log_folder(str(tmp_path), TOPIC, 3)
    log = reset_log(RealDisk(), folder, WHOSE, reset_index=1, start_offset=0, floors=Floors(0, 0))
    changes = []
    for base in (0, 9):
        encoded, content = made(number := log.next_number(), base, base + 9, range(base, base + 9))
        write_made(RealDisk(), folder, number, log.maker, encoded.parts)
        row = Segment(number, base, base + 9, encoded.size, 9, NONE, NONE, 0)
        changes.append(log.replace([*log.manifest.segments, row], 0))
        if not base:
            log.take(changes[0])
            there = content
    read, segment = log.view.hold(), log.view.segments[0]
    log.close()
    log.take(changes[1])
    with pytest.raises(LocalLogUnknown, match="closed"):
        log.empty(18, Floors(0, 0), 2)
    assert b"".join(map(segment.read, segment.footer.blocks)) == b"".join(data for _, data in there)
    assert open_below(tmp_path), "the reader's"
    read.release()
    assert not open_below(tmp_path)


def test_damage_is_found_and_the_file_is_named() -> None:
    disk = SimDisk(random.Random(1))
    disk.mkdir("/data")
    run = Run(disk)
    run.reset(10, 4)
    run.change(0, [(10, 20, range(10, 20)), (20, 30, range(20, 30))], 10)
    assert run.log is not None
    run.log.close()
    whole = disk.snapshot()
    segment = f"{FOLDER}/{1:020d}.seg"
    size = len(whole[segment])
    index = 7 * 48 + 200
    for path, places in (
        (f"{FOLDER}/{MANIFEST}", range(len(whole[f"{FOLDER}/{MANIFEST}"]))),
        (segment, range(size - index + 400, size)),
    ):
        for at in places:
            disk.flip_bit(path, at)
            with pytest.raises(LocalLogDamaged, match=path if path == segment else "the manifest in"):
                open_log(disk, FOLDER, WHOSE)
            _restore(disk, path, whole[path])
    disk.flip_bit(segment, 100)
    log = open_log(disk, FOLDER, WHOSE)
    [_, bad] = log.view.segments
    with pytest.raises(BadObject, match="the block's checksum does not match"):
        bad.read(bad.footer.blocks[0])
    log.close()
    _restore(disk, segment, whole[segment] + b"x")
    with pytest.raises(LocalLogDamaged, match=f"has {size + 1} bytes in place of {size}"):
        open_log(disk, FOLDER, WHOSE)
    _restore(disk, segment, whole[f"{FOLDER}/{0:020d}.seg"])
    with pytest.raises(LocalLogDamaged, match=r"these are the bytes of|bytes in place of"):
        open_log(disk, FOLDER, WHOSE)
    disk.unlink(segment)
    with pytest.raises(LocalLogDamaged, match="is not there"):
        open_log(disk, FOLDER, WHOSE)


def _restore(disk: SimDisk, path: str, data: bytes) -> None:
    inode = disk._find(path)
    inode.live[:] = inode.durable[:] = data


def test_another_ones_log_is_not_opened() -> None:
    disk = SimDisk(random.Random(1))
    disk.mkdir("/data")
    run = Run(disk)
    run.reset(10, 4)
    for other in (
        WHOSE._replace(cluster="haven"),
        WHOSE._replace(partition=4),
        WHOSE._replace(topic_id=bytes(16)),
    ):
        with pytest.raises(LocalLogDamaged, match="it is that of partition 3 of the topic with id"):
            open_log(disk, FOLDER, other)


def test_a_reset_takes_no_name_of_before() -> None:
    """A file of before may be there still when the first new one is written."""
    disk = SimDisk(random.Random(1))
    disk.mkdir("/data")
    run = Run(disk)
    run.reset(10, 4)
    run.change(0, [(10, 20, range(10, 20)), (20, 30, range(20, 30))], 10)
    with patch.object(local_log, "_sweep", lambda disk, folder, manifest: None):
        run.reset(50, 9)
    assert run.log is not None
    assert run.log.next_number() == 2
    assert run.log.manifest[1:7] == (9, 9, 9, 50, 50, 2)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"log_end": 31}, "the segments end at 30, the log at 31"),
        ({"clean_end": 15}, "clean up to 15, where no segment ends"),
        ({"next_number": 1}, "not numbered below 1"),
        ({"floor": -1}, "negative"),
        (
            {"segments": (Segment(0, 10, 20, 5, 1, NONE, NONE, 0), Segment(1, 21, 30, 5, 1, NONE, NONE, 0))},
            "a segment ends at 20",
        ),
        (
            {"segments": (Segment(0, 10, 20, 5, 1, NONE, NONE, 0), Segment(0, 20, 30, 5, 1, NONE, NONE, 0))},
            "are not numbered",
        ),
        ({"segments": (Segment(0, 30, 30, 5, 1, NONE, NONE, 0),)}, "no segment is like"),
    ],
)
def test_what_no_log_is_like_is_neither_written_nor_read(changes: dict[str, Any], reason: str) -> None:
    good = Manifest(
        WHOSE, 9, 4, 4, 20, 30, 2,
        (Segment(0, 10, 20, 5, 1, NONE, NONE, 0), Segment(1, 20, 30, 5, 1, 25, NONE, 0)),
    )  # fmt: skip
    assert manifest.parsed(manifest.encoded(good), WHOSE) == good
    wrong = good._replace(**changes)
    with pytest.raises(ValueError, match=reason):
        manifest.encoded(wrong)
    with patch.object(manifest, "_check", lambda _: None):
        data = manifest.encoded(wrong)
    with pytest.raises(ManifestDamaged, match=reason):
        manifest.parsed(data, WHOSE)


class Filling(RealDisk):
    """The machine's disk, which says of itself what a test wants."""

    def __init__(self, total: int, free: int) -> None:
        self._told = DiskUsage(total, free)

    def usage(self, path: str) -> DiskUsage:
        del path
        return self._told


@pytest.mark.parametrize(("total", "kept"), [(100 << 20, 5 << 20), (1 << 40, 1 << 30)])
def test_a_log_that_grows_leaves_a_part_of_the_disk(total: int, kept: int, tmp_path: Path) -> None:
    keep_reserve(Filling(total, kept + 100), str(tmp_path), 100)
    with pytest.raises(OSError, match=f"but for {kept >> 20} MiB") as caught:
        keep_reserve(Filling(total, kept + 99), str(tmp_path), 100)
    assert disk_reason(caught.value, "").endswith("make room there; the node goes on by itself")
    assert "node.data is mounted" in disk_reason(FileNotFoundError(errno.ENOENT, "not there"), "/data")
    keep_reserve(SimDisk(random.Random(1)), "/nowhere", 1 << 50)
    with pytest.raises(LocalLogDamaged, match="is not there any more"):
        keep_reserve(RealDisk(), str(tmp_path / "gone"), 100)


def test_what_is_not_a_log_is_passed_over(tmp_path: Path) -> None:
    """Where a disk of its own is mounted there, it has a folder of the system's."""
    folder = log_folder(str(tmp_path), TOPIC, 3)
    reset_log(RealDisk(), folder, WHOSE, reset_index=1, start_offset=0, floors=Floors(0, 0)).close()
    for name in ("lost+found", "beef", f"{TOPIC.hex()}/x", f"{TOPIC.hex()}/-1"):
        (tmp_path / "compacted" / name).mkdir()
    (tmp_path / "compacted" / "note").write_text("mine")
    (tmp_path / "compacted" / "lost+found" / "3").mkdir()
    assert stored_logs(RealDisk(), str(tmp_path)) == {(TOPIC, 3): folder}


def test_on_a_real_disk(tmp_path: Path) -> None:
    folder = log_folder(str(tmp_path), TOPIC, 3)
    assert folder.endswith(f"/compacted/{TOPIC.hex()}/3")
    disk = RealDisk()
    with pytest.raises(LocalLogDamaged, match="has no manifest"):
        open_log(disk, folder, WHOSE)
    log = reset_log(disk, folder, WHOSE, reset_index=1, start_offset=0, floors=Floors(0, 0))
    number = log.next_number()
    encoded, content = made(number, 0, 9, range(2, 9))
    write_made(disk, folder, number, log.maker, encoded.parts)
    log.take(log.replace([Segment(number, 0, 9, encoded.size, 7, NONE, NONE, 0)], 0))
    log.close()
    again = open_log(disk, folder, WHOSE)
    assert contents(again) == [content]
    assert again.manifest.next_number == 1
    again.close()
