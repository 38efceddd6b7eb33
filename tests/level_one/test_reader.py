"""The reader of level one: whole blocks, few gets, each shared; damage is named and never given out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.node.level_one.reader import LevelOneReader, LevelOneReaderConfig, Place
from strandline.node.level_one.stored_run import StoredRun, TimedBatch
from strandline.node.objectstore.store import NotDone, ObjectNotFound
from strandline.snapshot.level_one_format import StoredSpan, batches_of, parse
from strandline.snapshot.level_one_writer import LevelOneWriter
from strandline.snapshot.object_frame import BadObject
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name
from tests.kafka.wire.sent_bytes import sent_bytes
from tests.level_zero.samples import TOPIC, record_batch, run, started
from tests.simulation.store import SimStore
from tests.simulation.world import World

PLACE = Place(TOPIC, 3)
TERM = 7
CONFIG = LevelOneReaderConfig(cache_bytes=400_000, chunk_bytes=4000, ahead_bytes=8000, max_gets=4)
BLOCK_BYTES = 1000
END = 1 << 40


class Case:
    def __init__(self, config: LevelOneReaderConfig = CONFIG) -> None:
        self.world = World(1)
        self.node = started(self.world)
        self.sim = SimStore(self.world)
        self.reader = LevelOneReader(self.sim.client(self.node), config, loop=self.node.loop)
        self.batches: list[StoredSpan] = []
        self.log = b""
        self.extents: list[LevelOneExtent] = []

    def stored(self, *batches: tuple[int, int], block_bytes: int = BLOCK_BYTES) -> LevelOneExtent:
        """The next object, of batches of (size, records); their newest times are their base offsets."""
        unique = len(self.extents).to_bytes(16, "big")
        writer = LevelOneWriter(*PLACE, TERM, unique, block_bytes)
        offset = self.extents[-1].end_offset if self.extents else 0
        for size, records in batches:
            data = bytearray(record_batch(bytes(size - 61)))
            data[23:27] = (records - 1).to_bytes(4, "big")
            data[35:43] = offset.to_bytes(8, "big")
            writer.add(data, offset, offset + records, TERM, offset)
            offset += records
        made = writer.finish()
        name = self.name(made.extent)
        self.sim.objects[name] = b"".join(made.parts)
        self.extents.append(made.extent)
        for block in parse(name, self.sim.objects[name]).blocks:
            content = self.sim.objects[name][block.position : block.position + block.length]
            self.batches += batches_of(name, block, content)
            self.log += content
        return made.extent

    def name(self, extent: LevelOneExtent) -> str:
        return level_one_name(*PLACE, extent.term, extent.unique)

    def blocks(self, extent: LevelOneExtent) -> list[tuple[int, int]]:
        """(base offset, end offset) of each block."""
        name = self.name(extent)
        return [(one.base_offset, one.end_offset) for one in parse(name, self.sim.objects[name]).blocks]

    def bytes_between(self, first: int, end: int) -> bytes:
        """Of the batches that hold these offsets."""
        found, at = b"", 0
        for span in self.batches:
            if span.base_offset < end and span.end_offset > first:
                found += self.log[at : at + span.length]
            at += span.length
        return found

    def reading(self, offset: int, end: int, max_bytes: int) -> asyncio.Task[list[StoredRun]]:
        wanted = [extent for extent in self.extents if extent.end_offset > offset]
        return self.node.loop.create_task(
            self.reader.read(PLACE, wanted[:2], offset, end, max_bytes, self.holding)
        )

    def holding(self, offset: int) -> LevelOneExtent | None:
        return next((one for one in self.extents if one.base_offset <= offset < one.end_offset), None)

    def read(self, offset: int, end: int = END, max_bytes: int = 1 << 30) -> list[StoredRun]:
        task = self.reading(offset, end, max_bytes)
        assert self.world.run_until(task.done, timeout=300.0, step=0.001)
        return task.result()

    def pause(self, seconds: float = 1.0) -> None:
        """Time passes between a consumer's reads, of which it is not forgotten."""
        self.world.run(self.world.now + seconds)

    def timed(self, offset: int, pause: float) -> float:
        """The seconds that a read of 2,000 bytes takes; then the consumer pauses."""
        began = self.world.now
        self.read(offset, max_bytes=2000)
        took = self.world.now - began
        self.pause(pause)
        return took

    def settle(self) -> None:
        self.world.run(self.world.now + 10.0)

    @property
    def gets(self) -> int:
        return self.sim.requests.get("get_range", 0)


@pytest.fixture
def case() -> Iterator[Case]:
    made = Case()
    with made.world:
        yield made
        made.world.check()


def ends(runs: Sequence[StoredRun]) -> tuple[int, int]:
    """First and last offset of what was given, which must be in one piece."""
    for before, after in pairwise(runs):
        assert before.end_offset == after.base_offset
    return runs[0].base_offset, runs[-1].end_offset


def joined(runs: Sequence[StoredRun]) -> bytes:
    return sent_bytes([run.data for run in runs])


SMALL = [(100, 2)] * 30
"""Three blocks of ten batches."""


# What is given.


def test_blocks_are_given_whole_and_as_they_lie(case: Case) -> None:
    extent = case.stored(*SMALL)
    assert case.blocks(extent) == [(0, 20), (20, 40), (40, 60)]
    runs = case.read(0, max_bytes=2500)
    assert ends(runs) == (0, 40)
    assert joined(runs) == case.bytes_between(0, 40)


def test_a_read_that_begins_within_a_block_begins_with_the_batch_that_holds_the_offset(case: Case) -> None:
    case.stored(*SMALL)
    runs = case.read(7, max_bytes=1000)
    assert ends(runs) == (6, 20)
    assert joined(runs) == case.bytes_between(6, 20)


def test_less_than_a_block_ends_with_a_batch(case: Case) -> None:
    case.stored(*SMALL)
    for max_bytes, end in ((350, 12), (200, 10), (100, 8), (99, 8), (0, 8)):
        runs = case.read(6, max_bytes=max_bytes)
        assert (ends(runs), joined(runs)) == ((6, end), case.bytes_between(6, end)), max_bytes


def test_nothing_is_given_from_the_end_on(case: Case) -> None:
    case.stored(*SMALL)
    for end, last in ((21, 20), (20, 20), (19, 20), (18, 18), (17, 18), (1, 2)):
        assert ends(case.read(0, end=end)) == (0, last), end
    assert ends(case.read(22, end=25)) == (22, 26)


def test_a_batch_larger_than_a_block_is_given_alone(case: Case) -> None:
    case.stored((100, 1), (5000, 1), (100, 1))
    assert ends(case.read(1, max_bytes=10)) == (1, 2)


def test_a_read_goes_on_in_the_next_object_with_whole_blocks_only(case: Case) -> None:
    case.stored(*SMALL)
    case.stored(*SMALL)
    assert ends(case.read(40, max_bytes=2000)) == (40, 80)
    assert ends(case.read(40, max_bytes=1900)) == (40, 60)


def test_reading_on_gives_all_of_it_once(case: Case) -> None:
    for _ in range(4):
        case.stored(*SMALL)
    offset, found = 0, b""
    while offset < 240:
        runs = case.read(offset, max_bytes=1700)
        found += joined(runs)
        offset = runs[-1].end_offset
    assert found == case.log


batch_sizes = st.lists(st.tuples(st.integers(61, 700), st.integers(1, 5)), min_size=1, max_size=12)


@given(
    objects=st.lists(batch_sizes, min_size=1, max_size=3),
    block_bytes=st.integers(1, 1500),
    chunk_bytes=st.integers(1, 3000),
    reads=st.lists(st.tuples(st.floats(0, 0.999), st.floats(0, 1), st.integers(0, 6000)), max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_any_read_is_a_contiguous_piece_of_the_log(
    objects: list[list[tuple[int, int]]],
    block_bytes: int,
    chunk_bytes: int,
    reads: list[tuple[float, float, int]],
) -> None:
    case = Case(
        LevelOneReaderConfig(cache_bytes=10_000, chunk_bytes=chunk_bytes, ahead_bytes=3000, max_gets=2)
    )
    with case.world:
        for batches in objects:
            case.stored(*batches, block_bytes=block_bytes)
        last = case.extents[-1].end_offset
        for start, length, max_bytes in reads:
            offset = int(start * last)
            end = offset + 1 + int(length * (last - offset - 1))
            runs = case.read(offset, end, max_bytes)
            first, after = ends(runs)
            data = joined(runs)
            assert first <= offset < after
            assert data == case.bytes_between(first, after)
            given = [span for span in case.batches if first <= span.base_offset < after]
            assert given[0].end_offset > offset
            assert given[-1].base_offset < end
            assert len(data) <= max_bytes or len(given) == 1
        case.world.check()


# How it is fetched.


def test_an_object_is_read_by_its_index_and_then_in_chunks(case: Case) -> None:
    extent = case.stored(*[(100, 1)] * 200)
    case.read(101, max_bytes=1000)
    assert case.gets == 2
    assert case.reader.measures.bytes_read == extent.index_bytes + 4000


def test_a_small_object_is_one_get(case: Case) -> None:
    case.stored(*SMALL)
    case.read(0)
    assert case.gets == 1


def test_what_was_read_is_not_fetched_again(case: Case) -> None:
    case.stored(*[(100, 1)] * 200)
    assert case.read(5, max_bytes=500) == case.read(5, max_bytes=500)
    assert case.gets == 2


def test_a_consumer_that_goes_on_is_read_ahead_for_also_in_the_next_object(case: Case) -> None:
    for _ in range(3):
        case.stored(*[(100, 1)] * 80)
    case.read(0, max_bytes=4000)
    case.pause()
    assert case.gets == 3, "two indexes, as the read might have gone on in the second, and a chunk"
    case.read(40, max_bytes=2000)
    case.pause()
    assert case.gets == 6, "the chunk it reads, and the two chunks of the next object"
    case.read(60, max_bytes=2000)
    case.pause()
    assert case.gets == 6, "as much as the window is there"
    evicted = case.reader.chunks.misses
    assert ends(case.read(80, max_bytes=8000)) == (80, 160)
    assert case.reader.chunks.misses == evicted


@pytest.mark.parametrize("offset", [0, 3])
def test_a_consumer_that_reads_once_is_not_read_ahead_for(case: Case, offset: int) -> None:
    case.stored(*[(100, 1)] * 200)
    case.read(offset, max_bytes=4000)
    case.settle()
    assert case.gets == 2
    case.read(100 + offset, max_bytes=1000)
    case.settle()
    assert case.gets == 3, "it did not go on where it was"


def test_small_objects_are_read_ahead_in_parallel(case: Case) -> None:
    for _ in range(12):
        case.stored(*SMALL)
    case.read(0, max_bytes=1000)
    case.read(20, max_bytes=1000)
    case.pause()
    whole = [case.reader.layouts.peek((one.unique, 0)) is not None for one in case.extents]
    assert whole == [True] * 4 + [False] * 8, "8,000 bytes ahead, of objects that are one get each"
    gets = case.gets
    assert ends(case.read(40, max_bytes=7000)) == (40, 120)
    assert ends(case.read(120, max_bytes=3000)) == (120, 180)
    case.pause()
    assert case.gets - gets == 2, "each read brings one more, and none again"


def test_a_quick_consumer_is_read_ahead_for_by_its_pace(case: Case) -> None:
    """From a store that takes 0.1 s as much is on its way as the consumer does not have to wait for."""
    config = replace(CONFIG, max_gets=32)
    case.reader = LevelOneReader(case.sim.client(case.node), config, loop=case.node.loop)
    case.sim.delay_seconds = (0.05, 0.05)
    case.stored(*[(100, 1)] * 2000)
    slow = [case.timed(offset, 1.0) for offset in range(0, 160, 20)]
    assert max(slow[4:]) < 0.002, "it takes 2 kB a second: the least that is read ahead is enough"
    assert case.reader.paces.window_bytes == CONFIG.ahead_bytes
    for offset in range(160, 1000, 20):
        case.timed(offset, 0.005)
    assert case.reader.paces.window_bytes > 4 * CONFIG.ahead_bytes
    took = [case.timed(offset, 0.005) for offset in range(1000, 1800, 20)]
    assert max(took) < 0.002, f"reads of chunks that are 0.1 s away: {took}"


def test_a_read_that_waits_has_a_turn_whatever_is_read_ahead(case: Case) -> None:
    extent = case.stored(*[(100, 1)] * 2000)
    case.read(0, max_bytes=100)
    layout = case.reader.layouts.peek((extent.unique, 0))
    assert layout is not None
    case.sim.stall()
    before = case.gets
    for number in range(5, 25):
        assert case.reader._loads.chunk_ahead(layout, number)
    case.pause()
    assert case.gets - before == CONFIG.max_gets
    task = case.reading(1900, END, 100)
    case.pause()
    assert case.gets - before == CONFIG.max_gets + 1
    case.sim.unstall()
    case.settle()
    assert ends(task.result()) == (1900, 1901)
    assert case.gets - before == 21


def test_a_consumer_whose_read_failed_is_read_ahead_for_when_it_comes_again(case: Case) -> None:
    case.stored(*[(100, 1)] * 2000)
    for offset in range(0, 200, 20):
        case.timed(offset, 0.01)
    window = case.reader.paces.window_bytes
    assert window >= CONFIG.ahead_bytes
    case.reader.chunks.drop(lambda _: True)
    case.sim.refused = 1.0
    with pytest.raises(NotDone, match="refused"):
        case.read(200, max_bytes=2000)
    assert case.reader.paces.window_bytes >= CONFIG.ahead_bytes
    case.sim.refused = 0.0
    case.read(200, max_bytes=2000)
    case.settle()
    gets = case.gets
    case.read(220, max_bytes=2000)
    assert case.gets == gets, "it was read ahead"


def test_readers_of_the_same_chunk_share_one_get(case: Case) -> None:
    case.stored(*[(100, 1)] * 200)
    tasks = [case.reading(3 + number, END, 500) for number in range(5)]
    case.settle()
    assert [ends(task.result())[0] for task in tasks] == [3, 4, 5, 6, 7]
    assert case.gets == 2


def test_a_reader_that_goes_away_takes_nothing_from_the_others(case: Case) -> None:
    case.stored(*[(100, 1)] * 200)
    going, staying = case.reading(3, END, 500), case.reading(3, END, 500)
    case.world.run(case.world.now + 0.0001)
    going.cancel()
    case.settle()
    assert going.cancelled()
    assert ends(staying.result()) == (3, 8)
    assert case.gets == 2


def test_gets_in_parallel_are_bounded(case: Case) -> None:
    case.stored(*[(100, 1)] * 800)
    case.read(0, max_bytes=100)
    case.settle()
    case.sim.stall()
    before = case.gets
    task = case.reading(201, END, 1 << 30)
    case.world.run(case.world.now + 1.0)
    assert case.gets - before == CONFIG.max_gets + 1
    case.sim.unstall()
    case.settle()
    assert ends(task.result()) == (201, 800)


def test_memory_is_bounded_whatever_is_read(case: Case) -> None:
    case.reader = LevelOneReader(
        case.sim.client(case.node),
        LevelOneReaderConfig(cache_bytes=40_000, chunk_bytes=4000, ahead_bytes=8000, max_gets=4),
        loop=case.node.loop,
    )
    for _ in range(6):
        case.stored(*[(100, 1)] * 200)
    offset = 0
    while offset < 1200:
        offset = case.read(offset, max_bytes=2000)[-1].end_offset
        assert case.reader.chunks.bytes <= 30_000
        assert case.reader.layouts.bytes <= 10_000
    assert case.reader.chunks.evicted > 20
    assert case.reader.chunks.wasted == 0


def test_nothing_is_kept_in_no_memory(case: Case) -> None:
    case.reader = LevelOneReader(
        case.sim.client(case.node), LevelOneReaderConfig(cache_bytes=0), loop=case.node.loop
    )
    case.stored(*SMALL)
    assert case.read(0) == case.read(0)
    assert (case.reader.chunks.bytes, case.reader.layouts.bytes) == (0, 0)


# What is known without a look.


def test_sizes_are_at_most_the_object_and_then_exact_to_a_block(case: Case) -> None:
    extent = case.stored(*SMALL)
    assert [case.reader.bytes_from(extent, offset) for offset in (0, 45)] == [3000, 3000]
    case.read(0, max_bytes=100)
    assert [case.reader.bytes_from(extent, offset) for offset in (0, 20, 45)] == [3000, 2000, 1000]


# Trouble.


def test_an_object_that_is_gone_says_so(case: Case) -> None:
    extent = case.stored(*SMALL)
    del case.sim.objects[case.name(extent)]
    with pytest.raises(ObjectNotFound) as caught:
        case.read(0)
    assert caught.value.key == case.name(extent)


def test_what_comes_before_an_object_that_is_gone_is_given(case: Case) -> None:
    case.stored(*SMALL)
    second = case.stored(*SMALL)
    del case.sim.objects[case.name(second)]
    assert ends(case.read(0)) == (0, 60)
    with pytest.raises(ObjectNotFound):
        case.read(60)


def test_a_store_that_fails_is_tried_again_by_the_next_read(case: Case) -> None:
    case.stored(*[(100, 1)] * 200)
    case.sim.refused = 1.0
    with pytest.raises(NotDone, match="simulated: refused"):
        case.read(0)
    case.sim.refused = 0.0
    assert ends(case.read(0, max_bytes=1000)) == (0, 10)
    assert case.reader.measures.failed == 1


def test_a_damaged_block_is_named_and_its_neighbours_are_given(case: Case) -> None:
    extent = case.stored(*[(100, 1)] * 80)
    case.sim.flip_bit(case.name(extent), 16 + 1000 + 500)
    for _ in range(2):
        assert ends(case.read(0)) == (0, 10)
        assert ends(case.read(20)) == (20, 80)
        for offset in (10, 15):
            with pytest.raises(BadObject, match="checksum") as caught:
                case.read(offset)
            assert (caught.value.name, caught.value.start, caught.value.end) == (
                case.name(extent),
                1016,
                2016,
            )
    assert case.reader.measures.bad >= 1


def test_nothing_is_given_from_behind_a_damaged_block(case: Case) -> None:
    extent = case.stored(*[(100, 1)] * 30)
    case.stored(*[(100, 1)] * 30)
    case.sim.flip_bit(case.name(extent), 16 + 1000 + 500)
    assert ends(case.read(0)) == (0, 10)
    assert ends(case.read(25)) == (25, 60)


def test_a_damaged_block_is_not_kept(case: Case) -> None:
    extent = case.stored(*[(100, 1)] * 80)
    sound = case.sim.objects[case.name(extent)]
    case.sim.flip_bit(case.name(extent), 16 + 500)
    with pytest.raises(BadObject):
        case.read(0)
    case.sim.objects[case.name(extent)] = sound
    assert ends(case.read(0, max_bytes=1000)) == (0, 10)


@pytest.mark.parametrize("batches", [30, 200])
def test_any_bit_of_the_index_that_flips_is_found(case: Case, batches: int) -> None:
    extent = case.stored(*[(100, 1)] * batches)
    case.sim.flip_bit(case.name(extent), extent.size - extent.index_bytes + 5)
    with pytest.raises(BadObject, match="checksum"):
        case.read(0)
    assert case.reader.measures.bad == 1


def test_a_cut_object_is_damaged(case: Case) -> None:
    extent = case.stored(*[(100, 1)] * 200)
    name = case.name(extent)
    case.sim.objects[name] = case.sim.objects[name][:-10]
    with pytest.raises(BadObject, match="the object is cut"):
        case.read(0)


def test_the_bytes_of_another_object_are_found_out(case: Case) -> None:
    first, second = case.stored(*SMALL), case.stored(*SMALL)
    case.sim.objects[case.name(first)] = case.sim.objects[case.name(second)]
    with pytest.raises(BadObject, match="these are the bytes of"):
        case.read(0)


def test_an_object_that_holds_other_offsets_than_the_state_says_is_found_out(case: Case) -> None:
    extent = case.stored(*SMALL)
    case.extents[0] = extent._replace(end_offset=59)
    with pytest.raises(BadObject, match="offsets 0 to 60, the partition says 0 to 59"):
        case.read(0)


def test_an_index_longer_than_the_state_says_is_found_out(case: Case) -> None:
    extent = case.stored(*[(100, 1)] * 200)
    case.extents[0] = extent._replace(index_bytes=extent.index_bytes - 1)
    with pytest.raises(BadObject):
        case.read(0)


def test_closing_ends_every_read(case: Case) -> None:
    case.stored(*[(100, 1)] * 800)
    case.read(0, max_bytes=100)
    case.sim.stall()
    tasks = [case.reading(201 + 40 * number, END, 500) for number in range(8)]
    case.world.run(case.world.now + 1.0)
    case.node.loop.create_task(case.reader.close())
    case.world.run(case.world.now + 2.0)
    late = case.reading(701, END, 500)
    case.world.run(case.world.now + 2.0)
    for task in [*tasks, late]:
        with pytest.raises(NotDone, match="stopping"):
            task.result()


# By time.


def since(case: Case, timestamp: int, start_offset: int = 0) -> TimedBatch | None:
    found = case.reader.first_since(PLACE, case.extents[0], timestamp, start_offset)
    return run(case.world, case.node, found)


def test_a_time_finds_the_first_batch_of_it_or_later(case: Case) -> None:
    case.stored(*SMALL)
    for time, base in ((-5, 0), (0, 0), (1, 2), (20, 20), (21, 22), (58, 58)):
        found = since(case, time)
        assert found is not None
        assert found[:4] == (base, base + 2, TERM, base)
        assert bytes(found.data) == case.bytes_between(base, base + 2)
    assert since(case, 59) is None


def test_a_time_does_not_find_what_lies_before_the_start(case: Case) -> None:
    case.stored(*SMALL)
    for start, base in ((0, 0), (1, 0), (2, 2), (25, 24), (59, 58)):
        found = since(case, 0, start)
        assert found is not None
        assert found.base_offset == base
    assert since(case, 0, 60) is None


def test_a_time_is_not_looked_for_in_blocks_before_the_start(case: Case) -> None:
    extent = case.stored(*SMALL)
    case.sim.flip_bit(case.name(extent), 16 + 500)
    found = since(case, 5, 20)
    assert found is not None
    assert found.base_offset == 20


def test_the_newest_time_is_that_of_what_is_left(case: Case) -> None:
    extent = case.stored(*SMALL)
    assert run(case.world, case.node, case.reader.newest(PLACE, extent, 0)) == 58
    assert case.gets == 0
    for start in (5, 57, 58, 59):
        assert run(case.world, case.node, case.reader.newest(PLACE, extent, start)) == 58
    assert run(case.world, case.node, case.reader.newest(PLACE, extent, 60)) is None


def test_a_lookup_within_a_damaged_block_is_an_error(case: Case) -> None:
    extent = case.stored(*SMALL)
    case.sim.flip_bit(case.name(extent), 16 + 1500)
    assert since(case, 5) is not None
    with pytest.raises(BadObject, match="checksum"):
        since(case, 20)
    with pytest.raises(BadObject, match="checksum"):
        run(case.world, case.node, case.reader.newest(PLACE, extent, 25))


@pytest.mark.parametrize("wrong", [{"max_gets": 0}, {"chunk_bytes": 0}, {"cache_bytes": -1}])
def test_a_configuration_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="positive"):
        LevelOneReaderConfig(**wrong)
