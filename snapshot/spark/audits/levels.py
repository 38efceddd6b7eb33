"""Level one beside level zero, record by record, where both still have a partition's records.

The newest checkpoint says which level-one object holds which offsets. Where the same records lay in level
zero is told by the logs and the older checkpoints. Until those objects are collected, both can be
read and must be the same records: offsets, keys, values, headers, timestamps and leader epochs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from strandline.snapshot.decode import COLUMNS, BatchSlice, Decoder
from strandline.snapshot.level_one_format import batches_of, parse
from strandline.snapshot.object_frame import BadObject
from strandline.snapshot.spark.audits.audit import Answer, Frames
from strandline.snapshot.spark.audits.lacking import is_empty
from strandline.snapshot.spark.audits.work import ClusterStorage, local_frame, mapped, record_batches
from strandline.snapshot.spark.fetch import read_windows
from strandline.snapshot.spark.pieces import PIECE, PieceKind, Slice
from strandline.snapshot.spark.plan import WINDOW_BYTES
from strandline.snapshot.storage import Storage, StorageError
from strandline.statemachine.object_names import OBJECT_ID_BYTES, parse_object_name

SCHEMA = StructType(
    [
        StructField("root", IntegerType(), False),
        StructField("group", LongType(), False),
        StructField("log_index", LongType(), False),
        StructField("object", StringType(), False),
        StructField("compared", LongType(), False),
        StructField("not_kept", LongType(), False),
        StructField("base_offset", LongType()),
        StructField("problem", StringType()),
    ]
)
"""A row for each level-one object: how many of its records level zero has too, how many it has not or cannot
be read of, and the first that differs."""

_RECORD: Final = pa.schema([(name, COLUMNS[name]) for name in COLUMNS if name not in ("topic", "partition")])

_OFFSETS: Final = pa.schema([("offset", COLUMNS["offset"])])


class Beside(NamedTuple):
    """A level-one object (`side` 0), or a batch that lay in level zero (1) and may be `there` still."""

    root: int
    group: int
    log_index: int
    side: int
    base_offset: int
    end_offset: int
    object: str | None
    leader_epoch: int | None
    length: int | None
    epoch: int | None
    position: int | None
    inline: bytes | None
    there: bool
    records: int
    settled: int
    """Below it level one may lack records that level zero has: compaction has removed them."""


def comparisons(
    spark: SparkSession,
    storages: Sequence[ClusterStorage],
    batches: DataFrame,
    written: DataFrame,
    stored: DataFrame,
    small: bool,
) -> DataFrame:
    """A row of SCHEMA for each level-one object of the newest checkpoints."""
    if is_empty(batches):
        return local_frame(spark, [], SCHEMA)
    stores = [storage.storage for storage in storages]
    nothing = {"leader_epoch": "long", "length": "long", "epoch": "long", "position": "long"}
    one = (
        batches.where("level = 1 and newest and object is not null")
        .groupBy("root", "group", "log_index", "object", "settled", f.col("extent_end").alias("end_offset"))
        .agg(f.min("extent_base").alias("base_offset"), f.sum("record_count").alias("records"))
        .withColumn("side", f.lit(0))
        .withColumns({name: f.lit(None).cast(kind) for name, kind in nothing.items()})
        .withColumn("inline", f.lit(None).cast("binary"))
        .withColumn("there", f.lit(True))
    )
    listed = stored.where("level = 0").select("root", "object", f.lit(True).alias("listed")).distinct()
    zero = (
        written.where("base_offset is not null")
        .join(listed, ["root", "object"], "left")
        .withColumn("side", f.lit(1))
        .withColumn("settled", f.lit(0))
        .withColumn("end_offset", f.col("base_offset") + f.col("record_count"))
        .withColumnRenamed("record_count", "records")
        .withColumn("there", f.col("listed").isNotNull() | f.col("inline").isNotNull())
    )
    in_order = Window.partitionBy("root", "group").orderBy("base_offset", "side")
    is_one = f.col("side") == 0
    beside = (
        one.select(*Beside._fields)
        .union(zero.select(*Beside._fields))
        .withColumn("holder", f.last(f.when(is_one, f.col("object")), ignorenulls=True).over(in_order))
        .withColumn("holds_to", f.last(f.when(is_one, f.col("end_offset")), ignorenulls=True).over(in_order))
        .where("base_offset < holds_to")
    )

    def compare(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = ((row.pop("holder"), Beside(**row)) for batch in given for row in batch.to_pylist())
        for (root, _), found in groupby(rows, key=lambda pair: (pair[1].root, pair[0])):
            first, *others = (row for _, row in found)
            compared = compare_object(stores[root], first, others)
            yield from record_batches([(root, first.group, first.log_index, *compared)], SCHEMA)

    rows, order = beside.select(*Beside._fields, "holder"), ("root", "holder", "side", "base_offset")
    return mapped(rows, order[:2], order, compare, SCHEMA, small)


def compare_object(
    storage: Storage, one: Beside, zero: Sequence[Beside]
) -> tuple[str, int, int, int | None, str | None]:
    """The columns of SCHEMA from `object` on."""
    assert one.object is not None, "a level-one object has a name"
    count = one.records
    if not any(row.there for row in zero):
        return one.object, 0, count, None, None
    try:
        batches = _level_one(storage, one.object)
    except (StorageError, BadObject):
        return one.object, 0, count, None, None  # the audit of the references says so
    compared = 0
    difference: tuple[int, str] | None = None
    for run in _runs(zero):
        first, end = run[0].base_offset, run[-1].end_offset
        wanted = [one._replace(first=first, end=end) for one in batches if _overlaps(one, first, end)]
        try:
            zero_records = read_windows(storage, list(_windows(run)), _RECORD)
            if one.base_offset < one.settled:
                zero_records = _left_in(zero_records, wanted, one.settled)
            same, difference = first_difference(zero_records, Decoder(_RECORD).decode(wanted))
        except (StorageError, BadObject):
            continue
        compared += same
        if difference is not None:
            break
    at, problem = difference or (None, None)
    return one.object, compared, count - compared, at, problem


def _left_in(zero: Iterator[Any], batches: Sequence[BatchSlice], settled: int) -> Iterator[Any]:
    """The records of level zero without those that level one, below an offset, has not."""
    offsets = [found.column("offset").to_numpy() for found in Decoder(_OFFSETS).decode(batches)]
    left = np.concatenate([np.empty(0, np.int64), *offsets])
    for found in zero:
        at = found.column("offset").to_numpy()
        yield found.filter(pa.array((at >= settled) | np.isin(at, left)))


def _level_one(storage: Storage, name: str) -> list[BatchSlice]:
    data = storage.get(name)
    footer = parse(name, data)
    view = memoryview(data)
    return [
        BatchSlice(
            data=data,
            start=span.position,
            length=span.length,
            name=name,
            position=span.position,
            topic="",
            partition=footer.partition,
            base_offset=span.base_offset,
            end_offset=span.end_offset,
            leader_epoch=span.leader_epoch,
            first=span.base_offset,
            end=span.end_offset,
            holes=footer.holes,
        )
        for block in footer.blocks
        for span in batches_of(name, block, view[block.position : block.end], footer.holes)
    ]


def _overlaps(batch: BatchSlice, first: int, end: int) -> bool:
    return batch.base_offset < end and batch.end_offset > first


def _runs(rows: Sequence[Beside]) -> Iterator[list[Beside]]:
    """Batches that are still in storage, and follow on one another."""
    run: list[Beside] = []
    for row in rows:
        if run and (not row.there or row.base_offset != run[-1].end_offset):
            yield run
            run = []
        if row.there:
            run.append(row)
    if run:
        yield run


def _windows(run: Sequence[Beside]) -> Iterator[list[Slice]]:
    """A run of level zero's batches in parts that fit the memory of a task."""
    part: list[Beside] = []
    size = 0
    for row in run:
        assert row.length is not None, "a batch has a length"
        if part and size + row.length > WINDOW_BYTES:
            yield [_slice(part)]
            part, size = [], 0
        part.append(row)
        size += row.length
    yield [_slice(part)]


def _slice(rows: Sequence[Beside]) -> Slice:
    pieces = bytearray()
    inline = {}
    for row in rows:
        kind, epoch, identity = PieceKind.INLINE, 0, bytes(OBJECT_ID_BYTES)
        if row.inline is not None:
            inline[row.base_offset] = row.inline
        else:
            assert row.object is not None, "a batch lies in an object, or is inline"
            kind = PieceKind.BATCH
            epoch, identity = parse_object_name(row.object)
        pieces += PIECE.pack(
            kind,
            row.base_offset,
            row.end_offset,
            row.leader_epoch,
            0,
            row.position or 0,
            row.length,
            epoch,
            0,
            0,
            identity,
        )
    first, end = rows[0].base_offset, rows[-1].end_offset
    # Level one holds what was aborted as well.
    return Slice("", b"", 0, "a log", first, end, bytes(pieces), inline, b"")


def first_difference(zero: Iterator[Any], one: Iterator[Any]) -> tuple[int, tuple[int, str] | None]:
    """Number of equal records, and (offset, problem) of the first that differs."""
    same = 0
    left, right = next(zero, None), next(one, None)
    while True:
        left, right = _with_rows(left, zero), _with_rows(right, one)
        if left is None or right is None:
            break
        count = min(left.num_rows, right.num_rows)
        if not left.slice(0, count).equals(right.slice(0, count)):
            at, columns = _differing(left.slice(0, count), right.slice(0, count))
            said = f"level one differs from level zero in {', '.join(columns)}"
            return same + at, (left.column("offset")[at].as_py(), said)
        same += count
        left, right = left.slice(count), right.slice(count)
    if left is not None:
        return same, (left.column("offset")[0].as_py(), "level one ends before this record of level zero")
    if right is not None:
        return same, (right.column("offset")[0].as_py(), "level one has a record that level zero has not")
    return same, None


def _with_rows(batch: Any, more: Iterator[Any]) -> Any:
    """Pass over batches without rows; None if no other is left."""
    while batch is not None and not batch.num_rows:
        batch = next(more, None)
    return batch


def _differing(left: Any, right: Any) -> tuple[int, list[str]]:
    """Number of the first row that differs, and the columns in which it does."""
    firsts = {}
    for name in left.schema.names:
        pairs = zip(left.column(name).to_pylist(), right.column(name).to_pylist(), strict=True)
        for number, (mine, other) in enumerate(pairs):
            if mine != other:
                firsts[name] = number
                break
    at = min(firsts.values())
    return at, [name for name, number in firsts.items() if number == at]


def level_one_holds_level_zero(frames: Frames) -> Answer:
    compared = frames.comparisons
    findings = compared.where("problem is not null").select(
        "root", "group", "log_index", "base_offset", "object", "problem"
    )
    counts = compared.groupBy("root").agg(
        f.sum("compared").alias("records compared"),
        f.count("*").alias("level-one objects"),
        f.sum("not_kept").alias("records of which level zero is gone"),
    )
    return Answer(counts, "records compared", findings)
