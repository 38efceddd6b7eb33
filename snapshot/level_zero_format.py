"""The bytes of a level-zero object: many partitions' batches in one object, each byte under a checksum.

    header | section ... section | index | tail

A section holds the batches of one partition one after the other, exactly as the producers sent them. The
index says which bytes are whose, with a CRC-32C for each section, and carries the object's name, so that one
object's bytes under another's name are found out. The tail has a fixed size and its CRC-32C covers the index.
Magic, version and checksum keep their places in every version, so that damage is told from a newer format.
See docs/level-zero.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from statemachine.object_names import object_name

Buffer = bytes | bytearray | memoryview

MAGIC = b"strandL0"
FORMAT_VERSION = 1
HEADER = struct.Struct("<8sHHI")
"""magic, version, zero, CRC-32C of the 12 bytes before it."""
SECTION = struct.Struct("<16sIIQQI")
"""topic id, partition, number of batches, position and length of the section in bytes, its CRC-32C."""
IDENTITY = struct.Struct("<Q20sQI")
"""cluster epoch, object id, size of the object in bytes, number of sections; after the sections' rows."""
TAIL = struct.Struct("<IIHH8s")
"""length of index and tail in bytes, CRC-32C of both without this field, version, zero, magic."""
_TAIL_CRC = struct.Struct("<I")
_CRC_FROM_END = TAIL.size - 4

BATCH_HEADER_BYTES = 61
"""Kafka's magic 2 record batch up to its records."""
_BATCH = struct.Struct(">qiibI")
_CHECKED_FROM = _BATCH.size
MAGIC_2 = 2


class BadObject(ValueError):
    """Bytes from storage that are not what was stored: the object's name, the byte range, what is wrong."""

    def __init__(self, name: str, start: int, end: int, reason: str) -> None:
        super().__init__(f"object {name}, bytes {start} to {end}: {reason}")
        self.name = name
        self.start = start
        self.end = end
        self.reason = reason


class NewerFormat(BadObject):
    """The object is intact and of a format version this reader does not know."""


class Batch(NamedTuple):
    """A record batch of one partition, as its producer sent it; `topic_id` has 16 bytes."""

    topic_id: bytes
    partition: int
    data: Buffer


class Section(NamedTuple):
    """One partition's bytes in an object; `position` counts from the object's first byte."""

    topic_id: bytes
    partition: int
    batches: int
    position: int
    length: int
    crc: int

    @property
    def end(self) -> int:
        return self.position + self.length


class Footer(NamedTuple):
    """What the end of an object says about it."""

    epoch: int
    object_id: bytes
    size: int
    sections: tuple[Section, ...]


class Encoded(NamedTuple):
    """An object ready to be stored: its parts in order, its size, and where each batch begins."""

    parts: list[Buffer]
    size: int
    positions: list[int]


def overhead(sections: int) -> int:
    """Bytes that an object of so many sections has besides its batches."""
    return HEADER.size + sections * SECTION.size + IDENTITY.size + TAIL.size


def encode(epoch: int, object_id: bytes, batches: Sequence[Batch]) -> Encoded:
    """Lay out an object. Batches of a partition keep their order; none of their bytes is copied."""
    by_partition: dict[tuple[bytes, int], list[int]] = {}
    for number, batch in enumerate(batches):
        if not batch.data or len(batch.topic_id) != 16:
            raise ValueError(f"batch {number} has {len(batch.data)} bytes, topic id {batch.topic_id.hex()}")
        by_partition.setdefault((batch.topic_id, batch.partition), []).append(number)
    parts: list[Buffer] = [_header()]
    rows: list[bytes] = []
    positions = [0] * len(batches)
    position = HEADER.size
    for (topic_id, partition), numbers in by_partition.items():
        start, crc = position, 0
        for number in numbers:
            data = batches[number].data
            positions[number] = position
            crc = crc32c(data, crc)
            position += len(data)
            parts.append(data)
        rows.append(SECTION.pack(topic_id, partition, len(numbers), start, position - start, crc))
    size = position + len(rows) * SECTION.size + IDENTITY.size + TAIL.size
    index = b"".join(rows) + IDENTITY.pack(epoch, object_id, size, len(rows))
    parts.append(index + _tail(index))
    return Encoded(parts, size, positions)


def _header() -> bytes:
    start = HEADER.pack(MAGIC, FORMAT_VERSION, 0, 0)[:-4]
    return start + _TAIL_CRC.pack(crc32c(start))


def _tail(index: bytes) -> bytes:
    length = len(index) + TAIL.size
    blank = TAIL.pack(length, 0, FORMAT_VERSION, 0, MAGIC)
    crc = crc32c(blank[8:], crc32c(blank[:4], crc32c(index)))
    return TAIL.pack(length, crc, FORMAT_VERSION, 0, MAGIC)


def footer_bytes(name: str, tail: Buffer, size: int) -> int:
    """How many bytes of an object's end its footer takes; `tail` has at least its last TAIL.size bytes."""
    if size < overhead(0) or len(tail) < TAIL.size:
        raise BadObject(name, 0, size, "too short to be a level-zero object; it was cut or is something else")
    length, _, _, _, magic = TAIL.unpack(tail[-TAIL.size :])
    if magic != MAGIC:
        raise BadObject(name, size - len(MAGIC), size, "no magic at the end: cut, or not a level-zero object")
    if not TAIL.size <= length <= size - HEADER.size:
        raise BadObject(name, size - TAIL.size, size, f"a footer of {length} bytes does not fit")
    return int(length)


def parse_footer(name: str, tail: Buffer, size: int) -> Footer:
    """Read and check the footer of the object of `size` bytes whose last bytes are `tail`.

    `tail` must reach back at least `footer_bytes()`. Raises BadObject, or NewerFormat.
    """
    length = footer_bytes(name, tail, size)
    start = size - length
    if length > len(tail):
        raise ValueError(f"the footer of {name} needs {length} bytes, {len(tail)} were given")
    footer = bytes(tail[len(tail) - length :])
    _, crc, version, _, _ = TAIL.unpack(footer[-TAIL.size :])
    checked = crc32c(footer[-_CRC_FROM_END + 4 :], crc32c(footer[:-_CRC_FROM_END]))
    if checked != crc:
        raise BadObject(name, start, size, "the footer's checksum does not match")
    _known(name, start, size, version)
    if length < IDENTITY.size + TAIL.size:
        raise BadObject(name, start, size, f"a footer of {length} bytes has no room for its fields")
    epoch, object_id, stated, count = IDENTITY.unpack_from(footer, length - TAIL.size - IDENTITY.size)
    if length != count * SECTION.size + IDENTITY.size + TAIL.size or stated != size:
        raise BadObject(name, start, size, f"{count} sections in {stated} bytes are not what is here")
    if object_name(epoch, object_id) != name:
        raise BadObject(name, start, size, f"these are the bytes of {object_name(epoch, object_id)}")
    sections = tuple(map(Section._make, SECTION.iter_unpack(footer[: count * SECTION.size])))
    position = HEADER.size
    for section in sections:
        if section.position != position:
            raise BadObject(name, start, size, f"a section begins at {section.position}, not at {position}")
        position = section.end
    if position != start:
        raise BadObject(name, start, size, f"sections end at {position}, the footer begins at {start}")
    return Footer(epoch, object_id, size, sections)


def _known(name: str, start: int, end: int, version: int) -> None:
    if version > FORMAT_VERSION:
        raise NewerFormat(
            name, start, end, f"format version {version}, this reader knows up to {FORMAT_VERSION}: upgrade"
        )
    if version < 1:
        raise BadObject(name, start, end, f"there is no format version {version}")


def parse(name: str, data: Buffer) -> Footer:
    """Check every byte of a whole object; raises BadObject, or NewerFormat."""
    footer = parse_footer(name, data, len(data))
    magic, version, zero, crc = HEADER.unpack_from(data)
    if magic != MAGIC or crc32c(data[: HEADER.size - 4]) != crc or zero:
        raise BadObject(name, 0, HEADER.size, "the header is damaged")
    _known(name, 0, HEADER.size, version)
    for section in footer.sections:
        verify_section(name, section, memoryview(data)[section.position : section.end])
    return footer


def verify_section(name: str, section: Section, data: Buffer) -> None:
    """Check the bytes of one section, read alone; raises BadObject."""
    if len(data) != section.length:
        reason = f"{len(data)} bytes in place of {section.length}"
        raise BadObject(name, section.position, section.end, reason)
    if crc32c(data) != section.crc:
        raise BadObject(name, section.position, section.end, "the section's checksum does not match")


def verify_batch(name: str, position: int, length: int, data: Buffer) -> None:
    """Check one batch, read by the byte range of its extent; raises BadObject.

    Kafka's own checksum covers all from the attributes on. Of the bytes before it, length, magic and checksum
    are checked; base offset and leader epoch are not, as they are overwritten before a client sees them.
    """
    if len(data) != length:
        raise BadObject(name, position, position + length, f"{len(data)} bytes in place of {length}")
    if length < BATCH_HEADER_BYTES:
        raise BadObject(name, position, position + length, f"{length} bytes are too few for a batch")
    _, stated, _, magic, crc = _BATCH.unpack_from(data)
    if stated != length - 12 or magic != MAGIC_2:
        reason = f"a batch of {stated + 12} bytes with magic {magic} in place of {length} with 2"
        raise BadObject(name, position, position + length, reason)
    if crc32c(memoryview(data)[_CHECKED_FROM:]) != crc:
        raise BadObject(name, position, position + length, "the batch's checksum does not match")


def batches_of(name: str, section: Section, data: Buffer) -> Iterator[tuple[int, int]]:
    """Yield (position in the object, length) of each batch of a section; raises BadObject."""
    at = found = 0
    while at < len(data):
        length = _BATCH.unpack_from(data, at)[1] + 12 if len(data) - at >= BATCH_HEADER_BYTES else 0
        if not BATCH_HEADER_BYTES <= length <= len(data) - at:
            raise BadObject(name, section.position + at, section.end, "no batch begins here")
        yield section.position + at, length
        at += length
        found += 1
    if found != section.batches:
        raise BadObject(name, section.position, section.end, f"{found} batches in place of {section.batches}")


def patched(data: bytes, base_offset: int, leader_epoch: int) -> tuple[bytes, memoryview]:
    """A batch as a client gets it, in two parts: offset and leader epoch are outside Kafka's checksum."""
    return struct.pack(">q4si", base_offset, data[8:12], leader_epoch), memoryview(data)[16:]
