"""Fetch and ListOffsets at both isolation levels, over logs with open, committed and aborted transactions."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.kafka.wire.record_batch import boundaries, read_header
from tests.kafka.handlers.fake_partition import NOW
from tests.kafka.handlers.fetch_answers import (
    COMMITTED,
    P,
    Q,
    aborted,
    bases,
    batch,
    codes,
    kept,
    made,
    only,
    parts,
    waiting,
)
from tests.kafka.wire.batches import Record, build
from tests.runtime.jumping_loop import simulated

LATEST, NEWEST = -1, -3


def at(time: int, sequence: int = 0) -> bytes:
    return build([Record(b"v", NOW + time)], producer=(P, 0, sequence), attributes=0x10)


# Fetch.


@pytest.mark.parametrize("version", range(APIS[ApiKey.FETCH].first, APIS[ApiKey.FETCH].last + 1))
@simulated
async def test_a_read_committed_consumer_gets_what_lies_below_the_last_stable_offset(version: int) -> None:
    node, partition = made()
    partition.write(build())
    partition.write(batch(), transaction=1)
    partition.write(build())
    part = only(await node.fetch({0: 0}, version, isolation_level=COMMITTED))
    assert (part.high_watermark, part.last_stable_offset) == (7, 3)
    assert (bases(part), part.aborted_transactions) == ([0], ())
    plain = only(await node.fetch({0: 0}, version))
    assert (bases(plain), plain.last_stable_offset, plain.aborted_transactions) == ([0, 3, 4], 3, None)
    partition.end(P, 0, 1)
    part = only(await node.fetch({0: 0}, version, isolation_level=COMMITTED))
    assert (part.high_watermark, part.last_stable_offset) == (8, 8)
    assert (bases(part), part.aborted_transactions) == ([0, 3, 4, 7], ())


@simulated
async def test_between_the_two_ends_there_is_nothing_yet_and_no_error() -> None:
    node, partition = made()
    partition.write(batch(count=3), transaction=1)
    partition.write(build())
    for offset in (0, 2, 4, 6):
        part = only(await node.fetch({0: offset}, isolation_level=COMMITTED))
        assert (part.error_code, part.records) == (ErrorCode.none, b"")
    assert codes(await node.fetch({0: 7}, isolation_level=COMMITTED)) == [ErrorCode.offset_out_of_range]
    assert not partition.reads


@simulated
async def test_the_aborted_transactions_of_what_is_given_come_with_it() -> None:
    node, partition = made()
    partition.write(batch(), transaction=1)
    partition.write(batch(producer=Q), transaction=4)
    partition.end(P, 0, 1, commit=False)
    partition.write(batch(1), transaction=2)
    partition.end(Q, 0, 4)
    partition.end(P, 0, 2, commit=False)
    partition.write(batch(2), transaction=3)
    part = only(await node.fetch({0: 0}, isolation_level=COMMITTED))
    assert aborted(part) == [(P, 0), (P, 3)]
    assert (bases(part), kept(part)) == ([0, 1, 2, 3, 4, 5], [1])
    part = only(await node.fetch({0: 3}, isolation_level=COMMITTED))
    assert aborted(part) == [(P, 3)]
    # Only as far as the answer goes: the rest comes with the rest.
    part = only(
        await node.fetch({0: {"fetch_offset": 0, "partition_max_bytes": 1}}, isolation_level=COMMITTED)
    )
    assert (bases(part), aborted(part)) == ([0], [(P, 0)])


@simulated
async def test_a_marker_behind_the_answer_tells_of_what_is_in_it() -> None:
    node, partition = made()
    partition.write(batch(), batch(1), transaction=1)
    partition.end(P, 0, 1, commit=False)
    part = only(
        await node.fetch({0: {"fetch_offset": 1, "partition_max_bytes": 1}}, isolation_level=COMMITTED)
    )
    assert (bases(part), kept(part)) == ([1], [])


@simulated
async def test_a_partition_with_an_error_has_no_aborted_transactions() -> None:
    node, partition = made()
    partition.resign()
    part = only(await node.fetch({0: 0}, isolation_level=COMMITTED))
    assert (part.last_stable_offset, part.aborted_transactions) == (-1, None)


@pytest.mark.parametrize("lifted", [False, True])
@simulated
async def test_what_was_aborted_is_not_forgotten_between_the_read_and_the_answer(lifted: bool) -> None:
    node, partition = made()
    partition.write(batch(count=3), transaction=1)
    partition.end(P, 0, 1, commit=False)
    partition.write(build(), build())
    if lifted:
        partition.reconcile(4)
        partition.store.on_get = lambda name: partition.trim(7)
    else:
        partition.read_seconds = 0.5
        asyncio.get_running_loop().call_later(0.2, partition.trim, 7)
    part = only(await node.fetch({0: 1}, isolation_level=COMMITTED))
    assert (part.error_code, part.records) == (ErrorCode.offset_out_of_range, b"")
    assert partition.confirmed == 1


@simulated
async def test_a_trim_during_the_wait_for_bytes_that_are_there_is_told_too() -> None:
    node, partition = made()
    partition.write(batch(count=3), transaction=1)
    partition.end(P, 0, 1, commit=False)
    partition.write(build())
    real = partition.batches.read_committed

    async def read(offset: int, end: int, max_bytes: int, *, files: bool = False) -> Any:
        found = await real(offset, end, max_bytes, files=files)
        partition.trim(5)
        return found

    partition.batches.read_committed = read  # type: ignore[method-assign]
    part = only(await node.fetch({0: 1}, isolation_level=COMMITTED))
    assert (part.error_code, part.records) == (ErrorCode.offset_out_of_range, b"")


@pytest.mark.parametrize("rows", [1, 200])
@pytest.mark.parametrize("lifted", [False, True])
@simulated
async def test_rows_that_the_state_forgets_while_bytes_come_are_in_the_answer_all_the_same(
    lifted: bool, rows: int
) -> None:
    """The bytes are those of the plan: an object that still has what was aborted (schedule 11 of the
    specification of compaction). The rows are of the same plan, although the state has dropped them."""
    node, partition = made()
    for number in range(rows):
        partition.write(batch(number), transaction=number + 1)
        partition.end(P, 0, number + 1, commit=False)
    partition.write(build())
    if lifted:
        partition.reconcile(2 * rows)
    partition.store.on_get = lambda name: partition.machine.aborted.trim(2 * rows)
    part = only(await node.fetch({0: 0}, isolation_level=COMMITTED))
    assert (list(partition.machine.aborted) == []) is lifted
    assert aborted(part) == [(P, 2 * number) for number in range(rows)]
    assert kept(part) == [2 * rows]


# Waiting.


@simulated
async def test_a_long_poll_is_woken_by_the_last_stable_offset_and_not_by_records_above_it() -> None:
    node, partition = made()
    partition.write(batch(), transaction=1)
    started = asyncio.get_running_loop().time()
    asked = waiting(node, {0: 0}, max_wait=10.0, isolation_level=COMMITTED)
    for _ in range(3):
        await asyncio.sleep(1)
        partition.write(build())
        assert not asked.done()
    await asyncio.sleep(1)
    partition.end(P, 0, 1)
    part = only(await asked)
    assert asyncio.get_running_loop().time() - started == pytest.approx(4, abs=0.1)
    assert bases(part) == [0, 1, 4, 7, 10]
    node.lost()
    assert not partition.watchers


@simulated
async def test_min_bytes_are_counted_up_to_the_last_stable_offset() -> None:
    node, partition = made(2)
    node.partition(number=1).write(build())
    node.partition(number=1).write(batch(size=5000), transaction=1)
    partition.write(batch(size=5000), transaction=1)
    asked = waiting(node, {0: 0, 1: 0}, max_wait=10.0, min_bytes=4000, isolation_level=COMMITTED)
    await asyncio.sleep(1)
    partition.write(batch(1, size=5000), transaction=1)
    await asyncio.sleep(1)
    assert not asked.done()
    partition.end(P, 0, 1)
    one, other = parts(await asked)
    assert (bases(one), bases(other)) == ([0, 1, 2], [0])


@simulated
async def test_a_long_poll_wakes_when_the_end_moves_within_what_level_one_has() -> None:
    node, partition = made()
    partition.write(batch(size=400), transaction=1)
    partition.write(*[batch(n, producer=Q, size=400) for n in range(3)], transaction=1)
    partition.reconcile(4)
    asked = waiting(node, {0: 0}, max_wait=10.0, min_bytes=300, isolation_level=COMMITTED)
    await asyncio.sleep(1)
    partition.end(P, 0, 1)
    part = only(await asked)
    assert (bases(part), part.last_stable_offset) == ([0], 1)
    asked = waiting(node, {0: 1}, max_wait=10.0, min_bytes=300, isolation_level=COMMITTED)
    await asyncio.sleep(1)
    assert not asked.done()
    partition.end(Q, 0, 1)
    assert bases(only(await asked)) == [1, 2, 3, 4, 5]


# Everything together.


@pytest.mark.parametrize("seed", range(40))
@simulated
async def test_a_consumer_gets_every_committed_record_and_no_other(seed: int) -> None:
    chance = random.Random(seed)
    node, partition = made()
    numbers: Counter[int] = Counter()
    sequences: Counter[int] = Counter()
    begun: dict[int, list[int]] = {}
    wanted: list[int] = []
    got: list[int] = []
    offset = 0
    for _ in range(120):
        step = chance.random()
        producer = chance.choice((P, Q, 9))
        base = partition.high_watermark
        if step < 0.15:
            partition.write(build())
            wanted.append(base)
        elif step < 0.5:
            count = chance.randrange(1, 4)
            if producer not in begun:
                numbers[producer] += 1
                begun[producer] = []
            partition.write(
                batch(sequences[producer], producer=producer, count=count), transaction=numbers[producer]
            )
            sequences[producer] += count
            begun[producer].append(base)
        elif step < 0.7 and producer in begun:
            commit = chance.random() < 0.5
            partition.end(producer, 0, numbers[producer], commit=commit)
            wanted += begun.pop(producer) if commit else []
            begun.pop(producer, None)
        elif step < 0.75:
            ends = [e.end_offset for e in partition.machine.extents_between(0, 1 << 40, 1 << 30)]
            if ends:
                partition.reconcile(chance.choice(ends))
        else:
            limit = chance.choice((1, 150, 400, 1 << 20))
            part = only(
                await node.fetch(
                    {0: {"fetch_offset": offset, "partition_max_bytes": limit}}, isolation_level=COMMITTED
                )
            )
            assert part.error_code is ErrorCode.none
            got += [one for one in kept(part) if one >= offset]
            for start, _ in boundaries(part.records):
                offset = max(offset, read_header(part.records, start).next_offset)
            assert offset <= part.last_stable_offset
    stable = partition.last_stable_offset
    while offset < stable:
        part = only(await node.fetch({0: offset}, isolation_level=COMMITTED))
        got += [one for one in kept(part) if one >= offset]
        offset = max(read_header(part.records, start).next_offset for start, _ in boundaries(part.records))
    assert got == sorted(one for one in wanted if one < stable)


# ListOffsets.


@pytest.mark.parametrize("version", range(2, APIS[ApiKey.LIST_OFFSETS].last + 1))
@simulated
async def test_the_end_of_a_read_committed_consumers_log_is_the_last_stable_offset(version: int) -> None:
    node, partition = made()
    partition.write(build())
    partition.write(batch(), transaction=1)
    (part,) = await node.list_offsets([(0, LATEST)], version, committed=True)
    assert (part.error_code, part.offset) == (ErrorCode.none, 3)
    (part,) = await node.list_offsets([(0, LATEST)], version)
    assert part.offset == 4
    partition.end(P, 0, 1)
    (part,) = await node.list_offsets([(0, LATEST)], version, committed=True)
    assert part.offset == 5


@simulated
async def test_what_is_found_by_time_at_or_above_the_last_stable_offset_is_not_there_yet() -> None:
    node, partition = made()
    partition.write(build([Record(b"v", NOW + 1)]))
    partition.write(at(5), at(7, 1), transaction=1)

    async def found(time: int, committed: bool) -> int:
        (part,) = await node.list_offsets([(0, time)], committed=committed)
        assert part.error_code is ErrorCode.none
        assert (part.timestamp == -1) == (part.offset == -1)
        return int(part.offset)

    assert [await found(time, True) for time in (NOW, NOW + 2, NOW + 6, NEWEST)] == [0, -1, -1, -1]
    assert [await found(time, False) for time in (NOW, NOW + 2, NOW + 6, NEWEST)] == [0, 1, 2, 2]
    partition.end(P, 0, 1)
    assert [await found(time, True) for time in (NOW, NOW + 2, NOW + 6, NEWEST)] == [0, 1, 2, 2]


@simulated
async def test_a_batch_that_promises_too_much_hides_nothing_open() -> None:
    node, partition = made()
    partition.write(build([Record(b"v", NOW)], max_timestamp=NOW + 9))
    partition.write(at(20), transaction=1)
    (part,) = await node.list_offsets([(0, NOW + 5)], committed=True)
    assert (part.error_code, part.offset) == (ErrorCode.none, -1)
    (part,) = await node.list_offsets([(0, NOW + 5)])
    assert part.offset == 1
