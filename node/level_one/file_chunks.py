"""Level-one objects as open files: their blocks are checked where they lie, and sent from there.

A chunk is read once for its checksums, in a thread, through a small buffer. What remains of it here is that
it was sound: its bytes are in the system's page cache, from which they go to a client's socket. So a chunk
that was checked long ago is checked again, as the system may have read it again from the disk meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from strandline.node.level_one.block_cache import BlockCache, Loaded, arrived
from strandline.node.level_one.chunks import CheckedBlocks, Layout
from strandline.node.level_one.reader_measures import LevelOneReaderMeasures
from strandline.node.objectstore.get_turns import GetTurns
from strandline.node.objectstore.object_file import Checked, FileRange, ObjectFile
from strandline.node.objectstore.store import ObjectStore, RangeNotFound
from strandline.snapshot.level_one_format import Block
from strandline.snapshot.object_frame import BadObject

CHUNK_BYTES: Final = 2 * 1024 * 1024
"""Bytes that are checked by one job of a thread: enough that starting it does not count."""
AHEAD_BYTES: Final = 8 * 1024 * 1024
"""Bytes that are checked ahead of a reader; they take none of this process's memory."""
CHECKED_BYTES: Final = 256 * 1024 * 1024
"""Bytes of chunks that count as checked. Those that were checked first are checked again."""
MAX_FILES: Final = 128
"""Objects that are held open for further readers. Chunks hold some more, but one each at most."""
LOOK_SECONDS: Final = 30.0
"""Time between two looks for objects that were deleted: until then they take disk space."""


class OpenObject:
    """An object's open file, or None where there is none to be had, and its blocks in chunks."""

    bytes = 1
    """One of MAX_FILES in a cache."""

    def __init__(self, layout: Layout, file: ObjectFile | None) -> None:
        self.layout = Layout(layout.name, layout.footer, CHUNK_BYTES)
        self.file = file

    @property
    def sound(self) -> bool:
        """Whether it is worth keeping."""
        return self.file is not None


class FileChunk(CheckedBlocks):
    """Neighbouring blocks of an open file that were checked."""

    def __init__(
        self, name: str, first: int, blocks: Sequence[Block], file: ObjectFile, found: Sequence[Checked]
    ) -> None:
        super().__init__(name, first, blocks)
        self.file = file
        self.bytes = blocks[-1].end - blocks[0].position
        self._bases = [int.from_bytes(one.head, "big", signed=True) for one in found]
        for number, (block, checked) in enumerate(zip(blocks, found, strict=True), first):
            if checked.crc != block.crc:
                reason = "the block's checksum does not match"
                self._bad[number] = BadObject(name, block.position, block.end, reason)

    def batch_at(self, number: int, offset: int) -> tuple[int, int]:
        """Position in the object, and base offset, of a block's first batch; `offset` is the block's own."""
        assert offset == self._blocks[number - self._first].base_offset
        return self._blocks[number - self._first].position, self._bases[number - self._first]

    def between(self, start: int, end: int) -> FileRange:
        """The bytes from one position in the object to another."""
        return FileRange(self.file, start, end - start)


class FileChunks:
    """The open objects of one reader, and what of them was checked."""

    def __init__(
        self,
        store: ObjectStore,
        turns: GetTurns,
        measures: LevelOneReaderMeasures,
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`turns` bounds the jobs under way."""
        self.objects: BlockCache[OpenObject] = BlockCache(MAX_FILES, loop=loop, by_use=True)
        self.chunks: BlockCache[FileChunk] = BlockCache(CHECKED_BYTES, loop=loop, by_use=False)
        self._measures = measures
        self._store = store
        self._turns = turns
        self._loop = loop
        self._look: asyncio.TimerHandle | None = None

    async def opened(self, layout: Layout) -> OpenObject | None:
        """The object's file, if there is one to be had. Raises StoreError, ObjectNotFound among them."""
        if not self._store.has_files:
            return None
        opened = await arrived(self.objects.get(_key(layout), partial(self._open, layout)))
        return None if opened.file is None else opened

    def opened_ahead(self, layout: Layout) -> OpenObject | None:
        """The object's file if it is open already; it is being opened from now on if not."""
        self.objects.ahead(_key(layout), 1, partial(self._open, layout))
        opened = self.objects.peek(_key(layout))
        return None if opened is None or opened.file is None else opened

    def want(self, opened: OpenObject, number: int) -> FileChunk | asyncio.Future[Loaded[FileChunk]]:
        """A chunk of an open object, as BlockCache.get gives it."""
        return self.chunks.get((opened.layout.footer.unique, number), partial(self._check, opened, number))

    def ahead(self, opened: OpenObject, number: int) -> bool:
        """Check a chunk that will be wanted soon; False where too much is waiting so."""
        _, length = opened.layout.span_of(number)
        key = (opened.layout.footer.unique, number)
        return self.chunks.ahead(key, length, partial(self._check, opened, number, ahead=True))

    async def close(self) -> None:
        """Let go of all files; what is under way ends with an error."""
        if self._look is not None:
            self._look.cancel()
        await self.objects.close()
        await self.chunks.close()
        self.objects.drop(lambda _: True)
        self.chunks.drop(lambda _: True)

    async def _open(self, layout: Layout) -> OpenObject:
        opened = OpenObject(layout, await self._store.open_file(layout.name))
        if self._look is None and opened.file is not None:
            self._look = self._loop.call_later(LOOK_SECONDS, self._let_go)
        return opened

    async def _check(self, opened: OpenObject, number: int, *, ahead: bool = False) -> FileChunk:
        layout, file = opened.layout, opened.file
        assert file is not None
        numbers = layout.blocks_in(number)
        blocks = layout.blocks[numbers.start : numbers.stop]
        async with self._turns.one(ahead=ahead):
            try:
                found = await self._store.checked(file, [(one.position, one.length) for one in blocks])
            except RangeNotFound as error:
                start, length = layout.span_of(number)
                reason = "the object is cut: it ends before this"
                raise BadObject(layout.name, start, start + length, reason) from error
        chunk = FileChunk(layout.name, numbers.start, blocks, file, found)
        self._measures.bytes_checked += chunk.bytes
        self._measures.bad += chunk.bad_blocks
        return chunk

    def _let_go(self) -> None:
        """Let go of objects that were deleted, so that their disk space is free."""
        self._look = None
        self.objects.drop(lambda one: one.file is None or one.file.deleted)
        self.chunks.drop(lambda one: one.file.deleted)
        if len(self.objects) or len(self.chunks):
            self._look = self._loop.call_later(LOOK_SECONDS, self._let_go)


def _key(layout: Layout) -> tuple[bytes, int]:
    return (layout.footer.unique, 0)
