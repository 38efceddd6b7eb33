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

from strandline.snapshot.object_frame import HEADER, TAIL, BadObject, Buffer, Frame, NewerFormat
from strandline.statemachine.object_names import object_name

__all__ = [
    "BATCH",
    "BATCH_HEADER_BYTES",
    "CHECKED_FROM",
    "FORMAT_VERSION",
    "HEADER",
    "MAGIC_2",
    "SECTION",
    "TAIL",
    "BadObject",
    "Batch",
    "Buffer",
    "Encoded",
    "Footer",
    "NewerFormat",
    "Section",
    "batches_of",
    "encode",
    "footer_bytes",
    "overhead",
    "parse",
    "parse_footer",
    "patched",
    "verify_batch",
    "verify_section",
]

MAGIC = b"strandL0"
FORMAT_VERSION = 1
SECTION = struct.Struct("<16sIIQQI")
"""topic id, partition, number of batches, position and length of the section in bytes, its CRC-32C."""
IDENTITY = struct.Struct("<Q20sQI")
"""cluster epoch, object id, size of the object in bytes, number of sections; after the sections' rows."""
_FRAME = Frame("level-zero object", MAGIC, FORMAT_VERSION, IDENTITY.size + TAIL.size)

BATCH_HEADER_BYTES = 61
"""Kafka's magic 2 record batch up to its records."""
BATCH = struct.Struct(">qiibI")
"""base offset, length behind it, leader epoch, magic, CRC-32C of all that follows: how a batch begins."""
CHECKED_FROM = BATCH.size
MAGIC_2 = 2


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
    """Fields at the end of an object."""

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
    """Bytes that an object of this many sections has besides its batches."""
    return HEADER.size + sections * SECTION.size + IDENTITY.size + TAIL.size


def encode(epoch: int, object_id: bytes, batches: Sequence[Batch]) -> Encoded:
    """Lay out an object. Batches of a partition keep their order; none of their bytes is copied."""
    by_partition: dict[tuple[bytes, int], list[int]] = {}
    for number, batch in enumerate(batches):
        if not batch.data or len(batch.topic_id) != 16:
            raise ValueError(f"batch {number} has {len(batch.data)} bytes, topic id {batch.topic_id.hex()}")
        by_partition.setdefault((batch.topic_id, batch.partition), []).append(number)
    parts: list[Buffer] = [_FRAME.header()]
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
    parts.append(_FRAME.footer(index))
    return Encoded(parts, size, positions)


def footer_bytes(name: str, tail: Buffer, size: int) -> int:
    """Size in bytes of an object's footer; `tail` has at least the object's last TAIL.size bytes."""
    return _FRAME.footer_bytes(name, tail, size)


def parse_footer(name: str, tail: Buffer, size: int) -> Footer:
    """Read and check the footer of the object of `size` bytes whose last bytes are `tail`.

    `tail` must reach back at least `footer_bytes()`. Raises BadObject, or NewerFormat.
    """
    fields = _FRAME.checked_footer(name, tail, size)
    start = size - len(fields) - TAIL.size
    epoch, object_id, stated, count = IDENTITY.unpack_from(fields, len(fields) - IDENTITY.size)
    if len(fields) != count * SECTION.size + IDENTITY.size or stated != size:
        raise BadObject(name, start, size, f"{count} sections in {stated} bytes are not what is here")
    if object_name(epoch, object_id) != name:
        raise BadObject(name, start, size, f"these are the bytes of {object_name(epoch, object_id)}")
    sections = tuple(map(Section._make, SECTION.iter_unpack(fields[: count * SECTION.size])))
    position = HEADER.size
    for section in sections:
        if section.position != position:
            raise BadObject(name, start, size, f"a section begins at {section.position}, not at {position}")
        position = section.end
    if position != start:
        raise BadObject(name, start, size, f"sections end at {position}, the footer begins at {start}")
    return Footer(epoch, object_id, size, sections)


def parse(name: str, data: Buffer) -> Footer:
    """Check every byte of a whole object; raises BadObject, or NewerFormat."""
    footer = parse_footer(name, data, len(data))
    _FRAME.check_header(name, data)
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
    _, stated, _, magic, crc = BATCH.unpack_from(data)
    if stated != length - 12 or magic != MAGIC_2:
        reason = f"a batch of {stated + 12} bytes with magic {magic} in place of {length} with 2"
        raise BadObject(name, position, position + length, reason)
    if crc32c(memoryview(data)[CHECKED_FROM:]) != crc:
        raise BadObject(name, position, position + length, "the batch's checksum does not match")


def batches_of(name: str, section: Section, data: Buffer) -> Iterator[tuple[int, int]]:
    """Yield (position in the object, length) of each batch of a section; raises BadObject."""
    at = found = 0
    while at < len(data):
        length = BATCH.unpack_from(data, at)[1] + 12 if len(data) - at >= BATCH_HEADER_BYTES else 0
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
