"""Division of an audit's work into tasks, and the way back of a task's rows.

A task of Python costs Spark 30 to 60 ms however little it does, so names are packed into a few tasks a core
instead of one each. The driver lists; what a task has to read travels to it as plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from strandline.snapshot.storage import Storage

T = TypeVar("T")

TASKS_PER_CORE = 2
ROWS_PER_BATCH = 8_192


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
) -> DataFrame:
    """The rows that `work` gives for each item, computed in parallel; neighbours share a task."""
    if not items:
        return spark.createDataFrame(to_arrow_schema(schema).empty_table(), schema)  # costs no job
    count = min(tasks(spark), len(items))
    packed = [
        items[number * len(items) // count : (number + 1) * len(items) // count] for number in range(count)
    ]

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield from record_batches((row for item in packed[task] for row in work(item)), schema)

    return spark.range(0, count, 1, count).mapInArrow(run, schema)


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
