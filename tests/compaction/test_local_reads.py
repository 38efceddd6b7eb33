"""Reads of a replica's own log: each offset gets the next batch there is, and damage goes to level one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.node.compaction import local_reader
from strandline.node.compaction.local_reader import LocalReader
from strandline.node.compaction.replica_log import ReplicaLog
from strandline.node.level_one.reader import LevelOneReader, LevelOneReaderConfig, Place
from strandline.node.level_one.stored_run import StoredRun
from strandline.node.level_zero.cache import BatchCache
from strandline.node.partition.stored_batches import StoredBatches
from tests.compaction.logs import Plan, Written, plans, read
from tests.compaction.upkeep_harness import Node, Replica, compaction_node, contents


class Reading:
    """A cleaned log of one partition, and a reader of it."""

    def __init__(self, node: Node, replica: Replica) -> None:
        self.node, self.replica = node, replica
        self.log: ReplicaLog = node.log(replica)
        self.reader = LocalReader(
            node.upkeep.log_of, node.upkeep.measures, loop=cast(Any, node.loop), executor=node.sim.executor
        )
        self.level_one = LevelOneReader(
            node.bucket.client(node.sim), LevelOneReaderConfig(), loop=cast(Any, node.loop)
        )
        self.batches = StoredBatches(
            Place(replica.topic_id, replica.number),
            replica.machine,
            level_zero=cast(Any, None),
            level_one=self.level_one,
            written=BatchCache(1),
            confirm=replica.confirm,
            group=replica.id,
            local=self.reader,
        )

    @property
    def log_end(self) -> int:
        assert self.log.log is not None
        return self.log.log.manifest.log_end

    def locally(self, offset: int, end: int = 1 << 40, size: int = 1 << 30) -> list[StoredRun]:
        return self.node.run(self.reader.read(self.replica.id, offset, end, size))

    def stored(self, offset: int, end: int | None = None, size: int = 1 << 30) -> Any:
        end = self.replica.machine.last_stable_offset if end is None else end
        return self.node.run(self.batches.read_committed(offset, end, size))


def records(runs: Sequence[Any]) -> list[Written]:
    return read(split(runs))


def split(runs: Sequence[Any]) -> list[bytes]:
    data = b"".join(bytes(run.data) for run in runs)
    found = []
    while data:
        length = int.from_bytes(data[8:12], "big") + 12
        found.append(data[:length])
        data = data[length:]
    return found


def written(node: Node, drawn: Sequence[Plan]) -> Reading:
    """A log of these batches and a last one, cleaned as far as it may be."""
    replica = node.add()
    for number, plan in enumerate(drawn):
        if plan.records:
            replica.put(plan)
        if number % 5 == 4:
            replica.lift()
    replica.put(Plan(((b"last", b"x", 0),)))
    replica.lift()
    node.settle()
    node.settle()
    return Reading(node, replica)


def numbered(count: int, keys: int, size: int = 20) -> list[Plan]:
    return [Plan(((b"key %d" % (one % keys), b"%0*d" % (size, one), one),)) for one in range(count)]


@settings(max_examples=40, deadline=None)
@given(st.lists(plans, min_size=1, max_size=40), st.integers(1, 3000))
def test_each_offset_gets_the_next_batch_there_is(drawn: list[Plan], size: int) -> None:
    with compaction_node() as node:
        reading = written(node, drawn)
        everything = contents(reading.log)
        assert records(reading.locally(0)) == everything
        for offset in range(reading.log_end):
            wanted = split(reading.locally(offset))
            ends = [int.from_bytes(one[:8], "big") + int.from_bytes(one[23:27], "big") + 1 for one in wanted]
            assert ends[0] > offset, "the first batch is the one that has it, or the next"
            assert [one for one in read(wanted) if one.offset >= offset] == [
                one for one in everything if one.offset >= offset
            ]
            runs = reading.locally(offset, size=size)
            some = split(runs)
            assert some == wanted[: len(some)]
            assert len(some) == 1 or sum(map(len, some)) <= size
            assert some, "the first comes whatever its length"
            assert runs[0].base_offset == int.from_bytes(some[0][:8], "big")
            assert ends[len(some) - 1] <= runs[-1].end_offset
            assert len(some) == len(wanted) or runs[-1].end_offset <= int.from_bytes(
                wanted[len(some)][:8], "big"
            )
            measured = reading.reader.measured(reading.replica.id, offset, reading.log_end, size)
            assert offset < measured.end_offset <= reading.log_end
            assert measured.bytes >= min(sum(map(len, some)), size) or len(some) == 1


@settings(max_examples=25, deadline=None)
@given(st.lists(plans, min_size=1, max_size=40), st.integers(1, 1500))
def test_a_consumer_gets_each_record_once(drawn: list[Plan], size: int) -> None:
    with compaction_node() as node:
        reading = written(node, drawn)
        offset, found = 0, []
        while offset < reading.log_end:
            answer = records(reading.locally(offset, size=size))
            found += [one for one in answer if one.offset >= offset]
            offset = answer[-1].offset + 1
        assert found == contents(reading.log)


def test_nothing_at_or_above_the_end_is_given() -> None:
    """A state that was restored from an older snapshot may end below the log."""
    with compaction_node() as node:
        reading = written(node, numbered(50, 7))
        there = [one.offset for one in contents(reading.log)]
        for end in range(1, reading.log_end + 1):
            for offset in range(end):
                found = [one.offset for one in records(reading.locally(offset, end))]
                assert found == [one for one in there if offset <= one < end]


def test_an_answer_is_put_together_of_whole_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_reader, "PIECE_BYTES", 900)
    with compaction_node() as node:
        reading = written(node, numbered(60, 60))
        assert records(reading.locally(0)) == contents(reading.log)
        assert node.upkeep.measures.local_reads == 1
        runs = reading.locally(0, size=1000)
        view = reading.log.readable()
        assert view is not None
        ends = {block.end_offset for one in view.segments for block in one.footer.blocks}
        assert runs[-1].end_offset in ends
        assert runs[-1].end_offset != reading.log_end


class Held:
    """The executor of a node's loop, which keeps the jobs of readers back until a test lets them go."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jobs: list[Callable[[], None]] = []
        self.holding = True
        self._run, self._loop = node.loop.run_in_executor, node.loop
        monkeypatch.setattr(node.loop, "run_in_executor", self)

    def __call__(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        if func is not local_reader._piece or not self.holding:
            return self._run(executor, func, *args)
        future: asyncio.Future[Any] = self._loop.create_future()

        def begin() -> None:
            self._run(executor, func, *args).add_done_callback(lambda done: future.set_result(done.result()))

        self.jobs.append(begin)
        return future

    def release(self) -> None:
        self.holding = False
        for begin in self.jobs:
            begin()


def test_a_reader_in_the_middle_of_a_change_has_the_log_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_reader, "PIECE_BYTES", 500)
    with compaction_node() as node:
        reading = written(node, numbered(60, 60))
        before, view = contents(reading.log), reading.log.readable()
        assert view is not None
        held = Held(node, monkeypatch)
        task = node.loop.create_task(reading.reader.read(reading.log.replica.group.id, 0, 1 << 40, 1 << 30))
        assert node.world.run_until(lambda: bool(held.jobs), timeout=5, step=0.00001)
        for plan in numbered(60, 60, 30):
            reading.replica.put(plan)
        reading.replica.lift()
        node.settle()
        assert not task.done(), "it is still reading"
        assert reading.log.readable() is not view
        assert view._holders == 1, "only the reader has it"
        held.release()
        assert node.world.run_until(task.done, timeout=60, step=0.01)
        assert records(task.result()) == before
        assert view._holders == 0, "and its files are closed"


def test_a_client_that_goes_away_leaves_the_view_to_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is closed while a thread reads it may be another one by then."""
    with compaction_node() as node:
        reading = written(node, numbered(30, 30))
        view = reading.log.readable()
        assert view is not None
        held = Held(node, monkeypatch)
        task = node.loop.create_task(reading.reader.read(reading.log.replica.group.id, 0, 1 << 40, 1 << 30))
        assert node.world.run_until(lambda: bool(held.jobs), timeout=5, step=0.00001)
        task.cancel()
        assert node.world.run_until(task.done, timeout=5, step=0.001)
        assert task.cancelled()
        assert view._holders == 2, "the job has it"
        held.release()
        node.world.run(node.world.now + 5)
        assert view._holders == 1


def damage(node: Node, reading: Reading, block: int) -> str:
    """Change a byte in a block of the log's first segment; the file's name."""
    view = reading.log.readable()
    assert view is not None
    path = os.path.join(reading.log.folder, f"{view.segments[0].segment.number:020d}.seg")
    at = view.segments[0].footer.blocks[block].position + 30
    file = node.sim.disk.open(path)
    file.pwrite(bytes([file.pread(1, at)[0] ^ 1]), at)
    file.close()
    return path


def test_a_bad_block_goes_to_level_one_and_the_log_is_made_anew() -> None:
    with compaction_node() as node:
        reading = written(node, numbered(60, 60))
        before = contents(reading.log)
        damage(node, reading, 0)
        answer = reading.stored(0)
        assert records(answer.batches) == before, "level one has the answer"
        assert node.upkeep.measures.bad_reads == 1
        assert reading.log.readable() is None
        assert "checksum" in str(reading.log.reset_for)
        assert records(reading.stored(0).batches) == before
        node.settle()
        assert reading.log.resets == 1
        assert reading.log.readable() is not None
        assert records(reading.locally(0)) == before


def test_a_block_that_the_disk_does_not_give_back_goes_to_level_one_and_the_log_is_made_anew() -> None:
    with compaction_node() as node:
        reading = written(node, numbered(60, 60))
        before = contents(reading.log)
        view = reading.log.readable()
        assert view is not None
        path = os.path.join(reading.log.folder, f"{view.segments[0].segment.number:020d}.seg")
        node.sim.disk.lose_sectors(path)
        assert records(reading.stored(0).batches) == before, "level one has the answer"
        assert reading.log.reset_for == f"{path} cannot be read: Input/output error"
        node.settle()
        assert reading.log.resets == 1
        assert records(reading.locally(0)) == before


def test_a_damaged_log_reports_nothing_while_the_disk_keeps_it_from_being_reset() -> None:
    """The leader would go on counting on a file that is damaged, for as long as the disk is full."""
    with compaction_node() as node:
        reading = written(node, numbered(60, 60))
        machine = reading.replica.machine
        before = reading.log.ends(machine)
        assert before is not None
        damage(node, reading, 0)
        node.disk.fill(0)
        reading.stored(0)
        assert reading.log.ends(machine) is None, "the reset has not begun"
        for _ in range(3):
            node.step()
            assert reading.log.ends(machine) is None
        assert "No space left" in str(reading.log.problems.first)
        node.disk.empty()
        for _ in range(10):
            node.step(60.0)
        assert reading.log.ends(machine) == before


def test_what_lies_before_a_bad_block_is_given_and_nothing_of_it() -> None:
    with compaction_node() as node:
        reading = written(node, numbered(60, 60))
        before, view = contents(reading.log), reading.log.readable()
        assert view is not None
        good = view.segments[0].footer.blocks[2].base_offset
        damage(node, reading, 2)
        found: list[Written] = []
        offset = 0
        while offset < reading.replica.machine.last_stable_offset:
            answer = records(reading.stored(offset, size=400).batches)
            found += [one for one in answer if one.offset >= offset]
            offset = answer[-1].offset + 1
        assert found == before
        assert node.upkeep.measures.bad_reads == 1
        assert node.upkeep.measures.local_reads > 1
        assert good > 0


@pytest.mark.parametrize("what", ["ripe_tombstones", "ripe_markers"])
def test_a_log_that_is_out_of_step_is_not_read(what: str) -> None:
    with compaction_node() as node:
        reading = written(node, numbered(60, 60))
        assert reading.reader.serves(reading.replica.id, 0)
        setattr(reading.replica.machine.removals, what, reading.log_end + 1)
        assert not reading.reader.serves(reading.replica.id, 0)
        gets = reading.level_one.measures.gets
        assert records(reading.stored(0).batches) == contents(reading.log)
        assert reading.level_one.measures.gets > gets


def test_a_log_that_is_less_clean_than_all_copies_are_is_not_read_before_it_is() -> None:
    """It is of a member that was left out and came back: its values may have tombstones that ripen soon."""
    with compaction_node() as node:
        reading = written(node, numbered(60, 60))
        replica = reading.replica
        replica.put(Plan(((b"key 1", None, 0),)))
        replica.put(Plan(((b"last", b"y", 0),)))
        replica.put(Plan(((b"last", b"z", 0),)))
        replica.lift()
        replica.removal(62, 63, ripe=False)
        assert reading.log.in_step(), "nothing has gone that it lacks"
        assert not reading.reader.serves(replica.id, 0)
        assert reading.log.readable() is None
        node.settle()
        assert reading.log.resets == 0
        assert reading.reader.serves(replica.id, 0)
        assert all(one.value is None for one in records(reading.locally(0)) if one.key == b"key 1")


def test_an_answer_ends_with_the_log_and_the_next_is_level_ones() -> None:
    """Below its end nothing is asked of the store, nor are there aborted transactions."""
    with compaction_node() as node:
        replica = node.add()
        for plan in numbered(20, 5):
            replica.put(plan)
        replica.put(Plan(((b"p", b"poison", 0),)), 7)
        replica.end(7, commit=False)
        replica.put(Plan(((b"q", b"good", 0),)), 8)
        replica.end(8, commit=True)
        replica.lift()
        node.settle()
        reading = Reading(node, replica)
        assert reading.log_end == 24
        for plan in numbered(5, 5):
            replica.put(plan)
        replica.put(Plan(((b"p", b"poison", 0),)), 7)
        replica.end(7, commit=False)
        replica.lift()
        answer = reading.stored(0)
        assert answer.aborted == []
        assert reading.level_one.measures.gets == 0
        offsets = [one.offset for one in records(answer.batches)]
        assert offsets == [one.offset for one in contents(reading.log)]
        assert offsets[-1] == 23
        assert 20 not in offsets, "what was aborted is gone"
        # One who reads uncommitted records gets the same here, as from Kafka's cleaned log.
        plain = node.run(reading.batches.read(0, replica.machine.high_watermark, 1 << 30))
        assert records(plain) == records(answer.batches)
        assert reading.batches.measured(0, 31, 1 << 30).end_offset == 24
        answer = reading.stored(24)
        assert [one.offset for one in records(answer.batches)] == list(range(24, 31))
        assert [one.first_offset for one in answer.aborted] == [29]
        assert reading.level_one.measures.gets > 0


def test_a_lookup_by_time_is_level_ones_whoever_leads() -> None:
    with compaction_node() as node:
        first = Plan(((b"key 0", b"once", 0), (b"stays", b"x", 0)))
        reading = written(node, [first, *numbered(58, 5)])
        found = node.run(reading.batches.first_since(0))
        assert found is not None
        assert found.base_offset == 0, "level one still has it"
        extent = SimpleNamespace(base_offset=0, end_offset=2, length=100, term=1, max_timestamp=0)
        lifted = node.run(reading.batches._whole(cast(Any, extent)))
        assert lifted is not None
        assert bytes(lifted.data)[61:] == reading.replica.written[0][1][61:], "also if it came there since"
        assert records(reading.stored(0).batches)[0].offset > 0


def test_where_the_log_ends_with_what_was_aborted_level_one_answers() -> None:
    """A reader of committed records has to come to the last stable offset."""
    with compaction_node() as node:
        replica = node.add()
        for plan in numbered(20, 20):
            replica.put(plan)
        replica.put(Plan(((b"p", b"poison", 0),)), 7)
        replica.put(Plan(((b"q", b"open", 0),)), 8)
        replica.end(7, commit=False)
        replica.lift()
        node.settle()
        reading = Reading(node, replica)
        assert reading.log_end == replica.machine.last_stable_offset == 21
        answer = reading.stored(20)
        assert [one.offset for one in records(answer.batches)] == [20]
        assert [one.first_offset for one in answer.aborted] == [20]
