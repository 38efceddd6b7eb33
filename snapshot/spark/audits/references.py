"""One row for each batch or object that a partition's checkpoints refer to.

References come from the newest readable document of each group, first those to level one, then those to level
zero; to them come those that only an older checkpoint under a lease still has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgpack
import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from strandline.snapshot.extent_rows import EXTENT_ROWS, LEVEL_ONE_ROWS
from strandline.snapshot.names import SnapshotName, snapshot_name
from strandline.snapshot.spark.audits.batch_check import NOT_READ, check_batch
from strandline.snapshot.spark.audits.documents import (
    LEASE_LEFT_MS,
    REMOVAL_OFFSETS,
    Listing,
    by_group,
    is_little,
    read_document,
    removal_offsets,
)
from strandline.snapshot.spark.audits.work import ClusterStorage, frame
from strandline.snapshot.storage import Storage
from strandline.statemachine.object_names import object_name
from strandline.statemachine.partition.extent import INLINE_ROW
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name

REFERENCE = [
    StructField("root", IntegerType(), False),
    StructField("group", LongType(), False),
    StructField("log_index", LongType(), False),
    StructField("level", IntegerType(), False),
    StructField("number", LongType(), False),
    StructField("newest", BooleanType(), False),
    StructField("base_offset", LongType(), False),
    StructField("end_offset", LongType(), False),
    StructField("record_count", LongType(), False),
    StructField("extent_base", LongType(), False),
    StructField("extent_end", LongType(), False),
    StructField("extent_timestamp", LongType(), False),
    StructField("length", LongType(), False),
    StructField("epoch", LongType()),
    StructField("position", LongType()),
    StructField("object", StringType()),
    StructField("clean", LongType(), False),
    StructField("settled", LongType(), False),
]
CHECKED = [
    StructField("problem", StringType()),
    StructField("header_records", LongType()),
    StructField("producer_id", LongType()),
    StructField("producer_epoch", LongType()),
    StructField("base_sequence", LongType()),
    StructField("transactional", BooleanType()),
    StructField("committed", BooleanType()),
]
REFERENCE_SCHEMA = StructType(
    [
        *REFERENCE,
        StructField("index_bytes", LongType()),
        StructField("topic_id", BinaryType()),
        StructField("partition", LongType()),
        *CHECKED,
        StructField("claim", BinaryType()),
    ]
)
"""A row for each reference: a batch in level zero, one that is inline, or an object in level one. `claim` is
a digest of all that is said of an object's bytes, and null for what is in none."""
PLACES = 1 << 32
"""Batches that may have a place within one reference."""
_LEVEL_ONE_ENDS = slice(REMOVAL_OFFSETS.index("level_one_clean"), None)
_CLAIM_BYTES = 16
_CLAIMED = (
    "level", "object", "base_offset", "end_offset", "record_count", "extent_timestamp", "length", "position",
)  # fmt: skip
_ROW = [field.name for field in REFERENCE[2:]]
"""Columns from `log_index` on, up to `settled`."""


class GroupPlace(NamedTuple):
    """A partition's group, as the controller knows it."""

    topic_id: bytes
    topic: str
    partition: int
    compacted: bool
    """Whether the topic's `cleanup.policy` has `compact`."""


class Reference(NamedTuple):
    """A row of REFERENCE_SCHEMA."""

    root: int
    group: int
    log_index: int
    level: int
    number: int
    newest: bool
    base_offset: int
    end_offset: int
    record_count: int
    extent_base: int
    extent_end: int
    extent_timestamp: int
    length: int
    epoch: int | None
    position: int
    object: str
    clean: int
    settled: int
    index_bytes: int | None
    topic_id: bytes | None
    partition: int | None
    problem: None
    header_records: None
    producer_id: None
    producer_epoch: None
    base_sequence: None
    transactional: None
    committed: None
    claim: bytes


def reference_rows(
    spark: SparkSession,
    storages: Sequence[ClusterStorage],
    listings: Sequence[Listing],
    places: Sequence[Mapping[int, GroupPlace]],
) -> DataFrame:
    """Rows of REFERENCE_SCHEMA of all groups, also of those that the controller does not know."""
    stores = [storage.storage for storage in storages]
    items = []
    for root, found in enumerate(listings):
        for group, names in by_group(found.documents).items():
            place = places[root].get(group)
            where = (place.topic_id, place.partition) if place else (None, None)
            items.append((root, list(map(tuple, names)), where))

    def references(item: tuple[int, list[tuple[Any, ...]], tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        root, names, place = item
        group = names[0][1]
        for row, index_bytes, checked in _references(
            stores[root], [SnapshotName(*name) for name in names], *place
        ):
            claim = _claim(group, row, index_bytes, place)
            yield (root, group, *row, index_bytes, *place, *checked, claim)

    return frame(spark, items, references, REFERENCE_SCHEMA, here=is_little(listings))


_Said = tuple[tuple[Any, ...], int | None, tuple[Any, ...]]
"""A row from `log_index` on, the bytes of an index, and what is known of the batch already."""
_UNKNOWN = (None, *NOT_READ)


def _references(
    storage: Storage, names: list[SnapshotName], topic_id: bytes | None, partition: int | None
) -> Iterator[_Said]:
    """The references of one group's newest readable checkpoint, and those that only leased ones have."""
    newest = newest_state(storage, names)
    if newest is None:
        return
    index, state = newest
    seen: set[bytes] = set()
    first = state["next_offset"]
    sure = state["time"] + LEASE_LEFT_MS
    leased = [older for older, until, _ in state["checkpoints"] if until > sure and older < index]
    for at in (index, *sorted(leased, reverse=True)):
        those = [name for name in names if name.log_index == at]
        found = newest if at == index else newest_state(storage, those)
        if found is None:
            continue
        _, state_then = found
        objects = np.frombuffer(state_then["level_one"], LEVEL_ONE_ROWS)
        batches = np.frombuffer(state_then["extents"], EXTENT_ROWS)
        if at != index:
            batches = batches[batches["base_offset"] < first]
        if len(batches):
            first = int(batches["base_offset"][0])
        ends = removal_offsets(state_then)[_LEVEL_ONE_ENDS]
        is_newest = at == index
        for number, row in enumerate(objects.tolist()):
            extent = LevelOneExtent._make(row)
            if extent.unique not in seen:
                seen.add(extent.unique)
                # Without the controller's document nothing says what the object is called.
                name = None
                if topic_id is not None and partition is not None:
                    name = level_one_name(topic_id, partition, extent.term, extent.unique)
                yield _to_object(at, number, is_newest, extent, name, ends)
        inline = dict(state_then["inline"])
        for number, row in enumerate(batches.tolist(), len(objects)):
            yield _to_batch(at, number, is_newest, row, inline, ends)


def newest_state(storage: Storage, names: Sequence[SnapshotName]) -> tuple[int, dict[str, Any]] | None:
    """The state of the newest document that can be read, and its index; None when it is no partition's."""
    for name in sorted(names, key=lambda name: (-name.log_index, name.node)):
        try:
            document = read_document(storage.get(snapshot_name(*name)), name)
            state = msgpack.unpackb(document.state)
            if document.kind != "partition":
                return None
            np.frombuffer(state["extents"], EXTENT_ROWS)
            np.frombuffer(state["level_one"], LEVEL_ONE_ROWS)
        except Exception:
            continue  # the audit of the documents names it; another replica's will do here
        return document.index, state
    return None


def _to_object(
    index: int, number: int, newest: bool, extent: LevelOneExtent, name: str | None, ends: list[int]
) -> _Said:
    base, end, timestamp, size, index_bytes, _, _ = extent
    place = (index, 1, number * PLACES, newest)
    row = (*place, base, end, end - base, base, end, timestamp, size, None, 0, name, *ends)
    return row, index_bytes, _UNKNOWN


def _to_batch(
    index: int,
    number: int,
    newest: bool,
    row: tuple[Any, ...],
    inline: Mapping[int, bytes],
    ends: list[int],
) -> _Said:
    kind, base, count, _, timestamp, length, epoch, position, identity = row
    end = base + count
    extent = (index, 0, number * PLACES, newest, base, end, count, base, end, timestamp, length)
    if kind != INLINE_ROW:
        return (*extent, epoch, position, object_name(epoch, identity), *ends), None, _UNKNOWN
    where = f"inline at offset {base}"
    problem, header = check_batch(where, 0, length, count, timestamp, inline.get(base, b""))
    return (*extent, None, None, None, *ends), None, (problem, *(header or NOT_READ))


def _claim(
    group: int, row: tuple[Any, ...], index_bytes: int | None, place: tuple[bytes | None, int | None]
) -> bytes | None:
    """Digest of what is said of an object's bytes: all that a check of them goes by, beside the bytes."""
    fields = dict(zip(_ROW, row, strict=True))
    if fields["object"] is None:
        return None
    # What is clean matters within the object alone; a partition's offset moves on.
    clean = min(max(fields["clean"], fields["base_offset"]), fields["end_offset"])
    said = [fields[name] for name in _CLAIMED]
    claimed = [group, *said, clean if fields["level"] else None, index_bytes, *place]
    return hashlib.blake2b(msgpack.packb(claimed), digest_size=_CLAIM_BYTES).digest()
