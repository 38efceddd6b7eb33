"""Objects of which compaction has removed records: written, checked, read and merged, beside a plain list."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.node.level_one.builder import Merge
from strandline.node.level_one.reader import LevelOneReader, LevelOneReaderConfig, Place
from strandline.node.level_one.stored_run import StoredRun
from strandline.node.objectstore.store import ObjectStore
from strandline.snapshot.level_one_format import NO_TIMESTAMP, StoredSpan, batches_of, body_bytes, parse
from strandline.snapshot.level_one_writer import EncodedObject, LevelOneWriter
from strandline.snapshot.object_frame import BadObject
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name
from tests.kafka.handlers.fake_partition import ObjectsByName
from tests.kafka.wire.sent_bytes import sent_bytes
from tests.level_one.builder_case import Case as BuilderCase
from tests.level_one.builder_case import unique
from tests.level_one.stamped import UNIQUE, encoded, sent, stamped
from tests.level_zero.samples import TOPIC

NAME = level_one_name(TOPIC, 0, 3, UNIQUE)


class Batch(NamedTuple):
    """A batch that is left, or offsets of which nothing is."""

    offsets: int
    size: int
    there: bool


logs = st.lists(st.builds(Batch, st.integers(1, 5), st.integers(0, 300), st.booleans()), max_size=25)
block_sizes = st.integers(60, 1500)


def with_holes(
    log: Sequence[Batch], base: int = 40, *, block_bytes: int = 400, unique: bytes = UNIQUE, spare: int = 0
) -> tuple[EncodedObject, list[tuple[int, int, bytes]]]:
    """The object of a log of `spare` offsets more, and (base, end, bytes) of each batch in it."""
    end = base + sum(batch.offsets for batch in log) + spare
    writer = LevelOneWriter(TOPIC, 0, 3, unique, block_bytes)
    writer.allow_holes(base, end)
    found = []
    offset = base
    for count, size, there in log:
        if there:
            batch = sent(bytes(size), count, max_timestamp=offset)
            writer.add(batch.data, offset, offset + count, batch.term, batch.max_timestamp)
            found.append((offset, offset + count, stamped(batch, offset)))
        offset += count
    return writer.finish(), found


def spans_of(name: str, data: bytes) -> list[StoredSpan]:
    footer = parse(name, data)
    return [
        span
        for block in footer.blocks
        for span in batches_of(name, block, data[block.position : block.end], footer.holes)
    ]


# The bytes.


@settings(deadline=None)
@given(logs, st.integers(0, 2**40), block_sizes)
def test_what_is_left_comes_out_and_blocks_tile_the_range(
    log: list[Batch], base: int, block_bytes: int
) -> None:
    made, expected = with_holes(log, base, block_bytes=block_bytes, spare=1)
    data = b"".join(made.parts)
    footer = parse(NAME, data)
    end = base + sum(batch.offsets for batch in log) + 1
    assert (footer.base_offset, footer.end_offset, footer.holes) == (base, end, True)
    assert (made.extent.base_offset, made.extent.end_offset, made.size) == (base, end, len(data))
    found = [
        (one.base_offset, one.end_offset, data[one.position :][: one.length]) for one in spans_of(NAME, data)
    ]
    assert found == expected
    if footer.blocks:
        assert (footer.blocks[0].base_offset, footer.blocks[-1].end_offset) == (base, end)
        for one, other in pairwise(footer.blocks):
            assert one.end_offset == other.base_offset == spans_of(NAME, data)[0].base_offset or (
                other.base_offset in [first for first, _, _ in expected]
            ), "a hole belongs to the block before it"
        assert all(block.length <= block_bytes or block.batches == 1 for block in footer.blocks)
    newest = max((first for first, _, _ in expected), default=NO_TIMESTAMP)
    assert footer.max_timestamp == made.extent.max_timestamp == newest
    assert body_bytes(made.extent) == sum(len(batch) for _, _, batch in expected)


def test_one_flipped_bit_anywhere_is_found() -> None:
    log = [Batch(2, 5, False), Batch(3, 9, True), Batch(1, 0, False), Batch(2, 40, True)]
    data = b"".join(with_holes(log, block_bytes=80)[0].parts)
    assert len(parse(NAME, data).blocks) == 2
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            with pytest.raises(BadObject):
                parse(NAME, bytes(damaged))


def test_an_object_without_holes_stays_strict() -> None:
    writer = LevelOneWriter(TOPIC, 0, 3, UNIQUE, 400)
    one = sent(b"one")
    writer.add(one.data, 40, 41, 3, 0)
    with pytest.raises(ValueError, match="the batch of offset 42 comes after those up to 41"):
        writer.add(one.data, 42, 43, 3, 0)
    data = sent_bytes(encoded([sent(b"a", 2), sent(b"b", 3)], 40).parts)
    [block] = parse(NAME, data).blocks
    content = bytearray(data[block.position : block.end])
    at = 12 + int.from_bytes(content[8:12], "big")
    content[at : at + 8] = (43).to_bytes(8, "big")
    wider = block._replace(end_offset=46)
    with pytest.raises(BadObject, match="a batch of offset 43 where 42 follows"):
        list(batches_of(NAME, wider, content))
    assert [span.base_offset for span in batches_of(NAME, wider, content, holes=True)] == [40, 43]
    with pytest.raises(BadObject, match="a batch of offset 40 where 41 follows"):
        list(batches_of(NAME, wider._replace(base_offset=41), content, holes=True))
    with pytest.raises(BadObject, match="2 batches up to offset 46 in place of 2 up to 45"):
        list(batches_of(NAME, block, content, holes=True))


def test_what_does_not_lie_in_the_range_is_refused() -> None:
    writer = LevelOneWriter(TOPIC, 0, 3, UNIQUE, 400)
    batch = sent(b"one", 2)
    for wrong in ((5, 5), (-1, 3)):
        with pytest.raises(ValueError, match="are not a span"):
            writer.allow_holes(*wrong)
    writer.allow_holes(10, 20)
    for base, end in ((9, 11), (19, 21)):
        with pytest.raises(ValueError, match="are not in an object"):
            writer.add(batch.data, base, end, 3, 0)
    writer = LevelOneWriter(TOPIC, 0, 3, UNIQUE, 400)
    writer.add(batch.data, 0, 2, 3, 0)
    with pytest.raises(ValueError, match="it has batches already"):
        writer.allow_holes(0, 10)


# Reading.


class Case:
    """Objects of one partition, one after the other, and what is left of the log."""

    def __init__(self, logs: Sequence[Sequence[Batch]], block_bytes: int, chunk_bytes: int) -> None:
        store = ObjectsByName()
        config = LevelOneReaderConfig(cache_bytes=50_000, chunk_bytes=chunk_bytes, ahead_bytes=2000)
        self.reader = LevelOneReader(cast(ObjectStore, store), config, loop=asyncio.get_running_loop())
        self.extents: list[LevelOneExtent] = []
        self.left: list[tuple[int, int, bytes]] = []
        base = 40
        for number, log in enumerate(logs):
            made, found = with_holes(log, base, block_bytes=block_bytes, unique=unique(number), spare=1)
            store.objects[level_one_name(TOPIC, 0, 3, unique(number))] = b"".join(made.parts)
            self.extents.append(made.extent)
            self.left += found
            base = made.extent.end_offset
        self.end = base

    async def read(self, offset: int, end: int, max_bytes: int) -> list[StoredRun]:
        wanted = [extent for extent in self.extents if extent.end_offset > offset]
        return await self.reader.read(Place(TOPIC, 0), wanted, offset, end, max_bytes)


@settings(max_examples=120, deadline=None)
@given(st.lists(logs, min_size=1, max_size=4), block_sizes, st.sampled_from([300, 1000, 5000]), st.data())
def test_a_read_goes_on_to_the_next_batch_there_is(
    logs: list[list[Batch]], block_bytes: int, chunk_bytes: int, data: st.DataObject
) -> None:

    async def walk() -> None:
        case = Case(logs, block_bytes, chunk_bytes)
        for _ in range(6):
            offset = data.draw(st.integers(40, case.end - 1), label="offset")
            end = data.draw(st.integers(offset + 1, case.end + 3), label="end")
            max_bytes = data.draw(st.sampled_from([0, 100, 500, 2000, 1 << 20]), label="bytes")
            runs = await case.read(offset, end, max_bytes)
            expected = [one for one in case.left if one[1] > offset and one[0] < end]
            given_bytes = sent_bytes([run.data for run in runs])
            whole = b"".join(one[2] for one in expected)
            assert whole.startswith(given_bytes), "from the first batch at the offset or behind it on"
            assert bool(runs) == bool(expected), "nothing only where nothing is left"
            if not runs:
                continue
            assert runs[0].base_offset == expected[0][0]
            assert len(given_bytes) <= max(max_bytes, len(expected[0][2]))
            count = 1
            while sum(len(one[2]) for one in expected[:count]) < len(given_bytes):
                count += 1
            after = expected[count][0] if count < len(expected) else case.end
            assert expected[count - 1][1] <= runs[-1].end_offset <= after, "the next read misses nothing"
        offset, seen = 40, b""
        while offset < case.end:
            runs = await case.read(offset, case.end, 700)
            seen += sent_bytes([run.data for run in runs])
            offset = runs[-1].end_offset if runs else case.end
        assert seen == b"".join(one[2] for one in case.left)
        await case.reader.close()

    asyncio.run(walk())


@settings(max_examples=60, deadline=None)
@given(st.lists(logs, min_size=1, max_size=3), block_sizes, st.integers(40, 120), st.integers(40, 120))
def test_lookups_by_time_find_what_is_left(
    logs: list[list[Batch]], block_bytes: int, time: int, start: int
) -> None:
    """A batch's newest time is its base offset."""

    async def look() -> None:
        case = Case(logs, block_bytes, 1000)
        place = Place(TOPIC, 0)
        for extent in case.extents:
            inside = [
                one
                for one in case.left
                if extent.base_offset <= one[0] < extent.end_offset and one[1] > start
            ]
            since = next((one[0] for one in inside if one[0] >= time), None)
            found = await case.reader.first_since(place, extent, time, start)
            assert (None if found is None else found.base_offset) == since
            if body_bytes(extent):
                newest = await case.reader.newest(place, extent, start)
                assert newest == max((one[0] for one in inside), default=None)
        await case.reader.close()

    asyncio.run(look())


# Merging.


@settings(max_examples=60, deadline=None)
@given(st.lists(logs, min_size=2, max_size=4), block_sizes, st.booleans())
def test_a_merge_keeps_the_holes_and_whatever_is_left(
    logs: list[list[Batch]], block_bytes: int, whole_last: bool
) -> None:
    """The last source may be one without holes, as what was lifted since."""
    case = BuilderCase()
    with case.world:
        extents, expected, base = [], b"", 40
        for number, log in enumerate(logs):
            made, found = with_holes(log, base, block_bytes=block_bytes, unique=unique(number), spare=1)
            if whole_last and number == len(logs) - 1:
                batch = sent(b"lifted", 3)
                made, found = encoded([batch], base, unique=unique(number)), [(0, 0, stamped(batch, base))]
            case.sim.objects[level_one_name(TOPIC, 0, 3, unique(number))] = b"".join(made.parts)
            extents.append(made.extent)
            expected += b"".join(one[2] for one in found)
            base = made.extent.end_offset
        task = case.node.loop.create_task(case.builder.merge(Merge(TOPIC, 0, 9, unique(90), extents)))
        assert case.world.run_until(task.done, timeout=60, step=0.001)
        merged = task.result()
        assert isinstance(merged, LevelOneExtent)
        assert (merged.base_offset, merged.end_offset) == (40, base)
        name = level_one_name(TOPIC, 0, 9, unique(90))
        data = case.sim.objects[name]
        assert parse(name, data).holes
        assert b"".join(data[one.position :][: one.length] for one in spans_of(name, data)) == expected
        case.world.check()
