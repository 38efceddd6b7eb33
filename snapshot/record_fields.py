"""Positions of the fields of many records in one buffer, found for all records at once.

Records are chains of varints, so a reader that goes record by record spends its time in Python. Here only the
record's length is read in a loop, and that only where lengths differ; every other field is one numpy
operation over all records of a buffer. What comes out are positions, so that keys and values are copied once,
by Arrow.
The layout is Kafka's (https://kafka.apache.org/documentation/#record).

The positions are used without further checks on memory, so each is held against the end of its record here.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Longs = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Stored = bytes | bytearray
"""Bytes that were read; a `bytearray` is memory that is used again."""

MAX_VARINT_BITS = 63
_NULL = -1
_RUN = 32
"""Fewest records of one length whose ends numpy looks for: the loop is through with fewer sooner."""
_LONGEST_RUN = 1024
"""Most records that are compared at once: all behind the first of another length is compared for nothing."""


class UnreadableRecords(ValueError):
    """Bytes that are not the records that a batch's header announces."""


@dataclass(slots=True)
class Spans:
    """Byte ranges of one field, in the order of the records; `null` marks those that have no value."""

    start: Longs
    end: Longs
    null: NDArray[np.bool_]

    def at(self, chosen: Any) -> Spans:
        """The chosen ones of them, by mask or slice."""
        return Spans(self.start[chosen], self.end[chosen], self.null[chosen])


@dataclass(slots=True)
class Fields:
    """The records of a buffer. The fields after `offset_delta` are there when they were asked for."""

    timestamp_delta: Longs
    offset_delta: Longs
    key: Spans | None = None
    value: Spans | None = None
    header_count: Longs | None = None
    header_key: Spans | None = None
    header_value: Spans | None = None


def record_ends(data: Stored, at: int, end: int, count: int, ends: array[int]) -> None:
    """Append the end position of each of `count` records that lie in `[at, end)`; raises UnreadableRecords.

    The records of some topics are of one length, those of others of any. So a run of equal ones is looked
    for first; where none begins, records are walked one by one, and each time twice as many.
    """
    left, walk = count, _RUN
    try:
        while left >= _RUN:
            run = _equal_run(data, at, end, min(left, _LONGEST_RUN))
            if run is not None:
                ends.frombytes(run.tobytes())
                at, left, walk = int(run[-1]), left - run.size, _RUN
            else:
                some = min(walk, left)
                at, left, walk = _walk(data, at, some, ends), left - some, 2 * walk
        at = _walk(data, at, left, ends)
    except IndexError:
        raise UnreadableRecords(f"{count} records do not fit into their {end - at} bytes") from None
    if at != end:
        raise UnreadableRecords(f"{count} records end at byte {at} in place of {end}")


def _walk(data: Stored, at: int, count: int, ends: array[int]) -> int:
    """Append the ends of `count` records from `at` on, and return the last; raises IndexError.

    The one loop over records: it reads a length and steps over it.
    """
    append = ends.append
    for _ in range(count):
        size = data[at]
        if size < 0x80:
            at += (size >> 1) + 1
        else:
            second = data[at + 1]
            if second < 0x80:
                at += ((size & 0x7F | second << 7) >> 1) + 2
            else:
                size, at = _long_length(data, at)
                at += size
        append(at)
    return at


def _equal_run(data: Stored, at: int, end: int, most: int) -> Longs | None:
    """Ends of the records from `at` on that are as long as the first, up to `most`; None for fewer than _RUN.

    Where a record is followed by its own length again, the next one ends as far behind it. So the bytes at
    equal distances are lengths, up to the first place where they differ. Raises IndexError.
    """
    size, body = _long_length(data, at)
    step = body + size - at
    most = min(most, (end - at) // step)
    if most < _RUN or data[at + step] != data[at] or data[at + (_RUN - 1) * step] != data[at]:
        return None
    records = np.frombuffer(data, np.uint8, most * step, at).reshape(most, step)
    same = records[:, 0] == data[at]
    for place in range(1, body - at):
        same &= records[:, place] == data[at + place]
    found = int(same.argmin()) or most  # the first is as long as itself
    return at + step * np.arange(1, found + 1, dtype=np.int64) if found >= _RUN else None


def _long_length(data: Stored, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value >> 1, at
        shift += 7
        if shift > 28:
            raise UnreadableRecords(f"a record's length, before byte {at}, is longer than five bytes")


def read_fields(buffer: Bytes, starts: Longs, ends: Longs, *, bodies: bool, headers: bool) -> Fields:
    """Read the records at `[starts, ends)`: times and offsets, then keys and values, then headers.

    What is not asked for is not read. Raises UnreadableRecords when a field leaves its record.
    """
    try:
        first = buffer[starts]
        at = starts + 1
        more = np.flatnonzero(first > 0x7F)
        while more.size:
            byte = buffer[at[more]]
            at[more] += 1
            more = more[byte > 0x7F]
        at += 1  # attributes: no bit of them is in use
        timestamp_delta, at = _varints(buffer, at)
        offset_delta, at = _varints(buffer, at)
        fields = Fields(timestamp_delta, offset_delta)
        if bodies or headers:
            fields.key, at = _spans(buffer, at, ends)
            fields.value, at = _spans(buffer, at, ends)
        if headers:
            _read_headers(buffer, at, ends, fields)
    except IndexError:
        raise UnreadableRecords("a record's fields go on after the end of the bytes") from None
    return fields


def _varints(buffer: Bytes, at: Longs) -> tuple[Longs, Longs]:
    """The zigzag varint at each position, and the positions after them."""
    byte = buffer[at]
    at = at + 1
    value = (byte & 0x7F).astype(np.int64)
    more = np.flatnonzero(byte > 0x7F)
    shift = 7
    while more.size:
        if shift > MAX_VARINT_BITS:
            raise UnreadableRecords("a varint is longer than ten bytes")
        rest = at[more]
        byte = buffer[rest]
        at[more] = rest + 1
        value[more] |= (byte & 0x7F).astype(np.int64) << shift
        more = more[byte > 0x7F]
        shift += 7
    # An arithmetic shift would keep the sign of a number of 64 bits.
    return (value.view(np.uint64) >> np.uint64(1)).view(np.int64) ^ -(value & 1), at


def _spans(buffer: Bytes, at: Longs, ends: Longs) -> tuple[Spans, Longs]:
    """A length, and as many bytes, at each position."""
    length, start = _varints(buffer, at)
    null = length < 0
    if length.size and (length.min() < _NULL or (length > ends - start).any()):
        raise UnreadableRecords("a key, a value or a header leaves its record")
    end = start + np.maximum(length, 0)
    return Spans(start, end, null), end


def _read_headers(buffer: Bytes, at: Longs, ends: Longs, fields: Fields) -> None:
    """The n-th header of all records that have one at once: as many rounds as a record has headers."""
    count, at = _varints(buffer, at)
    if count.size and (count.min() < 0 or (count > ends - at).any()):
        raise UnreadableRecords("a record has more headers than bytes")
    total = int(count.sum())
    fields.header_count = count
    key, value = _empty_spans(total), _empty_spans(total)
    slots = np.cumsum(count) - count
    owners = np.flatnonzero(count)
    number = 0
    while owners.size:
        limit = ends[owners]
        found_key, after = _spans(buffer, at[owners], limit)
        found_value, after = _spans(buffer, after, limit)
        at[owners] = after
        slot = slots[owners] + number
        for kept, found in ((key, found_key), (value, found_value)):
            kept.start[slot], kept.end[slot], kept.null[slot] = found.start, found.end, found.null
        number += 1
        owners = owners[count[owners] > number]
    if (at != ends).any():
        raise UnreadableRecords("a record does not end with its headers")
    if key.null.any():
        raise UnreadableRecords("a header has no key")
    fields.header_key, fields.header_value = key, value


def _empty_spans(size: int) -> Spans:
    return Spans(np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, np.bool_))
