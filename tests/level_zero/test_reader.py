"""The reader: as few gets as will do, each batch checked, and one reader's trouble is not another's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.node.level_zero.cache import BatchCache
from strandline.node.level_zero.reader import Range, Reader, ReaderConfig, plan
from strandline.node.objectstore.store import NotDone, ObjectNotFound
from strandline.snapshot.level_zero_format import BadObject, Batch, encode
from strandline.statemachine.object_names import object_name
from strandline.statemachine.partition.extent import Extent, InlineExtent, ObjectExtent
from tests.level_zero.samples import TOPIC, identity, record_batch, run, started
from tests.simulation.store import SimStore
from tests.simulation.world import World

CONFIG = ReaderConfig(join_gap_bytes=50, max_get_bytes=2000, max_gets=4, max_ahead_bytes=10_000)


class Case:
    def __init__(self) -> None:
        self.world = World(1)
        self.node = started(self.world)
        self.sim = SimStore(self.world)
        self.written = BatchCache(100_000)
        self.fetched = BatchCache(100_000)
        self.reader = Reader(
            self.sim.client(self.node),
            CONFIG,
            loop=self.node.loop,
            written=self.written,
            fetched=self.fetched,
        )
        self.next_offset = 0

    def stored(self, number: int, *sizes: int) -> list[ObjectExtent]:
        """An object with batches of these payload sizes, in one section; returns their extents."""
        data = [record_batch(b"%d/%d " % (number, n) + bytes(size)) for n, size in enumerate(sizes)]
        encoded = encode(4, identity(number), [Batch(TOPIC, 0, batch) for batch in data])
        self.sim.objects[object_name(4, identity(number))] = b"".join(encoded.parts)
        extents = []
        for batch, position in zip(data, encoded.positions, strict=True):
            extents.append(ObjectExtent(self.next_offset, 1, 1, 0, len(batch), 4, position, identity(number)))
            self.next_offset += 1
        return extents

    def bytes_of(self, extent: ObjectExtent) -> bytes:
        data = self.sim.objects[extent.object_name]
        return data[extent.position : extent.position + extent.length]

    def read(self, extents: Sequence[Extent], ahead: Sequence[Extent] = ()) -> list[bytes]:
        return run(self.world, self.node, self.reader.read(extents, ahead))

    def spawn(self, extents: Sequence[Extent]) -> asyncio.Task[list[bytes]]:
        return self.node.loop.create_task(self.reader.read(extents))

    @property
    def gets(self) -> int:
        return self.sim.requests.get("get_range", 0)


@pytest.fixture
def case() -> Iterator[Case]:
    made = Case()
    with made.world:
        yield made
        made.world.check()


def test_neighbours_in_one_object_are_one_get(case: Case) -> None:
    extents = case.stored(1, 10, 20, 30)
    assert case.read(extents) == [case.bytes_of(extent) for extent in extents]
    assert case.gets == 1
    assert case.reader.measures.bytes_read == sum(extent.length for extent in extents)


def test_batches_come_in_the_order_asked_for(case: Case) -> None:
    first, second = case.stored(1, 10, 20), case.stored(2, 30)
    extents = [first[1], second[0], first[0], first[1]]
    assert case.read(extents) == [case.bytes_of(extent) for extent in extents]
    assert case.gets == 2


def test_a_far_range_is_a_get_of_its_own(case: Case) -> None:
    extents = case.stored(1, 10, 400, 10)
    case.read([extents[0], extents[2]])
    assert case.gets == 2


def test_what_was_written_here_is_not_fetched(case: Case) -> None:
    extents = case.stored(1, 10, 20)
    case.written.put(extents[0].object_id, extents[0].position, case.bytes_of(extents[0]))
    assert case.read(extents[:1]) == [case.bytes_of(extents[0])]
    assert case.gets == 0


def test_what_was_fetched_is_not_fetched_again(case: Case) -> None:
    extents = case.stored(1, 10, 20)
    assert case.read(extents) == case.read(extents)
    assert case.gets == 1


def test_inline_batches_are_at_hand(case: Case) -> None:
    inline = InlineExtent(0, 1, 1, 0, 3, b"abc")
    extents = case.stored(1, 10)
    assert case.read([inline, *extents, inline]) == [b"abc", case.bytes_of(extents[0]), b"abc"]


def test_readers_of_the_same_batch_share_one_get(case: Case) -> None:
    extents = case.stored(1, 10, 20)
    tasks = [case.spawn(extents) for _ in range(5)]
    case.world.run(10.0)
    assert [task.result() for task in tasks] == [[case.bytes_of(extent) for extent in extents]] * 5
    assert case.gets == 1
    assert case.reader.measures.joined == 8


def test_a_reader_that_goes_away_does_not_take_the_batch_from_others(case: Case) -> None:
    extents = case.stored(1, 10)
    going, staying = case.spawn(extents), case.spawn(extents)
    case.world.run(0.0001)
    going.cancel()
    case.world.run(10.0)
    assert going.cancelled()
    assert staying.result() == [case.bytes_of(extents[0])]


def test_the_next_range_is_read_ahead(case: Case) -> None:
    extents = case.stored(1, 10), case.stored(2, 20)
    case.read(extents[0], ahead=extents[1])
    case.world.run(10.0)
    assert case.gets == 2
    case.read(extents[1], ahead=())
    assert case.gets == 2
    assert case.reader.measures.batches_ahead == 1


def test_what_is_to_be_read_ahead_is_though_this_read_was_served_from_memory(case: Case) -> None:
    """Else a consumer that was read ahead for would wait for every second get."""
    extents = case.stored(1, 10), case.stored(2, 20)
    case.read(extents[0])
    case.read(extents[0], ahead=extents[1])
    assert case.gets == 2


def test_read_ahead_is_bounded(case: Case) -> None:
    first = case.stored(1, 10)
    ahead = [case.stored(n, 3000)[0] for n in range(2, 10)]
    case.read(first, ahead=ahead)
    assert case.reader.measures.batches_ahead == 3


def test_read_ahead_that_fails_harms_nobody_and_is_tried_again(case: Case) -> None:
    first, second = case.stored(1, 10), case.stored(2, 20)
    data = case.sim.objects.pop(second[0].object_name)
    case.read(first, ahead=second)
    case.world.run(10.0)
    assert case.reader.measures.failed == 1
    case.sim.objects[second[0].object_name] = data
    assert case.read(second) == [case.bytes_of(second[0])]


def test_an_object_that_is_gone_says_so(case: Case) -> None:
    extents = case.stored(1, 10)
    case.sim.objects.clear()
    with pytest.raises(ObjectNotFound):
        case.read(extents)


def test_a_store_that_fails_is_not_a_bad_object(case: Case) -> None:
    extents = case.stored(1, 10)
    case.sim.refused = 1.0
    with pytest.raises(NotDone, match="simulated: refused"):
        case.read(extents)
    case.sim.refused = 0.0
    assert case.read(extents) == [case.bytes_of(extents[0])]


def test_a_bad_batch_names_object_and_range_and_its_neighbours_are_served(case: Case) -> None:
    extents = case.stored(1, 10, 20, 30)
    bad = extents[1]
    case.sim.flip_bit(bad.object_name, bad.position + 65)
    where = (
        f"object {bad.object_name}, bytes {bad.position} to {bad.position + bad.length}: the batch's checksum"
    )
    tasks = [case.spawn([extent]) for extent in extents]
    case.world.run(10.0)
    assert tasks[0].result() == [case.bytes_of(extents[0])]
    assert tasks[2].result() == [case.bytes_of(extents[2])]
    with pytest.raises(BadObject, match=where):
        tasks[1].result()
    with pytest.raises(BadObject, match=where):
        case.read(extents)
    assert (bad.object_id, bad.position) not in case.fetched


def test_a_cut_object_is_a_bad_object(case: Case) -> None:
    extents = case.stored(1, 10, 20)
    name = extents[0].object_name
    case.sim.objects[name] = case.sim.objects[name][: extents[1].position + 5]
    with pytest.raises(BadObject, match="the object is cut"):
        case.read(extents[1:])


def test_gets_in_parallel_are_bounded(case: Case) -> None:
    case.sim.stall()
    extents = [case.stored(n, 10)[0] for n in range(20)]
    tasks = [case.spawn([extent]) for extent in extents]
    case.world.run(1.0)
    assert case.gets == CONFIG.max_gets + 1
    case.sim.unstall()
    case.world.run(10.0)
    assert [task.result() for task in tasks] == [[case.bytes_of(extent)] for extent in extents]
    assert case.reader.loading_bytes == 0


def test_a_read_that_waits_has_a_turn_whatever_is_read_ahead(case: Case) -> None:
    first, last = case.stored(1, 10), case.stored(2, 10)
    ahead = [case.stored(number, 10)[0] for number in range(3, 15)]
    case.sim.stall()
    tasks = [case.node.loop.create_task(case.reader.read(first, ahead))]
    case.world.run(1.0)
    assert case.gets == CONFIG.max_gets + 1
    case.sim.unstall()
    case.world.run(10.0)
    case.sim.stall()
    case.fetched.resize(0)
    case.fetched.resize(100_000)
    case.reader._read_ahead(ahead)
    before = case.gets
    case.world.run(20.0)
    assert case.gets - before == CONFIG.max_gets
    tasks.append(case.spawn(last))
    case.world.run(30.0)
    assert case.gets - before == CONFIG.max_gets + 1
    case.sim.unstall()
    case.world.run(40.0)
    assert [task.result() for task in tasks] == [[case.bytes_of(one[0])] for one in (first, last)]


def test_closing_ends_every_read(case: Case) -> None:
    case.sim.stall()
    tasks = [case.spawn(case.stored(n, 10)) for n in range(8)]
    case.world.run(1.0)
    late = case.spawn(case.stored(9, 10))
    case.node.loop.create_task(case.reader.close())
    case.world.run(2.0)
    for task in [*tasks, late]:
        with pytest.raises(NotDone, match="stopping"):
            task.result()


@st.composite
def extents_of_objects(draw: st.DrawFn) -> list[ObjectExtent]:
    """Extents of three objects, without overlaps, in any order."""
    extents: list[ObjectExtent] = []
    for number in range(3):
        position = 16
        for gap, length in draw(st.lists(st.tuples(st.integers(0, 90), st.integers(61, 1500)), max_size=6)):
            position += gap
            extents.append(ObjectExtent(0, 1, 1, 0, length, 4, position, identity(number)))
            position += length
    return draw(st.permutations(extents))


@given(extents_of_objects())
def test_a_plan_fetches_every_extent_once_within_its_bounds(extents: list[ObjectExtent]) -> None:
    ranges = plan(extents, 50, 2000)
    planned = [extent for part in ranges for extent in part.extents]
    assert sorted(planned) == sorted(extents)
    for part in ranges:
        assert {extent.object_name for extent in part.extents} == {part.name}
        assert (part.start, part.end) == (part.extents[0].position, ends(part)[-1])
        assert part.end - part.start <= 2000 or len(part.extents) == 1
        for extent, before in zip(part.extents[1:], ends(part), strict=False):
            assert 0 <= extent.position - before <= 50
    for left, right in pairwise(ranges):
        if left.name == right.name:
            far = right.start - left.end > 50
            assert far or ends(right)[0] - left.start > 2000, "these two could have been one"


def ends(part: Range) -> list[int]:
    return [extent.position + extent.length for extent in part.extents]


@pytest.mark.parametrize("wrong", [{"max_gets": 0}, {"max_get_bytes": 0}, {"join_gap_bytes": -1}])
def test_a_configuration_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="positive"):
        ReaderConfig(**wrong)
