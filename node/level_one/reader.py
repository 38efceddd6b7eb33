"""Reads level one: long stretches of a partition's log, sent to clients as they lie in storage.

The batches in a level-one object are final, so nothing is done for each of them. An object is read in chunks
of several blocks, one get each; the blocks' checksums are compared when a chunk comes, before a client sees
it; a read gives whole blocks, so that the next one begins where a block begins. Only a read that starts or
ends within a block looks at its batches. Where compaction has removed records, a read goes on to the next
batch there is. docs/level-one.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias, cast

from strandline.node.level_one.block_cache import BlockCache, Loaded, arrived
from strandline.node.level_one.chunks import Chunk, Layout
from strandline.node.level_one.file_chunks import AHEAD_BYTES, FileChunk, FileChunks, OpenObject
from strandline.node.level_one.reader_measures import LevelOneReaderMeasures
from strandline.node.level_one.stored_run import StoredRun, TimedBatch
from strandline.node.objectstore.store import Buffer, ObjectStore, RangeNotFound, StoreError
from strandline.snapshot.level_one_format import LevelOneFooter, parse_footer
from strandline.snapshot.object_frame import HEADER, BadObject
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name

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
    """Bytes that are read ahead for a reader that continues from a block's start."""

    max_gets: int = 16
    """Most gets in progress; further ones wait."""

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
        self._store = store
        self._config = config
        self._loop = loop
        self._turns = asyncio.Semaphore(config.max_gets)
        share = config.cache_bytes // 4
        self.layouts: BlockCache[Layout] = BlockCache(share, loop=loop, by_use=True)
        self.chunks: BlockCache[Chunk] = BlockCache(config.cache_bytes - share, loop=loop, by_use=False)
        self.files = FileChunks(store, self._turns, self.measures, loop=loop)

    async def read(
        self,
        place: Place,
        extents: Sequence[LevelOneExtent],
        offset: int,
        end: int,
        max_bytes: int,
        after: LevelOneExtent | None = None,
        *,
        files: bool = False,
    ) -> list[StoredRun]:
        """The batches from the one that holds `offset` on, at most up to the one that holds `end - 1`.

        `extents` are neighbours, the first of which holds `offset`; `after` follows on them. The result ends
        with a block where `max_bytes` allow for one, else with a batch; the first batch comes whatever its
        size. It is shorter where the store fails or a block is damaged, and an error only if nothing can be
        given: ObjectNotFound (the plan may be old: plan again), BadObject, or another StoreError. It is empty
        if, from `offset` to `end`, nothing is left of these objects. With `files`, whole blocks may come as
        ranges of open files.
        """
        for extent in extents[1:]:
            self._want_layout(place, extent)
        runs: list[StoredRun] = []
        room = max_bytes
        for extent, following in zip(extents, [*extents[1:], after], strict=True):
            try:
                offset = await self._read_object(place, extent, following, offset, end, room, runs, files)
            except (StoreError, BadObject):
                if not runs:
                    raise
                break
            room = max_bytes - sum(len(run.data) for run in runs)
            if offset < extent.end_offset or offset >= end or (runs and room <= 0):
                break
        self.measures.bytes_given += sum(len(run.data) for run in runs)
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
        layout = await arrived(self._want_layout(place, extent))
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
        layout = await arrived(self._want_layout(place, extent))
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
        place: Place,
        extent: LevelOneExtent,
        following: LevelOneExtent | None,
        offset: int,
        end: int,
        room: int,
        runs: list[StoredRun],
        files: bool,
    ) -> int:
        """Add to `runs` what an object has from an offset of it on, whole blocks if it is not the first.

        Returns the offset that the next read would begin with.
        """
        layout = await arrived(self._want_layout(place, extent))
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
        wanted = [self._want(layout, number, file) for number in numbers]
        if goes_on:
            self._read_ahead(place, layout, numbers.stop, following, file)
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
        chunk = await arrived(self._want_chunk(layout, layout.chunk_of(number)))
        chunk.sound_until(number, number + 1)
        return chunk

    def _read_ahead(
        self,
        place: Place,
        layout: Layout,
        number: int,
        following: LevelOneExtent | None,
        file: OpenObject | None,
    ) -> None:
        """Load the chunks that the same client will read next, without waiting for them."""
        room = self._config.ahead_bytes if file is None else AHEAD_BYTES
        while room > 0:
            if number == layout.chunks:
                if following is None:
                    return
                known = self.layouts.peek((following.unique, 0))
                if known is None:
                    index = partial(self._load_layout, place, following)
                    self.layouts.ahead((following.unique, 0), following.index_bytes, index)
                    return
                if file is not None:
                    file = self.files.opened_ahead(known)
                    if file is None:
                        return
                    known = file.layout
                layout, number, following = known, 0, None
                continue
            _, length = layout.span_of(number)
            if file is not None:
                going = self.files.ahead(file, number)
            else:
                load = partial(self._load_chunk, layout, number)
                going = self.chunks.ahead((layout.footer.unique, number), length, load)
            if not going:
                return
            room -= length
            number += 1

    # Loading.

    def _want_layout(self, place: Place, extent: LevelOneExtent) -> Layout | asyncio.Future[Loaded[Layout]]:
        return self.layouts.get((extent.unique, 0), partial(self._load_layout, place, extent))

    def _want_chunk(self, layout: Layout, number: int) -> Chunk | asyncio.Future[Loaded[Chunk]]:
        return self.chunks.get((layout.footer.unique, number), partial(self._load_chunk, layout, number))

    def _want(self, layout: Layout, number: int, file: OpenObject | None) -> Wanted:
        wanted = self._want_chunk(layout, number) if file is None else self.files.want(file, number)
        return cast(Wanted, wanted)

    async def _load_layout(self, place: Place, extent: LevelOneExtent) -> Layout:
        name = level_one_name(*place, extent.term, extent.unique)
        whole = extent.size <= self._config.chunk_bytes
        start = 0 if whole else extent.size - extent.index_bytes
        data = await self._get(name, start, extent.size - start)
        try:
            footer = _footer(name, extent, data)
        except BadObject:
            self.measures.bad += 1
            raise
        layout = Layout(name, footer, self._config.chunk_bytes)
        if whole and layout.chunks:
            position, length = layout.span_of(0)
            self.chunks.put((extent.unique, 0), self._chunk(layout, 0, data[position : position + length]))
        return layout

    async def _load_chunk(self, layout: Layout, number: int) -> Chunk:
        data = await self._get(layout.name, *layout.span_of(number))
        return self._chunk(layout, number, data)

    def _chunk(self, layout: Layout, number: int, data: Buffer) -> Chunk:
        blocks = layout.blocks_in(number)
        chunk = Chunk(
            layout.name, blocks.start, layout.blocks[blocks.start : blocks.stop], data, layout.holes
        )
        self.measures.bad += chunk.bad_blocks
        return chunk

    async def _get(self, name: str, start: int, length: int) -> Buffer:
        async with self._turns:
            began = self._loop.time()
            self.measures.gets += 1
            try:
                data = await self._store.get_range(name, start, length)
            except RangeNotFound as error:
                self.measures.failed += 1
                reason = "the object is cut: it ends before this"
                raise BadObject(name, start, start + length, reason) from error
            except StoreError:
                self.measures.failed += 1
                raise
            self.measures.bytes_read += len(data)
            self.measures.get_seconds.add(self._loop.time() - began)
            return data


def _footer(name: str, extent: LevelOneExtent, data: Buffer) -> LevelOneFooter:
    """The index at the end of `data`; raises BadObject unless it is the one the partition's state means."""
    start = extent.size - extent.index_bytes
    try:
        footer = parse_footer(name, data, extent.size)
    except BadObject:
        raise
    except ValueError as error:
        raise BadObject(name, start, extent.size, str(error)) from error
    if (footer.base_offset, footer.end_offset) != (extent.base_offset, extent.end_offset):
        reason = f"it holds offsets {footer.base_offset} to {footer.end_offset}, the partition says "
        raise BadObject(name, start, extent.size, f"{reason}{extent.base_offset} to {extent.end_offset}")
    return footer
