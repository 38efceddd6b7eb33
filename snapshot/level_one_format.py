"""Format of a level-one object: a range of one partition's log, ready to be sent to clients unchanged.

    header | block ... block | index | identity | tail

A block holds whole batches one after the other, their base offsets and leader epochs final. The index has a
row a block with its offsets, newest timestamp and CRC-32C: a search by offset or time reads the index once
and then one block, and a sequential reader checks blocks, not batches. The identity repeats the object's
name, so that one object's bytes under another's name are detected. See docs/level-one.md.

Version 1 has every offset of its range: batch follows on batch. Version 2 has holes, where compaction removed
records. There too blocks tile the object's range, so that an offset is found as before: a hole belongs to the
block before it, one in front of all batches to the first. An object of which nothing is left has no blocks.
`level_one_writer` writes objects.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from strandline.snapshot.level_zero_format import BATCH_HEADER_BYTES, MAGIC_2
from strandline.snapshot.object_frame import HEADER, TAIL, BadObject, Buffer, Frame
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name

MAGIC: Final = b"strandL1"
WITHOUT_HOLES: Final = 1
WITH_HOLES: Final = 2
"""Format versions."""
BLOCK: Final = struct.Struct("<qqQQIqI")
"""base offset, end offset, position and length in bytes, CRC-32C, newest timestamp in ms, batches."""
IDENTITY: Final = struct.Struct("<16sIQ16sqqqQI")
"""topic id, partition, term, unique, base offset, end offset, newest timestamp in ms, size of the object in
bytes, number of blocks; after the blocks' rows."""
NO_TIMESTAMP: Final = -1
"""Newest timestamp of an object without batches."""
BODY_AT: Final = HEADER.size
"""Position of the first block."""
FRAMES: Final = {
    version: Frame("level-one object", MAGIC, version, IDENTITY.size + TAIL.size)
    for version in (WITHOUT_HOLES, WITH_HOLES)
}
"""Frame that writes each version; the newest version's reads them all."""
_FRAME: Final = FRAMES[WITH_HOLES]
_STAMPED: Final = struct.Struct(">qiibIhiqq")
"""base offset, length behind it, leader epoch, magic, CRC, attributes, last offset's distance from the base,
first timestamp, newest timestamp: how a batch begins."""


class Block(NamedTuple):
    """A row of the index; `position` counts from the object's first byte, timestamps are ms since 1970."""

    base_offset: int
    end_offset: int
    """Offset after its last record."""
    position: int
    length: int
    crc: int
    max_timestamp: int
    batches: int

    @property
    def end(self) -> int:
        return self.position + self.length


class LevelOneFooter(NamedTuple):
    """Fields at the end of an object that describe it."""

    topic_id: bytes
    partition: int
    base_offset: int
    end_offset: int
    max_timestamp: int
    term: int
    unique: bytes
    size: int
    blocks: tuple[Block, ...]
    holes: bool = False
    """Whether offsets may be missing: format version 2."""


class StoredSpan(NamedTuple):
    """A batch within a block; `position` counts from the object's first byte."""

    position: int
    length: int
    base_offset: int
    end_offset: int
    leader_epoch: int
    max_timestamp: int


def body_bytes(extent: LevelOneExtent) -> int:
    """Bytes of an object's blocks together; they lie from BODY_AT on."""
    return extent.size - extent.index_bytes - BODY_AT


def footer_bytes(name: str, tail: Buffer, size: int) -> int:
    """Number of bytes of the index and footer at an object's end; raises BadObject.

    `tail` has the last TAIL.size bytes or more of `size`.
    """
    return _FRAME.footer_bytes(name, tail, size)


def parse_footer(name: str, tail: Buffer, size: int) -> LevelOneFooter:
    """Read and check the footer of the object of `size` bytes whose last bytes are `tail`.

    `tail` must have at least the extent's `index_bytes`. Raises BadObject, or NewerFormat.
    """
    fields = _FRAME.checked_footer(name, tail, size)
    start = size - len(fields) - TAIL.size
    topic_id, partition, term, unique, base, end, timestamp, stated, count = IDENTITY.unpack_from(
        fields, len(fields) - IDENTITY.size
    )
    if len(fields) != count * BLOCK.size + IDENTITY.size or stated != size:
        raise BadObject(name, start, size, f"{count} blocks in {stated} bytes are not what is here")
    actual = level_one_name(topic_id, partition, term, unique)
    if actual != name:
        raise BadObject(name, start, size, f"these are the bytes of {actual}")
    blocks = tuple(map(Block._make, BLOCK.iter_unpack(fields[: count * BLOCK.size])))
    holes = _FRAME.version_of(tail) == WITH_HOLES
    position, offset = HEADER.size, base
    for block in blocks:
        if (block.position, block.base_offset) != (position, offset):
            reason = f"a block begins at {block.position} with offset {block.base_offset}, "
            raise BadObject(name, start, size, f"{reason}not at {position} with {offset}")
        position, offset = block.end, block.end_offset
    if (position, offset) != (start, end) and not (holes and not blocks and position == start and base < end):
        reason = f"blocks end at {position} with offset {offset}, not at {start} with {end}"
        raise BadObject(name, start, size, reason)
    return LevelOneFooter(topic_id, partition, base, end, timestamp, term, unique, size, blocks, holes)


def parse(name: str, data: Buffer) -> LevelOneFooter:
    """Check every byte of a whole object; raises BadObject, or NewerFormat."""
    footer = parse_footer(name, data, len(data))
    if (_FRAME.check_header(name, data) == WITH_HOLES) != footer.holes:
        raise BadObject(name, 0, HEADER.size, "the header says another format version than the end")
    for block in footer.blocks:
        verify_block(name, block, memoryview(data)[block.position : block.end])
    return footer


def verify_block(name: str, block: Block, data: Buffer) -> None:
    """Check the bytes of one block, read alone; raises BadObject."""
    if len(data) != block.length:
        raise BadObject(name, block.position, block.end, f"{len(data)} bytes in place of {block.length}")
    if crc32c(data) != block.crc:
        raise BadObject(name, block.position, block.end, "the block's checksum does not match")


def batches_of(name: str, block: Block, data: Buffer, holes: bool = False) -> Iterator[StoredSpan]:
    """Yield each batch of a block in order; raises BadObject where they are not what the index says.

    Whether there may be `holes` the object's footer says.
    """
    at = found = 0
    offset = block.base_offset
    while at < len(data):
        length = last = 0
        if len(data) - at >= BATCH_HEADER_BYTES:
            base, rest, epoch, magic, _, _, last, _, timestamp = _STAMPED.unpack_from(data, at)
            length = rest + 12
        if not BATCH_HEADER_BYTES <= length <= len(data) - at or magic != MAGIC_2:
            raise BadObject(name, block.position + at, block.end, "no batch begins here")
        if last < 0 or base < offset or (base > offset and not holes):
            reason = f"a batch of offset {base} where {offset} follows"
            raise BadObject(name, block.position + at, block.end, reason)
        offset = base + last + 1
        yield StoredSpan(block.position + at, length, base, offset, epoch, timestamp)
        at += length
        found += 1
    if found != block.batches or offset > block.end_offset or (offset < block.end_offset and not holes):
        reason = f"{found} batches up to offset {offset} in place of {block.batches} up to {block.end_offset}"
        raise BadObject(name, block.position, block.end, reason)
