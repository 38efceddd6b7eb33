"""Fills a local log from level one: settled batches of a range of offsets, as one segment.

Level one is read by offset, so it does not matter how its objects were merged. What was aborted is left out,
by the rows of the state that named the objects; what was committed loses the transactional bit.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor
from typing import Final, NamedTuple

from strandline.node.compaction.bad_batch import BadBatch
from strandline.node.compaction.compactor import Ingested, IngestJob, JobFailed, Why
from strandline.node.compaction.manifest import NONE, Segment
from strandline.node.compaction.rewriting import settled
from strandline.node.compaction.segment_files import (
    TERM,
    LocalLogDamaged,
    disk_reason,
    keep_reserve,
    open_segment,
    segment_unique,
    write_made,
)
from strandline.node.objectstore.store import ObjectNotFound, ObjectStore, RangeNotFound, StoreError
from strandline.node.raft.disk import Disk
from strandline.snapshot.aborted import Aborted
from strandline.snapshot.level_one_format import Block, LevelOneFooter, batches_of, parse_footer, verify_block
from strandline.snapshot.level_one_writer import LevelOneWriter
from strandline.snapshot.object_frame import BadObject
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name

GET_BYTES: Final = 1024 * 1024
"""Of neighbouring blocks that one get reads, but for a larger block."""
MAX_GETS: Final = 4
"""Under way at a time."""


class _Run(NamedTuple):
    """Neighbouring blocks of one object: one get."""

    name: str
    footer: LevelOneFooter
    blocks: Sequence[Block]


class _Making:
    """The segment in the making. All of it blocks."""

    def __init__(self, disk: Disk, job: IngestJob, base_offset: int, end_offset: int) -> None:
        identity, before = job.place.identity, job.before
        self._disk, self._job = disk, job
        self._end_offset = end_offset
        self._base_offset = base_offset if before is None else before.base_offset
        self._aborted = Aborted(job.aborted)
        self._writer = LevelOneWriter(
            identity.topic_id, identity.partition, TERM, segment_unique(job.number), job.block_bytes
        )
        self._writer.allow_holes(self._base_offset, end_offset)
        self._records = 0
        self._oldest = job.now_ms
        if before is not None:
            self._copy(before)

    def _copy(self, before: Segment) -> None:
        """Take in the last segment, which is settled. Raises LocalLogDamaged, OSError."""
        place = self._job.place
        opened = open_segment(self._disk, place.folder, place.identity, before)
        opened.hold()
        try:
            for block in opened.footer.blocks:
                try:
                    data, spans = opened.batches(block)
                except BadObject as error:
                    raise LocalLogDamaged(str(error)) from error
                view = memoryview(data)
                for one in spans:
                    at = one.position - block.position
                    self._writer.add(
                        view[at : at + one.length],
                        one.base_offset,
                        one.end_offset,
                        one.leader_epoch,
                        one.max_timestamp,
                    )
        finally:
            opened.release()
        self._records, self._oldest = before.records, min(self._oldest, before.ingested_at)

    def take(self, run: _Run, data: bytes) -> None:
        """Take in the batches of a run of level one. Raises BadObject, BadBatch."""
        first, start = self._job.first_offset, run.blocks[0].position
        view = memoryview(data)
        for block in run.blocks:
            content = view[block.position - start : block.end - start]
            verify_block(run.name, block, content)
            for _ in batches_of(run.name, block, content, run.footer.holes):
                pass
        for one in settled(data, self._aborted):
            if one.end_offset <= first or one.base_offset >= self._end_offset:
                continue
            within = one.base_offset < first and not self._job.is_first
            if within or one.end_offset > self._end_offset:
                reason = f"offsets {one.base_offset} to {one.end_offset} are one batch"
                raise BadObject(run.name, start, start + len(data), f"{reason}, and {first} is not in it")
            self._writer.add(one.data, one.base_offset, one.end_offset, one.leader_epoch, one.max_timestamp)
            self._records += one.records
            if 0 <= one.max_timestamp < self._oldest:
                self._oldest = one.max_timestamp

    def finish(self) -> Segment:
        """The segment, durable under the name of its making. Raises OSError."""
        job, made = self._job, self._writer.finish()
        keep_reserve(self._disk, job.place.folder, made.size)
        write_made(self._disk, job.place.folder, job.number, job.place.maker, made.parts)
        return Segment(
            job.number,
            self._base_offset,
            self._end_offset,
            made.size,
            self._records,
            NONE,
            NONE,
            self._oldest,
        )


async def ingest(
    job: IngestJob,
    *,
    store: ObjectStore,
    disk: Disk,
    loop: asyncio.AbstractEventLoop,
    executor: Executor | None,
) -> Ingested | JobFailed:
    """Make the segment; what blocks, and what takes long, goes to the executor."""
    read, off = 0, loop.run_in_executor
    try:
        runs, end_offset = await _runs(job, store)
        base_offset = job.first_offset
        if job.is_first and runs:
            base_offset = min(base_offset, runs[0].blocks[0].base_offset)
        making = await off(executor, _Making, disk, job, base_offset, end_offset)
        async for run, data in _fetched(runs, store, loop):
            read += len(data)
            await off(executor, making.take, run, data)
        return Ingested(await off(executor, making.finish), read)
    except ObjectNotFound as error:
        return JobFailed(Why.GONE, f"{error}{_offsets(job, error.key)}", error.key)
    except RangeNotFound as error:
        reason = f"{error.key} is cut: {error.reason}{_offsets(job, error.key)}"
        return JobFailed(Why.SOURCE, reason, error.key)
    except StoreError as error:
        return JobFailed(Why.STORE, str(error))
    except LocalLogDamaged as error:
        return JobFailed(Why.DAMAGED, str(error))
    except BadObject as error:
        return JobFailed(Why.SOURCE, f"{error}{_offsets(job, error.name)}", error.name)
    except BadBatch as error:
        return JobFailed(Why.SOURCE, str(error))
    except OSError as error:
        return JobFailed(Why.DISK, disk_reason(error, job.place.folder))


def _offsets(job: IngestJob, name: str) -> str:
    """In words, the offsets of an object: its keys are what an operator has to write again."""
    identity = job.place.identity
    for source in job.sources:
        if name == level_one_name(identity.topic_id, identity.partition, source.term, source.unique):
            return f" (offsets {source.base_offset} to {source.end_offset})"
    return ""


async def _runs(job: IngestJob, store: ObjectStore) -> tuple[list[_Run], int]:
    """The gets of a job, and where its segment ends."""
    identity = job.place.identity
    runs: list[_Run] = []
    size, end_offset = 0, job.first_offset
    for source in job.sources:
        name = level_one_name(identity.topic_id, identity.partition, source.term, source.unique)
        footer = await _footer(name, source, store)
        first = max(bisect_right(footer.blocks, job.first_offset, key=lambda one: one.base_offset) - 1, 0)
        blocks: list[Block] = []
        for block in footer.blocks[first:]:
            if block.base_offset >= job.end_offset or size >= job.segment_bytes:
                break
            if blocks and block.end - blocks[0].position > GET_BYTES:
                runs.append(_Run(name, footer, blocks))
                blocks = []
            blocks.append(block)
            size += block.length
            end_offset = min(block.end_offset, job.end_offset)
        else:
            end_offset = min(footer.end_offset, job.end_offset)
        if blocks:
            runs.append(_Run(name, footer, blocks))
        if end_offset < min(footer.end_offset, job.end_offset):
            break
    return runs, end_offset


async def _footer(name: str, source: LevelOneExtent, store: ObjectStore) -> LevelOneFooter:
    tail = await store.get_range(name, source.size - source.index_bytes, source.index_bytes)
    return parse_footer(name, tail, source.size)


async def _fetched(
    runs: Sequence[_Run], store: ObjectStore, loop: asyncio.AbstractEventLoop
) -> AsyncIterator[tuple[_Run, bytes]]:
    """The bytes of each run, in order; the next ones are on their way meanwhile."""
    ahead: list[asyncio.Task[bytes]] = []
    try:
        for number, run in enumerate(runs):
            while len(ahead) < MAX_GETS and number + len(ahead) < len(runs):
                ahead.append(loop.create_task(_get(runs[number + len(ahead)], store)))
                ahead[-1].add_done_callback(_looked_at)
            yield run, await ahead.pop(0)
    finally:
        # Nothing is awaited here: a generator that is thrown away may not wait.
        for task in ahead:
            task.cancel()


def _looked_at(task: asyncio.Task[bytes]) -> None:
    """Take the error of a get that nothing waits for any more."""
    if not task.cancelled():
        task.exception()


async def _get(run: _Run, store: ObjectStore) -> bytes:
    start, end = run.blocks[0].position, run.blocks[-1].end
    return bytes(await store.get_range(run.name, start, end - start))
