"""Tables of compacted partitions: of each key the last record in every copy, a row for each key.

Level one and level zero are read as a read-committed consumer reads them, each object once for all
checkpoints that name it; local documents as they are. Keys are told by their hash alone. From then on nothing
is known of single records: a shuffle brings the records of each key together, and leaves one row of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from strandline.snapshot.aborted import Aborted
from strandline.snapshot.decode import COLUMNS, BatchSlice, Decoder
from strandline.snapshot.extent_rows import ABORTED_ROWS, EXTENT_ROWS, LEVEL_ONE_ROWS, aborted_rows
from strandline.snapshot.level_one_format import batches_of, parse
from strandline.snapshot.local_document import LocalDocumentDamaged, decode_local, key_hash
from strandline.snapshot.local_rows import rows_of
from strandline.snapshot.names import SnapshotName, local_name
from strandline.snapshot.object_frame import BadObject
from strandline.snapshot.spark.audits.copies import NEWEST, PAIR, GroupCopies, pairs
from strandline.snapshot.spark.audits.documents import Listing, by_group, is_little
from strandline.snapshot.spark.audits.key_problems import judged_keys, key_counts, key_findings, no_keys
from strandline.snapshot.spark.audits.references import newest_state
from strandline.snapshot.spark.audits.small import held
from strandline.snapshot.spark.audits.work import ClusterStorage, frame, local_frame, mapped, record_batches
from strandline.snapshot.storage import Storage, StorageError
from strandline.statemachine.object_names import object_name
from strandline.statemachine.partition.extent import INLINE_ROW
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name

UNREAD: Final = -1
"""In place of a copy's number: something of the partition could not be read."""

_VIEW = StructType(
    [
        StructField("copy", IntegerType(), False),
        StructField("first", LongType(), False),
        StructField("end", LongType(), False),
        StructField("clean", LongType(), False),
    ]
)
SOURCE_SCHEMA = StructType(
    [
        StructField("root", IntegerType(), False),
        StructField("group", LongType(), False),
        StructField("holder", StringType(), False),
        StructField("level", IntegerType(), False),
        StructField("base_offset", LongType(), False),
        StructField("end_offset", LongType(), False),
        StructField("position", LongType(), False),
        StructField("length", LongType(), False),
        StructField("inline", BinaryType()),
        StructField("aborted", BinaryType(), False),
        StructField("views", ArrayType(_VIEW), False),
    ]
)
"""A row for each object of level one and each batch of level zero that a checkpoint names which is looked at.
`holder` is the object; `aborted` are rows of ABORTED_ROWS, `views` the copies that have it."""
RECORD_SCHEMA = StructType(
    [
        StructField("root", IntegerType(), False),
        StructField("group", LongType(), False),
        StructField("copy", IntegerType(), False),
        StructField("key", BinaryType()),
        StructField("offset", LongType(), False),
        StructField("tombstone", BooleanType(), False),
        StructField("clean", BooleanType(), False),
    ]
)
"""A row for each record of each copy. `key` is its hash, and null only for a record without a key that lies
where level one is clean, which `clean` says, or if the copy is UNREAD."""
LOCAL_SCHEMA = StructType(
    [
        *RECORD_SCHEMA,
        StructField("error", StringType()),
        StructField("floor", LongType()),
        StructField("floor_markers", LongType()),
        StructField("log_end", LongType()),
        StructField("share_bits", IntegerType()),
    ]
)
"""A row for each row of a local document, and one without a key for the document itself."""
_RECORDS: Final = pa.schema([(name, COLUMNS[name]) for name in ("key", "value", "partition", "offset")])


class Tables(NamedTuple):
    """The tables of all compacted partitions, and all that comparing them gave."""

    copies: Sequence[GroupCopies]
    headers: Mapping[tuple[int, int], Mapping[int, Any]]
    """By root and group, then by copy: the row of each local document itself."""
    keys: DataFrame
    """See `_key_rows`."""
    findings: DataFrame
    """See `key_problems.key_findings`."""
    counts: DataFrame
    """See `key_problems.key_counts`."""
    cached: Sequence[DataFrame]
    """To be unpersisted."""


def read_tables(
    spark: SparkSession,
    storages: Sequence[ClusterStorage],
    listings: Sequence[Listing],
    copies: Sequence[GroupCopies],
    small: bool,
) -> Tables:
    """Read what the copies have, and compare them."""
    if not copies:
        return Tables(copies, {}, *no_keys(spark), ())
    local = held(_local_rows(spark, storages, copies, is_little(listings)), small)
    headers: dict[tuple[int, int], dict[int, Any]] = {(one.root, one.group): {} for one in copies}
    if any(one.local for one in copies):
        for row in local.where("key is null").collect():
            headers[row["root"], row["group"]][row["copy"]] = row
    compared = [pair for one in copies for pair in pairs(one, headers[one.root, one.group])]
    keys = held(_key_rows(spark, storages, listings, copies, local, small), small)
    judged = judged_keys(keys, local_frame(spark, compared, PAIR))
    findings, counts = held(key_findings(judged), small), held(key_counts(judged), small)
    return Tables(copies, headers, keys, findings, counts, (local, keys, findings, counts))


def _local_rows(
    spark: SparkSession, storages: Sequence[ClusterStorage], copies: Sequence[GroupCopies], here: bool
) -> DataFrame:
    """The rows of LOCAL_SCHEMA of all local documents beside the checkpoints that are looked at."""
    stores = [storage.storage for storage in storages]
    items = [(one.root, one.group, local.number, tuple(local.name)) for one in copies for local in one.local]

    def work(item: tuple[int, int, int, tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        root, group, copy, name = item
        place = (root, group, copy)
        try:
            document = decode_local(stores[root].get(local_name(*name)))
            if (document.cluster, document.group, document.log_index) != name[:3]:
                raise LocalDocumentDamaged("these are the bytes of another one")
        except (StorageError, LocalDocumentDamaged) as error:
            yield (*place, None, 0, False, False, f"{error}", None, None, None, None)
            return
        said = (document.floor, document.floor_markers, document.log_end, document.share_bits)
        yield (*place, None, 0, False, False, None, *said)
        for key, offset, tombstone in rows_of(document).tolist():
            yield (*place, key, offset, tombstone, False, None, None, None, None, None)

    return frame(spark, items, work, LOCAL_SCHEMA, here=here)


def _key_rows(
    spark: SparkSession,
    storages: Sequence[ClusterStorage],
    listings: Sequence[Listing],
    copies: Sequence[GroupCopies],
    local: DataFrame,
    small: bool,
) -> DataFrame:
    """A row for each key: `lasts`, its last (offset, tombstone) by copy; `times` that it lies where level one
    is clean, from the offset `first_clean` on. The row without a key is that of records without one."""
    records = _records(spark, storages, listings, copies, small)
    of_logs = local.where("key is not null").select(*RECORD_SCHEMA.names)
    last = f.max(f.struct("offset", "tombstone")).alias("last")
    return (
        records.union(of_logs)
        # Once for both steps: what has one key is together from here on.
        .repartition("root", "group", "key")
        .groupBy("root", "group", "key", "copy")
        .agg(
            last,
            f.count_if("clean").alias("times"),
            f.min(f.when(f.col("clean"), f.col("offset"))).alias("first_clean"),
        )
        .groupBy("root", "group", "key")
        .agg(
            f.map_from_entries(f.collect_list(f.struct("copy", "last"))).alias("lasts"),
            f.max("times").alias("times"),
            f.min("first_clean").alias("first_clean"),
        )
    )


def _records(
    spark: SparkSession,
    storages: Sequence[ClusterStorage],
    listings: Sequence[Listing],
    copies: Sequence[GroupCopies],
    small: bool,
) -> DataFrame:
    """The rows of RECORD_SCHEMA of level one and level zero."""
    stores = [storage.storage for storage in storages]
    documents = [by_group(listed.documents) for listed in listings]
    items = []
    for one in copies:
        indexes = {copy.log_index for copy in one.level_one}
        names = [tuple(name) for name in documents[one.root][one.group] if name.log_index in indexes]
        place = (one.place.topic_id, one.place.partition)
        items.append((one.root, one.group, place, names, [tuple(copy) for copy in one.level_one]))

    def sources(item: tuple[int, int, tuple[bytes, int], list[Any], list[Any]]) -> Iterator[tuple[Any, ...]]:
        root, group, place, names, level_one = item
        for row in _sources(stores[root], place, [SnapshotName(*name) for name in names], level_one):
            yield (root, group, *row)

    def read(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (_Source(**row) for batch in given for row in batch.to_pylist())
        for (root, holder), found in groupby(rows, key=lambda row: (row.root, row.holder)):
            yield from _read(stores[root], holder, list(found))

    found = frame(spark, items, sources, SOURCE_SCHEMA, here=is_little(listings))
    order = ("root", "holder", "position")
    return mapped(found, order[:2], order, read, RECORD_SCHEMA, small)


class _Source(NamedTuple):
    """A row of SOURCE_SCHEMA."""

    root: int
    group: int
    holder: str
    level: int
    base_offset: int
    end_offset: int
    position: int
    length: int
    inline: bytes | None
    aborted: bytes
    views: list[Mapping[str, int]]


def _sources(
    storage: Storage, place: tuple[bytes, int], names: list[SnapshotName], level_one: list[Any]
) -> Iterator[tuple[Any, ...]]:
    """The rows of SOURCE_SCHEMA from `holder` on, each with all copies that have it."""
    found: dict[Any, tuple[tuple[Any, ...], list[tuple[int, ...]]]] = {}
    aborted = [np.empty(0, ABORTED_ROWS)]
    for number, index, first, end, clean, _ in level_one:
        then = newest_state(storage, [name for name in names if name.log_index == index])
        if then is None:
            yield ("", 0, 0, 0, 0, 0, None, b"", [(UNREAD, 0, 0, 0)])
            return
        state = then[1]
        aborted.append(aborted_rows(state["aborted"]))
        view = (number, first, end, clean)
        for row in np.frombuffer(state["level_one"], LEVEL_ONE_ROWS).tolist():
            one = LevelOneExtent._make(row)
            name = level_one_name(*place, one.term, one.unique)
            source = (name, 1, one.base_offset, one.end_offset, 0, one.size, None)
            found.setdefault(one.unique, (source, []))[1].append(view)
        inline = dict(state["inline"])
        for row in np.frombuffer(state["extents"], EXTENT_ROWS).tolist():
            kind, base, count, _, _, length, epoch, position, identity = row
            if base < end:
                holder = (f"inline {place}", inline.get(base, b""))
                if kind != INLINE_ROW:
                    holder = (object_name(epoch, identity), None)
                source = (holder[0], 0, base, base + count, position, length, holder[1])
                found.setdefault(base, (source, []))[1].append(view)
    # A later state may have forgotten what an earlier one knows; what was aborted once stays so.
    all_aborted = np.unique(np.concatenate(aborted))
    for source, views in found.values():
        of_it = all_aborted["last_offset"] > source[2]
        of_it &= all_aborted["first_offset"] < source[3]
        yield (*source, all_aborted[of_it].tobytes(), views)


def _read(storage: Storage, holder: str, rows: list[_Source]) -> Iterator[pa.RecordBatch]:
    """The records of one object, for each partition and each copy that has them."""
    unread = {(row.root, row.group) for row in rows if row.views[0]["copy"] == UNREAD}
    try:
        if not unread:
            data = storage.get(holder) if any(row.inline is None for row in rows) else b""
            batches = (one for number, row in enumerate(rows) for one in _batches(holder, data, row, number))
            for found in Decoder(_RECORDS).decode(batches):
                yield from _of_copies(found, rows)
    except (StorageError, BadObject):
        unread = {(row.root, row.group) for row in rows}  # the audit of the references says so
    yield from record_batches([(*place, UNREAD, None, 0, False, False) for place in unread], RECORD_SCHEMA)


def _batches(holder: str, data: bytes, row: _Source, number: int) -> Iterator[BatchSlice]:
    """The batches of a source; in place of the partition is the source's number."""
    bounds = (min(view["first"] for view in row.views), max(view["end"] for view in row.views))
    aborted = Aborted(row.aborted)
    if row.level == 0:
        content, start = (data, row.position) if row.inline is None else (row.inline, 0)
        yield BatchSlice(
            content, start, row.length, holder, row.position, "", number, row.base_offset, row.end_offset, 0,
            *bounds, aborted,
        )  # fmt: skip
        return
    footer = parse(holder, data)
    view = memoryview(data)
    for block in footer.blocks:
        for span in batches_of(holder, block, view[block.position : block.end], footer.holes):
            yield BatchSlice(
                data, span.position, span.length, holder, span.position, "", number, span.base_offset,
                span.end_offset, 0, *bounds, aborted, footer.holes,
            )  # fmt: skip


_RECORD_ARROW: Final = to_arrow_schema(RECORD_SCHEMA)


def _of_copies(found: Any, rows: Sequence[_Source]) -> Iterator[pa.RecordBatch]:
    """Decoded records as rows of RECORD_SCHEMA, once for each copy."""
    keys = [None if key is None else key_hash(key) for key in found.column("key").to_pylist()]
    hashes = pa.array(keys, pa.binary())
    offsets = found.column("offset").to_numpy()
    tombstones = found.column("value").is_null()
    has_key = hashes.is_valid().to_numpy(zero_copy_only=False)
    sources = found.column("partition").to_numpy()
    for number in np.unique(sources).tolist():
        row = rows[number]
        for view in row.views:
            clean = (offsets < view["clean"]) & (row.level == 1 and view["copy"] == NEWEST)
            mask = (sources == number) & (offsets >= view["first"]) & (offsets < view["end"])
            at = np.flatnonzero(mask & (has_key | clean))
            if at.size:
                chosen = pa.array(at)
                columns = [
                    pa.repeat(pa.scalar(row.root, pa.int32()), at.size),
                    pa.repeat(pa.scalar(row.group, pa.int64()), at.size),
                    pa.repeat(pa.scalar(view["copy"], pa.int32()), at.size),
                    hashes.take(chosen),
                    pa.array(offsets[at]),
                    tombstones.take(chosen),
                    pa.array(clean[at]),
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=_RECORD_ARROW)
