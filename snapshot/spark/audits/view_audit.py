"""The audit of views: at a restore point a view's topic is what Spark SQL makes of the program's inputs.

A view's process commits its records and the offsets of its inputs in one transaction, and a restore point has
no transaction in part (view_cut.py). So the offsets that a program's group has there are the cut of what its
topics have there. Spark works the program's text out over the inputs up to these offsets: the kernels are not
asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from strandline.snapshot.extras import ExtraMissing, require
from strandline.snapshot.object_frame import BadObject
from strandline.snapshot.restore_point import RestorePoint, RestorePointDamaged
from strandline.snapshot.spark.at_point import records, restore_points
from strandline.snapshot.spark.audits.result import AuditResult, Row, Verdict
from strandline.snapshot.spark.audits.view_cut import PointPrograms, ProgramAt, UnknownOutcome
from strandline.snapshot.spark.audits.work import ClusterStorage
from strandline.snapshot.spark.json_schema import quoted
from strandline.snapshot.spark.options import SourceError
from strandline.snapshot.spark.topic_views import latest
from strandline.snapshot.storage import Storage, StorageError
from strandline.statemachine.controller.view_state import ProgramVersion, ViewProgram
from strandline.statemachine.views.refusals import Refused
from strandline.statemachine.views.types import Type

if TYPE_CHECKING:
    from strandline.snapshot.views.sql.spark_text import SparkTable, SparkView

NAME: Final = "views_equal_their_sql"
QUESTION: Final = "Is every view what its SQL makes of its inputs, at each restore point?"
MOST_POINTS: Final = 12
"""Restore points that are looked at, the newest ones: each is a run of every program's SQL."""
MOST_ROWS: Final = 100
TOLERANCE: Final = 1e-9
"""Of a DOUBLE, relative: Spark adds in any order and rounds each time, a view rounds once.

Where numbers of very different sizes cancel out, Spark's own sum may be further off than that.
"""


def views_equal_their_sql(
    spark: SparkSession, cluster: ClusterStorage, points: Sequence[RestorePoint] | None = None
) -> AuditResult:
    """Ask the audit about one cluster's storage, at some restore points or at the newest ones."""
    counts = {"views compared": 0, "restore points": 0, "rows": 0}
    evidence: list[Row] = []
    remarks: list[Row] = []
    findings = 0
    try:
        if points is None:
            points = restore_points(cluster.storage, cluster.cluster)[-MOST_POINTS:]
    except (StorageError, RestorePointDamaged) as error:
        points, remarks = [], [{"problem": f"restore points cannot be read: {error}"}]
    for point in points:
        compared = 0
        try:
            for told in _Point(spark, cluster.storage, point).compared():
                where: Row = {"point": point.number, "program": told.program, "view": told.view}
                if told.remark:
                    remarks.append({**where, "problem": told.remark})
                    continue
                compared += 1
                counts["rows"] += told.rows
                findings += told.findings
                evidence += [{**where, **row} for row in told.evidence]
        except (SourceError, StorageError, BadObject) as error:
            remarks.append({"point": point.number, "problem": f"it cannot be read: {error}"})
        counts["views compared"] += compared
        counts["restore points"] += bool(compared)
    verdict = Verdict.PASSED if counts["views compared"] else Verdict.NOTHING
    return AuditResult(
        NAME,
        QUESTION,
        Verdict.FINDING if findings else verdict,
        counts,
        evidence[:MOST_ROWS],
        findings,
        remarks,
    )


class Told(NamedTuple):
    """One view at one point: what differs, or a remark that says why it could not be compared."""

    program: str
    view: str
    remark: str = ""
    rows: int = 0
    findings: int = 0
    evidence: tuple[Row, ...] = ()


class _Point:
    """The programs of views at one restore point."""

    def __init__(self, spark: SparkSession, storage: Storage, point: RestorePoint) -> None:
        self._spark = spark
        self._storage = storage
        self._point = PointPrograms(storage, point)

    def compared(self) -> Iterator[Told]:
        """Compare the views of every live version."""
        for program in self._point.state.view_programs.values():
            if program.live is not None:
                yield from self._program(program, program.live)

    def _program(self, program: ViewProgram, version: ProgramVersion) -> Iterator[Told]:
        at = self._point.at(program, version)
        if at is None:
            yield Told(program.name, "", "its group has no offsets: it has taken nothing yet")
            return
        try:
            require("views")
            from strandline.snapshot.views.sql.spark_text import in_spark

            tables, views = in_spark(version.text)
        except ExtraMissing as missing:
            yield Told(program.name, "", str(missing))
            return
        except Refused as refused:
            yield Told(program.name, "", f"this release refuses its text: {refused}")
            return
        ids = dict(version.inputs)
        made: list[str] = []
        lacking: set[str] = set()
        try:
            for table in tables:
                topic_id = ids.get(table.topic)
                if topic_id is None:
                    continue  # no view of the program reads it
                below = self._point.input(topic_id, at.cut)
                if below is None:
                    yield Told(program.name, "", f"the input {table.topic} is not in this point")
                    return
                if self._point.lacks_records(topic_id, keyed=bool(table.key)):
                    lacking.add(table.topic)
                columns = ("key", "value", "partition", "offset", "timestamp")
                frame = records(self._spark, self._storage, below, columns)
                if table.source.skips:
                    frame = _only_rows(table, frame)
                frame = table_rows(table, frame)
                frame.createOrReplaceTempView(quoted(table.name))
                made.append(table.name)
            # Views with one query have one sink, and a topic each.
            topics = {view.view: view.topic_id for view in version.views}
            for view in views:
                answer = self._spark.sql(view.query)
                answer.createOrReplaceTempView(quoted(view.name))
                made.append(view.name)
                if view.sink is not None:
                    told = self._view(program.name, view, topics[view.name], at, answer)
                    yield told if not told.findings else _unless_gone(told, sorted(lacking & view.topics))
        finally:
            for name in made:
                self._spark.catalog.dropTempView(name)

    def _view(self, program: str, view: SparkView, topic_id: bytes, at: ProgramAt, answer: DataFrame) -> Told:
        try:
            partitions = self._point.output(topic_id, at.transactions)
        except UnknownOutcome as unknown:
            return Told(program, view.name, f"a transaction is open in its topic: {unknown}")
        if partitions is None:
            return Told(program, view.name, "its topic is not in this point")
        there = topic_rows(
            view, records(self._spark, self._storage, partitions, ("key", "value", "partition", "offset"))
        )
        problems = differences(view, there, answer).cache()
        try:
            found = problems.where("problem is not null")
            rows = tuple(
                {"key": row["key"], "problem": row["problem"]}
                for row in found.orderBy("key").limit(MOST_ROWS).collect()
            )
            return Told(program, view.name, "", problems.count(), found.count(), rows)
        finally:
            problems.unpersist()


def _unless_gone(told: Told, lacking: Sequence[str]) -> Told:
    """A view that differs; a remark where inputs lack records: rows leave a topic, never a view."""
    if not lacking:
        return told
    problem = f"{told.findings} of its rows are not what SQL makes of the records that are there"
    why = f"records of {', '.join(lacking)} are gone by retention or cleaning, which the view may have taken"
    return Told(told.program, told.view, f"{problem}, but {why}")


def _only_rows(table: SparkTable, frame: DataFrame) -> DataFrame:
    """Leave out the records that views skip.

    Spark's reader takes other values than a view's: a view's says what is a row, and Spark what row it is.
    """
    source = table.source
    key = tuple([name for name, _ in source.columns].index(name) for name in table.key) or None

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from strandline.snapshot.views.json_records import RecordReader

        reader = RecordReader(source, key)
        for batch in batches:
            yield batch.filter(pa.array(reader.are_rows(batch), pa.bool_()))

    return frame.mapInArrow(read, frame.schema)


def table_rows(table: SparkTable, frame: DataFrame) -> DataFrame:
    """Give the rows of a table out of records that are rows, in the words of Spark alone."""
    values = [(name, kind) for name, kind in table.columns if name not in table.key]
    if table.key:
        frame = latest(frame)
    schema = ", ".join(f"{quoted(name)} {kind.value}" for name, kind in values)
    parsed = (
        f.from_json(f.col("value").cast("string"), schema, {"mode": "FAILFAST"}) if values else f.lit(None)
    )
    columns = [parsed.getField(name).alias(name) for name, _ in values]
    if table.key:
        kinds = dict(table.columns)
        columns += [_key_column(at, kinds[name]).alias(name) for at, name in enumerate(table.key)]
        ordered = [quoted(name) for name, _ in table.columns]
        return frame.select(*columns).select(*ordered)
    meta = (("partition", "_partition"), ("offset", "_offset"), ("timestamp", "_timestamp"))
    return frame.select(*columns, *(f.col(name).alias(shown) for name, shown in meta))


def _key_column(position: int, kind: Type) -> Column:
    """A column of the primary key: an element of a JSON array, or the key itself."""
    text = f.col("key").cast("string")
    element = f.from_json(text, "array<string>").getItem(position)
    return f.when(text.startswith("["), element).otherwise(text).cast(kind.value)


def topic_rows(view: SparkView, frame: DataFrame) -> DataFrame:
    """Give a view's rows as its topic has them: the last of each key."""
    schema = ", ".join(f"{quoted(name)} {kind.value}" for name, kind in view.columns)
    options = {"mode": "FAILFAST", "allowNonNumericNumbers": "true"}
    parsed = f.from_json(f.col("value").cast("string"), schema, options)
    return latest(frame).select(*(parsed.getField(name).alias(name) for name, _ in view.columns))


def differences(view: SparkView, there: DataFrame, answer: DataFrame) -> DataFrame:
    """Give `key` and `problem` of each key of either side; no problem where both have the same row."""
    names = [name for name, _ in view.columns]
    key = f.to_json(f.array(*(f.col(quoted(name)).cast("string") for name in view.key)))
    key = key if view.key else f.lit("[]")
    sides = [
        frame.select(key.alias("key"), f.struct(*map(quoted, names)).alias(side))
        .groupBy("key")
        .agg(f.first(side).alias(side), f.count("*").alias(f"{side}_times"))
        for frame, side in ((there, "mine"), (answer.toDF(*names), "wanted"))
    ]
    both = reduce(lambda one, other: one.join(other, "key", "full"), sides)
    unlike = [
        f.when(~_same(f.col("mine").getField(name), f.col("wanted").getField(name), kind), name)
        for name, kind in view.columns
    ]
    wrong = f.array_join(f.array_compact(f.array(*unlike)), ", ")
    shown = f.concat(
        f.lit("the topic has "),
        f.to_json("mine"),
        f.lit(", SQL says "),
        f.to_json("wanted"),
        f.lit(" in "),
        wrong,
    )
    problem = (
        f.when(f.col("mine").isNull(), f.concat(f.lit("the topic lacks "), f.to_json("wanted")))
        .when(f.col("wanted").isNull(), f.concat(f.lit("SQL does not have "), f.to_json("mine")))
        .when(f.col("mine_times") > 1, f.lit("the topic has several rows of this key"))
        .when(f.col("wanted_times") > 1, f.lit("SQL has several rows of this key"))
        .when(wrong != "", shown)
    )
    return both.select("key", problem.alias("problem"))


def _same(one: Column, other: Column, kind: Type) -> Column:
    same = one.eqNullSafe(other)
    if kind is not Type.DOUBLE:
        return same
    bound = f.lit(TOLERANCE) * f.greatest(f.abs(one), f.abs(other))
    return same | f.coalesce(f.abs(one - other) <= bound, f.lit(False))
