"""One extent, the place of one batch: a byte range of a level-zero object, or the bytes themselves until an
object has them; and the row that it is in a snapshot.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from strandline.statemachine.object_names import OBJECT_ID_BYTES, object_name

ROW = struct.Struct(f"<BqIqqIqq{OBJECT_ID_BYTES}s")
"""A row, little-endian and unpadded: kind, base_offset i64, record_count u32, term i64, max_timestamp i64,
length u32, epoch i64, position i64, object id. An inline row's bytes are elsewhere, its last three 0."""
ROW_BYTES = ROW.size
OBJECT_ROW = 0
INLINE_ROW = 1
NO_OBJECT = bytes(OBJECT_ID_BYTES)
"""The object id of an inline row."""


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


class StoredInline(NamedTuple):
    """The place that an inline batch got in a level-zero object."""

    base_offset: int
    length: int
    epoch: int
    position: int
    object_id: bytes
