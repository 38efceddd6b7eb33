"""Fetch and ListOffsets over a log of which compaction has removed records."""

from __future__ import annotations

import random

import pytest
from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.record_batch import boundaries, read_header
from strandline.snapshot.level_one_format import batches_of, parse
from strandline.snapshot.level_one_writer import LevelOneWriter
from strandline.statemachine.partition.level_one import level_one_name
from strandline.statemachine.partition.partition_commands import ReplaceLevelOne
from tests.kafka.handlers.fake_node import FakeNode
from tests.kafka.handlers.fake_partition import NOW, PLACE, FakePartition
from tests.kafka.handlers.fetch_answers import COMMITTED, P, aborted, bases, batch, only
from tests.kafka.handlers.list_offsets_answers import NEWEST, at, found
from tests.kafka.wire.batches import build
from tests.runtime.jumping_loop import simulated


def compacted(partition: FakePartition, kept: set[int], number: int = 0) -> None:
    """Of one level-one object only the batches of these base offsets are left, in one with holes."""
    old = list(partition.machine.level_one)[number]
    name = level_one_name(*PLACE, old.term, old.unique)
    data = partition.store.objects[name]
    unique = (1000 + len(partition.store.objects)).to_bytes(16, "big")
    writer = LevelOneWriter(*PLACE, partition.machine.term, unique, 300)
    writer.allow_holes(old.base_offset, old.end_offset)
    footer = parse(name, data)
    for block in footer.blocks:
        content = data[block.position : block.end]
        for start, length, base, end, epoch, newest in batches_of(name, block, content, footer.holes):
            if base in kept:
                writer.add(data[start : start + length], base, end, epoch, newest)
    made = writer.finish()
    partition.store.objects[level_one_name(*PLACE, partition.machine.term, unique)] = b"".join(made.parts)
    partition.replica.apply(ReplaceLevelOne([(old.term, old.unique)], [made.extent]))
    assert made.extent in list(partition.machine.level_one)


def made(batches: int, *ends: int) -> tuple[FakeNode, FakePartition]:
    """Batches of three records, in level-one objects up to these offsets."""
    node = FakeNode()
    node.topic()
    partition = node.partition()
    partition.write(*[build() for _ in range(batches)])
    for end in ends:
        partition.reconcile(end)
    return node, partition


@simulated
async def test_an_offset_that_was_removed_gets_the_next_batch_and_no_error() -> None:
    node, partition = made(6, 9, 15)
    compacted(partition, {3})
    for offset, expected in ((0, [3, 9, 12, 15]), (2, [3, 9, 12, 15]), (5, [3, 9, 12, 15]), (6, [9, 12, 15])):
        part = only(await node.fetch({0: offset}))
        assert (part.error_code, bases(part), part.high_watermark) == (ErrorCode.none, expected, 18)
    assert partition.confirmed == 0
    partition.trim(4)
    part = only(await node.fetch({0: 3}))
    assert (part.error_code, part.records) == (ErrorCode.offset_out_of_range, b"")


@simulated
async def test_objects_of_which_nothing_is_left_are_passed_over() -> None:
    node, partition = made(6, 3, 6, 9, 12)
    for number in (0, 1, 2, 3):
        compacted(partition, set(), number)
    for offset in (0, 4, 11):
        part = only(await node.fetch({0: {"fetch_offset": offset, "partition_max_bytes": 1}}))
        assert (part.error_code, bases(part)) == (ErrorCode.none, [12])
    assert found(await node.list_offsets([(0, NEWEST)]))[0][0] >= 12


@simulated
async def test_nothing_from_above_the_last_stable_offset_fills_a_hole() -> None:
    node, partition = made(2, 6)
    partition.write(batch(), transaction=1)
    partition.reconcile(7)
    compacted(partition, {0})
    compacted(partition, {6}, 1)
    part = only(await node.fetch({0: 2}, isolation_level=COMMITTED))
    assert (part.last_stable_offset, bases(part)) == (6, [0])
    part = only(await node.fetch({0: 4}, isolation_level=COMMITTED))
    assert (part.error_code, part.records) == (ErrorCode.none, b"")
    partition.end(P, 0, 1, commit=False)
    part = only(await node.fetch({0: 4}, isolation_level=COMMITTED))
    assert (bases(part), aborted(part)) == ([6, 7], [(P, 6)])


@simulated
async def test_lookups_by_time_find_the_first_record_that_is_left() -> None:
    node = FakeNode()
    node.topic()
    partition = node.partition()
    partition.write(at(10), at(30), at(20), at(5))
    partition.reconcile(2)
    partition.reconcile(4)
    assert found(await node.list_offsets([(0, NOW + 15)])) == [(1, NOW + 30, partition.machine.term)]
    compacted(partition, {0})
    assert found(await node.list_offsets([(0, NOW + 15)])) == [(2, NOW + 20, partition.machine.term)]
    assert found(await node.list_offsets([(0, NEWEST)])) == [(2, NOW + 20, partition.machine.term)]
    compacted(partition, set(), 0)
    compacted(partition, {3}, 1)
    assert found(await node.list_offsets([(0, NOW)])) == [(3, NOW + 5, partition.machine.term)]
    assert found(await node.list_offsets([(0, NEWEST)])) == [(3, NOW + 5, partition.machine.term)]
    assert found(await node.list_offsets([(0, NOW + 6)])) == [(-1, -1, -1)]


@pytest.mark.parametrize("seed", range(25))
@simulated
async def test_a_consumer_that_reads_on_gets_all_that_is_left_once_and_ends(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randrange(2, 30)
    ends = sorted({3 * rng.randrange(1, count + 1) for _ in range(rng.randrange(1, 6))})
    node, partition = made(count, *ends)
    left = set(range(0, 3 * count, 3))
    for number, extent in enumerate(list(partition.machine.level_one)):
        if rng.random() < 0.8:
            here = {one for one in left if extent.base_offset <= one < extent.end_offset}
            # The newest batch of all is never removed.
            gone = {one for one in here if rng.random() < 0.7 and one != 3 * (count - 1)}
            compacted(partition, here - gone, number)
            left -= gone
    seen: list[int] = []
    offset = 0
    while offset < 3 * count:
        size = rng.choice([1, 150, 400, 5000])
        level = rng.choice([0, COMMITTED])
        asked = {"fetch_offset": offset, "partition_max_bytes": size}
        part = only(await node.fetch({0: asked}, isolation_level=level))
        assert (part.error_code, bool(part.records)) == (ErrorCode.none, True), "empty before the end"
        seen += bases(part)
        for start, _ in boundaries(part.records):
            offset = read_header(part.records, start).next_offset
    assert seen == sorted(left)
