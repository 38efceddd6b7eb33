"""One row for each published document: what it says of itself, and the numbers that audits compare.

Documents are read once, whatever the number of audits; what is large in them (extents, producers) stays out.
A document that cannot be read is a row too, with what is wrong with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeVar

import msgpack
import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from strandline.snapshot.document import SnapshotDamaged, SnapshotDocument, SnapshotTooNew, decode
from strandline.snapshot.extent_rows import EXTENT_ROWS
from strandline.snapshot.names import (
    LocalName,
    LogName,
    SnapshotName,
    cluster_prefix,
    parse_name,
    snapshot_name,
)
from strandline.snapshot.spark.audits.work import ClusterStorage, frame
from strandline.snapshot.storage import ObjectMissing, Storage, StorageError
from strandline.statemachine.controller import controller_snapshot
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_formats import SNAPSHOT_FORMAT
from strandline.statemachine.controller.controller_state import ControllerState
from strandline.statemachine.groups.offsets import Offsets
from strandline.statemachine.internal_topics import GROUPS_KIND, INTERNAL_TOPICS
from strandline.statemachine.partition.checkpoints import RetainedCheckpoint
from strandline.statemachine.partition.collectable_epoch import max_collectable_epoch
from strandline.statemachine.partition.extent import OBJECT_ROW
from strandline.statemachine.partition.level_one import RemovedObject
from strandline.statemachine.partition.producers import Producers
from strandline.statemachine.partition.watermarks import last_stable_offset

SCALARS = (
    "time",
    "creation_epoch",
    "previous_applied_epoch",
    "max_applied_epoch",
    "max_applied_epoch_index",
    "start_offset",
    "next_offset",
    "last_reconciled_log_index",
    "cluster_epoch",
    "next_group",
)
"""Fields of a partition's or the controller's state that have a column; null where the state has none."""

REMOVAL_OFFSETS = ("mtro", "mxro", "ripe_tombstones", "ripe_markers", "level_one_clean", "level_one_settled")
"""Columns of a partition's offsets of removal; see `strandline.statemachine.partition.removal`."""

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
        StructField("retained", ArrayType(LongType())),
        # Of a partition.
        StructField("last_reconciled", LongType()),
        StructField("last_stable", LongType()),
        StructField("max_collectable", LongType()),
        StructField("oldest_named", LongType()),
        StructField("removed", ArrayType(StringType())),
        StructField("removable", ArrayType(StringType())),
        StructField("leased", ArrayType(LongType())),
        *(StructField(name, LongType()) for name in REMOVAL_OFFSETS),
        # Of the controller.
        StructField("collection_paused", BooleanType()),
        StructField(
            "partitions",
            ArrayType(
                StructType([StructField("group", LongType()), StructField("creation_epoch", LongType())])
            ),
        ),
        StructField("deleted_topics", ArrayType(StringType())),
        # Of a coordinator of groups.
        StructField("offset_entries", ArrayType(LongType())),
    ]
)
"""`max_collectable` is M(p), `oldest_named` the lowest level-zero epoch that the state's extents or a leased
checkpoint names. `removed` are the unique parts of level-one objects that are no longer named and not deleted
for certain, `removable` those of them that no leased checkpoint can name, `deleted_topics` ids; in hex.
`leased` are the log indexes of the checkpoints whose lease lasts for LEASE_LEFT_MS more, and its own.
`partitions` are those that have records: coordinators name no object, so they hold nothing back.
`offset_entries` are the log indexes of the entries that brought the offsets, committed and pending ones."""
LEASE_LEFT_MS: Final = 600_000
"""Of older checkpoints those count as leased whose lease lasts this long beyond the newest one: it must not
end while an audit is at work."""
_KIND_COLUMNS = 11 + len(REMOVAL_OFFSETS)
"""The columns from `last_reconciled` on."""


Name = TypeVar("Name", SnapshotName, LogName, LocalName)


LITTLE_BYTES = 2 * 1024 * 1024
"""Documents and logs together: at most about a second of one processor for decoding and replaying them."""


class Listing(NamedTuple):
    """Published objects of one cluster, by name."""

    documents: list[SnapshotName]
    logs: list[LogName]
    locals: list[LocalName]
    others: int
    """Names below the cluster's prefix that are none of these."""
    bytes: int
    """Of all of them together."""


def listing(storage: ClusterStorage) -> Listing:
    """List a cluster's checkpoints; raises what the storage raises, and ValueError for a bad cluster id."""
    documents: list[SnapshotName] = []
    logs: list[LogName] = []
    local_documents: list[LocalName] = []
    others = 0
    sizes = storage.storage.sizes(cluster_prefix(storage.cluster))
    for name in sorted(sizes):
        try:
            parsed = parse_name(name)
        except ValueError:
            others += 1
            continue
        if isinstance(parsed, SnapshotName):
            documents.append(parsed)
        elif isinstance(parsed, LocalName):
            local_documents.append(parsed)
        else:
            logs.append(parsed)
    return Listing(documents, logs, local_documents, others, sum(sizes.values()))


def is_little(listings: Sequence[Listing]) -> bool:
    """Whether the driver reads itself what is published: no work of Python is left for Spark then."""
    return sum(found.bytes for found in listings) <= LITTLE_BYTES


def by_group(names: Iterable[Name]) -> dict[int, list[Name]]:
    """The names of each group, in their order: what asks for one group's must not look at all."""
    groups: dict[int, list[Name]] = {}
    for name in names:
        groups.setdefault(name.group, []).append(name)
    return groups


def read_document(data: bytes, name: SnapshotName) -> SnapshotDocument:
    """Decode a document and check that it is the one its name promises; raises SnapshotDamaged or TooNew."""
    document = decode(data)
    said = (document.cluster, document.group, document.index)
    if said != (name.cluster, name.group, name.log_index):
        raise SnapshotDamaged(f"these are the bytes of group {said[1]}, entry {said[2]}, cluster {said[0]}")
    return document


def of_this_release(document: SnapshotDocument) -> SnapshotDocument:
    """The document as this release writes it; the same object if it is that.

    Checkpoints of an earlier format lie beside newer ones after an upgrade, and of the same entry while nodes
    are upgraded one by one. Only the controller reads earlier formats. Raises ValueError for one that it does
    not read.
    """
    if document.kind != Controller.kind:
        return document
    try:
        if msgpack.unpackb(document.state)["format"] >= SNAPSHOT_FORMAT:
            return document
        machine = Controller(lambda *_: None)
        machine.restore(document.state)
    except Exception as error:
        raise ValueError(f"its state cannot be read: {error!r}") from error
    return replace(document, state=machine.snapshot())


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
            row, gone = document_row(stores[root], SnapshotName(*name))
            if gone and not is_newest:
                return
            rows.append((root, *row))
        yield from rows

    return frame(spark, items, work, SCHEMA, here=is_little(listings))


def document_row(storage: Storage, name: SnapshotName) -> tuple[tuple[Any, ...], bool]:
    """The row of SCHEMA for a document, and whether the object is gone."""
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
        stored = read_document(data, name)
        document = of_this_release(stored)
        if document is not stored:
            digest = hashlib.sha256(document.encode()).hexdigest()
        state = msgpack.unpackb(document.state)
        said = (
            document.kind,
            document.term,
            list(document.voters),
            [str(field) for field in state],
            state["term"],
            *(state.get(name) for name in SCALARS),
            [index for index, *_ in state["checkpoints"]] if "checkpoints" in state else None,
            *_of_kind(document, state),
        )
    except (SnapshotDamaged, SnapshotTooNew) as error:
        return (*identity, str(error), digest, *nothing), False
    except Exception as error:
        return (*identity, f"its state cannot be read: {error!r}", digest, *nothing), False
    return (*identity, None, digest, *said), False


def _of_kind(document: SnapshotDocument, state: dict[str, Any]) -> tuple[Any, ...]:
    """The columns that only a partition's document has, and those that only the controller's has."""
    if document.kind == "partition":
        return (*_of_partition(document.index, state), None, None, None, None)
    if document.kind == "controller":
        controller = _of_controller(controller_snapshot.load(document.state))
        return (*(None,) * (_KIND_COLUMNS - len(controller) - 1), *controller, None)
    if document.kind == GROUPS_KIND:
        return (*(None,) * (_KIND_COLUMNS - 1), _of_groups(state))
    return (None,) * _KIND_COLUMNS


def _of_partition(index: int, state: dict[str, Any]) -> tuple[Any, ...]:
    rows = np.frombuffer(state["extents"], EXTENT_ROWS)
    first = int(rows["base_offset"][0]) if len(rows) else state["next_offset"]
    epochs = rows["epoch"][rows["kind"] == OBJECT_ROW]
    named = [int(epochs.min())] if len(epochs) else []
    leased = [
        one for one in map(RetainedCheckpoint._make, state["checkpoints"]) if one.lease_until > state["time"]
    ]
    lasting = [
        one for one in leased if one.log_index == index or one.lease_until > state["time"] + LEASE_LEFT_MS
    ]
    held, held_for_long = (
        [*named, *(one.oldest_epoch for one in some if one.oldest_epoch is not None)]
        for some in (leased, lasting)
    )
    removed = [RemovedObject(*row) for row in state["removed"]]
    oldest_leased = min((one.log_index for one in leased), default=None)
    return (
        first - 1,
        last_stable_offset(
            state["start_offset"],
            state["next_offset"],
            Producers.restored(state["producers"]).first_open_offset,
        ),
        max_collectable_epoch(state["previous_applied_epoch"], *held),
        min(held_for_long, default=None),
        [one.unique.hex() for one in removed],
        [one.unique.hex() for one in removed if oldest_leased is None or one.log_index < oldest_leased],
        [one.log_index for one in lasting],
        *removal_offsets(state),
    )


def removal_offsets(state: dict[str, Any]) -> list[int]:
    """A partition's REMOVAL_OFFSETS. A state of a release without them is clean up to its start offset."""
    before = {"level_one_clean": state["start_offset"], "level_one_settled": state["start_offset"]}
    offsets = state.get("removals", before)
    return [offsets.get(name, 0) for name in REMOVAL_OFFSETS]


def _of_groups(state: dict[str, Any]) -> list[int]:
    entries: set[int] = set()
    for _, _, _, fields in state["groups"]:
        offsets = Offsets.loaded(fields)
        for committed in offsets.committed.values():
            entries.update(one.log_index for one in committed.values())
        for pending in offsets.pending.values():
            entries.update(one.log_index for one in pending.values())
    return sorted(entries)


def _of_controller(state: ControllerState) -> tuple[Any, ...]:
    partitions = [
        {"group": partition.group, "creation_epoch": partition.creation_epoch}
        for topic in state.topics.values()
        if topic.name not in INTERNAL_TOPICS
        for partition in topic.partitions
    ]
    return state.collection_paused, partitions, [topic_id.hex() for topic_id in state.deleted]
