"""One row for each published document: what it says of itself, and the numbers that audits compare.

Documents are read once, whatever the number of audits; what is large in them (extents, producers) stays out.
A document that cannot be read is a row too, with what is wrong with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgpack
import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from snapshot.document import SnapshotDamaged, SnapshotDocument, SnapshotTooNew, decode
from snapshot.extent_rows import EXTENT_ROWS
from snapshot.names import LogName, SnapshotName, cluster_prefix, parse_name, snapshot_name
from snapshot.spark.audits.work import ClusterStorage, frame
from snapshot.storage import ObjectMissing, Storage, StorageError
from statemachine.extents import OBJECT_ROW
from statemachine.partition import max_collectable_epoch

SCALARS = (
    "time",
    "creation_epoch",
    "previous_applied_epoch",
    "max_applied_epoch",
    "max_applied_epoch_index",
    "start_offset",
    "next_offset",
    "cluster_epoch",
)
"""Fields of a partition's or the controller's state that have a column; null where the state has none."""

SCHEMA = StructType(
    [
        StructField("root", IntegerType(), False),
        StructField("group", LongType(), False),
        StructField("log_index", LongType(), False),
        StructField("node", IntegerType(), False),
        StructField("name", StringType(), False),
        StructField("error", StringType()),
        StructField("digest", StringType()),
        StructField("kind", StringType()),
        StructField("term", LongType()),
        StructField("voters", ArrayType(LongType())),
        StructField("state_fields", ArrayType(StringType())),
        StructField("state_term", LongType()),
        *(StructField(name, LongType()) for name in SCALARS),
        StructField("max_collectable", LongType()),
        StructField("extents", LongType()),
        StructField("retained", ArrayType(LongType())),
    ]
)


class Listing(NamedTuple):
    """What one cluster has published, by name."""

    documents: list[SnapshotName]
    logs: list[LogName]
    others: int
    """Names below the cluster's prefix that are neither."""


def listing(storage: ClusterStorage) -> Listing:
    """List a cluster's checkpoints; raises what the storage raises, and ValueError for a bad cluster id."""
    documents: list[SnapshotName] = []
    logs: list[LogName] = []
    others = 0
    for name in storage.storage.list(cluster_prefix(storage.cluster)):
        try:
            parsed = parse_name(name)
        except ValueError:
            others += 1
            continue
        if isinstance(parsed, SnapshotName):
            documents.append(parsed)
        else:
            logs.append(parsed)
    return Listing(documents, logs, others)


def read_document(data: bytes, name: SnapshotName) -> SnapshotDocument:
    """Decode a document and check that it is the one its name promises; raises SnapshotDamaged or TooNew."""
    document = decode(data)
    said = (document.cluster, document.group, document.index)
    if said != (name.cluster, name.group, name.log_index):
        raise SnapshotDamaged(f"these are the bytes of group {said[1]}, entry {said[2]}, cluster {said[0]}")
    return document


def document_rows(
    spark: SparkSession, storages: Sequence[ClusterStorage], listings: Sequence[Listing]
) -> DataFrame:
    """A row of SCHEMA for every document of every storage; `root` is the storage's place in the list.

    A checkpoint of which something was deleted since it was listed is left out, unless it is its group's
    newest: the cluster goes on meanwhile, and removes old ones.
    """
    stores = [storage.storage for storage in storages]
    items = []
    for root, found in enumerate(listings):
        newest: dict[int, int] = {}
        for name in found.documents:
            newest[name.group] = max(newest.get(name.group, 0), name.log_index)
        for (group, index), names in groupby(sorted(found.documents), key=lambda name: name[1:3]):
            items.append((root, index == newest[group], [*map(tuple, names)]))

    def work(item: tuple[int, bool, list[tuple[Any, ...]]]) -> Iterator[tuple[Any, ...]]:
        root, is_newest, names = item
        rows = []
        for name in names:
            row, gone = _row(stores[root], SnapshotName(*name))
            if gone and not is_newest:
                return
            rows.append((root, *row))
        yield from rows

    return frame(spark, items, work, SCHEMA)


def _row(storage: Storage, name: SnapshotName) -> tuple[tuple[Any, ...], bool]:
    """What SCHEMA has of a document, and whether there is no such object any more."""
    key = snapshot_name(*name)
    identity = (name.group, name.log_index, name.node, key)
    nothing = (None,) * (len(SCHEMA) - len(identity) - 3)
    try:
        data = storage.get(key)
    except StorageError as error:
        gone = isinstance(error, ObjectMissing)
        return (*identity, f"it cannot be read: {error}", None, *nothing), gone
    digest = hashlib.sha256(data).hexdigest()
    try:
        document = read_document(data, name)
        state = msgpack.unpackb(document.state)
        collectable, extents = _partition_figures(state) if document.kind == "partition" else (None, None)
        said = (
            document.kind,
            document.term,
            list(document.voters),
            [str(field) for field in state],
            state["term"],
            *(state.get(name) for name in SCALARS),
            collectable,
            extents,
            [index for index, *_ in state["checkpoints"]] if "checkpoints" in state else None,
        )
    except (SnapshotDamaged, SnapshotTooNew) as error:
        return (*identity, str(error), digest, *nothing), False
    except Exception as error:
        return (*identity, f"its state cannot be read: {error!r}", digest, *nothing), False
    return (*identity, None, digest, *said), False


def _partition_figures(state: dict[str, Any]) -> tuple[int, int]:
    """The highest epoch a partition lets be collected, as its state machine counts it; and its extents."""
    rows = np.frombuffer(state["extents"], EXTENT_ROWS)
    named = rows["epoch"][rows["kind"] == OBJECT_ROW]
    leased = [
        oldest for _, until, oldest in state["checkpoints"] if oldest is not None and until > state["time"]
    ]
    oldest = int(named.min()) if len(named) else None
    return max_collectable_epoch(state["previous_applied_epoch"], oldest, *leased), len(rows)
