"""The audits of what a read-committed consumer goes by: the last stable offset and the aborted transactions.

docs/audits.md has a section for each, under its name.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from strandline.snapshot.spark.audits.audit import Answer, Frames
from strandline.snapshot.spark.audits.document_audits import going_back
from strandline.snapshot.spark.audits.transactions_said import told_rows


def last_stable_offset_is_right(frames: Frames) -> Answer:
    told = told_rows(frames.batches)
    opened = told.where("last_offset is null")
    differing = _beside(frames, opened, frames.said.where("open"), ["root", "group", "producer_id"])
    states = frames.documents.where("error is null and kind = 'partition'")
    steps, regressing = going_back(states, {"last_stable": "the last stable offset"})
    findings = differing.union(
        regressing.select("root", "group", "log_index", f.lit(None).cast("long"), "problem")
    )
    counts = (
        steps.groupBy("root")
        .agg(f.count("*").alias("checkpoints"))
        .join(_number_of(opened, "open transactions"), "root", "left")
        .fillna(0)
    )
    return Answer(counts, "checkpoints", findings)


def aborted_index_equals_replay(frames: Frames) -> Answer:
    started = frames.newest.select("root", "group", "start_offset")
    # A state forgets what was aborted below its start offset; an object that holds the offset has it still.
    told = (
        told_rows(frames.batches)
        .join(started, ["root", "group"])
        .where("last_offset is null or last_offset >= start_offset")
    )
    aborted = told.where("committed = false")
    said = frames.said.where("not open")
    findings = _beside(frames, aborted, said, ["root", "group", "producer_id", "last_offset"])
    markers = told.where("last_offset is not null").groupBy("root").agg(f.count("*").alias("markers"))
    counts = markers.join(_number_of(aborted, "aborted transactions"), "root", "left").fillna(0)
    return Answer(counts, "markers", findings)


def _number_of(rows: DataFrame, name: str) -> DataFrame:
    return rows.groupBy("root").agg(f.count("first_offset").alias(name))


def _beside(frames: Frames, told: DataFrame, said: DataFrame, key: list[str]) -> DataFrame:
    """Differences of the batches and the state; columns root, group, log_index, base_offset, problem.

    Of a transaction whose first batches are below the start offset and gone, only its end can be told.
    """
    unreadable = (
        frames.batches.where("newest")
        .groupBy("root", "group")
        .agg(
            f.max(f.col("header_records").isNull()).alias("unread"),
            f.min("base_offset").alias("from"),
        )
    )
    both = (
        told.select(*key, "log_index", f.col("first_offset").alias("told"))
        .withColumn("is_told", f.lit(True))
        .join(
            said.select(*key, f.col("log_index").alias("said_index"), f.col("first_offset").alias("said")),
            key,
            "full",
        )
        .join(unreadable, ["root", "group"], "left")
        .where("not coalesce(unread, false)")
    )
    gone = f.coalesce(f.col("said") < f.col("from"), f.lit(True))
    problem = (
        f.when(
            f.col("told").isNotNull() & f.col("said").isNull(),
            f.concat(_whose(), f.lit(" begins at offset "), "told", f.lit(", which the state has not")),
        )
        .when(
            f.col("said").isNotNull() & f.col("told").isNull() & ~(gone & _ends_there(key)),
            f.concat(_whose(), f.lit(" begins at offset "), "said", f.lit(", says the state; no batch does")),
        )
        .when(
            (f.col("said") != f.col("told")) & ~(gone & (f.col("said") < f.col("told"))),
            f.concat(
                _whose(), f.lit(" begins at offset "), "told", f.lit(", and not at "), "said",
                f.lit(", as the state says"),
            ),
        )
    )  # fmt: skip
    return (
        both.withColumn("problem", problem)
        .where("problem is not null")
        .select(
            "root",
            "group",
            f.coalesce("log_index", "said_index").alias("log_index"),
            f.coalesce("told", "said").alias("base_offset"),
            "problem",
        )
    )


def _ends_there(key: list[str]) -> Column:
    """Whether the end that a state says was told, if it has one."""
    return f.coalesce(f.col("is_told"), f.lit(False)) if "last_offset" in key else f.lit(True)


def _whose() -> Column:
    return f.concat(f.lit("a transaction of producer "), "producer_id")
