"""The data source `strandline`: topics as data frames, read straight from object storage.

    spark.read.format("strandline").option("url", "/data/objects").option("topic", "orders").load()

No broker is asked, so a scan takes nothing from producers and consumers. Columns are those of Spark's Kafka
source, so that a query moves over unchanged. Writing goes to the brokers (`sink/`). See docs/spark.md.

Filters are not pushed down: Spark up to 4.3 keeps a pushed filter when a data frame is used again, and then
gives wrong answers without a word. Options prune partitions, offsets and times; a schema prunes columns.

Spark starts a Python process for each step of a query's beginning and one for each core, and each imports
this module. So a step imports what it needs: making a source takes no Arrow, a task no planner.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from strandline.snapshot.extras import require
from strandline.snapshot.spark.options import ReadOptions, SourceError, parse

if TYPE_CHECKING:
    from strandline.snapshot.spark.pieces import Window
    from strandline.snapshot.storage import Storage

SCHEMA = (
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
    .add("timestampType", IntegerType())
    .add("headers", ArrayType(StructType().add("key", StringType()).add("value", BinaryType())))
    .add("leader_epoch", IntegerType())
)
"""All columns; their Arrow types are in COLUMNS."""


def register(spark: SparkSession) -> None:
    """Tell a session of the source, and the source of the session's cores.

    Spark finds the source by itself where its own Python has the package (`pyspark_strandline`), and then
    plans for the cores of the driver's machine. This call takes precedence, with a warning in Spark's log.
    """
    try:
        cores = spark.sparkContext.defaultParallelism
    except Exception:  # a session of Spark Connect has no context, and says so by an error of its own kind
        cores = os.cpu_count() or 1

    class Registered(StrandlineSource):
        """The source with the cores that only the session knows; its planner runs in another process."""

        parallelism = cores

    spark.dataSource.register(Registered)


class StrandlineSource(DataSource):
    """Spark makes one for each read, in a process beside the driver."""

    parallelism = os.cpu_count() or 1
    """Cores that tasks are packed for: of this machine, unless `register` has told those of the session."""

    @classmethod
    def name(cls) -> str:
        return "strandline"

    def schema(self) -> StructType:
        parse(self.options)  # what is wrong with them is said when the frame is made, not when it is used
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse(self.options)
        options.require_batch()
        return StrandlineReader(_opened(options), options, arrow_schema(schema), self.parallelism)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from strandline.snapshot.producing.errors import SinkError

        if overwrite:
            raise SinkError("a topic cannot be overwritten, only added to: mode('append')")
        require("sink")
        from strandline.snapshot.spark.sink.writer import StrandlineWriter

        return StrandlineWriter(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        require("sink")
        from strandline.snapshot.spark.sink.writer import StrandlineStreamWriter

        return StrandlineStreamWriter(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            from strandline.snapshot.spark.stream import RefusedStreamReader, StrandlineStreamReader
        except ModuleNotFoundError as error:
            # Before 4.2 a source in Python could not bound its batches, nor end with Trigger.AvailableNow.
            raise SourceError(f"streams need PySpark 4.2 or later, this is {pyspark.__version__}") from error
        options = parse(self.options)
        try:
            options.require_stream()
            return StrandlineStreamReader(_opened(options), options, arrow_schema(schema), self.parallelism)
        except SourceError as error:
            return RefusedStreamReader(error)


@dataclass(frozen=True)
class Split(InputPartition):
    """Input of one task."""

    windows: Sequence[Window]


class StrandlineReader(DataSourceReader):
    """Plans on the driver, reads in tasks; between the two it is pickled by Spark."""

    def __init__(self, storage: Storage, options: ReadOptions, schema: Any, parallelism: int) -> None:
        self._storage = storage
        self._options = options
        self._schema = schema
        self._parallelism = parallelism

    def partitions(self) -> Sequence[InputPartition]:
        from strandline.snapshot.spark.plan import plan

        return [Split(windows) for windows in plan(self._storage, self._options, self._parallelism)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from strandline.snapshot.spark import python_worker
        from strandline.snapshot.spark.fetch import read_windows
        from strandline.snapshot.spark.moved import MovedRecords

        assert isinstance(partition, Split), "tasks are given what partitions() made"
        python_worker.begin()
        return read_windows(
            self._storage, partition.windows, self._schema, MovedRecords(self._storage, compacted=False)
        )


def _opened(options: ReadOptions) -> Storage:
    """The storage that the options name; raises SourceError."""
    from strandline.snapshot.storage import StorageError, open_storage

    try:
        return open_storage(options.url, options.storage)
    except StorageError as error:
        raise SourceError(str(error)) from error


def arrow_schema(schema: StructType) -> Any:
    """The wanted columns as Arrow has them; raises SourceError for one that is not there, or of another type.

    A user's schema may say of a column that it is never null, so this follows it.
    """
    import pyarrow as pa  # type: ignore[import-untyped]

    from strandline.snapshot.decode import COLUMNS

    known = [f"{field.name} {field.dataType.simpleString()}" for field in SCHEMA.fields]
    fields = []
    for wanted in schema.fields:
        asked = f"{wanted.name} {wanted.dataType.simpleString()}"
        if asked not in known:
            raise SourceError(f"there is no column {asked!r}; choose from: {', '.join(known)}")
        kind = COLUMNS[wanted.name]
        if isinstance(wanted.dataType, ArrayType):
            pair = wanted.dataType.elementType
            assert isinstance(pair, StructType), "compared above"
            inner = pa.struct(
                [pa.field(name, kind.value_type.field(name).type, pair[name].nullable) for name in pair.names]
            )
            kind = pa.list_(pa.field("element", inner, wanted.dataType.containsNull))
        fields.append(pa.field(wanted.name, kind, wanted.nullable))
    return pa.schema(fields)
