"""The partitions of a cluster as they are at a restore point, whose documents are of one moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from strandline.snapshot.document import SnapshotDocument
from strandline.snapshot.restore_point import RestorePoint, decode_point, points_prefix
from strandline.snapshot.spark.fetch import read_windows
from strandline.snapshot.spark.newest import PointCheckpoints
from strandline.snapshot.spark.plan import pack
from strandline.snapshot.spark.source import SCHEMA, arrow_schema
from strandline.snapshot.spark.views import PartitionView, newest_views, with_blocks
from strandline.snapshot.storage import Storage
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.partition.partition_state import snapshot_fields
from strandline.statemachine.partition.producers import Producers


def restore_points(storage: Storage, cluster: str) -> list[RestorePoint]:
    """Give a cluster's restore points, oldest first; raises StorageError, RestorePointDamaged."""
    return [decode_point(storage.get(name)) for name in storage.list(points_prefix(cluster))]


class AtPoint(NamedTuple):
    """A topic's partitions at a restore point."""

    views: Sequence[PartitionView]
    open: bool
    """Whether a transaction is open in one of them, perhaps one that is decided and lacks its marker."""


def topic_at(storage: Storage, checkpoints: PointCheckpoints, topic: Topic) -> AtPoint | None:
    """Give a topic's partitions; None where one has no document.

    Raises SourceError, StorageError, BadObject.
    """
    places = [(topic, number) for number in range(len(topic.partitions))]
    found = newest_views(checkpoints, places, committed=True)
    views = [view for view in found.values() if view is not None]
    if len(views) < len(places):
        return None
    open_ = [checkpoints.of_group(each.group, _has_open) for each in topic.partitions]
    return AtPoint(with_blocks(storage, views), any(open_))


def _has_open(name: str, document: SnapshotDocument) -> bool:
    producers = Producers.restored(snapshot_fields(document.state)["producers"])
    return producers.first_open_offset is not None


def records(spark: SparkSession, storage: Storage, views: Sequence[PartitionView], columns: Any) -> DataFrame:
    """Give some columns of the records of partitions, those of the source `strandline`."""
    schema = StructType([field for field in SCHEMA.fields if field.name in columns])
    packed = pack(views, spark.sparkContext.defaultParallelism, None)
    kinds = arrow_schema(schema)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield from read_windows(storage, packed[task], kinds)

    return spark.range(0, len(packed), 1, len(packed)).mapInArrow(read, schema)
