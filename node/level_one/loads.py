"""Gets of level one: an object's index, and its chunks, each shared by all that want it, and checked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from strandline.node.level_one.block_cache import BlockCache, Loaded
from strandline.node.level_one.chunks import Chunk, Layout
from strandline.node.level_one.reader_measures import LevelOneReaderMeasures
from strandline.node.objectstore.get_turns import GetTurns
from strandline.node.objectstore.store import Buffer, ObjectStore, RangeNotFound, StoreError
from strandline.snapshot.level_one_format import LevelOneFooter, parse_footer
from strandline.snapshot.object_frame import BadObject
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name


class Loads:
    """Brings indexes and chunks from the store into the reader's two caches."""

    def __init__(
        self,
        store: ObjectStore,
        turns: GetTurns,
        measures: LevelOneReaderMeasures,
        layouts: BlockCache[Layout],
        chunks: BlockCache[Chunk],
        *,
        chunk_bytes: int,
        get_took: Callable[[float], None],
        now: Callable[[], float],
    ) -> None:
        """`turns` bounds the gets under way; `get_took` is told the seconds of each that was answered."""
        self._store = store
        self._turns = turns
        self._measures = measures
        self._layouts = layouts
        self._chunks = chunks
        self._chunk_bytes = chunk_bytes
        self._get_took = get_took
        self._now = now

    def layout(
        self, place: tuple[bytes, int], extent: LevelOneExtent
    ) -> Layout | asyncio.Future[Loaded[Layout]]:
        """An object's index, as BlockCache.get gives it; `place` is the topic's id and the partition."""
        return self._layouts.get((extent.unique, 0), partial(self._load_layout, place, extent))

    def layout_ahead(self, place: tuple[bytes, int], extent: LevelOneExtent) -> Layout | None:
        """The index if it is here; it is loaded from now on if it is not."""
        key = (extent.unique, 0)
        known = self._layouts.peek(key)
        if known is None:
            load = partial(self._load_layout, place, extent, ahead=True)
            self._layouts.ahead(key, extent.index_bytes, load)
        return known

    def comes_whole(self, extent: LevelOneExtent) -> bool:
        """Whether all of an object comes with its index."""
        return extent.size <= self._chunk_bytes

    def chunk(self, layout: Layout, number: int) -> Chunk | asyncio.Future[Loaded[Chunk]]:
        """A chunk, as BlockCache.get gives it."""
        return self._chunks.get((layout.footer.unique, number), partial(self._load_chunk, layout, number))

    def chunk_ahead(self, layout: Layout, number: int) -> bool:
        """Load a chunk that will be wanted soon; False where too much is waiting so."""
        _, length = layout.span_of(number)
        load = partial(self._load_chunk, layout, number, ahead=True)
        return self._chunks.ahead((layout.footer.unique, number), length, load)

    async def _load_layout(
        self, place: tuple[bytes, int], extent: LevelOneExtent, *, ahead: bool = False
    ) -> Layout:
        name = level_one_name(*place, extent.term, extent.unique)
        whole = self.comes_whole(extent)
        start = 0 if whole else extent.size - extent.index_bytes
        data = await self._get(name, start, extent.size - start, ahead)
        try:
            footer = _footer(name, extent, data)
        except BadObject:
            self._measures.bad += 1
            raise
        layout = Layout(name, footer, self._chunk_bytes)
        if whole and layout.chunks:
            position, length = layout.span_of(0)
            self._chunks.put((extent.unique, 0), self._chunk(layout, 0, data[position : position + length]))
        return layout

    async def _load_chunk(self, layout: Layout, number: int, *, ahead: bool = False) -> Chunk:
        data = await self._get(layout.name, *layout.span_of(number), ahead)
        return self._chunk(layout, number, data)

    def _chunk(self, layout: Layout, number: int, data: Buffer) -> Chunk:
        blocks = layout.blocks_in(number)
        chunk = Chunk(
            layout.name, blocks.start, layout.blocks[blocks.start : blocks.stop], data, layout.holes
        )
        self._measures.bad += chunk.bad_blocks
        return chunk

    async def _get(self, name: str, start: int, length: int, ahead: bool) -> Buffer:
        async with self._turns.one(ahead=ahead):
            began = self._now()
            self._measures.gets += 1
            try:
                data = await self._store.get_range(name, start, length)
            except RangeNotFound as error:
                self._measures.failed += 1
                reason = "the object is cut: it ends before this"
                raise BadObject(name, start, start + length, reason) from error
            except StoreError:
                self._measures.failed += 1
                raise
            self._measures.bytes_read += len(data)
            seconds = self._now() - began
            self._measures.get_seconds.add(seconds)
            self._get_took(seconds)
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
