"""Record batches made from scratch, right by default and wrong on request."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from typing import NamedTuple

import cramjam
from crc32c import crc32c

from strandline.snapshot.compression import Compression


class Record(NamedTuple):
    value: bytes
    timestamp: int = 1_700_000_000_000
    key: bytes | None = None


def varint(value: int) -> bytes:
    """Zigzag."""
    number = (value << 1) ^ (value >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _bytes(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def encode_records(records: Sequence[Record], base_timestamp: int) -> bytes:
    encoded = bytearray()
    for delta, record in enumerate(records):
        front = b"\0" + varint(record.timestamp - base_timestamp) + varint(delta)
        body = front + _bytes(record.key) + _bytes(record.value) + b"\0"
        encoded += varint(len(body)) + body
    return bytes(encoded)


def xerial(data: bytes, block: int = 1 << 15) -> bytes:
    """Java's snappy stream."""
    out = bytearray(b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1))
    for start in range(0, len(data), block):
        packed = bytes(cramjam.snappy.compress_raw(data[start : start + block]))
        out += struct.pack(">i", len(packed)) + packed
    return bytes(out)


def compress(compression: Compression, data: bytes) -> bytes:
    return {
        Compression.NONE: lambda: data,
        Compression.GZIP: lambda: gzip.compress(data),
        Compression.SNAPPY: lambda: bytes(cramjam.snappy.compress_raw(data)),
        Compression.LZ4: lambda: bytes(cramjam.lz4.compress(data)),
        Compression.ZSTD: lambda: bytes(cramjam.zstd.compress(data)),
    }[compression]()


def build(
    records: Sequence[Record] = (Record(b"one"), Record(b"two"), Record(b"three")),
    *,
    compression: Compression = Compression.NONE,
    payload: bytes | None = None,
    base_offset: int = 0,
    magic: int = 2,
    crc: int | None = None,
    length_error: int = 0,
    attributes: int = 0,
    count: int | None = None,
    last_offset_delta: int | None = None,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    first = records[0].timestamp if base_timestamp is None else base_timestamp
    newest = max(record.timestamp for record in records) if max_timestamp is None else max_timestamp
    if payload is None:
        payload = compress(compression, encode_records(records, first))
    number = len(records) if count is None else count
    delta = number - 1 if last_offset_delta is None else last_offset_delta
    covered = (
        struct.pack(">hiqqqhii", attributes | compression, delta, first, newest, *producer, number) + payload
    )
    checksum = crc32c(covered) if crc is None else crc
    length = 4 + 1 + 4 + len(covered) + length_error
    return struct.pack(">qiibI", base_offset, length, -1, magic, checksum) + covered
