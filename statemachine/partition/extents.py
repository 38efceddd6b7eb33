"""Extents: the places of a partition's batches, one extent per batch, in offset order.

A partition may hold hundreds of thousands, and all of them go into each snapshot. So they are kept in the
format of a snapshot's rows (extent.py), 69 bytes each, in chunks that know their newest timestamp and oldest
epoch: a snapshot is a join, a lookup is two bisections, and neither makes an object per extent.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from strandline.statemachine.object_names import OBJECT_ID_BYTES
from strandline.statemachine.partition.extent import (
    INLINE_ROW,
    NO_OBJECT,
    OBJECT_ROW,
    ROW,
    ROW_BYTES,
    Extent,
    InlineExtent,
    ObjectExtent,
    StoredInline,
)

CHUNK_ROWS = 512
_base_offset = struct.Struct("<q").unpack_from


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

    def row_of(self, base: int, guess: int) -> int:
        """Number of the row with this base offset, which is there; `guess` is looked at first."""
        if guess < len(self) and self.base_offset(guess) == base:
            return guess
        return self.position(base)

    def name_objects(self, stored: Sequence[StoredInline]) -> None:
        """Let inline extents that are here name objects from now on. Rows that were given away stay as they
        are: the changed ones are others."""
        self.rows = bytearray(self.rows)
        number = -1
        for base, length, epoch, position, identity in stored:
            number = self.row_of(base, number + 1)
            at = number * ROW_BYTES
            _, _, count, term, timestamp, *_ = ROW.unpack_from(self.rows, at)
            ROW.pack_into(
                self.rows, at, OBJECT_ROW, base, count, term, timestamp, length, epoch, position, identity
            )
            del self.inline[base]
            if self.oldest_epoch is None or epoch < self.oldest_epoch:
                self.oldest_epoch = epoch


class Extents:
    """The extents of one partition, contiguous from the first one's base offset to `end_offset`.

    Grows at the end, shrinks from the front; inline ones become object extents in their places. Costs: append
    and trim O(1) an extent, lookup O(log n) plus what is returned, by timestamp and `oldest_epoch`
    O(n / CHUNK_ROWS), `store_inline` a copy of each chunk that changes.
    """

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        self.end_offset = 0
        """Offset after the last record; stays when everything is trimmed."""
        self.bytes = 0
        """Lengths of all batches together."""
        self.inline_bytes = 0
        """Lengths of the inline ones."""

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
        row = ROW.pack(INLINE_ROW, base, record_count, term, max_timestamp, len(data), 0, 0, NO_OBJECT)
        self._grow(row, record_count, max_timestamp, len(data)).inline[base] = data
        self.inline_bytes += len(data)
        return base

    def store_inline(self, stored: Sequence[StoredInline]) -> int:
        """Let inline extents name the objects that have their bytes now; returns how many did.

        `stored` is in offset order. What is not inline (any more) is passed over. Raises ValueError for a
        length that the batch does not have, or a place that no extent has.
        """
        by_chunk: dict[int, list[StoredInline]] = {}
        last = -1
        for one in stored:
            if one.base_offset <= last or one.position < 0 or len(one.object_id) != OBJECT_ID_BYTES:
                raise ValueError(f"no inline batch at {one.base_offset} is stored at {one.position}")
            last = one.base_offset
            at = bisect_right(self._chunks, last, key=lambda chunk: chunk.first) - 1
            data = self._chunks[at].inline.get(last) if at >= 0 else None
            if data is None:
                continue
            if len(data) != one.length:
                raise ValueError(f"the batch at {last} has {len(data)} bytes, {one.length} were stored")
            by_chunk.setdefault(at, []).append(one)
        for at, found in by_chunk.items():
            self._chunks[at].name_objects(found)
            self.inline_bytes -= sum(one.length for one in found)
        return sum(map(len, by_chunk.values()))

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
            self.bytes = self.inline_bytes = 0
            return
        whole = max(bisect_right(self._chunks, start_offset, key=lambda chunk: chunk.first) - 1, 0)
        self.bytes -= sum(chunk.length for chunk in self._chunks[:whole])
        self.inline_bytes -= sum(_inline_bytes(chunk) for chunk in self._chunks[:whole])
        del self._chunks[:whole]
        if self._chunks:
            chunk = self._chunks[0]
            dropped = chunk.position(start_offset)
            if dropped > 0:
                rows = chunk.rows[dropped * ROW_BYTES :]
                first = _base_offset(rows, 1)[0]
                left = _Chunk(rows, {base: data for base, data in chunk.inline.items() if base >= first})
                self.bytes -= chunk.length - left.length
                self.inline_bytes -= _inline_bytes(chunk) - _inline_bytes(left)
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

    @property
    def first_inline_offset(self) -> int:
        """Base offset of the first inline extent; `end_offset` when there is none."""
        return next((next(iter(chunk.inline)) for chunk in self._chunks if chunk.inline), self.end_offset)

    def inline_between(self, first: int, end: int, max_bytes: int, max_count: int) -> list[InlineExtent]:
        """The inline extents with base offsets in `[first, end)`, in order, as many as fit; the first
        whatever its length."""
        found: list[InlineExtent] = []
        size = 0
        at = max(bisect_right(self._chunks, first, key=lambda chunk: chunk.first) - 1, 0)
        for chunk in self._chunks[at:]:
            number = -1
            for base, data in chunk.inline.items():
                if base < first:
                    continue
                size += len(data)
                if base >= end or (found and (size > max_bytes or len(found) >= max_count)):
                    return found
                number = chunk.row_of(base, number + 1)
                extent = chunk.extent(number)
                assert isinstance(extent, InlineExtent)
                found.append(extent)
        return found

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
            restored.inline_bytes += _inline_bytes(restored._chunks[-1])
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


def _inline_bytes(chunk: _Chunk) -> int:
    return sum(map(len, chunk.inline.values()))
