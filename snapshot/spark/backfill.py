"""Batches up to a cut, and streams that go on from there: all records once, without a gap between the two.

A cut is an offset of each partition. It is in the form of the options `startingOffsets` and `endingOffsets`,
and of JSON, so it can be kept beside what was computed up to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from strandline.snapshot.spark.options import parse
from strandline.snapshot.spark.views import partition_views
from strandline.snapshot.storage import open_storage

Cut = dict[str, dict[str, int]]
"""By topic and partition, the offset behind the last record."""


def cut(url: str, topics: Sequence[str], options: Mapping[str, str] | None = None) -> Cut:
    """Give the ends of some topics as of now: of what nodes have published.

    With `{"checkpoint": NUMBER}` among the `options`, which are those of the data source, as of that
    checkpoint: then no transaction is in one partition and missing from another. Raises SourceError.
    """
    read = parse({**(options or {}), "url": url, "topic": ",".join(topics)})
    found: Cut = {topic: {} for topic in topics}
    for view in partition_views(open_storage(read.url, read.storage), read):
        found[view.topic][str(view.number)] = view.end
    return found


def backfill(
    spark: SparkSession,
    url: str,
    until: Mapping[str, Mapping[str, int]],
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Read the partitions of a cut up to it, and no others; columns and `options` are the data source's.

    Each action reads again, and the same records as long as none are deleted or compacted away.
    """
    partitions = {topic: [int(number) for number in ends] for topic, ends in until.items()}
    ends = {topic: dict(ends) for topic, ends in until.items()}
    return (
        spark.read.format("strandline")
        .options(**(options or {}))
        .options(url=url, assign=json.dumps(partitions), endingOffsets=json.dumps(ends))
        .load()
    )
