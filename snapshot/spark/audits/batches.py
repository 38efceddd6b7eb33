"""One row for each batch a partition's newest checkpoint refers to, compared with the bytes it refers to.

A level-zero object holds many partitions' batches, so references are brought together by object: each object
is read once, all of it is checked, and then each batch's header beside what the partition says. What a proof
has of the same claim about the same version of an object is taken in place of reading it (`proofs.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from strandline.snapshot.level_zero_format import Section, parse, parse_footer, verify_section
from strandline.snapshot.object_frame import BadObject, Buffer
from strandline.snapshot.spark.audits.batch_check import NOT_READ, check_batch
from strandline.snapshot.spark.audits.documents import Listing
from strandline.snapshot.spark.audits.level_one_objects import Said, found_batches
from strandline.snapshot.spark.audits.progress import reading
from strandline.snapshot.spark.audits.references import (
    CHECKED,
    PLACES,
    REFERENCE,
    REFERENCE_SCHEMA,
    GroupPlace,
    Reference,
    reference_rows,
)
from strandline.snapshot.spark.audits.small import held
from strandline.snapshot.spark.audits.work import ClusterStorage, mapped_here, record_batches, tasks
from strandline.snapshot.storage import ObjectMissing, Storage, StorageError
from strandline.statemachine.partition.level_one import LEVEL_ONE_PREFIX

SCHEMA = StructType(
    [
        *REFERENCE,
        *CHECKED,
        StructField("claim", BinaryType()),
        StructField("proven", BooleanType(), False),
    ]
)
"""A row for each batch. `number` is the place of its reference in the document, and of it in that; `newest`:
the reference is one of the newest checkpoint's; `record_count`: how many records are said to be there, by the
offsets or, where level one is compacted, by the batch; `extent_base`, `extent_end`: the offsets that the
reference holds; `clean`, `settled`: the checkpoint says that level one is so below them; `problem`: what is
wrong with the batch or what it lies in. What follows is null when it cannot be read; `committed` is what a
marker says, and null for batches of records. `proven`: it is as an earlier audit found it."""
TASK_BYTES = 128 * 1024 * 1024
"""A task reads so much: some tenths of a second, so that progress can be told by tasks."""
MAX_TASKS = 10_000
SAME = ("object", "version", "claim")
"""Columns that are the same for an object that need not be read again."""
_FOUND = ("base_offset", "end_offset", "record_count", "extent_timestamp", "length", "position")
"""Columns of a reference that a batch has values of its own for."""
_HEADER = CHECKED[1:]
KNOWN_SCHEMA = StructType(
    [
        StructField("root", IntegerType(), False),
        StructField("object", StringType(), False),
        StructField("version", StringType(), False),
        StructField("claim", BinaryType(), False),
        StructField("place", LongType(), False),
        *(StructField(name, LongType()) for name in _FOUND),
        *_HEADER,
    ]
)
"""A row for each batch of an object that was found to be right; `place` is its place in the reference."""


class BatchFrames(NamedTuple):
    """Both are to be unpersisted."""

    references: DataFrame
    """Rows of REFERENCE_SCHEMA."""
    batches: DataFrame
    """Rows of SCHEMA."""

    def right(self, versions: DataFrame) -> DataFrame:
        """Rows of KNOWN_SCHEMA: all that was found to be right, with the listed version of its object."""
        return (
            self.batches.where("object is not null and problem is null")
            .join(versions, ["root", "object"])
            .withColumn("place", f.pmod("number", f.lit(PLACES)))
            .select(*KNOWN_SCHEMA.names)
        )


def batch_rows(
    spark: SparkSession,
    storages: Sequence[ClusterStorage],
    listings: Sequence[Listing],
    places: Sequence[Mapping[int, GroupPlace]],
    versions: DataFrame,
    known: DataFrame | None,
    small: bool,
) -> BatchFrames:
    """All references and batches. `versions` has the listed version of each object, of before this call;
    `known` are rows of KNOWN_SCHEMA that need not be read."""
    stores = [storage.storage for storage in storages]

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (Reference(**row) for batch in batches for row in batch.to_pylist())
        for (root, name), group in groupby(rows, key=lambda row: (row.root, row.object)):
            judge = _level_one if name.startswith(LEVEL_ONE_PREFIX) else _level_zero
            yield from record_batches(judge(stores[root], name, list(group)), SCHEMA)

    references = held(reference_rows(spark, storages, listings, places), small)
    inline = references.where("object is null").withColumn("proven", f.lit(False)).select(*SCHEMA.names)
    unread = references.where("object is not null")
    parts = [inline]
    if known is not None:
        keys = ["root", *SAME]
        versioned = unread.join(versions, ["root", "object"], "left")
        parts.append(
            versioned.drop(*_FOUND, *(field.name for field in _HEADER))
            .join(known, keys)
            .withColumn("number", f.col("number") + f.col("place"))
            .withColumn("proven", f.lit(True))
            .select(*SCHEMA.names)
        )
        unread = versioned.join(known.select(*keys).distinct(), keys, "left_anti")
    unread, order = unread.select(*REFERENCE_SCHEMA.names), ("root", "object", "position")
    if small and (checked := mapped_here(unread, order, check, SCHEMA)) is not None:
        return BatchFrames(references, held(reduce(DataFrame.union, [*parts, checked]), small))
    total = _bytes_of(unread)
    checked = (
        unread.repartition(max(tasks(spark), min(total // TASK_BYTES, MAX_TASKS)), "root", "object")
        .sortWithinPartitions(*order)
        .mapInArrow(check, SCHEMA)
    )
    batches = held(reduce(DataFrame.union, [*parts, checked]), small)
    if not small:
        with reading(spark, total):
            batches.count()  # this may take hours; in a job of its own it can be told how far it is
    return BatchFrames(references, batches)


def _bytes_of(references: DataFrame) -> int:
    """Bytes to be read for them; an object of level one is named once for each checkpoint."""
    row = references.select("root", "object", "position", "length").distinct().agg(f.sum("length")).first()
    return int(row[0] or 0) if row is not None else 0


def _level_one(storage: Storage, name: str, rows: list[Reference]) -> Iterator[tuple[Any, ...]]:
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
            yield (*of_batch[: len(REFERENCE)], part.problem, *(part.header or NOT_READ), row.claim, False)


def _level_zero(storage: Storage, name: str, rows: list[Reference]) -> Iterator[tuple[Any, ...]]:
    """The rows of one object's batches, compared with it."""
    width = len(REFERENCE)
    try:
        data = storage.get(name)
    except StorageError as error:
        reason = "there is no such object" if isinstance(error, ObjectMissing) else str(error)
        for row in rows:
            yield (*row[:width], reason, *NOT_READ, row.claim, False)
        return
    whole, sections, bad = _judge(name, data)
    for row in rows:
        part = memoryview(data)[row.position : row.position + row.length]
        problem, header = check_batch(
            name, row.position, row.length, row.record_count, row.extent_timestamp, part
        )
        problem = whole or _wrong_section(sections, bad, row) or problem
        yield (*row[:width], problem, *(header or NOT_READ), row.claim, False)


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


def _wrong_section(sections: tuple[Section, ...], bad: dict[Section, str], row: Reference) -> str | None:
    end = row.position + row.length
    for section in sections:
        if section.position <= row.position and end <= section.end:
            place = (section.topic_id, section.partition)
            if row.topic_id is not None and place != (row.topic_id, row.partition):
                return f"the bytes are of partition {section.partition}, topic {section.topic_id.hex()}"
            return bad.get(section)
    return f"no section holds the bytes {row.position} to {end}"
