"""The aborted transactions of a partition, whose batches a read-committed reader has to leave out.

A batch does not say how its transaction ended; its marker does, later in the log. So Fetch hands a reader
the aborted transactions of what it reads (KIP-98), and a partition remembers them as long as it has one of
their records. Kafka keeps an index file for each segment (AbortedTxn, TransactionIndex); here they are in
the state, in the order of their markers: chunks of rows, each column as narrow as its chunk allows, so that
one costs 5 to 8 bytes where transactions are short, and a tree over the chunks that says below which offset
nothing of them begins, so that a lookup passes over what it need not see.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import lt, sub
from typing import Final, NamedTuple

CHUNK_ROWS: Final = 128
CHUNK_HEADER: Final = struct.Struct("<HBBBxqq")
"""Of a chunk, little-endian: how many rows; bytes of a number in each of its three columns; the first row's
marker; the lowest producer id. Then the columns, one after the other, of unsigned numbers: markers above the
first one, markers above the first offsets, producer ids above the lowest."""
COLUMN_CODES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}
"""Of `struct`, by the bytes of a number."""
_FAN_OUT: Final = 16


class AbortedTransaction(NamedTuple):
    """A producer's batches from `first_offset` up to its marker, at `last_offset`, are to be left out."""

    producer_id: int
    first_offset: int
    last_offset: int


class ChunkPlace(NamedTuple):
    """A chunk within the bytes of several: see CHUNK_HEADER."""

    rows: int
    first_marker: int
    lowest_producer: int
    columns: tuple[tuple[int, int], ...]
    """Position of each column, and the size of its numbers in bytes."""
    end: int


class AbortedTransactions:
    """The aborted transactions that have a marker at or above the start offset, in the order of the markers.

    Costs: append O(1), trim O(chunks), lookup O(log n) and a chunk for each that holds some of the answer.
    The first chunk sealed after `frozen` costs a copy of the lists of chunks, 8 bytes for each in three.
    """

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        """Sealed; all have CHUNK_ROWS rows but for the first, of which some may have been trimmed."""
        self._markers: list[int] = []
        """The last marker of each chunk."""
        self._begin: list[list[int]] = [[]]
        """Lowest first offset of each chunk, of each 16 of them, of each 256, ..."""
        self._tail: list[AbortedTransaction] = []
        """Rows behind the chunks, fewer than CHUNK_ROWS."""
        self._sealed_rows = 0
        self._sealed_bytes = 0
        self._shared = False
        """Whether `frozen` gave the lists of the chunks away: they are copied before they grow."""

    def __len__(self) -> int:
        return self._sealed_rows + len(self._tail)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        for chunk in self._chunks:
            yield from _rows(chunk)
        yield from self._tail

    @property
    def size(self) -> int:
        """About how many bytes they take in a snapshot, and in memory."""
        return self._sealed_bytes + 8 * len(self._tail)

    @property
    def first_marker(self) -> int | None:
        """Offset of the first marker; None when there is none."""
        if self._chunks:
            return place_of(self._chunks[0], 0).first_marker
        return self._tail[0].last_offset if self._tail else None

    @property
    def last_marker(self) -> int | None:
        """Offset of the last marker; None when there is none."""
        if self._tail:
            return self._tail[-1].last_offset
        return self._markers[-1] if self._markers else None

    def append(self, producer_id: int, first_offset: int, last_offset: int) -> None:
        """Add one that was aborted just now."""
        self._tail.append(AbortedTransaction(producer_id, first_offset, last_offset))
        if len(self._tail) == CHUNK_ROWS:
            self._seal_tail()

    def frozen(self) -> AbortedTransactions:
        """The rows of this moment, for a reader to keep: nothing that is done here changes them. O(1)."""
        taken = AbortedTransactions()
        taken._chunks, taken._markers, taken._begin = self._chunks, self._markers, self._begin
        taken._tail = list(self._tail)
        taken._sealed_rows, taken._sealed_bytes = self._sealed_rows, self._sealed_bytes
        taken._shared = self._shared = True
        return taken

    def trim(self, start_offset: int) -> None:
        """Forget the transactions whose marker is below an offset."""
        gone = bisect_left(self._markers, start_offset)
        chunks, begins, tail = self._chunks[gone:], self._begin[0][gone:], self._tail
        if not chunks:
            tail = tail[bisect_left(tail, start_offset, key=lambda row: row.last_offset) :]
        elif place_of(chunks[0], 0).first_marker < start_offset:
            rows = [row for row in _rows(chunks[0]) if row.last_offset >= start_offset]
            if len(chunks) == 1 and not tail:
                # A last chunk that is not full is the tail: so a replica that restores it has the same.
                chunks, begins, tail = [], [], rows
            else:
                chunks[0], begins[0] = _sealed(rows), min(row.first_offset for row in rows)
        elif not gone:
            return
        self._put(chunks, self._markers[gone:] if chunks else [], begins, tail)

    def between(self, first: int, end: int) -> list[AbortedTransaction]:
        """Those with offsets in `[first, end)`, in the order of their markers."""
        found: list[AbortedTransaction] = []
        for number in self._that_begin_below(end, bisect_left(self._markers, first)):
            found += [row for row in _rows(self._chunks[number]) if row.first_offset < end]
        found += [row for row in self._tail if row.first_offset < end]
        # Of the first chunk, or of the tail where it is the first, some ended before.
        return found[bisect_left(found, first, key=lambda row: row.last_offset) :]

    def _that_begin_below(self, end: int, number: int) -> Iterator[int]:
        """The chunks from this number on that have a transaction that begins below an offset."""
        levels = self._begin
        while number < len(self._chunks):
            if levels[0][number] < end:
                yield number
                number += 1
                continue
            # None in this one: nor in all of the largest node that begins here and says so.
            level, size = 0, 1
            while (
                level + 1 < len(levels)
                and number % (size * _FAN_OUT) == 0
                and levels[level + 1][number // (size * _FAN_OUT)] >= end
            ):
                level, size = level + 1, size * _FAN_OUT
            number += size

    def _seal_tail(self) -> None:
        if self._shared:
            self._chunks, self._markers = list(self._chunks), list(self._markers)
            self._begin = [list(level) for level in self._begin]
            self._shared = False
        number, chunk = len(self._chunks), _sealed(self._tail)
        begin = min(row.first_offset for row in self._tail)
        self._chunks.append(chunk)
        self._markers.append(self._tail[-1].last_offset)
        self._sealed_rows += len(self._tail)
        self._sealed_bytes += len(chunk)
        self._tail = []
        self._begin[0].append(begin)
        level = 0
        while len(self._begin[level]) > 1:
            level, number = level + 1, number // _FAN_OUT
            if level == len(self._begin):
                self._begin.append([min(self._begin[level - 1])])
            elif number == len(self._begin[level]):
                self._begin[level].append(begin)
            else:
                self._begin[level][number] = min(self._begin[level][number], begin)

    def _put(
        self, chunks: list[bytes], markers: list[int], begins: list[int], tail: list[AbortedTransaction]
    ) -> None:
        self._chunks, self._markers, self._tail = chunks, markers, tail
        trimmed = CHUNK_ROWS - place_of(chunks[0], 0).rows if chunks else 0
        self._sealed_rows = CHUNK_ROWS * len(chunks) - trimmed
        self._sealed_bytes = sum(map(len, chunks))
        self._begin = [begins]
        while len(below := self._begin[-1]) > 1:
            self._begin.append([min(below[at : at + _FAN_OUT]) for at in range(0, len(below), _FAN_OUT)])

    def packed(self) -> bytes:
        """As a snapshot has them: the chunks, and the tail as one that is not full."""
        return b"".join([*self._chunks, _sealed(self._tail)]) if self._tail else b"".join(self._chunks)

    @classmethod
    def restored(cls, packed: bytes) -> AbortedTransactions:
        """The object that `packed` was taken from; raises ValueError for bytes that no such object gives."""
        chunks: list[bytes] = []
        markers: list[int] = []
        begins: list[int] = []
        last = -1
        for at, place in chunk_places(packed):
            if chunks[1:] and place_of(chunks[-1], 0).rows != CHUNK_ROWS:
                raise ValueError(f"chunk {len(chunks) - 1} of aborted transactions is not full")
            if place.first_marker <= last:
                raise ValueError(f"the marker at {place.first_marker} comes after the one at {last}")
            chunk = packed[at : place.end]
            begin, last = _checked(chunk)
            chunks.append(chunk)
            markers.append(last)
            begins.append(begin)
        tail: list[AbortedTransaction] = []
        if chunks and place_of(chunks[-1], 0).rows < CHUNK_ROWS:
            tail = _rows(chunks.pop())
            del markers[-1], begins[-1]
        restored = cls()
        restored._put(chunks, markers, begins, tail)
        return restored


def chunk_places(packed: bytes) -> Iterator[tuple[int, ChunkPlace]]:
    """Position and decoded header of each chunk; raises ValueError for an invalid header."""
    at = 0
    while at < len(packed):
        place = place_of(packed, at)
        if place.end > len(packed):
            raise ValueError(f"{len(packed)} bytes of aborted transactions end within a chunk")
        yield at, place
        at = place.end


def place_of(packed: bytes, at: int) -> ChunkPlace:
    """The chunk that begins there; raises ValueError for a header that cannot be."""
    if len(packed) - at < CHUNK_HEADER.size:
        raise ValueError(f"{len(packed) - at} bytes are not a chunk of aborted transactions")
    rows, *widths, first_marker, lowest = CHUNK_HEADER.unpack_from(packed, at)
    if not 0 < rows <= CHUNK_ROWS or any(width not in COLUMN_CODES for width in widths):
        raise ValueError(f"no chunk of aborted transactions has {rows} rows of {widths} bytes")
    columns = []
    at += CHUNK_HEADER.size
    for width in widths:
        columns.append((at, width))
        at += rows * width
    return ChunkPlace(rows, first_marker, lowest, tuple(columns), at)


def _columns(chunk: bytes) -> tuple[ChunkPlace, list[tuple[int, ...]]]:
    place = place_of(chunk, 0)
    rows = place.rows
    return place, [
        struct.unpack_from(f"<{rows}{COLUMN_CODES[width]}", chunk, at) for at, width in place.columns
    ]


def _rows(chunk: bytes) -> list[AbortedTransaction]:
    place, (markers, spans, producers) = _columns(chunk)
    first, lowest = place.first_marker, place.lowest_producer
    return [
        AbortedTransaction(lowest + producer, first + marker - span, first + marker)
        for marker, span, producer in zip(markers, spans, producers, strict=True)
    ]


def _sealed(rows: Sequence[AbortedTransaction]) -> bytes:
    first = rows[0].last_offset
    lowest = min(row.producer_id for row in rows)
    columns = (
        [row.last_offset - first for row in rows],
        [row.last_offset - row.first_offset for row in rows],
        [row.producer_id - lowest for row in rows],
    )
    widths = [_width(max(column)) for column in columns]
    packed = [CHUNK_HEADER.pack(len(rows), *widths, first, lowest)]
    for column, width in zip(columns, widths, strict=True):
        packed.append(struct.pack(f"<{len(rows)}{COLUMN_CODES[width]}", *column))
    return b"".join(packed)


def _width(number: int) -> int:
    return next(width for width in COLUMN_CODES if number < 1 << (8 * width))


def _checked(chunk: bytes) -> tuple[int, int]:
    """The lowest first offset and the last marker; raises ValueError for what `_sealed` does not give."""
    place, (markers, spans, producers) = _columns(chunk)
    narrow = [_width(max(column)) for column in (markers, spans, producers)]
    first = place.first_marker
    begin, last = first + min(map(sub, markers, spans)), first + markers[-1]
    in_order = markers[0] == 0 and all(map(lt, markers, markers[1:])) and min(spans) >= 1
    if not in_order or begin < 0 or last >= 1 << 63:
        raise ValueError(f"the markers from {first} on are not those of aborted transactions in order")
    if place.lowest_producer < 0 or min(producers) != 0 or max(producers) >= 1 << 63:
        raise ValueError(f"no producers have the ids from {place.lowest_producer} on")
    if [width for _, width in place.columns] != narrow:
        raise ValueError(f"the aborted transactions from {first} on are wider than they need be")
    return begin, last
