"""Batches in the log itself: their way there, their turn, and their way from there into objects."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

import pytest

from strandline.node.config.node_config import InlineSection
from strandline.node.level_zero.batcher import Batcher, Stored
from strandline.node.partition import inline_storing, writer
from strandline.node.partition.fence import Permit
from strandline.node.partition.inline_budget import Switch
from strandline.node.partition.inline_storing import InlineStoring
from strandline.node.partition.partition import Partition
from strandline.node.partition.partition_table import PartitionTable
from strandline.node.raft.outcome import NotLeader
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.partition.extent import InlineExtent, ObjectExtent
from strandline.statemachine.partition.partition_commands import Appended, PartitionOpcode
from tests.partition.lone import CREATION_EPOCH, Lone, unknown

SMALL, LARGE = 100, 300
INLINE = InlineSection(max_batch_bytes=SMALL)
NOT_LEADER = "not_leader_or_follower"
STORAGE = "kafka_storage_error"
AFTER = "not_enough_replicas_after_append"


def kinds(lone: Lone) -> list[list[tuple[int, int]]]:
    """Of every entry proposed the kinds of its commands and how many batches each has."""
    return [
        [
            (command[0], len(command[1] if command[0] == PartitionOpcode.APPEND_INLINE else command[3]))
            for command in entry
        ]
        for entry in lone.group.entries()
    ]


def test_a_small_batch_is_logged_with_its_bytes_and_needs_no_upload() -> None:
    with Lone(inline=INLINE) as lone:
        future = lone.append("a", count=3, size=SMALL)
        assert lone.batcher.staged == []
        assert kinds(lone) == [[(PartitionOpcode.APPEND_INLINE, 1)]]
        assert lone.partition.writer.inline_bytes == SMALL
        lone.group.commit()
        assert future.result() == Appended(0)
        (extent,) = lone.partition.machine.extents
        assert (extent.base_offset, extent.record_count, cast(InlineExtent, extent).data) == (
            0,
            3,
            bytes(SMALL),
        )
        assert lone.partition.writer.inline_bytes == SMALL
        assert lone.partition.writer.acks.inline_bytes == 0
        assert lone.loop.tasks == 0, "the hot path makes none"


def test_a_large_batch_goes_to_an_object() -> None:
    with Lone(inline=INLINE) as lone:
        lone.append("a", size=LARGE)
        assert kinds(lone) == []
        lone.stored("a")
        assert kinds(lone) == [[(PartitionOpcode.APPEND, 1)]]


def test_small_ones_of_one_turn_share_an_entry() -> None:
    with Lone(inline=INLINE) as lone:
        validation = lone.loop.create_future()
        for number in range(3):
            lone.append(f"{number}", producer=number, sequence=0, validation=validation)
        validation.set_result(None)
        lone.loop.run()
        assert kinds(lone) == [[(PartitionOpcode.APPEND_INLINE, 3)]]


def test_a_small_batch_waits_for_its_producers_large_one_and_shares_its_entry() -> None:
    with Lone(inline=INLINE) as lone:
        lone.append("0", producer=7, sequence=0, size=LARGE)
        lone.append("1", producer=7, sequence=1, size=SMALL)
        lone.append("2", producer=7, sequence=2, size=LARGE)
        lone.append("other", producer=8, sequence=0, size=SMALL)
        lone.stored("2")
        assert kinds(lone) == [[(PartitionOpcode.APPEND_INLINE, 1)]], "the other producer does not wait"
        lone.stored("0")
        assert kinds(lone)[1:] == [
            [(PartitionOpcode.APPEND, 1), (PartitionOpcode.APPEND_INLINE, 1), (PartitionOpcode.APPEND, 1)]
        ]
        lone.group.commit()
        assert lone.codes() == {"other": "0", "0": "1", "1": "2", "2": "3"}


def test_a_small_batch_needs_no_fence() -> None:
    with Lone(inline=INLINE) as lone:
        permit = lone.partition.fence.try_acquire(CREATION_EPOCH)
        lone.append("slides", producer=7, sequence=0, size=LARGE)
        lone.stored("slides", epoch=CREATION_EPOCH + 1)
        assert lone.partition.fence.waiting == 1
        lone.append("small", producer=8, sequence=0, size=SMALL)
        lone.append("behind", producer=7, sequence=1, size=SMALL)
        assert kinds(lone) == [[(PartitionOpcode.APPEND_INLINE, 1)]]
        permit.release()  # type: ignore[union-attr]
        lone.loop.run()
        assert kinds(lone)[1:] == [[(PartitionOpcode.APPEND, 1), (PartitionOpcode.APPEND_INLINE, 1)]]
        lone.group.commit()
        assert lone.partition.machine.max_applied_epoch == CREATION_EPOCH + 1


def test_a_failed_upload_fails_the_small_batch_behind_it() -> None:
    with Lone(inline=INLINE) as lone:
        lone.append("0", producer=7, sequence=0, size=LARGE)
        lone.append("1", producer=7, sequence=1, size=SMALL)
        lone.failed("0")
        assert lone.codes() == {"0": STORAGE, "1": STORAGE}
        lone.append("2", producer=7, sequence=2, size=SMALL)
        assert lone.codes()["2"] == STORAGE, "nothing passes the gap"
        assert kinds(lone) == []
        assert lone.partition.writer.inline_bytes == 0


def test_lost_leadership_fails_small_batches_like_any_other() -> None:
    with Lone(inline=INLINE) as lone:
        lone.append("logged", producer=6, sequence=0, size=SMALL)
        validation = lone.loop.create_future()
        lone.append("waits", producer=7, sequence=0, size=SMALL, validation=validation)
        lone.group.lose()
        assert lone.codes() == {"waits": NOT_LEADER}
        lone.group.drop(unknown())
        assert lone.codes()["logged"] == AFTER
        assert lone.partition.writer.acks.inline_bytes == 0
        validation.set_result(None)
        lone.loop.run()
        assert len(kinds(lone)) == 1


def test_a_refused_entry_fails_those_behind_it() -> None:
    with Lone(inline=INLINE) as lone:
        lone.group.refusal = NotLeader(2)
        lone.append("0", producer=7, sequence=0, size=SMALL)
        assert lone.codes() == {"0": NOT_LEADER}
        assert lone.partition.writer.acks.batches == lone.partition.writer.inline_bytes == 0


def test_an_entry_ends_with_the_batch_that_fills_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MAX_ENTRY_INLINE_BYTES", 2 * SMALL)
    with Lone(inline=INLINE) as lone:
        validation = lone.loop.create_future()
        for number in range(5):
            lone.append(f"{number}", producer=number, sequence=0, size=SMALL, validation=validation)
        validation.set_result(None)
        lone.loop.run()
        assert kinds(lone) == [
            [(PartitionOpcode.APPEND_INLINE, 2)],
            [(PartitionOpcode.APPEND_INLINE, 2)],
            [(PartitionOpcode.APPEND_INLINE, 1)],
        ]


def test_a_retry_takes_either_way_and_stays_a_duplicate() -> None:
    with Lone(inline=replace(INLINE, partition_bytes=2 * SMALL)) as lone:
        lone.append("0", producer=7, sequence=0, size=SMALL)
        lone.group.commit()
        lone.append("1", producer=7, sequence=1, size=SMALL)
        lone.append("1 again", producer=7, sequence=1, size=SMALL)
        lone.stored("1 again")
        lone.group.commit()
        assert kinds(lone)[-1] == [(PartitionOpcode.APPEND, 1)], "more may not lie in the logs alone"
        assert lone.answers[-1] == ("1 again", Appended(1, duplicate=True))
        assert lone.budget is not None
        assert lone.budget.measures.switches == {Switch.PARTITION_BYTES: 1}


def test_a_batch_uploaded_under_a_stale_epoch_may_go_inline_the_second_time() -> None:
    """The limit may be free again by then; the batch keeps its turn."""
    with Lone(inline=replace(INLINE, bytes=2 * SMALL)) as lone:
        assert lone.budget is not None
        slid(lone, CREATION_EPOCH + 1, CREATION_EPOCH + 2)
        lone.budget.kept = 2 * SMALL
        lone.append("0", producer=7, sequence=0, size=SMALL)
        lone.append("1", producer=7, sequence=1, size=LARGE)
        lone.budget.kept = 0
        lone.stored("1", "0", epoch=CREATION_EPOCH + 2)
        before = len(kinds(lone))
        lone.append("2", producer=8, sequence=0, size=LARGE)
        lone.budget.kept = 2 * SMALL
        lone.append("3", producer=9, sequence=0, size=SMALL)
        lone.budget.kept = 0
        lone.stored("3", epoch=CREATION_EPOCH)
        assert kinds(lone)[before:] == [[(PartitionOpcode.APPEND_INLINE, 1)]]
        assert lone.partition.writer.restaged == 1


# Into objects.


def storing(lone: Lone) -> InlineStoring:
    table = PartitionTable()
    table.add(lone.group.id, lone.partition)
    assert lone.budget is not None
    return InlineStoring(
        table, cast(Batcher, lone.batcher), lone.budget, loop=lone.loop, rng=random.Random(1)
    )


def written(lone: Lone, *sizes: int) -> None:
    for number, size in enumerate(sizes):
        lone.append(f"w{number}", connection=1, size=size)
        if size > SMALL:
            lone.stored(f"w{number}")
        lone.group.commit()


def slid(lone: Lone, *epochs: int) -> None:
    """The window has slid to these epochs."""
    for epoch in epochs:
        lone.append(f"{epoch}", connection=2, size=LARGE)
        lone.stored(f"{epoch}", epoch=epoch)
        lone.group.commit()


def places(lone: Lone) -> list[Any]:
    """Of each batch the epoch of its object, or None for one that is inline."""
    return [one.epoch if isinstance(one, ObjectExtent) else None for one in lone.partition.machine.extents]


def test_inline_batches_are_stored_in_objects_and_stay_in_memory() -> None:
    with Lone(inline=INLINE) as lone:
        written(lone, SMALL, LARGE, 50)
        task = lone.run(storing(lone).step(True))
        assert [bytes(data) for data, _ in lone.batcher.staged[1:]] == [bytes(SMALL), bytes(50)]
        for number in (1, 2):
            lone.batcher.stored(number, CREATION_EPOCH + 1)
        lone.loop.run()
        lone.group.commit()
        assert task.result() is True
        assert places(lone) == [CREATION_EPOCH + 1, CREATION_EPOCH, CREATION_EPOCH + 1]
        assert lone.partition.machine.extents.inline_bytes == 0
        assert lone.partition.machine.max_collectable_epoch == CREATION_EPOCH - 1
        for extent in lone.partition.machine.extents:
            assert isinstance(extent, ObjectExtent)
            assert (extent.object_id, extent.position) in lone.written
        assert lone.budget is not None
        measures = lone.budget.measures
        assert (measures.stored_batches, measures.stored_bytes, measures.failed_stores) == (2, SMALL + 50, 0)


def test_what_comes_meanwhile_is_for_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a partition that is written to all the time would keep the others waiting."""
    monkeypatch.setattr(inline_storing, "LOAD_BATCHES", 1)
    with Lone(inline=INLINE) as lone:
        written(lone, SMALL, SMALL)
        task = lone.run(storing(lone).step(True))
        lone.append("late", size=SMALL)
        lone.group.commit()
        for number in (0, 1):
            lone.batcher.stored(number)
            lone.loop.run()
            lone.group.commit()
        assert task.result() is True
        assert places(lone) == [CREATION_EPOCH, CREATION_EPOCH, None]


def test_a_failed_upload_leaves_its_batches_inline() -> None:
    with Lone(inline=INLINE) as lone:
        written(lone, SMALL, SMALL)
        part = storing(lone)
        task = lone.run(part.step(True))
        lone.batcher.stored(0)
        lone.batcher.failed(1)
        lone.loop.run()
        lone.group.commit()
        assert task.result() is False
        assert places(lone) == [CREATION_EPOCH, None]
        assert lone.budget is not None
        assert lone.budget.measures.failed_stores == 1


@pytest.mark.parametrize("ending", ["lost", "unknown"])
def test_a_leader_that_is_gone_leaves_them_inline_for_the_next(ending: str) -> None:
    with Lone(inline=INLINE) as lone:
        written(lone, SMALL)
        task = lone.run(storing(lone).step(True))
        if ending == "lost":
            lone.group.lose()
        lone.batcher.stored(0)
        lone.loop.run()
        if ending == "unknown":
            lone.group.lose()
            lone.group.drop(unknown())
        assert task.result() is False
        assert places(lone) == [None]


def test_an_object_below_the_window_is_stored_again() -> None:
    with Lone(inline=INLINE) as lone:
        written(lone, SMALL)
        extents = [*lone.partition.machine.extents]
        slid(lone, CREATION_EPOCH + 1, CREATION_EPOCH + 2)
        part = storing(lone)
        task = lone.run(part.step(True))
        number = len(lone.batcher.staged) - 1
        lone.batcher.stored(number, CREATION_EPOCH)
        lone.loop.run()
        assert task.result() is False
        assert lone.epoch.known == CREATION_EPOCH + 2, "the next object gets a newer one"
        assert [*lone.partition.machine.extents][:1] == extents


def test_of_two_objects_the_one_below_the_window_is_left_out() -> None:
    with Lone(inline=INLINE) as lone:
        written(lone, SMALL, SMALL)
        slid(lone, CREATION_EPOCH + 1)
        task = lone.run(storing(lone).step(True))
        lone.batcher.stored(len(lone.batcher.staged) - 2, CREATION_EPOCH)
        lone.batcher.stored(len(lone.batcher.staged) - 1, CREATION_EPOCH + 2)
        lone.loop.run()
        lone.group.commit()
        assert task.done()
        assert places(lone)[:2] == [None, CREATION_EPOCH + 2]


def test_batches_are_stored_within_half_of_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with Lone(inline=replace(INLINE, seconds=8.0)) as lone:
        part = storing(lone)
        written(lone, SMALL)
        for seconds, due in ((0.0, 0), (3.0, 0), (1.5, 1)):
            lone.loop.advance(seconds)
            task = lone.run(part.step(False))
            assert len(lone.batcher.staged) == due, seconds
        assert part.age(lone.group.id) >= 4.0
        lone.batcher.stored(0)
        lone.loop.run()
        lone.group.commit()
        assert task.result() is True
        assert part.age(lone.group.id) == 0.0


def test_many_batches_are_stored_in_loads_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline_storing, "LOAD_BATCHES", 3)
    with Lone(inline=INLINE) as lone:
        written(lone, *[SMALL] * 7)
        task = lone.run(storing(lone).step(True))
        for expected in (3, 6, 7):
            assert len(lone.batcher.staged) == expected
            for _, future in lone.batcher.staged:
                if not future.done():
                    lone.batcher.stored(lone.batcher.staged.index((_, future)))
            lone.loop.run()
            lone.group.commit()
        assert task.result() is True
        assert None not in places(lone)


def test_a_load_is_staged_and_named_a_few_batches_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the loop stands still for milliseconds, the followers' too."""
    monkeypatch.setattr(inline_storing, "TURN_BATCHES", 2)
    with Lone(inline=INLINE) as lone:
        written(lone, *[SMALL] * 5)
        staged: list[int] = []
        sleep = asyncio.sleep

        async def noted(seconds: float) -> None:
            staged.append(len(lone.batcher.staged))
            await sleep(seconds)

        monkeypatch.setattr(asyncio, "sleep", noted)
        task = lone.run(storing(lone).step(True))
        assert staged == [2, 4]
        assert len(lone.batcher.staged) == 5
        for number in range(5):
            lone.batcher.stored(number)
        lone.loop.run()
        before = len(lone.group.proposed)
        while not task.done():
            lone.group.commit()
        entries = lone.group.entries()[before - 1 :]
        assert [(entry[0][0], [row[0] for row in entry[0][3]]) for entry in entries] == [
            (PartitionOpcode.STORE_INLINE, [0, 1]),
            (PartitionOpcode.STORE_INLINE, [2, 3]),
            (PartitionOpcode.STORE_INLINE, [4]),
        ]
        assert task.result() is True
        assert None not in places(lone)


def test_what_is_staged_is_given_up_with_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with Lone(inline=INLINE) as lone:
        written(lone, SMALL, SMALL)
        task = lone.run(storing(lone).step(True))
        task.cancel()
        lone.loop.run()
        assert [future.cancelled() for _, future in lone.batcher.staged] == [True, True]


def test_a_node_that_stops_stores_what_it_leads() -> None:
    with Lone(inline=INLINE) as lone:
        written(lone, SMALL)
        part = storing(lone)
        part.start()
        closing = lone.run(part.close())
        lone.batcher.stored(0)
        lone.loop.run()
        lone.group.commit()
        assert closing.done()
        assert places(lone) == [CREATION_EPOCH]


def test_a_node_that_stops_does_not_wait_for_a_store_that_is_away() -> None:
    with Lone(inline=INLINE) as lone:
        written(lone, SMALL)
        part = storing(lone)
        part.start()
        closing = lone.run(part.close())
        lone.loop.advance(inline_storing.CLOSE_SECONDS - 0.1)
        assert not closing.done()
        lone.loop.advance(0.2)
        assert closing.done()
        assert lone.batcher.staged[0][1].cancelled()
        assert places(lone) == [None]


def test_a_failure_of_some_batches_does_not_make_the_next_attempt_wait_longer() -> None:
    with Lone(inline=INLINE) as lone:
        part = storing(lone)
        written(lone, SMALL)
        for _ in range(4):
            written(lone, SMALL)
            attempts = len(lone.batcher.staged)
            lone.run(part.step(True))
            assert len(lone.batcher.staged) == attempts + 2, "it waited"
            lone.batcher.failed(attempts)
            lone.batcher.stored(attempts + 1)
            lone.loop.run()
            lone.group.commit()
            assert places(lone)[0] is None
            lone.loop.advance(1.0)


def test_the_node_knows_what_lies_in_the_logs_alone() -> None:
    with Lone(inline=INLINE) as lone:
        written(lone, SMALL, SMALL)
        assert lone.budget is not None
        lone.budget.kept = 10**6
        lone.run(storing(lone).step(False))
        assert lone.budget.kept == 2 * SMALL


def test_while_nothing_changes_no_partition_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[PartitionTable] = []
    partitions = PartitionTable.__iter__

    def looked(table: PartitionTable) -> Iterator[Partition]:
        looks.append(table)
        return partitions(table)

    monkeypatch.setattr(PartitionTable, "__iter__", looked)
    monkeypatch.setattr(inline_storing, "LOG_BYTES", 400)
    with Lone(inline=INLINE) as lone:
        part = storing(lone)

        def looks_at_all() -> bool:
            before = len(looks)
            lone.run(part.step(False))
            return len(looks) > before

        assert [looks_at_all() for _ in range(3)] == [True, False, False]
        written(lone, SMALL)
        assert [looks_at_all() for _ in range(3)] == [True, True, True], "its age counts"
        lone.loop.advance(INLINE.seconds)
        assert looks_at_all()
        assert len(lone.batcher.staged) == 1
        lone.stored("w0", epoch=CREATION_EPOCH)
        lone.loop.run()
        lone.group.commit()
        assert lone.partition.machine.extents.inline_bytes == 0
        assert [looks_at_all() for _ in range(3)] == [True, False, False]
        assert lone.budget is not None
        lone.budget.kept = SMALL
        assert [looks_at_all() for _ in range(3)] == [True, False, False], "it was wrong"
        lone.group.taking.log_bytes = 401
        lone.append("x", connection=3, size=LARGE)
        lone.stored("x", epoch=CREATION_EPOCH)
        lone.group.commit()
        assert [looks_at_all() for _ in range(3)] == [True, True, False], "until the logs are short"


def shortened(*log_bytes: int, since: Sequence[float] = ()) -> list[int | None]:
    """For partitions with so many bytes of entries each, what was to be left of those that were cut; `since`
    as of `SnapshotSending`, of the first ones."""
    with ExitStack() as stack:
        table = PartitionTable()
        lones = [stack.enter_context(Lone(inline=INLINE)) for _ in log_bytes]
        for number, (lone, size) in enumerate(zip(lones, log_bytes, strict=True)):
            lone.group.id, lone.group.taking.log_bytes = number, size
            table.add(number, lone.partition)
        for lone, begun_at in zip(lones, since, strict=False):
            lone.group.sending.since = begun_at
        first = lones[0]
        assert first.budget is not None
        part = InlineStoring(
            table, cast(Batcher, first.batcher), first.budget, loop=first.loop, rng=random.Random(1)
        )
        first.run(part.step(False))
        assert first.budget.measures.snapshots == sum(len(lone.group.taking.left) for lone in lones)
        return [one.group.taking.left[0] if one.group.taking.left else None for one in lones]


def test_long_logs_are_cut_by_snapshots_the_longest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline_storing, "LOG_BYTES", 400)
    assert shortened(400) == [None]
    assert shortened(401) == [100]
    assert shortened(100, 190, 111, 0) == [None, 33, 33, None]
    assert shortened(*[41] * 10) == [10] * 7 + [None] * 3


def test_logs_that_bring_followers_up_are_cut_only_beyond_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that began last are cut, so that one always comes to an end."""
    monkeypatch.setattr(inline_storing, "LOG_BYTES", 400)
    monkeypatch.setattr(inline_storing, "HELD_BYTES", 300)
    assert shortened(200, 100, 401, since=(1.0, 2.0)) == [None, None, 100]
    assert shortened(200, 100, 400, since=(1.0, 2.0)) == [None, None, None]
    assert shortened(200, 101, 400, since=(1.0, 2.0)) == [None, None, 50]
    assert shortened(200, 300, 390, since=(2.0, 1.0)) == [50, None, 50]
    assert shortened(500, 402, since=(1.0, 2.0)) == [None, 100]
    assert shortened(301, 402, since=(2.0, 1.0)) == [None, None]
    assert shortened(200, 150, 50, 401, since=(1.0, 2.0, 3.0)) == [None, None, None, 50], "a later one fits"


def test_one_look_does_not_cut_all_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline_storing, "LOG_BYTES", 4)
    monkeypatch.setattr(inline_storing, "SHORTENED_AT_ONCE", 2)
    assert shortened(5, 6, 7) == [None, 0, 0]


def test_after_a_failure_the_next_attempt_waits_longer_each_time() -> None:
    with Lone(inline=INLINE) as lone:
        written(lone, SMALL)
        part = storing(lone)
        waits = []
        for _ in range(6):
            lone.run(part.step(True))
            lone.batcher.failed(len(lone.batcher.staged) - 1)
            lone.loop.run()
            attempts, since = len(lone.batcher.staged), lone.loop.time()
            while len(lone.batcher.staged) == attempts:
                lone.loop.advance(0.05)
                task = lone.run(part.step(True))
            waits.append(lone.loop.time() - since)
            lone.batcher.failed(attempts)
            lone.loop.run()
            assert task.result() is False
            lone.loop.advance(20)
        for wait, most in zip(waits, (1, 4, 10, 10, 10, 10), strict=True):
            assert most / 2 <= wait <= most + 0.1
        assert len({round(wait, 1) for wait in waits[2:]}) > 1, "drawn"
        lone.run(part.step(True))
        lone.batcher.stored(len(lone.batcher.staged) - 1)
        lone.loop.run()
        lone.group.commit()
        written(lone, SMALL)
        lone.run(part.step(True))
        lone.batcher.failed(len(lone.batcher.staged) - 1)
        lone.loop.run()
        lone.loop.advance(1.0)
        lone.run(part.step(True))
        assert not lone.batcher.staged[-1][1].done(), "after a success it begins anew"
        lone.batcher.failed(len(lone.batcher.staged) - 1)
        lone.loop.run()


def test_a_lane_that_waits_for_the_fence_when_its_inline_batch_is_refused_is_over() -> None:
    """The fence's later answer, of any kind, is for nothing that is still there."""
    with Lone(inline=INLINE) as lone:
        fence = lone.partition.fence
        validation = lone.loop.create_future()
        hold = fence.try_acquire(CREATION_EPOCH)
        slides = [lone.run(fence.acquire(CREATION_EPOCH + number)) for number in (3, 4)]
        lone.append("small", producer=7, sequence=0, size=SMALL, validation=validation)
        lone.append("large", producer=7, sequence=1, size=LARGE)
        lone.stored("large")
        lone.group.refusal = NotLeader(2)
        validation.set_result(None)
        lone.loop.run()
        assert lone.codes() == {"small": NOT_LEADER, "large": NOT_LEADER}
        assert fence.waiting == len(slides)
        lone.group.refusal = None
        cast(Permit, hold).release()
        lone.loop.run()
        for slide in slides:
            cast(Permit, slide.result()).release()
            lone.loop.run()
        assert (fence.permits, fence.waiting) == (0, 0)
        lone.append("small again", producer=7, sequence=0, size=SMALL)
        lone.group.commit()
        assert lone.codes()["small again"] == "0"


def test_store_inline_is_refused_where_this_node_does_not_lead() -> None:
    with Lone(inline=INLINE) as lone:
        written(lone, SMALL)
        (extent,) = lone.partition.machine.extents
        assert isinstance(extent, InlineExtent)
        lone.group.lose()
        task = lone.run(
            lone.partition.stored_inline.name([(extent, Stored(CREATION_EPOCH, bytes(20), 0, SMALL))])
        )
        outcome = task.result()
        assert isinstance(outcome, Refusal)
        assert outcome.reason is Reason.NOT_LEADER
