"""One row for each batch a partition's newest checkpoint refers to, compared with the bytes it refers to.

References come from the newest readable document of each group, first those to level one, then those to level
zero; to them come those that only an older checkpoint under a lease still has. A level-zero object holds many
partitions' batches, so references are brought together by object: each object is read once, all of it is
checked, and then each batch's header beside what the partition says.
"""

from __future__ import annotations

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

from strandline.snapshot.extent_rows import EXTENT_ROWS, LEVEL_ONE_ROWS
from strandline.snapshot.level_zero_format import Section, parse, parse_footer, verify_section
from strandline.snapshot.names import SnapshotName, snapshot_name
from strandline.snapshot.object_frame import BadObject, Buffer
from strandline.snapshot.spark.audits.batch_check import NOT_READ, check_batch
from strandline.snapshot.spark.audits.documents import (
    LEASE_LEFT_MS,
    REMOVAL_OFFSETS,
    Listing,
    read_document,
    removal_offsets,
)
from strandline.snapshot.spark.audits.level_one_objects import Said, found_batches
from strandline.snapshot.spark.audits.work import ClusterStorage, frame, record_batches, tasks
from strandline.snapshot.storage import ObjectMissing, Storage, StorageError
from strandline.statemachine.object_names import object_name
from strandline.statemachine.partition.extent import INLINE_ROW
from strandline.statemachine.partition.level_one import LEVEL_ONE_PREFIX, LevelOneExtent, level_one_name

_REFERENCE = [
    StructField("root", IntegerType(), False),
    StructField("group", LongType(), False),
    StructField("log_index", LongType(), False),
    StructField("level", IntegerType(), False),
    StructField("number", LongType(), False),
    StructField("newest", BooleanType(), False),
    StructField("base_offset", LongType(), False),
    StructField("end_offset", LongType(), False),
    StructField("record_count", LongType(), False),
    StructField("extent_base", LongType(), False),
    StructField("extent_end", LongType(), False),
    StructField("extent_timestamp", LongType(), False),
    StructField("length", LongType(), False),
    StructField("epoch", LongType()),
    StructField("position", LongType()),
    StructField("object", StringType()),
    StructField("clean", LongType(), False),
    StructField("settled", LongType(), False),
]
_CHECKED = [
    StructField("problem", StringType()),
    StructField("header_records", LongType()),
    StructField("producer_id", LongType()),
    StructField("producer_epoch", LongType()),
    StructField("base_sequence", LongType()),
    StructField("transactional", BooleanType()),
    StructField("committed", BooleanType()),
]
REFERENCE_SCHEMA = StructType(
    [
        *_REFERENCE,
        StructField("index_bytes", LongType()),
        StructField("topic_id", BinaryType()),
        StructField("partition", LongType()),
        *_CHECKED,
    ]
)
"""A row for each reference: a batch in level zero, one that is inline, or an object in level one."""
SCHEMA = StructType([*_REFERENCE, *_CHECKED])
"""A row for each batch. `number` is the place of its reference in the document, and of it in that; `newest`:
the reference is one of the newest checkpoint's; `record_count`: how many records are said to be there, by the
offsets or, where level one is compacted, by the batch; `extent_base`, `extent_end`: the offsets that the
reference holds; `clean`, `settled`: the checkpoint says that level one is so below them; `problem`: what is
wrong with the batch or what it lies in. What follows is null when it cannot be read; `committed` is what a
marker says, and null for batches of records."""
PLACES = 1 << 32
"""Batches that may have a place within one reference."""
_LEVEL_ONE_ENDS = slice(REMOVAL_OFFSETS.index("level_one_clean"), None)


class GroupPlace(NamedTuple):
    """A partition's group, as the controller knows it."""

    topic_id: bytes
    topic: str
    partition: int
    compacted: bool
    """Whether the topic's `cleanup.policy` has `compact`."""


class BatchFrames(NamedTuple):
    """Both are to be unpersisted."""

    references: DataFrame
    """Rows of REFERENCE_SCHEMA."""
    batches: DataFrame
    """Rows of SCHEMA."""


def batch_rows(
    spark: SparkSession,
    storages: Sequence[ClusterStorage],
    listings: Sequence[Listing],
    places: Sequence[Mapping[int, GroupPlace]],
) -> BatchFrames:
    """All references and batches; groups that the controller does not know are looked at as well."""
    stores = [storage.storage for storage in storages]
    items = []
    for root, found in enumerate(listings):
        groups: dict[int, list[SnapshotName]] = {}
        for name in found.documents:
            groups.setdefault(name.group, []).append(name)
        for group, names in groups.items():
            place = places[root].get(group)
            where = (place.topic_id, place.partition) if place else (None, None)
            items.append((root, list(map(tuple, names)), where))

    def references(item: tuple[int, list[tuple[Any, ...]], tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        root, names, place = item
        group = names[0][1]
        for row, index_bytes, checked in _references(
            stores[root], [SnapshotName(*name) for name in names], *place
        ):
            yield (root, group, *row, index_bytes, *place, *checked)

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (_Row(**row) for batch in batches for row in batch.to_pylist())
        for (root, name), group in groupby(rows, key=lambda row: (row.root, row.object)):
            judge = _level_one if name.startswith(LEVEL_ONE_PREFIX) else _level_zero
            yield from record_batches(judge(stores[root], name, list(group)), SCHEMA)

    all_references = frame(spark, items, references, REFERENCE_SCHEMA).cache()
    in_objects = (
        all_references.where("object is not null")
        .repartition(tasks(spark), "root", "object")
        .sortWithinPartitions("root", "object", "position")
        .mapInArrow(check, SCHEMA)
    )
    batches = all_references.where("object is null").select(*SCHEMA.names).union(in_objects)
    return BatchFrames(all_references, batches.cache())


class _Row(NamedTuple):
    """A row of REFERENCE_SCHEMA."""

    root: int
    group: int
    log_index: int
    level: int
    number: int
    newest: bool
    base_offset: int
    end_offset: int
    record_count: int
    extent_base: int
    extent_end: int
    extent_timestamp: int
    length: int
    epoch: int | None
    position: int
    object: str
    clean: int
    settled: int
    index_bytes: int | None
    topic_id: bytes | None
    partition: int | None
    problem: None
    header_records: None
    producer_id: None
    producer_epoch: None
    base_sequence: None
    transactional: None
    committed: None


_Reference = tuple[tuple[Any, ...], int | None, tuple[Any, ...]]
"""A row from `log_index` on, the bytes of an index, and what is known of the batch already."""
_UNKNOWN = (None, *NOT_READ)


def _references(
    storage: Storage, names: list[SnapshotName], topic_id: bytes | None, partition: int | None
) -> Iterator[_Reference]:
    """The references of one group's newest readable checkpoint, and those that only leased ones have."""
    newest = newest_state(storage, names)
    if newest is None:
        return
    index, state = newest
    seen: set[bytes] = set()
    first = state["next_offset"]
    sure = state["time"] + LEASE_LEFT_MS
    leased = [older for older, until, _ in state["checkpoints"] if until > sure and older < index]
    for at in (index, *sorted(leased, reverse=True)):
        those = [name for name in names if name.log_index == at]
        found = newest if at == index else newest_state(storage, those)
        if found is None:
            continue
        _, state_then = found
        objects = np.frombuffer(state_then["level_one"], LEVEL_ONE_ROWS)
        batches = np.frombuffer(state_then["extents"], EXTENT_ROWS)
        if at != index:
            batches = batches[batches["base_offset"] < first]
        if len(batches):
            first = int(batches["base_offset"][0])
        ends = removal_offsets(state_then)[_LEVEL_ONE_ENDS]
        is_newest = at == index
        for number, row in enumerate(objects.tolist()):
            extent = LevelOneExtent._make(row)
            if extent.unique not in seen:
                seen.add(extent.unique)
                # Without the controller's document nothing says what the object is called.
                name = None
                if topic_id is not None and partition is not None:
                    name = level_one_name(topic_id, partition, extent.term, extent.unique)
                yield _to_object(at, number, is_newest, extent, name, ends)
        inline = dict(state_then["inline"])
        for number, row in enumerate(batches.tolist(), len(objects)):
            yield _to_batch(at, number, is_newest, row, inline, ends)


def newest_state(storage: Storage, names: Sequence[SnapshotName]) -> tuple[int, dict[str, Any]] | None:
    """The state of the newest document that can be read, and its index; None when it is no partition's."""
    for name in sorted(names, key=lambda name: (-name.log_index, name.node)):
        try:
            document = read_document(storage.get(snapshot_name(*name)), name)
            state = msgpack.unpackb(document.state)
            if document.kind != "partition":
                return None
            np.frombuffer(state["extents"], EXTENT_ROWS)
            np.frombuffer(state["level_one"], LEVEL_ONE_ROWS)
        except Exception:
            continue  # the audit of the documents names it; another replica's will do here
        return document.index, state
    return None


def _to_object(
    index: int, number: int, newest: bool, extent: LevelOneExtent, name: str | None, ends: list[int]
) -> _Reference:
    base, end, timestamp, size, index_bytes, _, _ = extent
    place = (index, 1, number * PLACES, newest)
    row = (*place, base, end, end - base, base, end, timestamp, size, None, 0, name, *ends)
    return row, index_bytes, _UNKNOWN


def _to_batch(
    index: int,
    number: int,
    newest: bool,
    row: tuple[Any, ...],
    inline: Mapping[int, bytes],
    ends: list[int],
) -> _Reference:
    kind, base, count, _, timestamp, length, epoch, position, identity = row
    end = base + count
    extent = (index, 0, number * PLACES, newest, base, end, count, base, end, timestamp, length)
    if kind != INLINE_ROW:
        return (*extent, epoch, position, object_name(epoch, identity), *ends), None, _UNKNOWN
    where = f"inline at offset {base}"
    problem, header = check_batch(where, 0, length, count, timestamp, inline.get(base, b""))
    return (*extent, None, None, None, *ends), None, (problem, *(header or NOT_READ))


def _level_one(storage: Storage, name: str, rows: list[_Row]) -> Iterator[tuple[Any, ...]]:
    """A row for each batch of an object, for all that refer to it."""
    for row in rows:
        assert row.index_bytes is not None, "a reference to level one has them"
        said = Said(row.base_offset, row.extent_end, row.extent_timestamp, row.length, row.index_bytes)
        for place, part in enumerate(found_batches(storage, name, said, row.clean)):
            of_batch = row._replace(
                number=row.number + place,
                base_offset=part.base_offset,
                end_offset=part.end_offset,
                record_count=part.records,
                extent_timestamp=part.newest,
                length=part.length,
                position=part.position,
            )
            yield (*of_batch[: len(_REFERENCE)], part.problem, *(part.header or NOT_READ))


def _level_zero(storage: Storage, name: str, rows: list[_Row]) -> Iterator[tuple[Any, ...]]:
    """The rows of one object's batches, compared with it."""
    width = len(_REFERENCE)
    try:
        data = storage.get(name)
    except StorageError as error:
        reason = "there is no such object" if isinstance(error, ObjectMissing) else str(error)
        for row in rows:
            yield (*row[:width], reason, *NOT_READ)
        return
    whole, sections, bad = _judge(name, data)
    for row in rows:
        part = memoryview(data)[row.position : row.position + row.length]
        problem, header = check_batch(
            name, row.position, row.length, row.record_count, row.extent_timestamp, part
        )
        problem = whole or _wrong_section(sections, bad, row) or problem
        yield (*row[:width], problem, *(header or NOT_READ))


def _judge(name: str, data: Buffer) -> tuple[str | None, tuple[Section, ...], dict[Section, str]]:
    """Problems of an object as a whole, its sections, and their problems."""
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


def _wrong_section(sections: tuple[Section, ...], bad: dict[Section, str], row: _Row) -> str | None:
    end = row.position + row.length
    for section in sections:
        if section.position <= row.position and end <= section.end:
            place = (section.topic_id, section.partition)
            if row.topic_id is not None and place != (row.topic_id, row.partition):
                return f"the bytes are of partition {section.partition}, topic {section.topic_id.hex()}"
            return bad.get(section)
    return f"no section holds the bytes {row.position} to {end}"
