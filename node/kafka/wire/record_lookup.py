"""Finds records by timestamp inside batches, for ListOffsets: the one place that decodes records singly.

    length varint, attributes i8, timestamp_delta varlong, offset_delta varint, key, value, headers

Only the first three after the length are read; varints are zigzag (https://kafka.apache.org/documentation/#record).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from strandline.node.kafka.wire.record_batch import (
    HEADER_BYTES,
    BatchHeader,
    InvalidBatch,
    boundaries,
    read_header,
)
from strandline.node.kafka.wire.response_encoder import Buffer
from strandline.node.refusal import Reason
from strandline.snapshot.compression import DecompressionError, decompress


class Found(NamedTuple):
    """A record's offset, and its timestamp in Unix milliseconds."""

    offset: int
    timestamp: int


def first_at_or_after(
    records: Buffer, timestamp: int, *, base_offset: int, max_decompressed_bytes: int
) -> Found | None:
    """The first record whose timestamp is `timestamp` or later; None when there is none.

    `records` are the log's own batches, as the client sent them, with offsets from `base_offset` on.
    Raises InvalidBatch (CORRUPT_MESSAGE) for records that cannot be read.
    """
    for header, base in _batches(records, base_offset):
        if header.max_timestamp < timestamp:
            continue
        for found in _records(records, header, base, max_decompressed_bytes):
            if found.timestamp >= timestamp:
                return found
    return None


def newest(records: Buffer, *, base_offset: int, max_decompressed_bytes: int) -> Found | None:
    """The first record of the greatest timestamp (ListOffsets' MAX_TIMESTAMP); errors as above."""
    best: Found | None = None
    for header, base in _batches(records, base_offset):
        if best is not None and header.max_timestamp <= best.timestamp:
            continue
        for found in _records(records, header, base, max_decompressed_bytes):
            if best is None or found.timestamp > best.timestamp:
                best = found
    return best


def _batches(records: Buffer, base_offset: int) -> Iterator[tuple[BatchHeader, int]]:
    for start, _ in boundaries(records):
        header = read_header(records, start)
        yield header, base_offset
        base_offset += header.last_offset_delta + 1


def _records(records: Buffer, header: BatchHeader, base_offset: int, limit: int) -> Iterator[Found]:
    payload = memoryview(records)[header.position + HEADER_BYTES : header.end]
    if header.has_log_append_time:
        yield Found(base_offset, header.max_timestamp)
        return
    try:
        data = decompress(header.compression, payload, limit)
        position = 0
        for _ in range(header.record_count):
            length, start = _varint(data, position)
            delta, after = _varint(data, start + 1)
            offset_delta, _ = _varint(data, after)
            yield Found(base_offset + offset_delta, header.base_timestamp + delta)
            position = start + length
    except (DecompressionError, IndexError, ValueError, struct.error) as error:
        message = f"the records at offset {base_offset} cannot be read: {error}"
        raise InvalidBatch(Reason.CORRUPT, message) from None


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """A zigzag varint of up to 64 bits, and the position after it."""
    value = shift = 0
    while shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
    raise ValueError("a varint of more than 64 bits")
