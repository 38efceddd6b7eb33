"""Level one: the places of a partition's reconciled batches, one row per level-one object, in offset order.

A level-one object holds a run of one partition's batches and nothing else. So it is deleted as soon as the
partition no longer names it, and no older state that may still be read names it. Its name has the topic,
partition and term it belongs to: by the name alone a leader can decide whether an object that no state names
may still become named.

Rows are kept in a snapshot's format. An object is tens of megabytes, so a partition has few: a lookup by
offset is a bisection, a lookup by time or a removal goes over all rows.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from strandline.statemachine.machine import Corruption

LEVEL_ONE_PREFIX = "l1/"
UNIQUE_BYTES = 16
TOPIC_ID_BYTES = 16
LEVEL_ONE_ROW = struct.Struct("<qqqqIq16s")
"""A row, little-endian and unpadded, the fields of LevelOneExtent in their order."""
_NAME = re.compile(r"l1/([0-9a-f]{32})/([0-9]{10})/([0-9]{20})-([0-9a-f]{32})")
_ROW_BYTES = LEVEL_ONE_ROW.size
_NAMES = 2_000
"""Names that are kept as they were read: a leader lists the same ones again and again, in pages of 1,000."""
_base_offset = struct.Struct("<q").unpack_from


class LevelOneExtent(NamedTuple):
    """A level-one object and the offsets it holds, `[base_offset, end_offset)`."""

    base_offset: int
    end_offset: int
    max_timestamp: int
    """Newest timestamp of its records, in ms."""
    size: int
    """Bytes of the whole object."""
    index_bytes: int
    """Bytes of its index and tail, which stand at its end."""
    term: int
    """Of the leader that wrote it; part of the name. Batches have their own terms in their headers."""
    unique: bytes
    """16 bytes, part of the name; never used for another object."""


class RemovedObject(NamedTuple):
    """A level-one object the partition no longer names, and has not deleted for certain."""

    log_index: int
    """Entry that removed it: checkpoints below this index may name it."""
    term: int
    unique: bytes
    size: int


class LevelOneName(NamedTuple):
    """Decoded name of a level-one object."""

    topic_id: bytes
    partition: int
    term: int
    unique: bytes


def topic_prefix(topic_id: bytes) -> str:
    """Prefix of the names of a topic's level-one objects."""
    if len(topic_id) != TOPIC_ID_BYTES:
        raise ValueError(f"a topic id has {TOPIC_ID_BYTES} bytes, not {len(topic_id)}")
    return f"{LEVEL_ONE_PREFIX}{topic_id.hex()}/"


def partition_prefix(topic_id: bytes, partition: int) -> str:
    """Prefix of the names of a partition's level-one objects; its listing is in order of terms."""
    return f"{topic_prefix(topic_id)}{partition:010d}/"


def level_one_name(topic_id: bytes, partition: int, term: int, unique: bytes) -> str:
    """`l1/<topic id, 32 hex digits>/<partition, 10 digits>/<term, 20 digits>-<unique, 32 hex digits>`."""
    if len(unique) != UNIQUE_BYTES:
        raise ValueError(f"a level-one object needs {UNIQUE_BYTES} unique bytes, not {len(unique)}")
    return f"{partition_prefix(topic_id, partition)}{term:020d}-{unique.hex()}"


@lru_cache(maxsize=_NAMES)
def parse_level_one_name(name: str) -> LevelOneName:
    """Read a name back; raises ValueError for anything `level_one_name` does not give."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not the name of a level-one object")
    topic_id, partition, term, unique = match.groups()
    return LevelOneName(bytes.fromhex(topic_id), int(partition), int(term), bytes.fromhex(unique))


class LevelOne:
    """The level-one objects of one partition, contiguous from the first one's base offset to `end_offset`,
    each named once.

    Grows at the end, shrinks from the front, and runs in it are replaced. What no correct leader does to it
    raises Corruption.
    """

    def __init__(self) -> None:
        self._rows = bytearray()
        self._bases: dict[bytes, int] = {}
        """Base offset of each object, by its unique bytes."""
        self.bytes = 0
        """Sizes of all objects together."""

    def __len__(self) -> int:
        return len(self._rows) // _ROW_BYTES

    def __iter__(self) -> Iterator[LevelOneExtent]:
        return map(LevelOneExtent._make, LEVEL_ONE_ROW.iter_unpack(bytes(self._rows)))

    def __contains__(self, unique: object) -> bool:
        """Whether an object with these unique bytes is named."""
        return unique in self._bases

    @property
    def end_offset(self) -> int:
        """Offset after the last record; 0 when there are no objects."""
        return self._extent(len(self) - 1).end_offset if self._rows else 0

    def append(self, extents: Sequence[LevelOneExtent]) -> None:
        """Add objects that follow on one another, and on those that are there."""
        self._follow_and_are_new(extents, self.end_offset if self._rows else None)
        self._add(extents)
        self._rows += _packed(extents)

    def trim(self, start_offset: int) -> list[LevelOneExtent]:
        """Forget the objects that end at or below an offset, and return them; one that holds it stays."""
        dropped = len(self) if start_offset >= self.end_offset else max(self._position(start_offset), 0)
        return self._take(0, dropped)

    def replace(
        self, old: Sequence[tuple[int, bytes]], new: Sequence[LevelOneExtent]
    ) -> list[LevelOneExtent] | None:
        """Put `new` in the place of `old`, a run of neighbours by (term, unique), and return what was there.

        None, and nothing changes, when `old` is not such a run (any more). `new` must hold the same offsets.
        """
        base = self._bases.get(old[0][1])
        if base is None:
            return None
        first = self._position(base)
        present = [self._extent(number) for number in range(first, min(first + len(old), len(self)))]
        if [(one.term, one.unique) for one in present] != [(term, unique) for term, unique in old]:
            return None
        self._follow_and_are_new(new, base)
        if new[-1].end_offset != present[-1].end_offset:
            raise Corruption(
                f"objects up to offset {new[-1].end_offset} cannot replace those up to "
                f"{present[-1].end_offset}"
            )
        self._add(new)
        self._take(first, first + len(old))
        at = first * _ROW_BYTES
        self._rows[at:at] = _packed(new)
        return present

    def extent_at(self, offset: int) -> LevelOneExtent | None:
        """The object that holds an offset."""
        number = self._position(offset)
        if number < 0 or (extent := self._extent(number)).end_offset <= offset:
            return None
        return extent

    def between(self, first: int, end: int) -> list[LevelOneExtent]:
        """The objects that hold offsets in `[first, end)`, in order."""
        if first >= end:
            return []
        numbers = range(max(self._position(first), 0), self._position(end - 1) + 1)
        return [extent for extent in map(self._extent, numbers) if extent.end_offset > first]

    def first_since(self, timestamp: int) -> LevelOneExtent | None:
        """The first object that holds a record of this time (ms) or later."""
        return next((extent for extent in self if extent.max_timestamp >= timestamp), None)

    def newest(self) -> LevelOneExtent | None:
        """The first object that holds the newest timestamp of all; None when there are no objects."""
        return max(self, key=lambda extent: extent.max_timestamp, default=None)

    def rows(self) -> bytearray:
        """All rows, to be copied at once and not kept, for a snapshot."""
        return self._rows

    @classmethod
    def restored(cls, rows: bytes) -> LevelOne:
        """The object that `rows` was taken from; raises ValueError for invalid rows."""
        if len(rows) % _ROW_BYTES:
            raise ValueError(f"{len(rows)} bytes of level one are not rows of {_ROW_BYTES}")
        restored = cls()
        extents = [LevelOneExtent._make(row) for row in LEVEL_ONE_ROW.iter_unpack(rows)]
        if extents:
            restored.append(extents)
        return restored

    def _position(self, offset: int) -> int:
        """Number of the last row that starts at or below an offset; -1 when none does."""
        rows = self._rows
        return bisect_right(range(len(self)), offset, key=lambda n: _base_offset(rows, n * _ROW_BYTES)[0]) - 1

    def _extent(self, number: int) -> LevelOneExtent:
        return LevelOneExtent._make(LEVEL_ONE_ROW.unpack_from(self._rows, number * _ROW_BYTES))

    def _follow_and_are_new(self, extents: Sequence[LevelOneExtent], base: int | None) -> None:
        """Raise Corruption unless objects follow on one another from `base` and none is named already."""
        if not extents:
            raise Corruption("no objects where some are needed")
        expected = extents[0].base_offset if base is None else base
        seen: set[bytes] = set()
        for one in extents:
            if one.base_offset != expected or one.end_offset <= one.base_offset:
                raise Corruption(
                    f"an object from offset {one.base_offset} to {one.end_offset} cannot follow on {expected}"
                )
            if not 0 < one.index_bytes <= one.size or one.term < 0 or len(one.unique) != UNIQUE_BYTES:
                raise Corruption(f"no level-one object is like {one}")
            if one.unique in self._bases or one.unique in seen:
                raise Corruption(f"object {one.unique.hex()} is named twice")
            seen.add(one.unique)
            expected = one.end_offset

    def _add(self, extents: Sequence[LevelOneExtent]) -> None:
        for one in extents:
            self._bases[one.unique] = one.base_offset
            self.bytes += one.size

    def _take(self, first: int, end: int) -> list[LevelOneExtent]:
        taken = [self._extent(number) for number in range(first, end)]
        for one in taken:
            del self._bases[one.unique]
            self.bytes -= one.size
        del self._rows[first * _ROW_BYTES : end * _ROW_BYTES]
        return taken


def _packed(extents: Sequence[LevelOneExtent]) -> bytes:
    return b"".join(LEVEL_ONE_ROW.pack(*extent) for extent in extents)
