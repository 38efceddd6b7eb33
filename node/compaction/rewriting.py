"""New batches of old ones: settled ones of transactional ones, and what cleaning leaves of each.

Records are copied as they are: their distances are from the batch's base offset and base timestamp, which
stay. A batch of which nothing is left goes as a whole, unlike in Kafka: producers' state is not in the log,
and clients trip over empty batches. Its last offset is that of its last record, so no answer is ever empty.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from crc32c import crc32c
from numpy.typing import NDArray

from strandline.node.compaction.chunk import (
    COMPRESSION,
    CONTROL,
    HEADER,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    DecodedChunk,
    batch_positions,
    headers,
)
from strandline.snapshot.aborted import Aborted
from strandline.snapshot.compression import Compression, compress
from strandline.snapshot.level_zero_format import CHECKED_FROM
from strandline.snapshot.object_frame import Buffer
from strandline.snapshot.record_fields import Longs

_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = 17
_LENGTH: Final = struct.Struct(">i")
_LENGTH_AT: Final = 8
_NOT_COUNTED: Final = _LENGTH_AT + _LENGTH.size
_ATTRIBUTES_AT: Final = CHECKED_FROM + 1
"""The lower byte of them."""
_NEVER: Final = np.iinfo(np.int64).min


class Rewritten(NamedTuple):
    """A batch for the new log."""

    data: Buffer
    base_offset: int
    end_offset: int
    """Offset after its last record."""
    leader_epoch: int
    max_timestamp: int
    """Unix milliseconds."""
    records: int


def settled(data: bytes, aborted: Aborted) -> Iterator[Rewritten]:
    """The batches without what was aborted, and of what was committed without the transactional bit.

    All lie below the last stable offset of the state that has the `aborted` rows, so a batch that they do not
    name is committed: markers are never asked, and stay as they are. Raises BadBatch.
    """
    positions = batch_positions(data)
    view = memoryview(data)
    table = headers(data, np.array(positions[:-1], np.int64))
    for number, (attributes, producer_id, base, last, epoch, newest, count) in enumerate(
        zip(
            table["attributes"].tolist(),
            table["producer_id"].tolist(),
            table["base_offset"].tolist(),
            table["last_offset_delta"].tolist(),
            table["leader_epoch"].tolist(),
            table["max_timestamp"].tolist(),
            table["records"].tolist(),
            strict=True,
        )
    ):
        batch: Buffer = view[positions[number] : positions[number + 1]]
        if attributes & TRANSACTIONAL and not attributes & CONTROL:
            if aborted.has(producer_id, base):
                continue
            batch = bytearray(batch)
            batch[_ATTRIBUTES_AT] &= ~TRANSACTIONAL
            _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[CHECKED_FROM:]))
        yield Rewritten(batch, base, base + last + 1, epoch, newest, count)


def rewritten(chunk: DecodedChunk, keep: NDArray[np.bool_]) -> Iterator[Rewritten]:
    """The batches of a chunk with the records that are kept; those of which all are, byte for byte."""
    left = np.add.reduceat(keep.astype(np.int64), chunk.first)
    table = chunk.header.copy()
    part = np.flatnonzero((left > 0) & (left < chunk.count))
    if part.size:
        last = np.maximum.reduceat(np.where(keep, chunk.offset_delta, -1), chunk.first)
        newest = np.maximum.reduceat(np.where(keep, chunk.timestamp_delta, _NEVER), chunk.first)
        table["last_offset_delta"][part] = last[part]
        table["records"][part] = left[part]
        own_time = part[(table["attributes"][part] & LOG_APPEND_TIME) == 0]
        table["max_timestamp"][own_time] = table["base_timestamp"][own_time] + newest[own_time]
    body, ends = _records(chunk, keep, part, left)
    view, raw = memoryview(chunk.data), table.tobytes()
    columns = (
        left,
        chunk.position,
        chunk.length,
        chunk.base_offset,
        table["last_offset_delta"],
        table["leader_epoch"],
        table["max_timestamp"],
        chunk.count,
    )
    begin = taken = 0
    for number, (records, position, length, base, delta, epoch, time, count) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        if not records:
            continue
        if records == count:
            data: Buffer = view[position : position + length]
        else:
            head = raw[number * HEADER.itemsize : (number + 1) * HEADER.itemsize]
            data = _batch(head, body[begin : ends[taken]])
            begin = ends[taken]
            taken += 1
        yield Rewritten(data, base, base + delta + 1, epoch, time, records)


def _batch(head: bytes, records: memoryview) -> bytearray:
    """A batch of this header, but for length and checksum, with these records, compressed as it says."""
    codec = head[_ATTRIBUTES_AT] & COMPRESSION
    batch = bytearray(head)
    batch += compress(Compression(codec), records) if codec else records
    _LENGTH.pack_into(batch, _LENGTH_AT, len(batch) - _NOT_COUNTED)
    _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[CHECKED_FROM:]))
    return batch


def _records(
    chunk: DecodedChunk, keep: NDArray[np.bool_], part: Longs, left: Longs
) -> tuple[memoryview, list[int]]:
    """The kept records of the batches of which some go, one after the other, and where each batch's end.

    Arrow copies them in one go. Arrays come by `from_buffers`: pa.array() of numpy's would import pandas.
    """
    if not part.size:
        return memoryview(b""), []
    of_part = np.zeros(left.size, np.bool_)
    of_part[part] = True
    chosen = np.flatnonzero(keep & of_part[chunk.batch])
    count = chunk.start.size
    edges = np.empty(2 * count, np.int32)
    edges[0::2], edges[1::2] = chunk.start, chunk.end
    every_second = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(edges), pa.py_buffer(chunk.records)]
    )
    indices = pa.Array.from_buffers(
        pa.int32(), chosen.size, [None, pa.py_buffer((2 * chosen).astype(np.int32))]
    )
    taken = every_second.take(indices)
    offsets = np.frombuffer(taken.buffers()[1], np.int32)[taken.offset :][: chosen.size + 1]
    body = memoryview(taken.buffers()[2])[int(offsets[0]) :]
    ends = offsets[np.cumsum(left[part])] - offsets[0]
    return body, ends.tolist()
