"""Writes level-one objects, in the format of `level_one_format`."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from strandline.snapshot.level_one_format import (
    BLOCK,
    FRAMES,
    IDENTITY,
    NO_TIMESTAMP,
    WITH_HOLES,
    WITHOUT_HOLES,
    Block,
)
from strandline.snapshot.level_zero_format import BATCH, BATCH_HEADER_BYTES, CHECKED_FROM, MAGIC_2
from strandline.snapshot.object_frame import HEADER, TAIL, Buffer
from strandline.snapshot.unset_memory import unset_bytes
from strandline.statemachine.partition.extent import Extent
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name

_STAMP: Final = struct.Struct(">qii")
"""base offset, length behind it, leader epoch."""


class EncodedObject(NamedTuple):
    """An object ready to be stored: its parts in order, its size in bytes, and what names it."""

    parts: list[Buffer]
    size: int
    extent: LevelOneExtent


class LevelOneWriter:
    """Lays out one object. The batches come in offset order, without holes unless they are allowed.

    `room` is the total size of the batches in bytes, if it is known. Then memory is allocated once, and a
    caller that gets the bytes in another order may put them in `place` first and `seal` them in offset order.
    """

    def __init__(
        self, topic_id: bytes, partition: int, term: int, unique: bytes, block_bytes: int, room: int = 0
    ) -> None:
        self._name = (topic_id, partition, term, unique)
        level_one_name(*self._name)  # refuses what names no object
        self._block_bytes = block_bytes
        self._data = unset_bytes(HEADER.size + room)
        self._span: tuple[int, int] | None = None
        """The offsets of an object with holes."""
        self._data[: HEADER.size] = FRAMES[WITHOUT_HOLES].header()
        self._end = HEADER.size
        """Of what is sealed."""
        self._blocks: list[Block] = []
        self._block_start = HEADER.size
        self._block_base = self._block_end = 0
        self._block_timestamp = self._block_batches = 0

    def allow_holes(self, base_offset: int, end_offset: int) -> None:
        """Make it an object of these offsets, of which some may be missing; before the first batch."""
        if self._blocks or self._block_batches:
            raise ValueError("it has batches already")
        if not 0 <= base_offset < end_offset:
            raise ValueError(f"offsets {base_offset} to {end_offset} are not a span")
        self._span = base_offset, end_offset
        self._data[: HEADER.size] = FRAMES[WITH_HOLES].header()

    @property
    def room(self) -> int:
        """Bytes that the batches take, those that are still to be sealed too."""
        return len(self._data) - HEADER.size

    @property
    def sealed_bytes(self) -> int:
        """Bytes of the room that are final."""
        return self._end - HEADER.size

    def add(
        self, batch: Buffer, base_offset: int, end_offset: int, leader_epoch: int, max_timestamp: int
    ) -> None:
        """Append a copy of a batch, stamped; `max_timestamp` in ms. Its own checksum is not looked at."""
        after = self._end + len(batch)
        if self._end == len(self._data):
            self._data += batch
        else:
            if after > len(self._data):
                self._data.extend(bytes(after - len(self._data)))
            self._data[self._end : after] = batch
        at = self._end
        self._grow(len(batch), base_offset, end_offset, max_timestamp, 1)
        _STAMP.pack_into(self._data, at, base_offset, len(batch) - 12, leader_epoch)

    def place(self, position: int, length: int) -> memoryview:
        """Memory for bytes of the room, `position` counted from its start. Release it before `add`."""
        return memoryview(self._data)[HEADER.size + position : HEADER.size + position + length]

    def seal(self, extents: Iterable[Extent]) -> Extent | None:
        """Check the next batches where they lie, stamp them and count them in; the first bad one, if any.

        It and those behind it are then not in. Base offset and leader epoch are what the extents say.
        """
        data, block_bytes = self._data, self._block_bytes
        at = run = self._end
        base = offset = timestamp = batches = 0
        bad: Extent | None = None
        with memoryview(data) as view:
            for extent in extents:
                first, count, term, newest, length = extent[:5]
                after = at + length
                if length < BATCH_HEADER_BYTES or after > len(data):
                    bad = extent
                    break
                _, stated, _, magic, crc = BATCH.unpack_from(data, at)
                if (
                    stated != length - 12
                    or magic != MAGIC_2
                    or crc32c(view[at + CHECKED_FROM : after]) != crc
                ):
                    bad = extent
                    break
                _STAMP.pack_into(data, at, first, stated, term)
                # Blocks are counted in a run at a time: per batch, that would be half of all the work here.
                if batches and (first != offset or after - self._block_start > block_bytes):
                    self._grow(at - run, base, offset, timestamp, batches)
                    run, batches = at, 0
                if not batches:
                    base, timestamp = first, newest
                elif newest > timestamp:
                    timestamp = newest
                offset = first + count
                batches += 1
                at = after
        if batches:
            self._grow(at - run, base, offset, timestamp, batches)
        return bad

    def seal_block(self, block: Block) -> None:
        """Count in the bytes of another object's block, which are stamped and lie next in the room."""
        self._grow(block.length, block.base_offset, block.end_offset, block.max_timestamp, block.batches)

    def finish(self) -> EncodedObject:
        """The whole object; ValueError if nothing was added and no holes are allowed.

        Nothing may be added any more.
        """
        self._cut()
        frame = FRAMES[WITHOUT_HOLES if self._span is None else WITH_HOLES]
        if self._span is not None:
            self._blocks = _tiles(self._blocks, *self._span)
            base, end = self._span
        elif self._blocks:
            base, end = self._blocks[0].base_offset, self._blocks[-1].end_offset
        else:
            raise ValueError("a level-one object without batches would name nothing")
        if self._end != len(self._data):
            raise ValueError(f"{len(self._data) - self._end} bytes of the room were not used")
        timestamp = max((block.max_timestamp for block in self._blocks), default=NO_TIMESTAMP)
        count = len(self._blocks)
        index_bytes = count * BLOCK.size + IDENTITY.size + TAIL.size
        size = self._end + index_bytes
        rows = b"".join(BLOCK.pack(*block) for block in self._blocks)
        footer = frame.footer(rows + IDENTITY.pack(*self._name, base, end, timestamp, size, count))
        _, _, term, unique = self._name
        extent = LevelOneExtent(base, end, timestamp, size, index_bytes, term, unique)
        return EncodedObject([self._data, footer], size, extent)

    def _grow(self, length: int, base: int, end: int, timestamp: int, batches: int) -> None:
        before = self._end
        if self._block_batches and before + length - self._block_start > self._block_bytes:
            self._cut()
        if self._block_batches or self._blocks:
            after = self._block_end
            if base < after or (base > after and self._span is None):
                raise ValueError(f"the batch of offset {base} comes after those up to {after}")
        if self._span is not None and not self._span[0] <= base < end <= self._span[1]:
            raise ValueError(f"offsets {base} to {end} are not in an object of {self._span}")
        if not self._block_batches:
            self._block_base, self._block_timestamp = base, timestamp
        elif timestamp > self._block_timestamp:
            self._block_timestamp = timestamp
        if end <= base or length < BATCH_HEADER_BYTES or before + length > len(self._data):
            raise ValueError(f"no {length} bytes here hold offsets {base} to {end}")
        self._block_end = end
        self._block_batches += batches
        self._end = before + length

    def _cut(self) -> None:
        if not self._block_batches:
            return
        start, end = self._block_start, self._end
        with memoryview(self._data) as data, data[start:end] as content:
            crc = crc32c(content)
        self._blocks.append(
            Block(
                self._block_base,
                self._block_end,
                start,
                end - start,
                crc,
                self._block_timestamp,
                self._block_batches,
            )
        )
        self._block_start, self._block_batches = end, 0


def _tiles(blocks: Sequence[Block], base_offset: int, end_offset: int) -> list[Block]:
    """The blocks with the holes between them: each goes up to the next, the first from the base on."""
    bases = [base_offset, *(block.base_offset for block in blocks[1:])]
    ends = [*bases[1:], end_offset]
    return [
        block._replace(base_offset=base, end_offset=end)
        for block, base, end in zip(blocks, bases, ends, strict=False)
    ]
