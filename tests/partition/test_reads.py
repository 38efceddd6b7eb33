"""A partition's reads: one log over both levels, whatever moves, merges or goes while a read is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.node.level_one.stored_run import StoredRun
from strandline.node.level_zero.read_pace import ReadPaces
from strandline.node.objectstore.store import NotDone, ObjectNotFound
from strandline.node.partition.batch import StoredBatch
from strandline.node.partition.stored_batches import PLANS, Measured
from strandline.snapshot.level_one_writer import LevelOneWriter
from strandline.snapshot.object_frame import BadObject
from strandline.statemachine.partition.extent import ObjectExtent
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name
from strandline.statemachine.partition.partition_commands import (
    AdvanceReconciled,
    Command,
    ReplaceLevelOne,
    SetStartOffset,
    StartOffsetSet,
    encode,
)
from tests.kafka.wire.sent_bytes import sent_bytes
from tests.level_zero.samples import record_batch
from tests.partition.lone import NOW, TOPIC, Lone, filled

SIZE = 100
"""Bytes of every batch; each has one record."""


def log(lone: Lone, *commands: Command) -> None:
    """Commit what a leader commits, whatever waits for it."""
    lone.group.replicate(encode(lone.group.term, NOW, commands), lone.group.term)
    lone.group.apply()


def content(first: int, end: int, times: Sequence[int] | None = None) -> list[bytes]:
    """What the batches of these offsets are in level one, unstamped; times count from NOW."""
    found = []
    for offset, time in zip(range(first, end), times or range(first, end), strict=True):
        data = record_batch(b"%039d" % offset)
        found.append(data[:35] + (NOW + time).to_bytes(8, "big") + data[43:])
    return found


def made(lone: Lone, unique: int, first: int, end: int, times: Sequence[int] | None = None) -> LevelOneExtent:
    """An object of the batches of these offsets, stored and named by nobody yet."""
    term = lone.group.term
    writer = LevelOneWriter(TOPIC, 2, term, unique.to_bytes(16, "big"), 2 * SIZE)
    for offset, data in enumerate(content(first, end, times), first):
        writer.add(data, offset, offset + 1, 1, int.from_bytes(data[35:43], "big"))
    encoded = writer.finish()
    lone.store.objects[name(encoded.extent)] = sent_bytes(encoded.parts)
    return encoded.extent


def lifted(lone: Lone, *ends: int, times: Sequence[int] | None = None) -> list[LevelOneExtent]:
    """Level zero up to each of these offsets goes into an object each."""
    extents = []
    for end in ends:
        first = lone.partition.machine.extents.first_offset
        extents.append(made(lone, first, first, end, times and times[first:end]))
        log(lone, AdvanceReconciled(first, extents[-1:]))
    return extents


def name(extent: LevelOneExtent) -> str:
    return level_one_name(TOPIC, 2, extent.term, extent.unique)


def read(
    lone: Lone, offset: int, end: int = 1 << 40, max_bytes: int = 1 << 30
) -> list[StoredBatch | StoredRun]:
    return lone.run(lone.partition.read(offset, end, max_bytes)).result()


def ends(batches: Sequence[StoredBatch | StoredRun]) -> tuple[int, int]:
    """First and last offset of what was read, which must be in one piece."""
    offset = batches[0].base_offset
    for batch in batches:
        assert batch.base_offset == offset
        offset = batch.end_offset
        assert len(batch.data) == SIZE * (batch.end_offset - batch.base_offset)
    return batches[0].base_offset, offset


# Level zero.


def test_reads_what_was_written_with_offsets_and_terms() -> None:
    with Lone() as lone:
        filled(lone, 5)
        lone.group.lose()
        lone.group.lead(4)
        filled(lone, 6)
        batches = lone.run(lone.partition.read(0, 10, 1000)).result()
        assert batches == [StoredBatch(0, 1, 1, b"x" * 100), StoredBatch(1, 2, 4, b"x" * 100)]
        assert [b.base_offset for b in lone.run(lone.partition.read(0, 10, 1)).result()] == [0]
        assert lone.run(lone.partition.read(2, 10, 1000)).result() == []


def ahead(lone: Lone) -> list[list[int]]:
    """Base offsets of what was read ahead with each read so far."""
    return [[extent.base_offset for extent in ahead] for _, ahead in lone.reader.asked]


def test_a_consumer_is_read_ahead_for_once_it_goes_on() -> None:
    with Lone() as lone:
        filled(lone, 5, 5, 5, 5, 5)
        lone.written._batches.clear()
        for offset in (0, 0, 3, 4):
            lone.run(lone.partition.read(offset, 10, 1))
        assert ahead(lone) == [[], [], [], []], "only the last went on, and behind it there is nothing"
        lone.run(lone.partition.read(1, 10, 1))
        assert ahead(lone)[-1] == [2, 3, 4]


def test_what_this_node_wrote_is_not_read_ahead() -> None:
    with Lone() as lone:
        filled(lone, 5, 5, 5)
        for offset in (0, 1):
            lone.run(lone.partition.read(offset, 10, 1))
        assert ahead(lone) == [[], []]
        assert lone.reader.paces.readers == 0


def test_what_was_asked_for_is_not_asked_for_again() -> None:
    """A window is filled up once a quarter of it is free, from where the last asking ended."""
    with Lone() as lone:
        filled(lone, *[5] * 12)
        lone.written._batches.clear()
        lone.reader.paces = ReadPaces(least=4 * SIZE, budget=lambda: 4 * SIZE, now=lambda: 0.0)
        for offset in range(5):
            lone.run(lone.partition.read(offset, 20, 1))
        assert ahead(lone) == [[], [2, 3, 4, 5], [6], [7], [8]]


def test_a_consumer_whose_read_failed_is_not_a_new_one() -> None:
    def refuses() -> list[bytes]:
        raise NotDone("get_range", "an object", "refused", retriable=True)

    with Lone() as lone:
        filled(lone, *[5] * 6)
        lone.written._batches.clear()
        for offset in (0, 1):
            lone.run(lone.partition.read(offset, 10, 1))
        lone.reader.answers.append(refuses)
        with pytest.raises(NotDone):
            lone.run(lone.partition.read(2, 10, 1)).result()
        assert lone.reader.paces.readers == 1
        window = lone.reader.paces.window_bytes
        lone.run(lone.partition.read(2, 10, 1))
        assert lone.reader.paces.window_bytes >= window > 0


def gone(lone: Lone, then: Callable[[], object] = lambda: None) -> Callable[[], list[bytes]]:
    """The first extent's object is not there; and then something happens."""

    def answer() -> list[bytes]:
        extent = lone.reader.asked[-1][0][0]
        assert isinstance(extent, ObjectExtent)
        then()
        raise ObjectNotFound("get_range", extent.object_name)

    return answer


def test_an_object_that_is_gone_means_plan_again() -> None:
    with Lone() as lone:
        filled(lone, 5, 6)
        task = lone.run(lone.partition.execute(SetStartOffset(1)))
        lone.reader.answers.append(gone(lone, lone.group.apply))
        batches = lone.run(lone.partition.read(0, 10, 1000)).result()
        assert task.result() == StartOffsetSet(1)
        assert [batch.base_offset for batch in batches] == [1]
        assert lone.group.barriers == []


def test_an_object_that_a_confirmed_leader_names_is_damage() -> None:
    with Lone() as lone:
        filled(lone, 5)
        lone.reader.answers.append(gone(lone))
        with pytest.raises(BadObject, match="no such object") as caught:
            lone.run(lone.partition.read(0, 10, 1000)).result()
        assert (caught.value.start, caught.value.end) == (16, 116)


def test_damage_is_told_only_after_the_leader_is_confirmed() -> None:
    with Lone() as lone:
        filled(lone, 5, 6)
        lone.run(lone.partition.execute(SetStartOffset(1)))
        lone.group.confirmed = False
        lone.reader.answers.append(gone(lone))
        task = lone.run(lone.partition.read(0, 10, 1000))
        assert not task.done()
        lone.group.commit()
        lone.group.pass_barriers()
        lone.loop.run()
        assert [batch.base_offset for batch in task.result()] == [1]


def test_an_object_missing_at_who_does_not_lead_is_no_damage() -> None:
    with Lone() as lone:
        filled(lone, 5)
        lone.group.lose()
        lone.reader.answers.append(gone(lone))
        with pytest.raises(ObjectNotFound):
            lone.run(lone.partition.read(0, 10, 1000)).result()


def test_plans_are_bounded() -> None:
    with Lone() as lone:
        filled(lone, *[5] * 10)

        def trim(number: int) -> Callable[[], object]:
            def then() -> None:
                lone.group.replicate(encode(1, 0, [SetStartOffset(number)]), 1)
                lone.group.apply()

            return then

        lone.reader.answers += [gone(lone, trim(number)) for number in range(1, 10)]
        with pytest.raises(ObjectNotFound):
            lone.run(lone.partition.read(0, 20, 1)).result()
        assert len(lone.reader.asked) == PLANS


# One log.


def test_a_read_crosses_from_level_one_into_level_zero() -> None:
    with Lone() as lone:
        filled(lone, *[5] * 10)
        lifted(lone, 3, 6)
        runs = read(lone, 1)
        assert ends(runs) == (1, 10)
        assert [type(one) for one in runs] == [StoredRun] * 2 + [StoredBatch] * 4
        assert sent_bytes([runs[0].data])[16:SIZE] == content(1, 2)[0][16:]
        assert ends(read(lone, 1, 8)) == (1, 8)
        assert ends(read(lone, 4, 6)) == (4, 6)
        assert ends(read(lone, 6)) == (6, 10)
        assert read(lone, 10) == []


def test_limits_count_over_both_levels() -> None:
    with Lone() as lone:
        filled(lone, *[5] * 10)
        lifted(lone, 4)
        for count in range(4, 11):
            assert ends(read(lone, 0, max_bytes=SIZE * count)) == (0, count)
        assert ends(read(lone, 0, max_bytes=SIZE * 5 - 1)) == (0, 4)
        assert ends(read(lone, 3, max_bytes=1)) == (3, 4)
        assert ends(read(lone, 4, max_bytes=1)) == (4, 5)


def test_what_lies_below_the_start_offset_is_not_read() -> None:
    with Lone() as lone:
        filled(lone, *[5] * 6)
        lifted(lone, 4)
        log(lone, SetStartOffset(1))
        assert ends(read(lone, 0)) == (1, 6)
        log(lone, SetStartOffset(5))
        assert ends(read(lone, 0)) == (5, 6)
        assert read(lone, 0, 5) == []


def test_what_can_be_given_is_given_when_level_zero_fails() -> None:
    with Lone() as lone:
        filled(lone, *[5] * 6)
        lifted(lone, 4)

        def fails() -> list[bytes]:
            raise NotDone("get_range", "x", "down", retriable=True)

        lone.reader.answers += [fails, fails]
        assert ends(read(lone, 0)) == (0, 4)
        with pytest.raises(NotDone):
            read(lone, 4)


def test_what_is_read_ahead_of_an_object_may_be_the_next() -> None:
    with Lone() as lone:
        filled(lone, *[5] * 6)
        first, second = lifted(lone, 3, 6)
        read(lone, 0, max_bytes=2 * SIZE)
        assert lone.store.asked == [name(first)], "no read-ahead is configured here"
        read(lone, 0, max_bytes=4 * SIZE)
        assert lone.store.asked == [name(first), name(second)]


# Moved, merged, gone.


def test_batches_that_are_lifted_while_they_are_read_come_from_level_one() -> None:
    with Lone() as lone:
        filled(lone, *[5] * 4)
        lone.reader.answers.append(gone(lone, lambda: lifted(lone, 4)))
        runs = read(lone, 1)
        assert ends(runs) == (1, 4)
        assert {type(one) for one in runs} == {StoredRun}
        assert lone.group.barriers == []


def test_a_merge_while_an_object_is_read_is_not_seen() -> None:
    with Lone() as lone:
        filled(lone, *[5] * 4)
        old = lifted(lone, 2, 4)
        lone.store.hold = True
        task = lone.run(lone.partition.read(0, 4, 1 << 20))
        whole = made(lone, 99, 0, 4)
        log(lone, ReplaceLevelOne([(one.term, one.unique) for one in old], [whole]))
        for one in old:
            del lone.store.objects[name(one)]
        lone.store.release()
        assert ends(task.result()) == (0, 4)
        assert lone.store.asked[-1] == name(whole)


def test_an_object_that_retention_deletes_while_it_is_read_is_no_damage() -> None:
    with Lone() as lone:
        filled(lone, *[5] * 4)
        (old,) = lifted(lone, 2)
        lone.store.hold = True
        task = lone.run(lone.partition.read(0, 4, 1 << 20))
        log(lone, SetStartOffset(3))
        del lone.store.objects[name(old)]
        lone.store.release()
        assert ends(task.result()) == (3, 4)


def test_the_start_offset_that_passes_between_the_levels_leaves_no_hole() -> None:
    with Lone() as lone:
        filled(lone, *[5] * 6)
        lifted(lone, 3)
        lone.store.hold = True
        task = lone.run(lone.partition.read(0, 6, 1 << 20))
        log(lone, SetStartOffset(5))
        lone.store.release()
        assert ends(task.result()) == (0, 3)


def test_an_object_of_level_one_that_a_confirmed_leader_names_is_damage() -> None:
    with Lone() as lone:
        filled(lone, *[5] * 4)
        (old,) = lifted(lone, 4)
        del lone.store.objects[name(old)]
        for offset in (0, 2):
            with pytest.raises(BadObject, match="no such object") as caught:
                read(lone, offset)
            assert (caught.value.name, caught.value.start, caught.value.end) == (name(old), 0, old.size)


def test_an_object_of_level_one_is_lost_only_for_who_leads() -> None:
    with Lone() as lone:
        filled(lone, *[5] * 4)
        (old,) = lifted(lone, 4)
        del lone.store.objects[name(old)]
        lone.group.lose()
        with pytest.raises(ObjectNotFound):
            read(lone, 0)


def test_damage_in_level_one_is_told_only_after_the_leader_is_confirmed() -> None:
    with Lone() as lone:
        filled(lone, *[5] * 4)
        (old,) = lifted(lone, 2)
        lone.run(lone.partition.execute(SetStartOffset(2)))
        del lone.store.objects[name(old)]
        lone.group.confirmed = False
        task = lone.run(lone.partition.read(0, 4, 1 << 20))
        assert not task.done()
        lone.group.commit()
        lone.group.pass_barriers()
        lone.loop.run()
        assert ends(task.result()) == (2, 4)


# Holds.


def test_a_read_holds_back_what_may_be_collected_until_it_ends() -> None:
    with Lone() as lone:
        filled(lone, 5, 6, 7, 8)
        partition, machine = lone.partition, lone.partition.machine
        waiting: asyncio.Future[list[bytes]] = lone.loop.create_future()
        lone.reader.wait_for = waiting
        task = lone.run(partition.read(1, 3, 1 << 20))
        assert partition.collectable_epoch == 4
        lifted(lone, 4)
        assert (machine.max_collectable_epoch, partition.collectable_epoch) == (6, 5)
        waiting.set_result([])
        lone.loop.run()
        assert ends(task.result()) == (1, 3)
        assert partition.collectable_epoch == 6


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_a_read_that_does_not_end_well_gives_its_hold_back(how: str) -> None:
    with Lone() as lone:
        filled(lone, 5, 6, 7)
        waiting: asyncio.Future[list[bytes]] = lone.loop.create_future()
        lone.reader.wait_for = waiting
        task = lone.run(lone.partition.read(0, 3, 1 << 20))
        lifted(lone, 3)
        assert lone.partition.collectable_epoch == 4
        if how == "cancelled":
            task.cancel()
        else:
            waiting.set_exception(NotDone("get_range", "x", "down", retriable=True))
        lone.loop.run()
        assert task.cancelled() or isinstance(task.exception(), NotDone)
        assert lone.partition.collectable_epoch == 5


def test_the_oldest_of_several_reads_counts() -> None:
    with Lone() as lone:
        filled(lone, 5, 6, 7, 8)
        waits = []
        for offset in (0, 1, 1):
            waits.append(lone.loop.create_future())
            lone.reader.wait_for = waits[-1]
            lone.run(lone.partition.read(offset, offset + 1, 1 << 20))
        lifted(lone, 4)
        assert lone.partition.collectable_epoch == 4
        for wait, expected in zip(waits, (5, 5, 6), strict=True):
            wait.set_result([])
            lone.loop.run()
            assert lone.partition.collectable_epoch == expected


def test_a_read_of_level_one_holds_no_epoch() -> None:
    with Lone() as lone:
        filled(lone, 5, 6, 7)
        lifted(lone, 3)
        lone.store.hold = True
        task = lone.run(lone.partition.read(0, 3, 1 << 20))
        assert lone.partition.collectable_epoch == 5
        lone.store.release()
        assert ends(task.result()) == (0, 3)


# What is known without a look.


def test_measures_count_over_both_levels() -> None:
    with Lone() as lone:
        filled(lone, *[5] * 8)
        lifted(lone, 4)
        measured = lone.partition.measured
        assert measured(0, 8, 1 << 20) == Measured(800, 0, 8)
        assert measured(1, 8, 1 << 20) == Measured(800, 0, 8), "nothing is known of where batches begin"
        read(lone, 0, max_bytes=1)
        assert measured(2, 8, 1 << 20) == Measured(600, 0, 8)
        assert measured(2, 8, 399) == Measured(300, 0, 5)
        assert measured(2, 8, 299) == Measured(200, 0, 4), "what does not fit behind level one is not counted"
        assert measured(2, 8, 150) == Measured(150, 0, 4)
        assert measured(5, 8, 250) == Measured(200, 100, 7)
        assert measured(5, 8, 50) == Measured(100, 100, 6), "a first batch that is too large is told"
        assert measured(8, 8, 50) == Measured(0, 0, 8)
        assert len(lone.store.asked) == 2, "by the one read, for the index and a chunk"


@given(
    lifts=st.lists(st.integers(1, 5), max_size=4),
    above=st.integers(0, 6),
    start=st.integers(0, 12),
    asked=st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(0, 2000)),
    known=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_a_read_gives_a_piece_of_the_log_and_no_more_than_was_measured(
    lifts: list[int], above: int, start: int, asked: tuple[int, int, int], known: bool
) -> None:
    with Lone() as lone:
        filled(lone, *[5] * (sum(lifts) + above))
        lifted(lone, *[sum(lifts[: number + 1]) for number in range(len(lifts))])
        high = lone.partition.high_watermark
        start = min(start, high)
        log(lone, SetStartOffset(start))
        offset, end, max_bytes = asked
        end = min(end, high)
        if known and high > start:
            read(lone, start, high, 1)
        measured = lone.partition.measured(offset, end, max_bytes)
        batches = read(lone, offset, end, max_bytes)
        if max(offset, start) >= end:
            assert (batches, measured.bytes) == ([], 0)
            return
        first, after = ends(batches)
        assert first == max(offset, start)
        assert after <= end
        size = sum(len(batch.data) for batch in batches)
        assert size <= max_bytes or after == first + 1
        assert size <= measured.bytes or (after == first + 1 and not measured.first)
        assert measured.bytes <= max_bytes or measured.first == measured.bytes == SIZE
        assert measured.end_offset > first


# By time.


def test_a_time_is_looked_for_in_both_levels() -> None:
    with Lone() as lone:
        filled(lone, *[5] * 6)
        lifted(lone, 2, 4)

        def since(time: int) -> int | None:
            found = lone.run(lone.partition.first_since(time)).result()
            return None if found is None else found.base_offset

        assert [since(NOW + time) for time in (-9, 0, 1, 2, 3)] == [0, 0, 1, 2, 3]
        assert since(NOW + 4) is None, "what this harness writes to level zero is of one time"
        log(lone, SetStartOffset(3))
        assert [since(NOW + time) for time in (-9, 3)] == [3, 3]
        log(lone, SetStartOffset(4))
        assert since(NOW) == 4
        assert since(NOW + 1) is None


def test_the_newest_time_is_looked_for_in_both_levels() -> None:
    with Lone() as lone:
        filled(lone, *[5] * 6)

        def newest() -> tuple[int, int] | None:
            found = lone.run(lone.partition.newest()).result()
            return None if found is None else (found.base_offset, found.max_timestamp - NOW)

        assert newest() == (0, 0)
        lifted(lone, 2, 4)
        assert newest() == (3, 3)
        log(lone, SetStartOffset(4))
        assert newest() == (4, 0)
        log(lone, SetStartOffset(6))
        assert newest() is None


def test_what_is_lifted_while_a_time_is_looked_for_is_found() -> None:
    with Lone() as lone:
        filled(lone, *[5] * 4)
        lone.reader.answers.append(gone(lone, lambda: lifted(lone, 4)))
        found = lone.run(lone.partition.first_since(NOW)).result()
        assert found is not None
        assert (found.base_offset, found.end_offset, len(found.data)) == (0, 1, SIZE)


def test_a_merge_while_a_time_is_looked_for_is_not_seen() -> None:
    with Lone() as lone:
        filled(lone, *[5] * 4)
        old = lifted(lone, 2, 4)
        lone.store.hold = True
        task = lone.run(lone.partition.first_since(NOW + 3))
        whole = made(lone, 99, 0, 4)
        log(lone, ReplaceLevelOne([(one.term, one.unique) for one in old], [whole]))
        for one in old:
            del lone.store.objects[name(one)]
        lone.store.release()
        found = task.result()
        assert found is not None
        assert found.base_offset == 3


def test_an_object_whose_newest_records_are_deleted_is_passed_over() -> None:
    with Lone() as lone:
        filled(lone, *[5] * 6)
        lifted(lone, 3, 6, times=[9, 1, 1, 5, 5, 5])
        log(lone, SetStartOffset(1))
        found = lone.run(lone.partition.first_since(NOW + 4)).result()
        assert found is not None
        assert found.base_offset == 3
        found = lone.run(lone.partition.newest()).result()
        assert found is not None
        assert (found.base_offset, found.max_timestamp) == (3, NOW + 5)


def test_the_newest_is_looked_for_anew_when_it_is_deleted_meanwhile() -> None:
    with Lone() as lone:
        filled(lone, *[5] * 3)
        lifted(lone, 3, times=[5, 9, 2])
        log(lone, SetStartOffset(1))
        lone.store.hold = True
        task = lone.run(lone.partition.newest())
        log(lone, SetStartOffset(2))
        lone.store.release()
        found = task.result()
        assert found is not None
        assert (found.base_offset, found.max_timestamp) == (2, NOW + 2)
