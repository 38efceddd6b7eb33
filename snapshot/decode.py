"""Stored record batches to Arrow: checked, decompressed, and decoded many at a time.

Batches are gathered until it pays to call numpy, then become one Arrow batch with the columns that are
wanted and no others. Keys, values and headers are copied once: Arrow sees the buffer as a binary array whose
every second element is a field, and takes those.

Every batch is held against its CRC-32C before a byte of it is believed. Offsets and leader epoch come from
the extent: the producer could not know them. Control batches have no rows, nor have those of aborted
transactions where they are told.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from strandline.snapshot.aborted import NOTHING_ABORTED, Aborted
from strandline.snapshot.arrow_arrays import booleans, numbers, texts
from strandline.snapshot.compression import Compression, DecompressionError, decompress
from strandline.snapshot.level_zero_format import BATCH_HEADER_BYTES, BadObject, verify_batch
from strandline.snapshot.record_fields import (
    Fields,
    Longs,
    Spans,
    Stored,
    UnreadableRecords,
    read_fields,
    record_ends,
)

CHUNK_BYTES: Final = 4 * 1024 * 1024
"""Decompressed bytes of an Arrow batch, at which it is closed: its arrays still fit the processor's cache."""
JOIN_BELOW: Final = 512 * 1024
"""Batches that are next to each other are decoded where they lie, once there is so much of them; below that
they are joined with what comes from elsewhere: numpy costs the same for few records as for many."""
MAX_DECOMPRESSED_BYTES: Final = 1 << 30
"""The broker has judged each batch by the topic's own limit; this one is against damage."""

_FIELDS: Final = struct.Struct(">hiqqq6xi")
"""After the CRC: attributes, last offset delta, base and newest timestamp, producer id, the producer's other
fields, records."""
_FIELDS_AT: Final = 21
_COMPRESSION: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_MOST_MS: Final = (1 << 63) // 1000 - 1

HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
COLUMNS: Final[dict[str, Any]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", HEADER)),
    "leader_epoch": pa.int32(),
}
"""Every column and its type: those of Spark's Kafka source, in its order, and the leader epoch."""


class BatchSlice(NamedTuple):
    """A batch as an extent names it: `length` bytes of `data` from `start` on.

    `name` and `position` say where it was read, for messages. It has each of the offsets in
    `[base_offset, end_offset)`, unless there are `holes`; those in `[first, end)` are wanted.
    """

    data: Stored
    start: int
    length: int
    name: str
    position: int
    topic: str
    partition: int
    base_offset: int
    end_offset: int
    leader_epoch: int
    first: int
    end: int
    aborted: Aborted = NOTHING_ABORTED
    holes: bool = False


class Decoder:
    """Turns batches into Arrow batches with the wanted columns, in the order of `schema`.

    `schema` is a pyarrow schema of COLUMNS. The work it saves for columns that are not in it is most of it.
    """

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._wanted = frozenset(schema.names)

    def decode(self, batches: Iterable[BatchSlice]) -> Iterator[Any]:
        """Arrow batches of about CHUNK_BYTES, rows in the order of `batches`; raises BadObject."""
        chunk = _Chunk()
        for batch in batches:
            if not chunk.has_room_for(batch):
                yield from chunk.decoded(self._schema, self._wanted)
                chunk = _Chunk()
            chunk.add(batch)
        yield from chunk.decoded(self._schema, self._wanted)


class _Row(NamedTuple):
    """Common values of a batch's records, as a row of numbers."""

    payload: int
    records: int
    base_offset: int
    end_offset: int
    base_time: int
    newest_time: int
    timestamp_type: int
    """0: the producer's own for each record; 1: the broker's, the newest, for all of them."""
    partition: int
    leader_epoch: int
    topic: int
    first: int
    end: int


class _Chunk:
    """Batches that become one Arrow batch."""

    def __init__(self) -> None:
        self._batches: list[BatchSlice] = []
        self._rows: list[_Row] = []
        self._payloads: list[memoryview] = []
        self._size = 0
        self._topics: dict[str, int] = {}
        self._shared: Stored | None = None
        """All batches' bytes, if they are one buffer, uncompressed and in its order."""

    def has_room_for(self, batch: BatchSlice) -> bool:
        behind = self._shared is batch.data and batch.start > self._batches[-1].start
        return self._size < (CHUNK_BYTES if behind or self._shared is None else JOIN_BELOW)

    def add(self, batch: BatchSlice) -> None:
        """Check a batch and take it in, unless it has no rows; raises BadObject."""
        data, start = batch.data, batch.start
        verify_batch(batch.name, batch.position, batch.length, memoryview(data)[start : start + batch.length])
        attributes, _, base_time, newest_time, producer_id, count = _FIELDS.unpack_from(
            data, start + _FIELDS_AT
        )
        offsets = batch.end_offset - batch.base_offset
        if count != offsets and not (batch.holes and 0 < count < offsets):
            raise _bad(batch, f"{count} records, where its partition has {offsets}")
        if attributes & _CONTROL:
            return
        if attributes & _TRANSACTIONAL and batch.aborted.has(producer_id, batch.base_offset):
            return
        payload = memoryview(data)[start + BATCH_HEADER_BYTES : start + batch.length]
        shared: Stored | None = data
        if attributes & _COMPRESSION:
            shared = None
            try:
                compression = Compression(attributes & _COMPRESSION)
                payload = decompress(compression, payload, MAX_DECOMPRESSED_BYTES)
            except (ValueError, DecompressionError) as error:
                raise _bad(batch, f"its records cannot be decompressed: {error}") from None
        if not self._batches:
            self._shared = shared
        elif self._shared is not shared or start < self._batches[-1].start:
            self._shared = None  # Arrow takes values of one buffer in the order in which they lie there
        self._batches.append(batch)
        self._payloads.append(payload)
        self._size += len(payload)
        set_by_broker = bool(attributes & _LOG_APPEND_TIME)
        self._rows.append(
            _Row(
                start + BATCH_HEADER_BYTES,
                count,
                batch.base_offset,
                batch.end_offset,
                base_time,
                newest_time,
                int(set_by_broker),
                batch.partition,
                batch.leader_epoch,
                self._topics.setdefault(batch.topic, len(self._topics)),
                batch.first,
                batch.end,
            )
        )

    def decoded(self, schema: Any, wanted: Collection[str]) -> Iterator[Any]:
        """The batch of all wanted records, or nothing when there are none; raises BadObject."""
        if not self._batches:
            return
        rows = dict(zip(_Row._fields, np.array(self._rows, np.int64).T, strict=True))
        lengths = np.array([len(payload) for payload in self._payloads], np.int64)
        if self._shared is not None:
            data, begins = self._shared, rows["payload"]
        else:
            data, begins = b"".join(self._payloads), np.cumsum(lengths) - lengths
        starts, ends = self._boundaries(data, begins, lengths, rows["records"])
        fields = self._fields(data, starts, ends, rows["records"], wanted)
        columns = _Columns(data, rows, tuple(self._topics), fields)
        made = [(columns.make[name](), schema.field(name).type) for name in schema.names]
        arrays = [array if array.type.equals(kind) else array.cast(kind) for array, kind in made]
        decoded = pa.RecordBatch.from_arrays(arrays, schema=schema)
        unwanted = columns.unwanted()
        if unwanted is not None:
            decoded = decoded.filter(booleans(~unwanted))
        if decoded.num_rows:
            yield decoded

    def _boundaries(self, data: Stored, begins: Longs, lengths: Longs, counts: Longs) -> tuple[Longs, Longs]:
        found = array("q")
        for number, (begin, length, count) in enumerate(
            zip(begins.tolist(), lengths.tolist(), counts.tolist(), strict=True)
        ):
            try:
                record_ends(data, begin, begin + length, count, found)
            except UnreadableRecords as error:
                raise _bad(self._batches[number], str(error)) from None
        ends = np.frombuffer(found, np.int64)
        starts = np.empty_like(ends)
        starts[1:] = ends[:-1]
        starts[np.cumsum(counts) - counts] = begins
        return starts, ends

    def _fields(
        self, data: Stored, starts: Longs, ends: Longs, counts: Longs, wanted: Collection[str]
    ) -> Fields:
        buffer = np.frombuffer(data, np.uint8)
        headers = "headers" in wanted
        bodies = headers or "key" in wanted or "value" in wanted
        try:
            return read_fields(buffer, starts, ends, bodies=bodies, headers=headers)
        except UnreadableRecords:
            # Some batch of them: read each alone, and say which.
            after = 0
            for batch, count in zip(self._batches, counts.tolist(), strict=True):
                own = slice(after, after + count)
                after += count
                try:
                    read_fields(buffer, starts[own], ends[own], bodies=bodies, headers=headers)
                except UnreadableRecords as error:
                    raise _bad(batch, str(error)) from None
            raise


class _Columns:
    """Construction of each column from a chunk's records."""

    def __init__(self, data: Stored, rows: dict[str, Longs], topics: tuple[str, ...], fields: Fields) -> None:
        self._data = pa.py_buffer(data)
        self._rows = rows
        self._topics = topics
        self._fields = fields
        self._batch = np.repeat(np.arange(rows["records"].size), rows["records"])
        """Number of the batch of each record."""
        self.make: dict[str, Callable[[], Any]] = {
            "key": lambda: self._binary(fields.key),
            "value": lambda: self._binary(fields.value),
            "topic": self._topic,
            "partition": lambda: self._of_batch("partition"),
            "offset": lambda: numbers(self._offsets()),
            "timestamp": self._timestamp,
            "timestampType": lambda: self._of_batch("timestamp_type"),
            "headers": self._headers,
            "leader_epoch": lambda: self._of_batch("leader_epoch"),
        }

    def unwanted(self) -> NDArray[np.bool_] | None:
        """Mask of the records outside the wanted offsets; None if every batch lies within them."""
        rows = self._rows
        if (rows["base_offset"] >= rows["first"]).all() and (rows["end_offset"] <= rows["end"]).all():
            return None
        offsets = self._offsets()
        outside: NDArray[np.bool_] = (offsets < rows["first"][self._batch]) | (
            offsets >= rows["end"][self._batch]
        )
        return outside

    def _offsets(self) -> Longs:
        offsets: Longs = self._rows["base_offset"][self._batch] + self._fields.offset_delta
        return offsets

    def _of_batch(self, name: str) -> Any:
        return numbers(self._rows[name].astype(np.int32)[self._batch])

    def _topic(self) -> Any:
        if len(self._topics) == 1:
            return pa.repeat(texts(self._topics)[0], self._batch.size)
        return texts(self._topics).take(numbers(self._rows["topic"][self._batch]))

    def _timestamp(self) -> Any:
        rows = self._rows
        milliseconds = rows["base_time"][self._batch] + self._fields.timestamp_delta
        if rows["timestamp_type"].any():
            by_broker = rows["timestamp_type"][self._batch] == 1
            milliseconds = np.where(by_broker, rows["newest_time"][self._batch], milliseconds)
        # What Spark cannot express becomes the first or last moment that it can.
        return numbers(np.clip(milliseconds, -_MOST_MS, _MOST_MS) * 1000).view(COLUMNS["timestamp"])

    def _binary(self, spans: Spans | None) -> Any:
        """The bytes of each span: every second element of a binary array over the whole buffer."""
        assert spans is not None, "a field that was not asked for"
        count = spans.start.size
        if spans.null.all():
            return pa.nulls(count, pa.binary())
        edges = np.empty(2 * count, np.int32)
        edges[0::2] = spans.start
        edges[1::2] = spans.end
        alternating = pa.BinaryArray.from_buffers(
            pa.binary(), 2 * count - 1, [None, pa.py_buffer(edges), self._data]
        )
        null = spans.null if spans.null.any() else None
        return alternating.take(numbers(np.arange(0, 2 * count, 2, dtype=np.int32), null))

    def _headers(self) -> Any:
        """Null for a record without headers, as Spark's Kafka source has it."""
        fields = self._fields
        assert fields.header_count is not None, "headers were not asked for"
        counts = fields.header_count
        if not counts.any():
            return pa.nulls(counts.size, COLUMNS["headers"])
        pairs = pa.StructArray.from_arrays(
            [_text(self._binary(fields.header_key)), self._binary(fields.header_value)], fields=list(HEADER)
        )
        offsets = np.zeros(counts.size + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        return pa.ListArray.from_arrays(
            numbers(offsets), pairs, type=COLUMNS["headers"], mask=booleans(counts == 0)
        )


def _text(keys: Any) -> Any:
    """Header keys as text; what is not UTF-8 is replaced, as Java's clients do."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())


def _bad(batch: BatchSlice, reason: str) -> BadObject:
    return BadObject(batch.name, batch.position, batch.position + batch.length, reason)
