"""Builds level-one objects from batches in level zero, or from smaller level-one objects.

The caller decides names and contents and replicates the result; a builder only reads, checks, stamps and
stores. So it may run in another process, die, and be called again, under a new name, without harm. A bad
source fails the outputs that need it and no others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from strandline.node.level_one.gathering import Destination, Gathering
from strandline.node.level_one.level_one_measures import BuilderMeasures
from strandline.node.objectstore.store import ObjectStore, StoreError
from strandline.snapshot.level_one_format import BODY_AT, body_bytes, parse_footer, verify_block
from strandline.snapshot.level_one_writer import LevelOneWriter
from strandline.snapshot.level_zero_format import verify_batch
from strandline.snapshot.object_frame import BadObject
from strandline.statemachine.object_names import object_name
from strandline.statemachine.partition.extent import Extent, InlineExtent
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name

KIB: Final = 1024
MIB: Final = 1024 * KIB
BYTES_AT_A_TIME: Final = 2 * MIB
BATCHES_AT_A_TIME: Final = 1000
"""So much is checked between two looks at the loop: a millisecond's work."""
EXTENTS_AT_A_TIME: Final = 5000


@dataclass(frozen=True, slots=True)
class Output:
    """One level-one object to write from level zero: these extents, one or more, in offset order."""

    topic_id: bytes
    partition: int
    term: int
    unique: bytes
    """16 bytes that no other request ever has."""
    extents: Sequence[Extent]


@dataclass(frozen=True, slots=True)
class Merge:
    """One level-one object to write in place of several of one partition: neighbours, in offset order."""

    topic_id: bytes
    partition: int
    term: int
    unique: bytes
    """16 bytes that no other request ever has."""
    sources: Sequence[LevelOneExtent]


class BuildFailed(NamedTuple):
    """There may or may not be an object of that name, now or later; nothing may ever name it."""

    reason: str
    """One line; of a damaged or missing source, its name and the byte range."""
    retriable: bool
    """Whether the same request under a new name may succeed later."""


Built = LevelOneExtent | BuildFailed


class LevelOneBuilder(Protocol):
    """One job at a time; further ones wait their turn. A cancelled job leaves nothing under way here."""

    measures: BuilderMeasures

    async def build(self, outputs: Sequence[Output]) -> list[Built]:
        """Write the outputs; returns the outcome of each, in their order.

        Takes the memory of all outputs together. Raises ValueError for extents with holes, or without any.
        """

    async def merge(self, merge: Merge) -> Built:
        """Write one object with the batches of all sources, small blocks joined. ValueError as above."""

    async def close(self) -> None:
        """End the jobs in progress; they fail. A closed builder fails all jobs."""


@dataclass(frozen=True, slots=True)
class BuilderConfig:
    """Bounds of a builder, in bytes and requests."""

    block_bytes: int = 256 * KIB
    """Blocks are not larger, but for a larger batch."""
    join_gap_bytes: int = MIB
    """Unwanted bytes between two ranges of an object that are cheaper to fetch than another get."""
    max_get_bytes: int = 4 * MIB
    max_gets: int = 8
    """Under way at a time."""
    max_puts: int = 4

    def __post_init__(self) -> None:
        if min(self.block_bytes, self.max_get_bytes, self.max_gets, self.max_puts) < 1:
            raise ValueError("the bounds of a builder are positive")
        if self.join_gap_bytes < 0:
            raise ValueError("the gap between two ranges is 0 or more")


class StoreBuilder(LevelOneBuilder):
    """Builds on the loop it is given, which it does not hold for more than some milliseconds at a time.

    Even so all this work would make a node's clients wait: a node has one of these in another process.
    Operations of `store` try again by themselves.
    """

    def __init__(self, store: ObjectStore, config: BuilderConfig, *, loop: asyncio.AbstractEventLoop) -> None:
        self.measures = BuilderMeasures()
        self._store = store
        self._config = config
        self._loop = loop
        self._turn = asyncio.Lock()
        self._puts = asyncio.Semaphore(config.max_puts)
        self._tasks: list[asyncio.Task[Any]] = []
        self._closed = False

    async def build(self, outputs: Sequence[Output]) -> list[Built]:
        async with self._turn:
            gathering = Gathering(self._config.join_gap_bytes, self._config.max_get_bytes)
            begun = [await self._begin(output, gathering) for output in outputs]
            lifts = [self._lift(*one, output) for one, output in zip(begun, outputs, strict=True)]
            return await self._all(gathering, lifts)

    async def merge(self, merge: Merge) -> Built:
        async with self._turn:
            gathering = Gathering(0, self._config.max_get_bytes)
            room = sum(map(body_bytes, merge.sources))
            writer = self._writer(merge, room)
            footers = bytearray(sum(source.index_bytes for source in merge.sources))

            def place(at: int, length: int) -> memoryview:
                return memoryview(footers)[at - room :][:length] if at >= room else writer.place(at, length)

            gathered = Destination(place)
            at, footer_at = 0, room
            for source in merge.sources:
                name = level_one_name(merge.topic_id, merge.partition, source.term, source.unique)
                length = body_bytes(source)
                gathering.add(name, BODY_AT, length, gathered, at)
                gathering.add(name, BODY_AT + length, source.index_bytes, gathered, footer_at)
                at += length
                footer_at += source.index_bytes
            gathered.all_known()
            [result] = await self._all(gathering, [self._join(writer, gathered, footers, merge)])
            return result

    async def close(self) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _writer(self, job: Output | Merge, room: int) -> LevelOneWriter:
        return LevelOneWriter(
            job.topic_id, job.partition, job.term, job.unique, self._config.block_bytes, room
        )

    async def _all(self, gathering: Gathering, jobs: Sequence[Coroutine[Any, Any, Built]]) -> list[Built]:
        """Fetch, and meanwhile do the jobs that have what they need."""
        fetch = gathering.fetch(self._store, self._config.max_gets, self.measures, self._loop)
        self._tasks = [self._loop.create_task(one) for one in (fetch, *jobs)]
        if self._closed:
            for task in self._tasks:
                task.cancel()
        try:
            ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._tasks = []
        results: list[Built] = []
        for result in ended[1:]:
            if isinstance(result, asyncio.CancelledError) and self._closed:
                result = BuildFailed("the node is stopping", retriable=True)
            if isinstance(result, BaseException):
                raise result
            self.measures.failed += isinstance(result, BuildFailed)
            results.append(result)
        return results

    async def _begin(self, output: Output, gathering: Gathering) -> tuple[LevelOneWriter, Destination]:
        """Say where everything of an output goes; neighbours here and there are one piece."""
        writer = self._writer(output, sum(extent.length for extent in output.extents))
        gathered = Destination(writer.place)
        at = run = start = end = epoch = 0
        identity = b""
        for number, extent in enumerate(output.extents):
            if isinstance(extent, InlineExtent):
                length = extent.length
                writer.place(at, length)[:] = extent.data
            else:
                _, _, _, _, length, in_epoch, position, in_object = extent
                neighbour = position == end and in_object == identity and in_epoch == epoch
                if not neighbour or run + end - start != at:
                    if end > start:
                        gathering.add(object_name(epoch, identity), start, end - start, gathered, run)
                    epoch, identity, run = in_epoch, in_object, at
                    start = end = position
                end += length
            at += length
            if number % EXTENTS_AT_A_TIME == 0:
                await asyncio.sleep(0)
        if end > start:
            gathering.add(object_name(epoch, identity), start, end - start, gathered, run)
        gathered.all_known()
        return writer, gathered

    async def _lift(self, writer: LevelOneWriter, gathered: Destination, output: Output) -> Built:
        """Check, stamp and store what lay in level zero."""
        await gathered.complete.wait()
        if gathered.error is not None:
            return failure(gathered.error)
        extents = output.extents
        step = max(1, min(BATCHES_AT_A_TIME, BYTES_AT_A_TIME * len(extents) // max(writer.room, 1)))
        for number in range(0, len(extents), step):
            bad = writer.seal(extents[number : number + step])
            if bad is not None:
                return failure(_wrong(bad, writer.place(writer.sealed_bytes, bad.length)))
            await asyncio.sleep(0)
        self.measures.batches += len(extents)
        return await self._put(output, writer)

    async def _join(
        self, writer: LevelOneWriter, gathered: Destination, footers: bytearray, merge: Merge
    ) -> Built:
        """Check and store the blocks of level-one objects; their batches are what they should be already."""
        await gathered.complete.wait()
        if gathered.error is not None:
            return failure(gathered.error)
        at = since = 0
        try:
            parsed = []
            for source in merge.sources:
                name = level_one_name(merge.topic_id, merge.partition, source.term, source.unique)
                tail = memoryview(footers)[at : at + source.index_bytes]
                parsed.append((name, parse_footer(name, tail, source.size)))
                at += source.index_bytes
            if any(footer.holes for _, footer in parsed):
                writer.allow_holes(merge.sources[0].base_offset, merge.sources[-1].end_offset)
            for name, footer in parsed:
                for block in footer.blocks:
                    verify_block(name, block, writer.place(writer.sealed_bytes, block.length))
                    writer.seal_block(block)
                    since += block.length
                    if since > BYTES_AT_A_TIME:
                        since = 0
                        await asyncio.sleep(0)
        except BadObject as error:
            return failure(error)
        self.measures.merges += 1
        return await self._put(merge, writer)

    async def _put(self, job: Output | Merge, writer: LevelOneWriter) -> Built:
        parts, size, extent = writer.finish()
        name = level_one_name(job.topic_id, job.partition, job.term, job.unique)
        async with self._puts:
            self.measures.puts += 1
            try:
                await self._store.put(name, parts)
            except StoreError as error:
                return failure(error)
        self.measures.objects += 1
        self.measures.bytes_written += size
        return extent


def failure(error: StoreError | BadObject) -> BuildFailed:
    """The failure that the caller gets for an error: damaged bytes are not worth another read."""
    return BuildFailed(str(error), retriable=isinstance(error, StoreError) and error.retriable)


def _wrong(extent: Extent, data: memoryview) -> BadObject:
    """The difference between a batch and its extent."""
    if isinstance(extent, InlineExtent):
        name, position = f"of the log, inline batch at offset {extent.base_offset}", 0
    else:
        name, position = extent.object_name, extent.position
    try:
        verify_batch(name, position, extent.length, data)
    except BadObject as error:
        return error
    raise AssertionError("a batch was good after it was bad")
