"""Division of an audit's work into tasks, and the way back of a task's rows.

A task of Python costs Spark 30 to 60 ms however little it does, so names are packed into a few tasks a core
instead of one each. The driver lists; what a task has to read travels to it as plain values. The first task
of a session starts Python, for over a second of processor: where little is to be read the driver reads it,
and Spark has no work of Python at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from strandline.snapshot.spark.audits.small import FEW_ROWS
from strandline.snapshot.storage import Storage

T = TypeVar("T")

TASKS_PER_CORE = 2
ROWS_PER_BATCH = 8_192
HERE_BYTES = 16 * 1024 * 1024
"""Most bytes that the driver reads itself for one frame, one object at a time: less than half a second."""
HERE_SECONDS: Final = 10.0
"""Longest work of the driver for one frame. Tasks ask a slow store for many objects at once, and an object
may be far larger than what is still named in it."""
HERE_ROWS: Final = 20_000
"""Most rows that the driver makes of what it reads: an object of level one has one for each batch."""


class _NotLittle(Exception):
    """The driver has worked for too long, or made too many rows; tasks do all of it."""


class ClusterStorage(NamedTuple):
    """The store that a cluster uses, and the cluster's id in it."""

    storage: Storage
    cluster: str


def tasks(spark: SparkSession) -> int:
    """Number of tasks for the work."""
    return spark.sparkContext.defaultParallelism * TASKS_PER_CORE


def frame(
    spark: SparkSession,
    items: Sequence[T],
    work: Callable[[T], Iterable[tuple[Any, ...]]],
    schema: StructType,
    *,
    here: bool = False,
) -> DataFrame:
    """The rows that `work` gives for each item, computed in parallel; neighbours share a task.

    `here`: the driver does the work, at once, unless it has more than a few rows or takes too long.
    """
    if here or not items:
        try:
            rows = list(islice(_soon(row for item in items for row in work(item)), FEW_ROWS + 1))
        except _NotLittle:
            return frame(spark, items, work, schema)
        if len(rows) <= FEW_ROWS:
            return local_frame(spark, rows, schema)
    count = min(tasks(spark), len(items))
    packed = [
        items[number * len(items) // count : (number + 1) * len(items) // count] for number in range(count)
    ]

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield from record_batches((row for item in packed[task] for row in work(item)), schema)

    return spark.range(0, count, 1, count).mapInArrow(run, schema)


def local_frame(spark: SparkSession, rows: Sequence[tuple[Any, ...]], schema: StructType | str) -> DataFrame:
    """A few rows that the driver has: planned with what asks for them, without a task of Python."""
    known = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    assert isinstance(known, StructType), "columns were given"
    return _planned(spark, record_batches(rows, known), known)


def mapped_here(
    rows: DataFrame,
    order: Sequence[str],
    work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: StructType,
    *,
    reads: bool = True,
) -> DataFrame | None:
    """Rows as `mapInArrow` makes them of these in this order, by the driver; None if they are not few, or if
    the bytes that it `reads` for them (their column `length`) are not, or if it takes long or makes many."""
    given = rows.limit(FEW_ROWS + 1).toArrow()
    lengths = given.column("length").to_pylist() if reads else []
    if given.num_rows > FEW_ROWS or sum(length or 0 for length in lengths) > HERE_BYTES:
        return None
    given = given.sort_by([(name, "ascending") for name in order])
    try:
        made = [*_few_made(_soon(work(iter(given.to_batches()))))]
    except _NotLittle:
        return None
    return _planned(rows.sparkSession, made, schema)


def _soon(made: Iterable[T]) -> Iterator[T]:
    """The same, as long as they come in time; raises _NotLittle."""
    until = time.monotonic() + HERE_SECONDS
    for one in made:
        if time.monotonic() > until:
            raise _NotLittle
        yield one


def _few_made(made: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same, as long as they have few rows; raises _NotLittle."""
    rows = 0
    for batch in made:
        rows += batch.num_rows
        if rows > HERE_ROWS:
            raise _NotLittle
        yield batch


def mapped(
    rows: DataFrame,
    together: Sequence[str],
    order: Sequence[str],
    work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: StructType,
    small: bool,
) -> DataFrame:
    """Rows as `work` makes them of these, in this order, where those with equal columns lie `together`."""
    if small and (done := mapped_here(rows, order, work, schema)) is not None:
        return done
    parts = rows.repartition(tasks(rows.sparkSession), *together)
    return parts.sortWithinPartitions(*order).mapInArrow(work, schema)


def _planned(spark: SparkSession, batches: Iterable[pa.RecordBatch], schema: StructType) -> DataFrame:
    arrow = to_arrow_schema(schema)
    table = pa.Table.from_batches(batches, arrow)
    # Spark cannot take a column of lists without a chunk.
    return spark.createDataFrame(table if table.num_rows else arrow.empty_table(), schema)


def record_batches(rows: Iterable[tuple[Any, ...]], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Rows as Arrow batches of a Spark schema."""
    arrow = to_arrow_schema(schema)
    waiting: list[tuple[Any, ...]] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) == ROWS_PER_BATCH:
            yield _batch(waiting, arrow)
            waiting = []
    if waiting:
        yield _batch(waiting, arrow)


def _batch(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
