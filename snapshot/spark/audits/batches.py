"""One row for each batch a partition's newest checkpoint refers to, compared with the bytes it refers to.

Extents come from the newest readable document of each group; to them come those that only an older checkpoint
under a lease still names. Objects hold many partitions' batches, so extents are brought together by object:
each object is read once, all of it is checked, and then each batch's header beside its extent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from snapshot.extent_rows import EXTENT_ROWS
from snapshot.level_zero_format import (
    BadObject,
    Buffer,
    Section,
    parse,
    parse_footer,
    verify_batch,
    verify_section,
)
from snapshot.names import SnapshotName, snapshot_name
from snapshot.spark.audits.documents import Listing, read_document
from snapshot.spark.audits.work import ClusterStorage, frame, record_batches, tasks
from snapshot.storage import ObjectMissing, Storage, StorageError
from statemachine.extents import INLINE_ROW
from statemachine.object_names import object_name

_HEADER = struct.Struct(">qiibIhiqqqhii")

_EXTENT = [
    StructField("root", IntegerType(), False),
    StructField("group", LongType(), False),
    StructField("log_index", LongType(), False),
    StructField("number", LongType(), False),
    StructField("newest", BooleanType(), False),
    StructField("base_offset", LongType(), False),
    StructField("record_count", LongType(), False),
    StructField("extent_timestamp", LongType(), False),
    StructField("length", LongType(), False),
    StructField("epoch", LongType()),
    StructField("position", LongType()),
    StructField("object", StringType()),
]
_CHECKED = [
    StructField("problem", StringType()),
    StructField("header_records", LongType()),
    StructField("producer_id", LongType()),
    StructField("producer_epoch", LongType()),
    StructField("base_sequence", LongType()),
]
EXTENT_SCHEMA = StructType(
    [
        *_EXTENT,
        StructField("topic_id", BinaryType()),
        StructField("partition", LongType()),
        *_CHECKED,
    ]
)
SCHEMA = StructType([*_EXTENT, *_CHECKED])
"""`number` is the extent's place in its document; `newest`: it is one of the newest checkpoint's; `problem`:
what is wrong with the batch or what it lies in. The last four are null when the batch cannot be read."""
_NOT_READ = (None, None, None, None)


class GroupPlace(NamedTuple):
    """A partition's group, as the controller knows it."""

    topic_id: bytes
    topic: str
    partition: int


def batch_rows(
    spark: SparkSession,
    storages: Sequence[ClusterStorage],
    listings: Sequence[Listing],
    places: Sequence[Mapping[int, GroupPlace]],
) -> DataFrame:
    """A row of SCHEMA for every batch; groups that the controller does not know are looked at as well."""
    stores = [storage.storage for storage in storages]
    items = []
    for root, found in enumerate(listings):
        groups: dict[int, list[SnapshotName]] = {}
        for name in found.documents:
            groups.setdefault(name.group, []).append(name)
        for group, names in groups.items():
            place = places[root].get(group)
            items.append((root, list(map(tuple, names)), tuple(place) if place else (None, None, None)))

    def extents(item: tuple[int, list[tuple[Any, ...]], tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        root, names, (topic_id, _, partition) = item
        for row, checked in _extents(stores[root], [SnapshotName(*name) for name in names]):
            yield (root, names[0][1], *row, topic_id, partition, *checked)

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (tuple(row.values()) for batch in batches for row in batch.to_pylist())
        for (root, name), group in groupby(rows, key=lambda row: (row[0], row[11])):
            yield from record_batches(_checked(stores[root], name, list(group)), SCHEMA)

    all_extents = frame(spark, items, extents, EXTENT_SCHEMA).cache()
    in_objects = (
        all_extents.where("object is not null")
        .repartition(tasks(spark), "root", "object")
        .sortWithinPartitions("root", "object", "position")
        .mapInArrow(check, SCHEMA)
    )
    return all_extents.where("object is null").select(*SCHEMA.names).union(in_objects)


def _extents(
    storage: Storage, names: list[SnapshotName]
) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """(extent, what is known of its batch) of one group's newest readable checkpoint and the leased ones."""
    newest = _newest(storage, names)
    if newest is None:
        return
    index, state = newest
    rows = np.frombuffer(state["extents"], EXTENT_ROWS)
    yield from _of_state(state, index, rows, newest=True)
    first = int(rows["base_offset"][0]) if len(rows) else state["next_offset"]
    for leased, until, _ in state["checkpoints"]:
        if until <= state["time"] or leased >= index:
            continue
        older = _newest(storage, [name for name in names if name.log_index == leased])
        if older is not None:
            _, state_then = older
            rows = np.frombuffer(state_then["extents"], EXTENT_ROWS)
            yield from _of_state(state_then, leased, rows[rows["base_offset"] < first], newest=False)


def _newest(storage: Storage, names: list[SnapshotName]) -> tuple[int, dict[str, Any]] | None:
    """The state of the newest document that can be read, and its index; None when it is no partition's."""
    for name in sorted(names, key=lambda name: (-name.log_index, name.node)):
        try:
            document = read_document(storage.get(snapshot_name(*name)), name)
            state = msgpack.unpackb(document.state)
            np.frombuffer(state.get("extents", b""), EXTENT_ROWS)
        except Exception:
            continue  # the audit of the documents names it; another replica's will do here
        return (document.index, state) if document.kind == "partition" else None
    return None


def _of_state(
    state: dict[str, Any], index: int, rows: Any, *, newest: bool
) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    inline = dict(state["inline"])
    for number, row in enumerate(rows.tolist()):
        kind, base, count, _, timestamp, length, epoch, position, identity = row
        extent = (index, number, newest, base, count, timestamp, length)
        if kind == INLINE_ROW:
            where = f"inline at offset {base}"
            yield (
                (*extent, None, None, None),
                _compare(where, 0, length, count, timestamp, inline.get(base, b"")),
            )
        else:
            yield (*extent, epoch, position, object_name(epoch, identity)), (None, *_NOT_READ)


def _checked(storage: Storage, name: str, rows: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """The rows of one object's extents, compared with it."""
    width = len(_EXTENT)
    try:
        data = storage.get(name)
    except StorageError as error:
        reason = "there is no such object" if isinstance(error, ObjectMissing) else str(error)
        for row in rows:
            yield (*row[:width], reason, *_NOT_READ)
        return
    whole, sections, bad = _judge(name, data)
    for row in rows:
        _, _, _, _, _, _, count, timestamp, length, _, position, _, topic_id, partition = row[: width + 2]
        part = bytes(memoryview(data)[position : position + length])
        problem, *header = _compare(name, position, length, count, timestamp, part)
        problem = whole or _wrong_section(sections, bad, topic_id, partition, position, length) or problem
        yield (*row[:width], problem, *header)


def _judge(name: str, data: Buffer) -> tuple[str | None, tuple[Section, ...], dict[Section, str]]:
    """What is wrong with an object as a whole, its sections, and what is wrong with any of them."""
    try:
        return None, parse(name, data).sections, {}
    except BadObject as error:
        whole = error.reason
    try:
        sections = parse_footer(name, data, len(data)).sections
    except BadObject as error:
        return error.reason, (), {}
    bad: dict[Section, str] = {}
    for section in sections:
        try:
            verify_section(name, section, memoryview(data)[section.position : section.end])
        except BadObject as error:
            bad[section] = error.reason
    return None if bad else whole, sections, bad


def _wrong_section(
    sections: tuple[Section, ...],
    bad: dict[Section, str],
    topic_id: bytes | None,
    partition: int | None,
    position: int,
    length: int,
) -> str | None:
    for section in sections:
        if section.position <= position and position + length <= section.end:
            if topic_id is not None and (section.topic_id, section.partition) != (topic_id, partition):
                return f"the bytes are of partition {section.partition}, topic {section.topic_id.hex()}"
            return bad.get(section)
    return f"no section holds the bytes {position} to {position + length}"


def _compare(
    name: str, position: int, length: int, count: int, timestamp: int, data: bytes
) -> tuple[str | None, int | None, int | None, int | None, int | None]:
    """(problem, records, producer id, epoch, base sequence) of a batch; all but the first from its header."""
    try:
        verify_batch(name, position, length, data)
    except BadObject as error:
        return (error.reason, *_NOT_READ)
    _, _, _, _, _, _, delta, _, newest, producer, epoch, sequence, records = _HEADER.unpack_from(data)
    problem = None
    if records != count or delta != count - 1:
        problem = f"the extent says {count} records, the batch {records}, the last with delta {delta}"
    elif newest != timestamp:
        problem = f"the extent's newest timestamp is {timestamp}, the batch's {newest}"
    return problem, records, producer, epoch, sequence
