"""Proofs: facts about objects that an audit leaves in storage, so that the next one need not read them.

An object is never written again under its name, and what an audit finds in one follows from its bytes and
what is claimed of it. So a proof has, of each object that was read and was right: its version as the store
listed it before it was read, the claim, and the batches as they were found. The next audit takes the batches
of the same claim about the same version, and reads all else. What it takes is what reading would give, so
each audit still asks about all batches. See docs/audits.md, "Proofs".
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from strandline.snapshot.names import CLUSTER_NAME
from strandline.snapshot.spark.audits.batches import KNOWN_SCHEMA, SAME
from strandline.snapshot.spark.audits.checks_version import checks_version
from strandline.snapshot.spark.audits.small import FEW_ROWS
from strandline.snapshot.spark.audits.work import ClusterStorage, mapped_here, tasks
from strandline.snapshot.spark.export.target import Target, open_target
from strandline.snapshot.storage import Storage, StorageError

PREFIX: Final = "audits"
FORMAT: Final = 1
SPOT_SHARE = 64
"""Each audit reads two shares of so many again. One has its turn, which goes on with each proof: any object
within so many. The other is drawn, for audits that can publish none: their turn stays the same."""
KEPT: Final = 2
"""Newest proofs that stay: an audit that is at work may read the one before the newest."""
FILE_ROWS: Final = 250_000
"""Rows after which a file ends, at the next claim: some 10 MB."""
_NUMBER = re.compile(rf"audits/{CLUSTER_NAME}/([0-9]{{8}})\.json")
_FILE = re.compile(rf"audits/{CLUSTER_NAME}/([0-9]{{8}})-[0-9a-f]{{32}}\.parquet")
_WRITTEN = StructType(
    [
        StructField("root", IntegerType(), False),
        StructField("name", StringType()),
        StructField("sha256", StringType()),
        StructField("rows", LongType()),
        StructField("refused", StringType()),
    ]
)


class ProofFile(NamedTuple):
    """A file of a proof. All batches of one claim are in one file."""

    name: str
    sha256: str
    rows: int


class Proof(NamedTuple):
    """The newest proof of a cluster that this release's checks have made."""

    number: int
    files: tuple[ProofFile, ...]


class Published(NamedTuple):
    """The end of an attempt to publish a proof: its number, or the reason why there is none."""

    number: int | None
    refused: str | None
    left: str | None = None
    """The reason why files of older proofs are still there."""


def newest_number(storage: ClusterStorage) -> int:
    """The number of the newest proof, whatever made it; 0 if there is none. Raises StorageError."""
    found = map(_NUMBER.fullmatch, storage.storage.list(f"{PREFIX}/{storage.cluster}/"))
    return max((int(match[1]) for match in found if match), default=0)


def newest_proof(storage: ClusterStorage) -> Proof | None:
    """The newest proof, if it can be read and is of these checks: without it everything is read."""
    checks = checks_version()
    if checks is None:
        return None
    try:
        number = newest_number(storage)
        if not number:
            return None
        said = json.loads(storage.storage.get(_manifest(storage.cluster, number)))
        if (said["format"], said["checks"], said["cluster"]) != (FORMAT, checks, storage.cluster):
            return None
        return Proof(number, tuple(ProofFile(**file) for file in said["files"]))
    except (ValueError, KeyError, TypeError):
        return None  # damaged
    except StorageError:
        return None  # an account may read the cluster's objects and not the proofs


def known_rows(
    spark: SparkSession, storages: Sequence[ClusterStorage], proofs: Sequence[Proof | None]
) -> DataFrame | None:
    """Rows of KNOWN_SCHEMA: what proofs say, without the objects whose turn it is to be read again.

    A file that is not what its proof says is left out, and what it says is read. None if there are no files.
    """
    stores = [storage.storage for storage in storages]
    items = [
        (root, proof.number, file)
        for root, proof in enumerate(proofs)
        if proof is not None
        for file in proof.files
    ]
    if not items:
        return None
    columns = StructType([*KNOWN_SCHEMA.fields, StructField("proof", LongType(), False)])
    arrow = to_arrow_schema(columns)

    def read(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in given:
            for place in batch.column(0).to_pylist():
                root, number, file = items[place]
                if (table := _read(stores[root], file)) is not None:
                    alike = [pa.repeat(pa.scalar(root, pa.int32()), len(table))]
                    last = [pa.repeat(pa.scalar(number, pa.int64()), len(table))]
                    yield from pa.Table.from_arrays(
                        [*alike, *table.columns, *last], schema=arrow
                    ).to_batches()

    share = f.pmod(f.xxhash64("object"), f.lit(SPOT_SHARE))
    again = (share == f.pmod("proof", f.lit(SPOT_SHARE))) | (share == f.lit(_drawn_share()))
    numbers = spark.range(0, len(items), 1, min(tasks(spark), len(items)))
    few = sum(file.rows for _, _, file in items) <= FEW_ROWS
    if few and (here := mapped_here(numbers, ["id"], read, columns, reads=False)) is not None:
        return here.where(~again).drop("proof")
    rows = numbers.mapInArrow(read, columns).where(~again).drop("proof")
    # They say both what is taken and what is left to read. Read twice, a file that goes in between would be
    # neither: a checkpoint of Spark's is never worked out again.
    return rows.localCheckpoint()


def _drawn_share() -> int:
    return random.randrange(SPOT_SHARE)


def _read(storage: Storage, file: ProofFile) -> pa.Table | None:
    try:
        data = storage.get(file.name)
        if hashlib.sha256(data).hexdigest() != file.sha256:
            return None
        return pq.read_table(io.BytesIO(data), schema=_file_schema())
    except (StorageError, pa.ArrowInvalid):
        return None


def _file_schema() -> pa.Schema:
    """KNOWN_SCHEMA without the first column, `root`."""
    return pa.schema(list(to_arrow_schema(KNOWN_SCHEMA))[1:])


def publish(
    spark: SparkSession,
    storages: Sequence[ClusterStorage],
    passed: Sequence[int],
    found: DataFrame,
    audited: Mapping[int, Mapping[str, Any]],
    small: bool = False,
) -> dict[int, Published]:
    """Publish what was found in the storages of these numbers, whose audits have all passed.

    `found` are rows of KNOWN_SCHEMA; `audited` says of each storage what was audited, for people. A proof is
    there when its manifest is, which is created last and never replaced. Files of what came to nothing are
    removed at once, or those of an audit that was killed by a later one.
    """
    if checks_version() is None:
        return dict.fromkeys(passed, Published(None, "Python has no source of its checks here: install it"))
    numbers: dict[int, int] = {}
    ended: dict[int, Published] = {}
    for root in passed:
        try:
            numbers[root] = newest_number(storages[root]) + 1
        except StorageError as error:
            ended[root] = Published(None, str(error))
    if not numbers:
        return ended
    written: dict[int, list[Any]] = {root: [] for root in numbers}
    for row in _written(spark, storages, numbers, found, small).collect():
        written[row["root"]].append(row)
    for root, number in numbers.items():
        refused = next((row["refused"] for row in written[root] if row["refused"]), None)
        files = [(row["name"], row["sha256"], row["rows"]) for row in written[root] if row["name"]]
        if refused is None:
            refused = _finish(storages[root], number, sorted(files), audited[root])
        names = {name for name, _, _ in files}
        if refused is None:
            ended[root] = Published(number, None, _remove_older(storages[root], number, names))
        else:
            # A disk that is full stays so with them, and the next attempt adds its own.
            left = _remove(storages[root], names) if names else None
            ended[root] = Published(None, f"{refused}; its files stay: {left}" if left else refused)
    return ended


def _finish(
    storage: ClusterStorage, number: int, files: Sequence[tuple[str, str, int]], audited: Mapping[str, Any]
) -> str | None:
    """Create the manifest; returns why there is none."""
    said = {
        "format": FORMAT,
        "checks": checks_version(),
        "cluster": storage.cluster,
        "audited": audited,
        "files": [ProofFile(*file)._asdict() for file in files],
    }
    try:
        target = _target(storage)
        name, data = _manifest(storage.cluster, number), json.dumps(said).encode()
        # It may be there by this very put: a store's client asks again when an answer was lost.
        if not target.create(_below(name), data) and storage.storage.get(name) != data:
            return f"another audit published proof {number} meanwhile"
    except StorageError as error:
        return str(error)
    return None


def _remove_older(storage: ClusterStorage, number: int, own: Collection[str]) -> str | None:
    """Remove what older proofs had, and others' files for this number; returns why something stays."""
    try:
        there = storage.storage.list(f"{PREFIX}/{storage.cluster}/")
    except StorageError as error:
        return str(error)
    older = []
    for name in there:
        manifest, file = _NUMBER.fullmatch(name), _FILE.fullmatch(name)
        match = manifest or file
        if match and (
            int(match[1]) <= number - KEPT or (file and int(match[1]) == number and name not in own)
        ):
            older.append(name)
    return _remove(storage, older)


def _remove(storage: ClusterStorage, names: Iterable[str]) -> str | None:
    """Remove these, and what killed processes left unfinished; returns the first reason why one stays."""
    told = None
    try:
        target = _target(storage)
    except StorageError as error:
        return str(error)
    for name in names:
        try:
            target.delete(_below(name))
        except StorageError as error:
            told = told or str(error)
    try:
        target.sweep()
    except StorageError as error:
        told = told or str(error)
    return told


def _written(
    spark: SparkSession,
    storages: Sequence[ClusterStorage],
    numbers: Mapping[int, int],
    found: DataFrame,
    small: bool,
) -> DataFrame:
    """Write the files, in tasks; a row of _WRITTEN for each."""
    given = list(storages)
    next_number = dict(numbers)
    most = FILE_ROWS

    def write(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in _cut(rows, most):
            root = table.column("root")[0].as_py()
            yield pa.RecordBatch.from_pylist(
                [_write(given[root], root, next_number[root], table)], schema=to_arrow_schema(_WRITTEN)
            )

    each, order = found.where(f.col("root").isin(*numbers)), ["root", *SAME, "place"]
    if small:
        few = each.dropDuplicates(order).select(*KNOWN_SCHEMA.names)
        if (done := mapped_here(few, order, write, _WRITTEN, reads=False)) is not None:
            return done
    return (
        each.repartition(tasks(spark), "root", "object")
        .dropDuplicates(order)
        .sortWithinPartitions(*order)
        .select(*KNOWN_SCHEMA.names)
        .mapInArrow(write, _WRITTEN)
    )


def _cut(rows: Iterator[pa.RecordBatch], most: int) -> Iterator[pa.Table]:
    """Sorted rows as tables of one storage each, of about `most` rows; no claim is in two of them."""
    schema = to_arrow_schema(KNOWN_SCHEMA)
    waiting = schema.empty_table()
    for batch in rows:
        # Spark hands over columns that may be null, whatever the schema says.
        waiting = pa.concat_tables([waiting, pa.Table.from_arrays(batch.columns, schema=schema)])
        while len(waiting):
            roots = waiting.column("root")
            end = len(waiting)
            if roots[0] != roots[-1]:
                end = pc.index(pc.not_equal(roots, roots[0]), True).as_py()
            elif end < most or not (end := _first_of_last_claim(waiting)):
                break
            yield waiting.slice(0, end)
            waiting = waiting.slice(end)
    if len(waiting):
        yield waiting


def _first_of_last_claim(table: pa.Table) -> int:
    claims = table.column("claim")
    return int(pc.index(claims, claims[-1]).as_py())


def _write(storage: ClusterStorage, root: int, number: int, table: pa.Table) -> dict[str, Any]:
    name = f"{PREFIX}/{storage.cluster}/{number:08d}-{uuid.uuid4().hex}.parquet"
    sink = io.BytesIO()
    pq.write_table(table.drop_columns(["root"]), sink, compression="zstd")
    data = sink.getvalue()
    told: dict[str, Any] = {"root": root, "name": None, "sha256": None, "rows": len(table), "refused": None}
    try:
        _target(storage).create(_below(name), data)
    except StorageError as error:
        return {**told, "refused": str(error)}
    return {**told, "name": name, "sha256": hashlib.sha256(data).hexdigest()}


def _target(storage: ClusterStorage) -> Target:
    return open_target(f"{storage.storage.url.rstrip('/')}/{PREFIX}", storage.storage.options)


def _below(name: str) -> str:
    return name.removeprefix(f"{PREFIX}/")


def _manifest(cluster: str, number: int) -> str:
    return f"{PREFIX}/{cluster}/{number:08d}.json"
