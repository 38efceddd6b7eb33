"""Reads level one: long stretches of a partition's log, sent to clients as they lie in storage.

The batches in a level-one object are final, so nothing is done for each of them. An object is read in chunks
of several blocks, one get each; the blocks' checksums are compared when a chunk comes, before a client sees
it; a read gives whole blocks, so that the next one begins where a block begins. Only a read that starts or
ends within a block looks at its batches. Where compaction has removed records, a read goes on to the next
batch there is. docs/level-one.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, cast

from strandline.node.level_one.block_cache import BlockCache, Loaded, arrived
from strandline.node.level_one.chunks import Chunk, Layout
from strandline.node.level_one.file_chunks import FileChunk, FileChunks, OpenObject
from strandline.node.level_one.loads import Loads
from strandline.node.level_one.read_ahead import Ahead, check_ahead, read_ahead
from strandline.node.level_one.reader_measures import LevelOneReaderMeasures
from strandline.node.level_one.stored_run import StoredRun, TimedBatch
from strandline.node.level_zero.read_pace import ReadPaces
from strandline.node.objectstore.get_turns import GetTurns
from strandline.node.objectstore.store import ObjectStore, StoreError
from strandline.snapshot.object_frame import HEADER, BadObject
from strandline.statemachine.partition.level_one import LevelOneExtent

KIB = 1024
MIB = 1024 * KIB

Wanted: TypeAlias = (Chunk | FileChunk) | asyncio.Future[Loaded[Chunk | FileChunk]]


@dataclass(frozen=True, slots=True)
class LevelOneReaderConfig:
    """Bounds of a reader, in bytes and gets."""

    cache_bytes: int = 64 * MIB
    """A quarter of it for indexes, the rest for batches."""

    chunk_bytes: int = MIB
    """Bytes of one get: all blocks that fit, or one larger block. Objects up to this size are read whole."""

    ahead_bytes: int = 4 * MIB
    """Least bytes that are read ahead of a reader that goes on; more if its pace asks for it (ReadPaces)."""

    max_gets: int = 16
    """Most gets ahead of their readers; for what readers wait for there are a quarter more. Others wait."""

    def __post_init__(self) -> None:
        if self.cache_bytes < 0 or self.chunk_bytes < 1 or self.ahead_bytes < 0 or self.max_gets < 1:
            raise ValueError("the bounds of a reader are positive; cache and read-ahead may be 0")


class Place(NamedTuple):
    """The partition whose objects are read; its state has the rest of their names."""

    topic_id: bytes
    partition: int


class LevelOneReader:
    """One node's way out of level one, for all its partitions."""

    def __init__(
        self, store: ObjectStore, config: LevelOneReaderConfig, *, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.measures = LevelOneReaderMeasures()
        self._config = config
        turns = GetTurns(config.max_gets)
        self.paces = ReadPaces(
            least=config.ahead_bytes, budget=lambda: self.chunks.max_bytes // 2, now=loop.time
        )
        share = config.cache_bytes // 4
        self.layouts: BlockCache[Layout] = BlockCache(share, loop=loop, by_use=True)
        self.chunks: BlockCache[Chunk] = BlockCache(config.cache_bytes - share, loop=loop, by_use=False)
        self.files = FileChunks(store, turns, self.measures, loop=loop)
        self._loads = Loads(
            store, turns, self.measures, self.layouts, self.chunks,
            chunk_bytes=config.chunk_bytes, get_took=self.paces.get_took, now=loop.time,
        )  # fmt: skip

    async def read(
        self,
        place: Place,
        extents: Sequence[LevelOneExtent],
        offset: int,
        end: int,
        max_bytes: int,
        following: Callable[[int], LevelOneExtent | None] = lambda offset: None,
        *,
        files: bool = False,
    ) -> list[StoredRun]:
        """The batches from the one that holds `offset` on, at most up to the one that holds `end - 1`.

        `extents` are neighbours, the first of which holds `offset`. `following` gives the object that holds
        an offset, for what is read ahead. The result ends with a block where `max_bytes` allow for one, else
        with a batch; the first batch comes whatever its size. It is shorter where the store fails or a block
        is damaged, and an error only if nothing can be given: ObjectNotFound (the plan may be old: plan
        again), BadObject, or another StoreError. It is empty if, from `offset` to `end`, nothing is left of
        these objects. With `files`, whole blocks may come as ranges of open files.
        """
        for extent in extents[1:]:
            self._loads.layout(place, extent)
        runs: list[StoredRun] = []
        room = max_bytes
        began, pace = offset, self.paces.begin(place, offset)
        for extent in extents:
            ahead = Ahead(place, following, pace.window)
            try:
                offset = await self._read_object(ahead, extent, offset, end, room, runs, files)
            except (StoreError, BadObject):
                if not runs:
                    self.paces.failed(place, pace, began)
                    raise
                break
            room = max_bytes - sum(len(run.data) for run in runs)
            if offset < extent.end_offset or offset >= end or (runs and room <= 0):
                break
        given = sum(len(run.data) for run in runs)
        self.measures.bytes_given += given
        if runs:
            self.paces.end(place, pace, runs[-1].end_offset, given)
        return runs

    def bytes_from(self, extent: LevelOneExtent, offset: int) -> int:
        """Upper bound on the bytes of batches in an object from an offset of it on.

        Without a look at the store: exact to a block once the index is known, of the whole object before.
        """
        layout = self.layouts.peek((extent.unique, 0))
        if layout is None:
            return extent.size - extent.index_bytes - HEADER.size
        return layout.bytes_from(offset)

    async def first_since(
        self, place: Place, extent: LevelOneExtent, timestamp: int, start_offset: int
    ) -> TimedBatch | None:
        """The first batch of an object with a record of this time (ms) or later, not all of which lies
        before `start_offset`. Raises as `read` does."""
        layout = await arrived(self._loads.layout(place, extent))
        for number, block in enumerate(layout.blocks):
            if block.max_timestamp < timestamp or block.end_offset <= start_offset:
                continue
            chunk = await self._with_block(layout, number)
            for span in chunk.spans(number):
                if span.max_timestamp >= timestamp and span.end_offset > start_offset:
                    data = chunk.between(span.position, span.position + span.length)
                    return TimedBatch(
                        span.base_offset, span.end_offset, span.leader_epoch, span.max_timestamp, data
                    )
        return None

    async def newest(self, place: Place, extent: LevelOneExtent, start_offset: int) -> int | None:
        """The newest timestamp (ms) of the batches of which not all lies before `start_offset`."""
        if start_offset <= extent.base_offset:
            return extent.max_timestamp
        layout = await arrived(self._loads.layout(place, extent))
        found: list[int] = []
        for number, block in enumerate(layout.blocks):
            if block.base_offset >= start_offset:
                found.append(block.max_timestamp)
            elif block.end_offset > start_offset:
                spans = (await self._with_block(layout, number)).spans(number)
                found += [span.max_timestamp for span in spans if span.end_offset > start_offset]
        return max(found, default=None)

    async def close(self) -> None:
        """End the gets in progress; their readers get an error."""
        await self.layouts.close()
        await self.chunks.close()
        await self.files.close()

    # One object.

    async def _read_object(
        self,
        ahead: Ahead,
        extent: LevelOneExtent,
        offset: int,
        end: int,
        room: int,
        runs: list[StoredRun],
        files: bool,
    ) -> int:
        """Add to `runs` what an object has from an offset of it on, whole blocks if it is not the first.

        Returns the offset that the next read would begin with.
        """
        layout = await arrived(self._loads.layout(ahead.place, extent))
        blocks = layout.blocks
        first = last = await self._first_block(layout, offset)
        if first == len(blocks):
            return extent.end_offset
        block = blocks[first]
        offset = max(offset, block.base_offset)
        reach = block.position + room
        while last < len(blocks) and blocks[last].end <= reach and blocks[last].end_offset <= end:
            last += 1
        if last == first and runs:
            return offset
        # A reader at the start of a block came from the block before, or reads from the beginning.
        goes_on = offset == block.base_offset
        file = None
        if files and goes_on and last > first and extent.size > self._config.chunk_bytes:
            file = await self.files.opened(layout)
        layout = layout if file is None else file.layout
        numbers = range(layout.chunk_of(first), layout.chunk_of(max(last - 1, first)) + 1)
        wanted = [cast(Wanted, self._want(layout, number, file)) for number in numbers]
        if file is not None:
            check_ahead(self._loads, self.files, ahead, file, numbers.stop, extent.end_offset)
        elif ahead.window:
            read_ahead(self._loads, ahead, layout, numbers.stop, extent.end_offset)
        chunk: Chunk | FileChunk = await arrived(wanted[0])
        chunk.sound_until(first, first + 1)
        found = chunk.batch_at(first, offset)
        assert found is not None, "the first block has a batch at the offset or behind it"
        position, base = found
        if base >= end:
            return end
        if last == first:
            assert isinstance(chunk, Chunk), "parts of a block are read into memory"
            stop, after = chunk.batch_end(first, position, end, room)
            runs.append(StoredRun(base, after, chunk.between(position, stop)))
            return after
        for number, coming in zip(numbers, wanted, strict=True):
            chunk = await arrived(coming)
            stop = min(last, layout.blocks_in(number).stop)
            until = chunk.sound_until(first, stop)
            runs.append(
                StoredRun(base, blocks[until - 1].end_offset, chunk.between(position, blocks[until - 1].end))
            )
            if until < stop or stop == last:
                break
            first, position, base = stop, blocks[stop].position, blocks[stop].base_offset
        return runs[-1].end_offset

    async def _first_block(self, layout: Layout, offset: int) -> int:
        """Number of the first block with a batch at an offset of the object or behind it; else how many
        blocks there are. Raises BadObject if it has to look at a block that is damaged."""
        if not layout.blocks:
            return 0
        number = layout.block_of(offset)
        if layout.holes and offset != layout.blocks[number].base_offset:
            chunk = await self._with_block(layout, number)
            return number if chunk.batch_at(number, offset) is not None else number + 1
        return number

    async def _with_block(self, layout: Layout, number: int) -> Chunk:
        """The chunk that a block is in; raises BadObject if that block is damaged."""
        chunk = await arrived(self._loads.chunk(layout, layout.chunk_of(number)))
        chunk.sound_until(number, number + 1)
        return chunk

    def _want(self, layout: Layout, number: int, file: OpenObject | None) -> object:
        return self._loads.chunk(layout, number) if file is None else self.files.want(file, number)
