"""The write-ahead log while it runs: batches, roll-over, trimming, and disks that are full or fail."""

from __future__ import annotations

import asyncio
import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.node.raft.disk import RealDisk
from strandline.node.raft.wal.write_ahead_log import (
    RecordKind,
    WalConfig,
    WalFailed,
    WalFull,
    WalLocked,
    WalMismatch,
)
from tests.raft.wal.harness import FOLDER, FakeDisk, Record, entry, open_log, run

RECORDS = st.tuples(
    st.integers(0, 2**63 - 1),
    st.sampled_from(
        [
            RecordKind.ENTRIES,
            RecordKind.TRUNCATE,
            RecordKind.STATE,
            RecordKind.SNAPSHOT,
            RecordKind.RESET,
            RecordKind.FORGET,
        ]
    ),
    st.one_of(st.binary(max_size=40), st.integers(0, 6000).map(lambda size: b"x" * size)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.lists(RECORDS, max_size=6), max_size=5), min_size=1, max_size=4))
def test_what_was_synced_comes_back_in_order(processes: list[list[list[Record]]]) -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        disk = FakeDisk()
        expected: list[Record] = []
        segments: list[int] = []
        for batches in [*processes, []]:
            opened = open_log(disk, executor, seed=len(expected))
            assert opened.replayed == expected
            assert opened.replayed_segments == segments
            for batch in batches:
                for record in batch:
                    opened.log.append(*record)
                    segments.append(opened.log.append_segment())
                    expected.append(record)
                await opened.write([])
            assert opened.log.buffered_bytes == 0
            disk = disk.power_cut()

    run(scenario)


def test_a_real_disk_keeps_the_log(tmp_path: Path) -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        folder = str(tmp_path / "data" / "log")
        records = [entry(number, 900) for number in range(20)]
        opened = open_log(RealDisk(), executor, folder=folder)
        await opened.write(records)
        await opened.log.close()
        opened = open_log(RealDisk(), executor, folder=folder)
        assert opened.replayed == records
        opened.log.may_drop_before(11)
        await opened.log.close()
        opened = open_log(RealDisk(), executor, folder=folder)
        assert opened.log.first_segment == 11
        assert opened.replayed == records[10:]
        await opened.log.close()

    run(scenario)


def test_one_sync_covers_all_that_was_appended_before_it() -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        disk = FakeDisk()
        opened = open_log(disk, executor, config=WalConfig(segment_bytes=65536))
        before = disk.count("datasync"), disk.count("pwrite")
        await opened.write(entry(number) for number in range(100))
        assert disk.count("datasync") - before[0] == 1
        assert disk.count("pwrite") - before[1] == 2, "the batch and its mark"
        assert opened.synced == [(100, 1)]

    run(scenario)


def test_appends_during_a_sync_go_into_the_next_batch_by_themselves() -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        disk = FakeDisk()
        opened = open_log(disk, executor)
        disk.gate = threading.Event()
        opened.log.append(*entry(1))
        opened.log.flush()
        await asyncio.to_thread(disk.at_gate.wait, 10)
        syncs = disk.count("datasync")
        opened.log.append(*entry(2))
        opened.log.flush()
        opened.log.append(*entry(3))
        opened.log.flush()
        disk.gate.set()
        await opened.until_synced(3)
        assert opened.synced == [(1, 1), (3, 1)]
        assert disk.count("datasync") - syncs == 2

    run(scenario)


def test_nothing_is_reported_before_the_sync_returned() -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        disk = FakeDisk()
        opened = open_log(disk, executor)
        disk.gate = threading.Event()
        opened.log.append(*entry(1))
        assert not opened.is_waiting()
        opened.log.flush()
        assert await asyncio.to_thread(disk.at_gate.wait, 10)
        await asyncio.sleep(0.02)
        assert opened.synced == []
        assert opened.log.synced_lsn == 0
        assert opened.log.buffered_bytes > 0
        assert opened.is_waiting()
        disk.gate.set()
        await opened.until_synced(1)
        assert not opened.is_waiting()
        assert open_log(disk.power_cut(), executor).replayed == [entry(1)]

    run(scenario)


def test_a_record_larger_than_a_segment_gets_one_of_its_size() -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        disk = FakeDisk()
        opened = open_log(disk, executor)
        records = [entry(1), entry(2, 10_000), entry(3), entry(4, 30_000)]
        await opened.write(records)
        assert opened.synced == [(1, 1), (3, 2), (4, 3)]
        assert open_log(disk.power_cut(), executor).replayed == records

    run(scenario)


def test_the_buffer_of_entries_is_bounded() -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        opened = open_log(FakeDisk(), executor, config=WalConfig(max_buffered_bytes=100, segment_bytes=2048))
        opened.log.append(1, RecordKind.ENTRIES, bytes(60))
        with pytest.raises(WalFull, match="77 bytes wait"):
            opened.log.append(1, RecordKind.ENTRIES, bytes(60))
        with pytest.raises(ValueError, match="above max_buffered_bytes"):
            opened.log.append(1, RecordKind.ENTRIES, bytes(100))
        assert opened.log.tail_lsn == 1
        await opened.write([])
        assert opened.log.append(1, RecordKind.ENTRIES, bytes(60)) == 2

    run(scenario)


def test_terms_votes_and_snapshots_have_a_place_in_a_full_buffer() -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        opened = open_log(FakeDisk(), executor, config=WalConfig(max_buffered_bytes=100, segment_bytes=2048))
        opened.log.append(1, RecordKind.ENTRIES, bytes(60))
        for kind in (
            RecordKind.STATE,
            RecordKind.TRUNCATE,
            RecordKind.SNAPSHOT,
            RecordKind.RESET,
            RecordKind.FORGET,
        ):
            opened.log.append(1, kind, bytes(60))
        await opened.write([])
        assert opened.log.synced_lsn == 6

    run(scenario)


@pytest.mark.parametrize("kind", [RecordKind.MARK, RecordKind.SEAL, RecordKind.TRIM, RecordKind.PAD])
def test_records_of_the_log_itself_are_not_taken_from_outside(kind: RecordKind) -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        opened = open_log(FakeDisk(), executor)
        with pytest.raises(ValueError, match="the log's own"):
            opened.log.append(1, kind, b"")

    run(scenario)


def test_segments_nobody_needs_are_dropped_after_a_durable_trim() -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        disk = FakeDisk()
        opened = open_log(disk, executor)
        for number in range(8):
            await opened.write([entry(number, 900)])
        assert opened.log.current_segment == 8
        with pytest.raises(ValueError, match="segment 9 is not written yet"):
            opened.log.may_drop_before(9)
        before = len(disk.operations)
        opened.log.may_drop_before(6)
        await opened.until_dropped(6)
        steps = [step.split()[0] for step in disk.operations[before:]]
        assert steps.index("datasync") < steps.index("unlink")
        assert steps[-6:] == ["unlink"] * 5 + ["sync_dir"]
        again = open_log(disk.power_cut(), executor)
        assert again.replayed == [entry(number, 900) for number in (5, 6, 7)]
        assert again.log.first_segment == 6

    run(scenario)


@pytest.mark.parametrize("size", [40, 900], ids=["within a segment", "rolling over"])
def test_a_full_disk_holds_writes_back_until_there_is_space(size: int) -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        disk = FakeDisk()
        opened = open_log(disk, executor)
        await opened.write([entry(1, 900)])
        disk.full = True
        opened.log.append(*entry(2, size))
        opened.log.flush()
        await opened.until(lambda: bool(opened.stalls))
        since = opened.log.stalled_since
        opened.log.append(*entry(3, size))
        tries = len(disk.operations)
        async with asyncio.timeout(10):
            while len(disk.operations) < tries + 5:  # noqa: ASYNC110 - tries again without telling
                await asyncio.sleep(0.005)
        assert len(opened.stalls) == 1, "reported once"
        assert opened.stalls[0].errno == errno.ENOSPC
        assert opened.stalls == [opened.log.full]
        assert opened.log.stalled_since == since
        assert opened.log.synced_lsn == 1
        assert open_log(disk.killed(), executor).replayed == [entry(1, 900)]
        disk.full = False
        await opened.until_synced(3)
        assert opened.log.full is None
        assert opened.spaces == 1
        assert opened.failures == []
        expected = [entry(1, 900), entry(2, size), entry(3, size)]
        assert open_log(disk.power_cut(), executor).replayed == expected

    run(scenario)


@pytest.mark.parametrize("size", [40, 1900], ids=["within a segment", "rolling over"])
def test_closing_does_not_wait_for_a_full_disk(size: int) -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        disk = FakeDisk()
        opened = open_log(disk, executor)
        disk.full = True
        opened.log.append(*entry(1, size))
        async with asyncio.timeout(10):
            await opened.log.close()
        disk.full = False
        assert disk.listdir(FOLDER) == ["wal-0000000000000001.log", "wal.started"], "no space is kept"
        assert opened.synced == []
        assert open_log(disk, executor).replayed in ([], [entry(1, size)]), "its outcome is unknown"

    run(scenario)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_is_fatal_and_never_tried_again(code: int) -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        disk = FakeDisk()
        opened = open_log(disk, executor)
        await opened.write([entry(1)])
        disk.sync_error = OSError(code, "sync failed")
        opened.log.append(*entry(2))
        opened.log.flush()
        opened.log.append(*entry(3))
        await opened.until_failed()
        syncs = disk.count("datasync")
        assert "fdatasync failed" in str(opened.failures[0])
        with pytest.raises(WalFailed, match="disk failure"):
            opened.log.append(*entry(4))
        disk.sync_error = None
        opened.log.flush()
        await opened.log.close()
        assert disk.count("datasync") == syncs
        assert opened.synced == [(1, 1)]
        assert len(opened.failures) == 1

    run(scenario)


def test_after_a_failed_sync_the_next_process_writes_the_pages_again() -> None:
    """The kernel may hold pages clean that never reached the disk; replaying them must make them durable."""

    async def scenario(executor: ThreadPoolExecutor) -> None:
        disk = FakeDisk()
        opened = open_log(disk, executor)
        disk.sync_error = OSError(errno.EIO, "sync failed")
        opened.log.append(*entry(1))
        opened.log.flush()
        await opened.until_failed()
        disk = disk.killed()
        assert open_log(disk, executor).replayed == [entry(1)]
        assert open_log(disk.power_cut(), executor).replayed == [entry(1)]

    run(scenario)


def test_a_failed_write_is_fatal() -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        disk = FakeDisk()
        opened = open_log(disk, executor)
        disk.write_error = OSError(errno.EIO, "Input/output error")
        opened.log.append(*entry(1))
        opened.log.flush()
        await opened.until_failed()
        assert opened.failures == [disk.write_error]
        assert not opened.is_waiting()

    run(scenario)


def test_close_writes_what_is_buffered_and_refuses_more() -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        disk = FakeDisk()
        opened = open_log(disk, executor)
        opened.log.append(*entry(1, 900))
        opened.log.append(*entry(2, 900))
        closing = asyncio.ensure_future(opened.log.close())
        await asyncio.sleep(0)
        with pytest.raises(WalFailed, match="closed"):
            opened.log.append(*entry(3))
        await closing
        assert opened.synced[-1] == (2, 2)
        assert open_log(disk.power_cut(), executor).replayed == [entry(1, 900), entry(2, 900)]

    run(scenario)


def test_two_processes_cannot_have_one_log() -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        disk = FakeDisk()
        opened = open_log(disk, executor)
        with pytest.raises(WalLocked, match=f"{FOLDER} is in use: stop the other process"):
            open_log(disk, executor)
        await opened.log.close()
        await open_log(disk, executor).log.close()

    run(scenario)


def test_a_real_lock_is_exclusive_and_released(tmp_path: Path) -> None:
    disk = RealDisk()
    release = disk.lock(str(tmp_path / "lock"))
    with pytest.raises(BlockingIOError):
        disk.lock(str(tmp_path / "lock"))
    release()
    disk.lock(str(tmp_path / "lock"))()


@pytest.mark.parametrize(("node_id", "cluster_id"), [(8, "c1"), (7, "c2")])
def test_another_nodes_log_is_refused(node_id: int, cluster_id: str) -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        disk = FakeDisk()
        await open_log(disk, executor).log.close()
        expected = f"belongs to node 7 of cluster 'c1', this is node {node_id} of cluster '{cluster_id}': "
        with pytest.raises(WalMismatch, match=expected):
            open_log(disk, executor, node_id=node_id, cluster_id=cluster_id)
        await open_log(disk, executor).log.close()

    run(scenario)


@pytest.mark.parametrize(
    "settings_",
    [{"segment_bytes": 1024}, {"segment_bytes": 4097}, {"max_buffered_bytes": 0}, {"full_retry_seconds": 0}],
)
def test_bad_settings_are_named(settings_: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(settings_))} is .*: give"):
        WalConfig(**settings_)
