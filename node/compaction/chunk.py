"""Record batches of one buffer, as numpy sees them: a table of headers, and where each record's fields lie.

Cleaning is bound by records, not by bytes, so nothing is done for single records but to step over their
lengths. Headers are Kafka's (https://kafka.apache.org/documentation/#recordbatch).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import Final

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from strandline.node.compaction.bad_batch import BadBatch
from strandline.snapshot.compression import Compression, DecompressionError, decompress
from strandline.snapshot.level_zero_format import BATCH_HEADER_BYTES, CHECKED_FROM, MAGIC_2
from strandline.snapshot.record_fields import Longs, Spans, UnreadableRecords, read_fields, record_ends

CHUNK_BYTES: Final = 1024 * 1024
"""Of batches, decompressed, at which a chunk is closed: its arrays are about three times as large.
They fit a core's caches, and the worker rests between chunks; with smaller ones the calls cost more than the
work (docs/measurements.md)."""
MAX_DECOMPRESSED_BYTES: Final = 1 << 30
"""Bound on one batch. The broker has checked each by the topic's own limit; this bound is against damage."""
COMPRESSION: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
HEADER: Final = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("records", ">i4"),
    ]
)
"""Header of a batch; its `length` counts the bytes that follow the length field."""
assert HEADER.itemsize == BATCH_HEADER_BYTES
_LENGTH: Final = struct.Struct(">i")
_CRC_AND_ATTRIBUTES: Final = struct.Struct(">IH")
_LENGTH_AT: Final = 8
_MAGIC_AT: Final = 16
_CRC_AT: Final = 17


def batch_positions(data: bytes) -> list[int]:
    """Positions of the batches, and the end of the last one; compares checksums, raises BadBatch."""
    positions, at, view = [0], 0, memoryview(data)
    while at < len(data):
        end = 0
        if len(data) - at >= BATCH_HEADER_BYTES:
            end = at + _LENGTH.unpack_from(data, at + _LENGTH_AT)[0] + _LENGTH_AT + _LENGTH.size
        if not at + BATCH_HEADER_BYTES <= end <= len(data) or data[at + _MAGIC_AT] != MAGIC_2:
            raise BadBatch(f"no batch begins at byte {at}")
        if crc32c(view[at + CHECKED_FROM : end]) != _CRC_AND_ATTRIBUTES.unpack_from(data, at + _CRC_AT)[0]:
            raise BadBatch(f"the checksum of the batch at byte {at} does not match")
        at = end
        positions.append(at)
    return positions


def headers(data: bytes, positions: Longs) -> NDArray[np.void]:
    """The headers of the batches at these positions, as rows of HEADER, to be changed at will."""
    raw = np.frombuffer(data, np.uint8)
    table: NDArray[np.void] = raw[positions[:, None] + np.arange(HEADER.itemsize)].reshape(-1).view(HEADER)
    return table


def chunks(data: bytes) -> Iterator[DecodedChunk]:
    """All batches of a buffer below 1 GiB, about CHUNK_BYTES of them at a time; raises BadBatch."""
    positions = batch_positions(data)
    view = memoryview(data)
    begin = number = 0
    while number < len(positions) - 1:
        payloads: list[memoryview] | None = None
        size = 0
        while number < len(positions) - 1 and size < CHUNK_BYTES:
            at, end = positions[number], positions[number + 1]
            payload = view[at + BATCH_HEADER_BYTES : end]
            codec = data[at + CHECKED_FROM + 1] & COMPRESSION
            if codec:
                if payloads is None:
                    payloads = [
                        view[one + BATCH_HEADER_BYTES : after]
                        for one, after in zip(positions[begin:number], positions[begin + 1 :], strict=False)
                    ]
                try:
                    payload = decompress(Compression(codec), payload, MAX_DECOMPRESSED_BYTES)
                except (ValueError, DecompressionError) as error:
                    reason = f"the records of the batch at byte {at} cannot be decompressed: {error}"
                    raise BadBatch(reason) from None
            if payloads is not None:
                payloads.append(payload)
            size += len(payload) + BATCH_HEADER_BYTES
            number += 1
        yield DecodedChunk(data, positions[begin : number + 1], payloads)
        begin = number


class DecodedChunk:
    """Some batches of a buffer: `header` has a row for each, the other arrays one for each record."""

    def __init__(self, data: bytes, positions: list[int], payloads: list[memoryview] | None) -> None:
        """`positions` are those of the batches, and the end of the last. `payloads` are their records
        without compression, None where none is compressed. Raises BadBatch."""
        self.data = data
        edges = np.array(positions, np.int64)
        self.position: Longs = edges[:-1]
        self.length: Longs = np.diff(edges)
        self.header = headers(data, self.position)
        if payloads is None:
            self.records, begins, ends = data, self.position + BATCH_HEADER_BYTES, edges[1:]
        else:
            lengths = np.array([len(payload) for payload in payloads], np.int64)
            self.records, ends = b"".join(payloads), np.cumsum(lengths)
            begins = ends - lengths
        self.count: Longs = self.header["records"].astype(np.int64)
        if (self.count < 1).any():
            raise BadBatch(f"a batch of the bytes {positions[0]} to {positions[-1]} has no records")
        self.first: Longs = np.cumsum(self.count) - self.count
        """Number of each batch's first record."""
        try:
            found = array("q")
            for begin, end, count in zip(begins.tolist(), ends.tolist(), self.count.tolist(), strict=True):
                record_ends(self.records, begin, end, count, found)
            self.end: Longs = np.frombuffer(found, np.int64)
            """Of each record within `records`."""
            self.start: Longs = np.empty_like(self.end)
            self.start[1:] = self.end[:-1]
            self.start[self.first] = begins
            fields = read_fields(
                np.frombuffer(self.records, np.uint8), self.start, self.end, bodies=True, headers=False
            )
        except UnreadableRecords as error:
            raise BadBatch(f"of the batches at bytes {positions[0]} to {positions[-1]}: {error}") from None
        assert fields.key is not None, "bodies were asked for"
        assert fields.value is not None, "bodies were asked for"
        self.key: Spans = fields.key
        self.tombstone: NDArray[np.bool_] = fields.value.null
        self.offset_delta: Longs = fields.offset_delta
        self.timestamp_delta: Longs = fields.timestamp_delta
        self._check_offsets(positions[0])
        self.batch: Longs = np.repeat(np.arange(self.count.size), self.count)
        """Number of each record's batch."""
        self.base_offset: Longs = self.header["base_offset"].astype(np.int64)
        self.offset: Longs = self.base_offset[self.batch] + self.offset_delta
        self.marker: NDArray[np.bool_] = ((self.header["attributes"] & CONTROL) != 0)[self.batch]

    def _check_offsets(self, position: int) -> None:
        """Raise BadBatch unless the records' offsets rise, from the base to at most the last of each batch.

        Producers write them, and Kafka takes any of a batch that is not compressed. A record that claimed to
        lie behind later ones of its key would outlive them.
        """
        delta, first = self.offset_delta, self.first
        rise = delta[1:] > delta[:-1]
        rise[first[1:] - 1] = True  # there another batch begins
        last = delta[first + self.count - 1] > self.header["last_offset_delta"]
        if not rise.all() or (delta[first] < 0).any() or last.any():
            reason = "the offsets of its records do not rise within those of the batch"
            raise BadBatch(f"of a batch from byte {position} on: {reason}")
