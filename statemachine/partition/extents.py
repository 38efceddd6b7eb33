"""Extents: the places of a partition's batches, one extent per batch, in offset order.

An extent is a sum type: a byte range of a level-zero object, or the bytes themselves. A partition may hold
hundreds of thousands, and all of them go into each snapshot. So they are kept in the format of a snapshot's
rows, 69 bytes each, in chunks that know their newest timestamp and oldest epoch: a snapshot is a join, a
lookup is two bisections, and neither makes an object per extent.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from strandline.statemachine.object_names import OBJECT_ID_BYTES, object_name

ROW = struct.Struct(f"<BqIqqIqq{OBJECT_ID_BYTES}s")
"""A row, little-endian and unpadded: kind, base_offset i64, record_count u32, term i64, max_timestamp i64,
length u32, epoch i64, position i64, object id. An inline row's bytes are elsewhere, its last three 0."""
ROW_BYTES = ROW.size
OBJECT_ROW = 0
INLINE_ROW = 1
CHUNK_ROWS = 512
_NO_OBJECT = bytes(OBJECT_ID_BYTES)
_base_offset = struct.Struct("<q").unpack_from


class ObjectExtent(NamedTuple):
    """A batch that is a byte range of a level-zero object. Timestamps are milliseconds, lengths bytes."""

    base_offset: int
    record_count: int
    term: int
    """Term in which it was appended: the batch's partition leader epoch."""
    max_timestamp: int
    length: int
    epoch: int
    position: int
    object_id: bytes

    @property
    def end_offset(self) -> int:
        """Offset after its last record."""
        return self.base_offset + self.record_count

    @property
    def object_name(self) -> str:
        return object_name(self.epoch, self.object_id)


class InlineExtent(NamedTuple):
    """A batch that stood in the log entry itself; it names no object, so it has no epoch."""

    base_offset: int
    record_count: int
    term: int
    max_timestamp: int
    length: int
    data: bytes

    @property
    def end_offset(self) -> int:
        """Offset after its last record."""
        return self.base_offset + self.record_count


Extent = ObjectExtent | InlineExtent


class _Chunk:
    """Up to CHUNK_ROWS extents, and what lookups want to know of them without reading each."""

    __slots__ = ("first", "inline", "length", "max_timestamp", "oldest_epoch", "rows")

    def __init__(self, rows: bytes | bytearray, inline: dict[int, bytes]) -> None:
        self.rows = bytearray(rows)
        self.inline = inline
        self.first: int = ROW.unpack_from(rows)[1]
        columns = list(ROW.iter_unpack(rows))
        self.max_timestamp: int = max(row[4] for row in columns)
        self.length: int = sum(row[5] for row in columns)
        self.oldest_epoch: int | None = min((row[6] for row in columns if row[0] == OBJECT_ROW), default=None)

    def __len__(self) -> int:
        return len(self.rows) // ROW_BYTES

    def position(self, offset: int) -> int:
        """Number of the last row that starts at or below an offset; -1 when none does."""
        return bisect_right(range(len(self)), offset, key=self.base_offset) - 1

    def base_offset(self, number: int) -> int:
        base: int = _base_offset(self.rows, number * ROW_BYTES + 1)[0]
        return base

    def extent(self, number: int) -> Extent:
        kind, base, count, term, timestamp, length, epoch, position, identity = ROW.unpack_from(
            self.rows, number * ROW_BYTES
        )
        if kind == INLINE_ROW:
            return InlineExtent(base, count, term, timestamp, length, self.inline[base])
        return ObjectExtent(base, count, term, timestamp, length, epoch, position, identity)


class Extents:
    """The extents of one partition, contiguous from the first one's base offset to `end_offset`.

    Grows at the end, shrinks from the front. Costs: append and trim O(1) an extent, lookup O(log n) plus
    what is returned, by timestamp and `oldest_epoch` O(n / CHUNK_ROWS).
    """

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        self.end_offset = 0
        """Offset after the last record; stays when everything is trimmed."""
        self.bytes = 0
        """Lengths of all batches together."""

    def __len__(self) -> int:
        return sum(len(chunk) for chunk in self._chunks)

    @property
    def first_offset(self) -> int:
        """Base offset of the first extent; `end_offset` when there are none."""
        return self._chunks[0].first if self._chunks else self.end_offset

    def __iter__(self) -> Iterator[Extent]:
        for chunk in self._chunks:
            for number in range(len(chunk)):
                yield chunk.extent(number)

    def append_object(
        self,
        record_count: int,
        term: int,
        max_timestamp: int,
        length: int,
        epoch: int,
        position: int,
        object_id: bytes,
    ) -> int:
        """Add a batch that lies in an object; returns its base offset."""
        if record_count < 1 or length < 1 or position < 0 or epoch < 0 or len(object_id) != OBJECT_ID_BYTES:
            raise ValueError(f"no extent has {record_count} records in {length} bytes at {position}")
        base = self.end_offset
        row = ROW.pack(
            OBJECT_ROW, base, record_count, term, max_timestamp, length, epoch, position, object_id
        )
        chunk = self._grow(row, record_count, max_timestamp, length)
        if chunk.oldest_epoch is None or epoch < chunk.oldest_epoch:
            chunk.oldest_epoch = epoch
        return base

    def append_inline(self, record_count: int, term: int, max_timestamp: int, data: bytes) -> int:
        """Add a batch with its bytes; returns its base offset."""
        if record_count < 1 or not data:
            raise ValueError(f"no extent has {record_count} records in {len(data)} bytes")
        base = self.end_offset
        row = ROW.pack(INLINE_ROW, base, record_count, term, max_timestamp, len(data), 0, 0, _NO_OBJECT)
        self._grow(row, record_count, max_timestamp, len(data)).inline[base] = data
        return base

    def _grow(self, row: bytes, record_count: int, max_timestamp: int, length: int) -> _Chunk:
        self.end_offset += record_count
        self.bytes += length
        if self._chunks:
            chunk = self._chunks[-1]
            if len(chunk.rows) < CHUNK_ROWS * ROW_BYTES:
                chunk.rows += row
                chunk.length += length
                if max_timestamp > chunk.max_timestamp:
                    chunk.max_timestamp = max_timestamp
                return chunk
        chunk = _Chunk(row, {})
        self._chunks.append(chunk)
        return chunk

    def trim(self, start_offset: int) -> None:
        """Forget every extent that ends at or below an offset; one that contains it stays whole."""
        if start_offset >= self.end_offset:
            self._chunks.clear()
            self.bytes = 0
            return
        whole = max(bisect_right(self._chunks, start_offset, key=lambda chunk: chunk.first) - 1, 0)
        self.bytes -= sum(chunk.length for chunk in self._chunks[:whole])
        del self._chunks[:whole]
        if self._chunks:
            chunk = self._chunks[0]
            dropped = chunk.position(start_offset)
            if dropped > 0:
                rows = chunk.rows[dropped * ROW_BYTES :]
                first = _base_offset(rows, 1)[0]
                left = _Chunk(rows, {base: data for base, data in chunk.inline.items() if base >= first})
                self.bytes -= chunk.length - left.length
                self._chunks[0] = left

    def is_boundary(self, offset: int) -> bool:
        """Whether an extent ends at this offset, or the first one begins there."""
        if not self.first_offset <= offset <= self.end_offset:
            return False
        if offset == self.end_offset:
            return True
        at = bisect_right(self._chunks, offset, key=lambda chunk: chunk.first) - 1
        chunk = self._chunks[at]
        return chunk.base_offset(chunk.position(offset)) == offset

    def between(self, first: int, end: int, max_bytes: int) -> list[Extent]:
        """Extents that hold offsets in `[first, end)`, in order, until `max_bytes` are reached.

        The first one comes whatever its length, so that a reader always advances; the one that would go
        over the limit does not.
        """
        found: list[Extent] = []
        size = 0
        if first >= min(end, self.end_offset):
            return found
        at = max(bisect_right(self._chunks, first, key=lambda chunk: chunk.first) - 1, 0)
        for chunk in self._chunks[at:]:
            for number in range(max(chunk.position(first), 0), len(chunk)):
                extent = chunk.extent(number)
                size += extent.length
                if extent.base_offset >= end or (found and size > max_bytes):
                    return found
                found.append(extent)
        return found

    def first_since(self, timestamp: int) -> Extent | None:
        """The first extent that holds a record of this time or later: its newest one says so."""
        for chunk in self._chunks:
            if chunk.max_timestamp >= timestamp:
                for number in range(len(chunk)):
                    extent = chunk.extent(number)
                    if extent.max_timestamp >= timestamp:
                        return extent
        return None

    def newest(self) -> Extent | None:
        """The first extent that holds the newest timestamp of all; None when there are no extents."""
        return self.first_since(max(chunk.max_timestamp for chunk in self._chunks)) if self._chunks else None

    @property
    def oldest_epoch(self) -> int | None:
        """The lowest epoch any extent names; None when none names an object."""
        return min(
            (chunk.oldest_epoch for chunk in self._chunks if chunk.oldest_epoch is not None), default=None
        )

    def rows(self) -> list[bytes | bytearray]:
        """All rows, for a snapshot, in pieces that stay as they are: only the last chunk ever grows.

        Joined, the same extents give the same bytes however they came to be here.
        """
        full = [chunk.rows for chunk in self._chunks[:-1]]
        return [*full, *(bytes(chunk.rows) for chunk in self._chunks[-1:])]

    def inline(self) -> list[tuple[int, bytes]]:
        """(base offset, bytes) of the inline extents, in offset order, for a snapshot."""
        return [pair for chunk in self._chunks for pair in chunk.inline.items()]

    @classmethod
    def restored(cls, rows: bytes, inline: list[tuple[int, bytes]], end_offset: int) -> Extents:
        """The extents that `rows` and `inline` were taken from; raises ValueError for invalid ones."""
        if len(rows) % ROW_BYTES:
            raise ValueError(f"{len(rows)} bytes of extents are not rows of {ROW_BYTES}")
        restored = cls()
        restored.end_offset = end_offset
        data = dict(inline)
        for at in range(0, len(rows), CHUNK_ROWS * ROW_BYTES):
            part = rows[at : at + CHUNK_ROWS * ROW_BYTES]
            bases = [row[1] for row in ROW.iter_unpack(part) if row[0] == INLINE_ROW]
            if missing := [base for base in bases if base not in data]:
                raise ValueError(f"the inline batch at offset {missing[0]} has no bytes")
            restored._chunks.append(_Chunk(part, {base: data.pop(base) for base in bases}))
            restored.bytes += restored._chunks[-1].length
        if data:
            raise ValueError(f"bytes without an inline batch at offset {min(data)}")
        restored._check(rows)
        return restored

    def _check(self, rows: bytes) -> None:
        """Each extent starts where the one before ends, the last one at the end offset."""
        expected: int | None = None
        for kind, base, count, *_ in ROW.iter_unpack(rows):
            if kind not in (OBJECT_ROW, INLINE_ROW):
                raise ValueError(f"the extent at offset {base} is of unknown kind {kind}")
            if count < 1 or (expected is not None and base != expected):
                raise ValueError(f"extents are not contiguous: offset {base} comes after {expected}")
            expected = base + count
        if expected is not None and expected != self.end_offset:
            raise ValueError(f"extents end at offset {expected}, the partition at {self.end_offset}")
