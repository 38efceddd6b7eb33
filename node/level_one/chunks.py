"""A level-one object for its reader: the layout, and the chunks of it that are in memory."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from strandline.node.objectstore.store import Buffer
from strandline.snapshot.level_one_format import Block, LevelOneFooter, StoredSpan, batches_of, verify_block
from strandline.snapshot.object_frame import BadObject

_LAYOUT_BYTES = 1000
_BLOCK_BYTES = 400
"""Memory of a row of the index, as a tuple of numbers."""
_BASE_OFFSET = struct.Struct(">q")
"""The first field of a batch."""
_BATCH_BYTES = 16
"""Memory of a batch's end: an offset and a position."""


class Layout:
    """The index of one object, its blocks in chunks of up to `chunk_bytes`, or of one larger block."""

    sound = True

    def __init__(self, name: str, footer: LevelOneFooter, chunk_bytes: int) -> None:
        self.name = name
        self.footer = footer
        self.blocks = footer.blocks
        self.holes = footer.holes
        self.bytes = _LAYOUT_BYTES + _BLOCK_BYTES * len(footer.blocks)
        self._cuts = [0]
        """Number of each chunk's first block, and how many blocks there are."""
        for number, block in enumerate(footer.blocks):
            if number > self._cuts[-1] and block.end - self.blocks[self._cuts[-1]].position > chunk_bytes:
                self._cuts.append(number)
        if footer.blocks:
            self._cuts.append(len(footer.blocks))

    @property
    def chunks(self) -> int:
        """Number of chunks; 0 if compaction has removed every batch."""
        return len(self._cuts) - 1

    def block_of(self, offset: int) -> int:
        """Number of the block that an offset of this object is in."""
        return bisect_right(self.blocks, offset, key=lambda block: block.base_offset) - 1

    def chunk_of(self, block: int) -> int:
        """Number of the chunk that a block is in."""
        return bisect_right(self._cuts, block) - 1

    def blocks_in(self, chunk: int) -> range:
        return range(self._cuts[chunk], self._cuts[chunk + 1])

    def span_of(self, chunk: int) -> tuple[int, int]:
        """Position and length of a chunk in the object, in bytes."""
        start = self.blocks[self._cuts[chunk]].position
        return start, self.blocks[self._cuts[chunk + 1] - 1].end - start

    def bytes_from(self, offset: int) -> int:
        """Bytes of batches from the block of an offset to the end."""
        return self.blocks[-1].end - self.blocks[self.block_of(offset)].position if self.blocks else 0


class CheckedBlocks:
    """Neighbouring blocks of an object after a look at their checksums: it is known which are damaged."""

    def __init__(self, name: str, first: int, blocks: Sequence[Block]) -> None:
        """`first` is the number of the first block."""
        self._name = name
        self._first = first
        self._blocks = blocks
        self._bad: dict[int, BadObject] = {}

    @property
    def sound(self) -> bool:
        """Whether all its bytes are as they were stored."""
        return not self._bad

    @property
    def bad_blocks(self) -> int:
        return len(self._bad)

    def sound_until(self, number: int, end: int) -> int:
        """The end of the sound blocks from one on, before block `end`; raises BadObject if it is damaged."""
        if number in self._bad:
            raise self._bad[number]
        return min((bad for bad in self._bad if number < bad < end), default=end)


class Chunk(CheckedBlocks):
    """The bytes of neighbouring blocks. Damaged ones are known, and never given out."""

    def __init__(self, name: str, first: int, blocks: Sequence[Block], data: Buffer, holes: bool) -> None:
        """`data` begins with the first block, and is not changed any more.

        `holes` is what the object's footer says.
        """
        super().__init__(name, first, blocks)
        self._holes = holes
        self._start = blocks[0].position
        self._data = memoryview(data)
        self._ends: dict[int, tuple[array[int], array[int]]] = {}
        self.bytes = len(data) + _BATCH_BYTES * sum(block.batches for block in blocks)
        for number, block in enumerate(blocks, first):
            try:
                verify_block(name, block, self.between(block.position, block.end))
            except BadObject as error:
                self._bad[number] = error

    def batch_at(self, number: int, offset: int) -> tuple[int, int] | None:
        """Position in the object, and base offset, of the batch in a block that holds an offset of it.

        Where the offset is missing, of the next batch; None where the block has none behind it.
        """
        position = self._blocks[number - self._first].position
        if offset != self._blocks[number - self._first].base_offset:
            ends, positions = self._index(number)
            batch = bisect_right(ends, offset)
            if batch == len(ends):
                return None
            position = positions[batch - 1] if batch else position
        return position, self._base_at(position)

    def batch_end(self, number: int, position: int, end: int, max_bytes: int) -> tuple[int, int]:
        """End of a read within a block, from a position: the position, and the offset after it.

        The batches up to there hold offsets below `end` and have `max_bytes`, or it is one larger batch. The
        one at the position begins below `end`.
        """
        ends, positions = self._index(number)
        first = bisect_right(positions, position)
        within = bisect_right(positions, position + max_bytes) - 1
        wanted = bisect_left(ends, end)
        if 0 < wanted < len(ends) and self._base_at(positions[wanted - 1]) >= end:
            wanted -= 1
        last = max(min(within, wanted), first)
        return positions[last], ends[last]

    def between(self, start: int, end: int) -> memoryview:
        """The bytes from one position in the object to another."""
        return self._data[start - self._start : end - self._start]

    def spans(self, number: int) -> Iterator[StoredSpan]:
        """The batches of a block; raises BadObject where it is not made of them."""
        block = self._blocks[number - self._first]
        return batches_of(self._name, block, self.between(block.position, block.end), self._holes)

    def _base_at(self, position: int) -> int:
        """Base offset of the batch at a position in the object."""
        return int(_BASE_OFFSET.unpack_from(self._data, position - self._start)[0])

    def _index(self, number: int) -> tuple[array[int], array[int]]:
        """Of each batch of a block the offset and the position after it; made once, when it is needed."""
        index = self._ends.get(number)
        if index is None:
            spans = [*self.spans(number)]
            ends = array("q", [span.end_offset for span in spans])
            positions = array("q", [span.position + span.length for span in spans])
            index = self._ends[number] = (ends, positions)
        return index
