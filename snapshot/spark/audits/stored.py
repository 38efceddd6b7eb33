"""One row for each object that lies in storage on either level, by what a listing says of it.

Names say all that collecting goes by: the epoch of a level-zero object, and of a level-one object its topic,
partition and the term it was written in. Nothing is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from strandline.snapshot.spark.audits.work import ClusterStorage, frame
from strandline.statemachine.object_names import PREFIX as LEVEL_ZERO_PREFIX
from strandline.statemachine.object_names import parse_object_name
from strandline.statemachine.partition.level_one import LEVEL_ONE_PREFIX, parse_level_one_name

SCHEMA = StructType(
    [
        StructField("root", IntegerType(), False),
        StructField("object", StringType(), False),
        StructField("version", StringType(), False),
        StructField("level", IntegerType()),
        StructField("epoch", LongType()),
        StructField("topic_id", StringType()),
        StructField("partition", LongType()),
        StructField("term", LongType()),
        StructField("unique", StringType()),
    ]
)
"""`version` is another for other bytes. `level` is null for a name that is of neither; ids are in hex."""


FEW_FOLDERS = 64
"""Most shards and topics that the driver lists itself, one after the other."""


def stored_objects(spark: SparkSession, storages: Sequence[ClusterStorage], small: bool) -> DataFrame:
    """A row of SCHEMA for each object; shards and topics are listed in parallel."""
    stores = [storage.storage for storage in storages]
    items = [
        (root, f"{prefix}{folder}/")
        for root, store in enumerate(stores)
        for prefix in (LEVEL_ZERO_PREFIX, LEVEL_ONE_PREFIX)
        for folder in store.folders(prefix)
    ]

    def work(item: tuple[int, str]) -> Iterator[tuple[Any, ...]]:
        root, prefix = item
        for name, version in stores[root].versions(prefix).items():
            yield (root, name, version, *_parsed(name))

    return frame(spark, items, work, SCHEMA, here=small and len(items) <= FEW_FOLDERS)


def _parsed(name: str) -> tuple[Any, ...]:
    try:
        if name.startswith(LEVEL_ZERO_PREFIX):
            return 0, parse_object_name(name).epoch, None, None, None, None
        topic_id, partition, term, unique = parse_level_one_name(name)
    except ValueError:
        return (None,) * (len(SCHEMA) - 3)
    return 1, None, topic_id.hex(), partition, term, unique.hex()
