"""The partitions of a cluster as they are at a restore point, whose documents are of one moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from strandline.snapshot.restore_point import RestorePoint, decode_point, points_prefix
from strandline.snapshot.spark.fetch import read_windows
from strandline.snapshot.spark.plan import pack
from strandline.snapshot.spark.source import SCHEMA, arrow_schema
from strandline.snapshot.spark.views import PartitionView
from strandline.snapshot.storage import Storage


def restore_points(storage: Storage, cluster: str) -> list[RestorePoint]:
    """Give a cluster's restore points, oldest first; raises StorageError, RestorePointDamaged."""
    return [decode_point(storage.get(name)) for name in storage.list(points_prefix(cluster))]


def records(spark: SparkSession, storage: Storage, views: Sequence[PartitionView], columns: Any) -> DataFrame:
    """Give some columns of the records of partitions, those of the source `strandline`."""
    schema = StructType([field for field in SCHEMA.fields if field.name in columns])
    packed = pack(views, spark.sparkContext.defaultParallelism, None, storage.window_bytes)
    kinds = arrow_schema(schema)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield from read_windows(storage, packed[task], kinds)

    return spark.range(0, len(packed), 1, len(packed)).mapInArrow(read, schema)
