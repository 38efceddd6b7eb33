"""The write-ahead log after crashes, torn writes, rot and lost files.

Two promises are held against each other: what was reported synced comes back or opening refuses, and a crash
alone never makes opening refuse. See docs/wal.md for the argument.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.node.raft.wal.format import MARK_BYTES, RECORD_OVERHEAD, SECTOR, decode_header, scan
from strandline.node.raft.wal.write_ahead_log import RecordKind, WalConfig, WalCorruption
from tests.raft.wal.harness import (
    ROOMY,
    SMALL,
    FakeDisk,
    Inode,
    Opened,
    Record,
    Stopped,
    entry,
    open_log,
    place,
    run,
)


async def written(
    executor: ThreadPoolExecutor, batches: list[list[Record]], config: WalConfig = ROOMY
) -> tuple[FakeDisk, Opened]:
    """A disk on which these batches were written and synced, each by itself."""
    disk = FakeDisk()
    opened = open_log(disk, executor, config=config)
    for batch in batches:
        await opened.write(batch)
    return disk, opened


def replay_or_refusal(disk: FakeDisk, executor: ThreadPoolExecutor) -> list[Record] | WalCorruption:
    try:
        return open_log(disk, executor).replayed
    except WalCorruption as refusal:
        return refusal


def last_batch(disk: FakeDisk) -> tuple[Inode, int, bytes]:
    """The newest segment, and where in it and what the newest batch is."""
    writes = [step.split() for step in disk.operations if step.startswith("pwrite")]
    _, path, offset, size = next(write for write in reversed(writes) if int(write[3]) != MARK_BYTES)
    inode = disk.names[path.replace(".tmp", ".log")]
    return inode, int(offset), bytes(inode.live[int(offset) : int(offset) + int(size)])


def test_a_tail_torn_at_any_length_is_cut_and_what_was_synced_stays() -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        synced, unsynced = [entry(1), entry(2)], [entry(3), entry(4, 200), entry(5)]
        base, _ = await written(executor, [synced])
        after, _ = await written(executor, [synced, unsynced])
        inode, offset, batch = last_batch(after)
        path = after.segments()[0]
        seen = set()
        for length in range(len(batch) + 1):
            torn = base.copy()
            place(torn.names[path].live, offset, batch[:length])
            place(torn.names[path].durable, offset, batch[:length])
            opened = open_log(torn, executor)
            kept = len(opened.replayed) - len(synced)
            assert opened.replayed == (synced + unsynced)[: len(synced) + kept]
            seen.add(kept)
            await opened.write([entry(6)])
            assert open_log(torn.power_cut(), executor).replayed == [*opened.replayed, entry(6)]
        assert seen == {0, 1, 2, 3}
        assert inode.live[offset : offset + 4] == batch[:4]

    run(scenario)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_batch_torn_in_any_sectors_never_hurts_what_was_synced(data: st.DataObject) -> None:
    """A power cut keeps any sectors of the unsynced batch, in any order, and may leave garbage in others."""

    async def scenario(executor: ThreadPoolExecutor) -> None:
        sizes = data.draw(st.lists(st.integers(4, 300), max_size=4), "sizes of the synced records")
        synced = [entry(number, size) for number, size in enumerate(sizes)]
        unsynced = [entry(100 + number, 152) for number in range(8)]
        base, _ = await written(executor, [synced[:2], synced[2:]])
        after, _ = await written(executor, [synced[:2], synced[2:], unsynced])
        path = after.segments()[-1]
        torn = base.copy()
        marked = data.draw(st.booleans(), "the mark of the batch before reached the disk")
        old = bytes(base.names[path].live if marked else base.names[path].durable)
        new = after.names[path].live
        _, start, batch = last_batch(after)
        place(torn.names[path].live, 0, old)
        for sector in range(start // SECTOR, (start + len(batch)) // SECTOR):
            begin = sector * SECTOR
            fate = data.draw(st.sampled_from(["old", "new", "garbage"]))
            if fate == "new":
                place(torn.names[path].live, begin, bytes(new[begin : begin + SECTOR]))
            if fate == "garbage":
                place(torn.names[path].live, begin, data.draw(st.binary(min_size=SECTOR, max_size=SECTOR)))
        found = replay_or_refusal(torn, executor)
        assert not isinstance(found, WalCorruption)
        assert found[: len(synced)] == synced
        assert found == (synced + unsynced)[: len(found)]

    run(scenario)


def test_a_flipped_bit_anywhere_is_refused_or_loses_nothing() -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        batches = [[entry(1)], [entry(2, 400)], [entry(3), entry(4, 600)], [entry(5)], [entry(6), entry(7)]]
        disk, opened = await written(executor, batches, SMALL)
        assert opened.log.current_segment == 3
        expected = [record for batch in batches for record in batch]
        protected = {path: offsets_of_records(disk, path) for path in disk.segments()}
        harmless = 0
        for path in disk.segments():
            for position in range(len(disk.names[path].live)):
                damaged = disk.copy()
                damaged.names[path].live[position] ^= 1 << position % 8
                found = replay_or_refusal(damaged, executor)
                if isinstance(found, WalCorruption):
                    assert found.file == path
                    assert found.offset <= position
                    assert path in str(found)
                else:
                    assert position >= SECTOR
                    assert position not in protected[path]
                    assert found == expected
                    harmless += 1
        assert harmless > 0

    run(scenario)


def offsets_of_records(disk: FakeDisk, path: str) -> set[int]:
    """Offsets of all bytes in a segment that belong to groups' records."""
    data = bytes(disk.names[path].live)
    found: set[int] = set()
    offset = SECTOR
    end = scan(path, 0, decode_header(path, data).seed(), data, None).end
    while offset < end:
        length, _, _, kind = struct.unpack_from("<IIQB", data, offset)
        if kind <= RecordKind.FORGET:
            found.update(range(offset, offset + RECORD_OVERHEAD + length))
        offset += RECORD_OVERHEAD + length
    return found


def test_without_its_mark_only_the_last_batch_is_at_risk() -> None:
    """What stays ambiguous: when a power cut took the last mark, rot in the last batch looks like tearing."""

    async def scenario(executor: ThreadPoolExecutor) -> None:
        disk, _ = await written(executor, [[entry(1)], [entry(2), entry(3)], [entry(4), entry(5)]])
        _, start, batch = last_batch(disk)
        cut = disk.power_cut()
        path = cut.segments()[0]
        expected = [entry(number) for number in range(1, 6)]
        assert replay_or_refusal(cut.copy(), executor) == expected
        for position in range(SECTOR, start + len(batch)):
            damaged = cut.copy()
            damaged.names[path].live[position] ^= 1
            found = replay_or_refusal(damaged, executor)
            if position >= start:
                assert not isinstance(found, WalCorruption)
                assert found[:3] == expected[:3]
            elif position < start - MARK_BYTES:
                assert isinstance(found, WalCorruption)

    run(scenario)


def test_a_new_empty_segment_proves_what_was_synced_before_it() -> None:
    """A power cut after making a segment, before sealing the one before: its lost mark is no ambiguity."""

    async def scenario(executor: ThreadPoolExecutor) -> None:
        disk, opened = await written(executor, [[entry(1)], [entry(2)]], SMALL)
        _, start, _ = last_batch(disk)
        disk.stop_at = len(disk.operations) + 6
        opened.log.append(*entry(3, 900))
        opened.log.flush()
        await opened.until_failed()
        cut = disk.power_cut()
        assert len(cut.segments()) == 2
        assert replay_or_refusal(cut.copy(), executor) == [entry(1), entry(2)]
        cut.names[cut.segments()[0]].live[start + 30] ^= 1
        found = replay_or_refusal(cut, executor)
        assert isinstance(found, WalCorruption)
        assert (found.file, found.offset) == (cut.segments()[0], start)

    run(scenario)


def test_after_a_clean_close_even_a_power_cut_leaves_no_ambiguity() -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        disk, opened = await written(executor, [[entry(1)], [entry(2), entry(3)]])
        await opened.log.close()
        _, start, _ = last_batch(disk)
        damaged = disk.power_cut()
        damaged.names[damaged.segments()[0]].live[start + 5] ^= 1
        assert isinstance(replay_or_refusal(damaged, executor), WalCorruption)

    run(scenario)


def test_a_file_cut_to_any_length_is_refused() -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        disk, _ = await written(executor, [[entry(1)], [entry(2, 900)], [entry(3, 100)]], SMALL)
        assert len(disk.segments()) == 3
        for path in disk.segments():
            for length in range(len(disk.names[path].live)):
                short = disk.copy()
                del short.names[path].live[length:]
                found = replay_or_refusal(short, executor)
                assert isinstance(found, WalCorruption)
                assert found.file == path
                assert "truncated" in str(found) or "were preallocated" in str(found)

    run(scenario)


@pytest.mark.parametrize("dropped", [1, 3])
def test_a_missing_segment_is_refused_whichever_it_is(dropped: int) -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        disk, opened = await written(executor, [[entry(number, 900)] for number in range(7)], SMALL)
        opened.log.may_drop_before(dropped)
        await opened.until_dropped(dropped)
        paths = disk.segments()
        assert len(paths) >= 3
        for path in paths:
            lost = disk.copy()
            del lost.names[path]
            found = replay_or_refusal(lost, executor)
            assert isinstance(found, WalCorruption)
            assert found.file == path
            assert "missing: bring" in str(found)
        assert open_log(disk, executor, folder="/elsewhere").replayed == []

    run(scenario)


def test_losing_all_segments_is_not_taken_for_a_new_log() -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        disk, _ = await written(executor, [[entry(1)]])
        del disk.names[disk.segments()[0]]
        found = replay_or_refusal(disk.copy(), executor)
        assert isinstance(found, WalCorruption)
        assert "all segments are missing" in str(found)

    run(scenario)


def test_a_record_is_valid_only_at_its_own_place() -> None:
    """A misdirected write, or old bytes of the same segment, cannot pass for records elsewhere."""

    async def scenario(executor: ThreadPoolExecutor) -> None:
        disk, _ = await written(executor, [[entry(1)]])
        moved = disk.copy()
        live = moved.names[moved.segments()[0]].live
        _, start, batch = last_batch(disk)
        place(live, start + SECTOR + MARK_BYTES, batch[: RECORD_OVERHEAD + 40])
        assert replay_or_refusal(moved, executor) == [entry(1)]

    run(scenario)


def test_a_record_of_another_log_is_no_record_here() -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        foreign = FakeDisk()
        other = open_log(foreign, executor, config=ROOMY, seed=1)
        await other.write([entry(1)])
        await other.write([entry(2)])
        disk, _ = await written(executor, [[entry(1)]])
        _, start, batch = last_batch(foreign)
        place(disk.names[disk.segments()[0]].live, start, batch)
        assert replay_or_refusal(disk.copy(), executor) == [entry(1)]

    run(scenario)


def test_a_renamed_segment_is_refused() -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        disk, _ = await written(executor, [[entry(number, 900)] for number in range(3)], SMALL)
        first, second, _ = disk.segments()
        names = disk.names
        names[first], names[second] = names[second], names[first]
        found = replay_or_refusal(disk.copy(), executor)
        assert isinstance(found, WalCorruption)
        assert "holds segment 2" in str(found)

    run(scenario)


def test_a_newer_format_is_named() -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        disk, _ = await written(executor, [[entry(1)]])
        path = disk.segments()[0]
        live = disk.names[path].live
        live[8:16] = struct.pack("<II", 2, 0)
        live[12:16] = struct.pack("<I", crc32c(bytes(live[:SECTOR])))
        found = replay_or_refusal(disk.copy(), executor)
        assert isinstance(found, WalCorruption)
        assert f"{path}, offset 8: written in format 2, this program reads 1: start the" in str(found)

    run(scenario)


# Payload sizes of a batch behind one small batch. Its records begin where a new one may begin after the cut:
# behind the place of a MARK, at it, and at it with a short record before.
BEHIND_MARK, AT_MARK, SHORT_FIRST = [495] * 7, [470] + [495] * 6, [83, 370] + [495] * 6
TAILS = pytest.mark.parametrize("sizes", [BEHIND_MARK, AT_MARK, SHORT_FIRST], ids=["behind", "at", "short"])


def stale_tail(sizes: list[int]) -> list[Record]:
    return [(9, RecordKind.ENTRIES, bytes([200 + number]) * size) for number, size in enumerate(sizes)]


async def torn_disk(
    executor: ThreadPoolExecutor, synced: list[Record], stale: list[Record], hole: int
) -> FakeDisk:
    """After a power cut that kept all of the batch `stale` but its sector number `hole`.

    Of sector 0 the bytes of a first short record are kept: within the sector in flight anything may be.
    """
    base, _ = await written(executor, [synced])
    after, _ = await written(executor, [synced, stale])
    _, start, batch = last_batch(after)
    torn = base.copy()
    live = torn.names[torn.segments()[0]].live
    place(live, start, batch)
    sector = (start // SECTOR + hole) * SECTOR
    short = start + RECORD_OVERHEAD + len(stale[0][2])
    lost = max(sector, short if short < sector + 200 else start)
    place(live, lost, bytes(sector + SECTOR - lost))
    return torn.copy()


@TAILS
@pytest.mark.parametrize("marks_survive", [True, False])
def test_the_bytes_of_a_cut_tail_never_come_back(sizes: list[int], marks_survive: bool) -> None:
    """Old records lie, valid, behind the cut; whatever is written over it, they stay gone."""
    synced, stale = [entry(1)], stale_tail(sizes)

    async def scenario(executor: ThreadPoolExecutor) -> None:
        for hole in range(len(stale)):
            for size in (4, 60, 116, 480, 492):
                disk = await torn_disk(executor, synced, stale, hole)
                opened = open_log(disk, executor, config=ROOMY)
                expected = list(opened.replayed)
                assert expected == (synced + stale)[: len(expected)]
                assert len(expected) <= 2 + hole
                for number in range(4):
                    record = entry(number, size)
                    await opened.write([record])
                    expected.append(record)
                    disk = disk.killed() if marks_survive else disk.power_cut()
                    opened = open_log(disk, executor, config=ROOMY)
                    assert opened.replayed == expected

    run(scenario)


@TAILS
@pytest.mark.parametrize("hole", range(4))
def test_a_crash_while_a_tail_is_cut_brings_nothing_back(sizes: list[int], hole: int) -> None:
    synced, stale = [entry(1)], stale_tail(sizes)

    async def scenario(executor: ThreadPoolExecutor) -> None:
        torn = await torn_disk(executor, synced, stale, hole)
        probe = torn.copy()
        kept = open_log(probe, executor).replayed
        assert kept == (synced + stale)[: len(kept)]
        for stop_at in range(len(probe.operations)):
            disk = torn.copy()
            disk.stop_at = stop_at
            with pytest.raises(Stopped):
                open_log(disk, executor)
            for left in crash_outcomes(disk):
                assert replay_or_refusal(left, executor) == kept
        for left in crash_outcomes(probe):
            assert replay_or_refusal(left, executor) == kept

    run(scenario)


def crash_outcomes(disk: FakeDisk) -> list[FakeDisk]:
    """What a crash may leave: the page cache; or of each file's unsynced writes none, the oldest, the newest
    or all, with or without the unsynced names.
    """

    def survivors(pick: slice) -> Callable[[Inode], bytes]:
        def survives(inode: Inode) -> bytes:
            data = bytearray(inode.durable)
            for offset, written_bytes in inode.dirty[pick]:
                place(data, offset, written_bytes)
            return bytes(data)

        return survives

    kept = [slice(0, 0), slice(0, 1), slice(-1, None), slice(None)]
    return [
        disk.killed(),
        *(disk.restart(survivors(pick), names_survive=names) for pick in kept for names in (False, True)),
    ]


async def crash_everywhere(
    executor: ThreadPoolExecutor,
    prepare: list[list[Record]],
    act: Callable[[Opened], Coroutine[None, None, None]],
    may_find: Callable[[list[Record], int], bool],
) -> None:
    """Stop before each disk operation that `act` causes, and open what any crash there leaves.

    `may_find(replayed, acknowledged)`: whether so much may come back when so many were reported synced.
    """
    disk, opened = await written(executor, prepare, SMALL)
    start = len(disk.operations)
    await act(opened)
    end = len(disk.operations)
    assert end - start >= 5
    for stop_at in range(start, end):
        disk, opened = await written(executor, prepare, SMALL)
        disk.stop_at = stop_at
        acting = asyncio.ensure_future(act(opened))
        await opened.until_failed()
        acting.cancel()
        for left in crash_outcomes(disk):
            found = open_log(left, executor)
            assert may_find(found.replayed, opened.log.synced_lsn), disk.operations[start:]
            numbers = [int(path[-20:-4]) for path in left.segments()]
            assert numbers == list(range(found.log.first_segment, found.log.append_segment() + 1))
            await found.write([entry(99)])
            again = open_log(left.power_cut(), executor)
            assert again.replayed == [*found.replayed, entry(99)], disk.operations[start:]


def test_a_crash_anywhere_in_a_roll_over_loses_nothing() -> None:
    before, new = [entry(1), entry(2, 600)], [entry(number, 700) for number in range(10, 14)]

    def may_find(found: list[Record], acknowledged: int) -> bool:
        return len(found) >= acknowledged and found == (before + new)[: len(found)]

    async def scenario(executor: ThreadPoolExecutor) -> None:
        await crash_everywhere(
            executor, [[record] for record in before], lambda log: log.write(new), may_find
        )

    run(scenario)


@pytest.mark.parametrize("fill", [400, 900], ids=["within a segment", "rolling over"])
def test_a_crash_anywhere_in_dropping_segments_loses_nothing_that_is_needed(fill: int) -> None:
    before = [entry(number, 900) for number in range(5)] + [entry(5, fill)]

    async def drop(opened: Opened) -> None:
        opened.log.may_drop_before(5)
        await opened.until_dropped(5)

    async def scenario(executor: ThreadPoolExecutor) -> None:
        def may_find(found: list[Record], _: int) -> bool:
            return found in (before, before[4:])

        await crash_everywhere(executor, [[record] for record in before], drop, may_find)

    run(scenario)


def test_a_crash_anywhere_in_making_a_new_log_leaves_one_that_opens() -> None:
    async def scenario(executor: ThreadPoolExecutor) -> None:
        probe = FakeDisk()
        open_log(probe, executor)
        for stop_at in range(len(probe.operations)):
            disk = FakeDisk()
            disk.stop_at = stop_at
            with pytest.raises(Stopped):
                open_log(disk, executor)
            for left in crash_outcomes(disk):
                assert replay_or_refusal(left, executor) == []

    run(scenario)
