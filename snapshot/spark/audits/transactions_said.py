"""Transactions of a partition by its state, and by its batches: two ways to the same rows.

A state knows which transactions are open, and which were aborted. The headers of its batches and markers,
read in the order of their offsets, give the same. Neither is derived from the other here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.types import BooleanType, IntegerType, LongType, StructField, StructType

from strandline.snapshot.names import SnapshotName
from strandline.snapshot.spark.audits.documents import Listing, is_little
from strandline.snapshot.spark.audits.references import newest_state
from strandline.snapshot.spark.audits.work import ClusterStorage, frame
from strandline.statemachine.partition.aborted_transactions import AbortedTransactions
from strandline.statemachine.partition.producers import Producers

SCHEMA = StructType(
    [
        StructField("root", IntegerType(), False),
        StructField("group", LongType(), False),
        StructField("log_index", LongType(), False),
        StructField("open", BooleanType(), False),
        StructField("producer_id", LongType(), False),
        StructField("first_offset", LongType(), False),
        StructField("last_offset", LongType()),
    ]
)
"""A row for each open and each aborted transaction of a partition's newest readable document; `last_offset`
is the marker's."""


def said_rows(
    spark: SparkSession, storages: Sequence[ClusterStorage], listings: Sequence[Listing]
) -> DataFrame:
    """The rows of SCHEMA of all partitions. A state that contradicts itself gives none: replay names it."""
    stores = [storage.storage for storage in storages]
    items: list[tuple[int, list[tuple[Any, ...]]]] = []
    for root, found in enumerate(listings):
        groups: dict[int, list[tuple[Any, ...]]] = {}
        for name in found.documents:
            groups.setdefault(name.group, []).append(tuple(name))
        items += [(root, names) for names in groups.values()]

    def work(item: tuple[int, list[tuple[Any, ...]]]) -> Iterator[tuple[Any, ...]]:
        root, names = item
        newest = newest_state(stores[root], [SnapshotName(*name) for name in names])
        if newest is None:
            return
        index, state = newest
        place = (root, names[0][1], index)
        try:
            producers = Producers.restored(state["producers"])
            aborted = AbortedTransactions.restored(state["aborted"])
        except Exception:
            return
        for one in producers:
            if one.open_first_offset >= 0:
                yield (*place, True, one.producer_id, one.open_first_offset, None)
        for row in aborted:
            yield (*place, False, row.producer_id, row.first_offset, row.last_offset)

    return frame(spark, items, work, SCHEMA, here=is_little(listings))


def told_rows(batches: DataFrame) -> DataFrame:
    """A row for each transaction that the batches of newest checkpoints tell of: root, group, log_index,
    producer_id, first_offset (null: a marker without a batch before it), last_offset and committed (null: no
    marker). Some may lie below the start offset: an object in level one stays whole while it holds that.

    Partitions with a batch that cannot be read are left out: it might be any producer's, or a marker.
    """
    of_group = Window.partitionBy("root", "group")
    earlier = (
        Window.partitionBy("root", "group", "producer_id")
        .orderBy("number")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    is_marker = f.col("committed").isNotNull()
    return (
        batches.where("newest")
        .withColumn("unread", f.max(f.col("header_records").isNull()).over(of_group))
        .where("not unread and (transactional or committed is not null)")
        .withColumn("nth", f.coalesce(f.sum(is_marker.cast("int")).over(earlier), f.lit(0)))
        .groupBy("root", "group", "producer_id", "nth")
        .agg(
            f.max("log_index").alias("log_index"),
            f.min(f.when(~is_marker, f.col("base_offset"))).alias("first_offset"),
            f.max(f.when(is_marker, f.col("base_offset"))).alias("last_offset"),
            f.max("committed").alias("committed"),
        )
    )
