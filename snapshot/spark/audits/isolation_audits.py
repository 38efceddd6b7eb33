"""The audits of what a read-committed consumer goes by: the last stable offset and the aborted transactions.

docs/audits.md has a section for each, under its name.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from strandline.snapshot.spark.audits.audit import Answer, Frames, broken
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
    started = frames.newest.select("root", "group", f.greatest("start_offset", "mxro").alias("known_from"))
    # A state forgets what was aborted below its start offset; an object that holds the offset has it still.
    # It forgets what level one and all replicas have left out, too; the markers go later.
    told = (
        told_rows(frames.batches)
        .join(started, ["root", "group"])
        .where("last_offset is null or last_offset >= known_from")
    )
    aborted = told.where("committed = false")
    said = frames.said.where("not open")
    findings = _beside(frames, aborted, said, ["root", "group", "producer_id", "last_offset"])
    markers = told.where("last_offset is not null").groupBy("root").agg(f.count("*").alias("markers"))
    counts = markers.join(_number_of(aborted, "aborted transactions"), "root", "left").fillna(0)
    return Answer(counts, "markers", findings)


def rows_match_markers(frames: Frames) -> Answer:
    batches = frames.batches.where("newest").select(
        "root", "group", "producer_id", "base_offset", f.lit(False).alias("is_row"),
        f.lit(None).cast("long").alias("row_from"), "committed",
        f.col("header_records").isNull().alias("is_unread"), "transactional",
    )  # fmt: skip
    # A row stands where its marker should be.
    rows = frames.said.where("not open").select(
        "root", "group", "producer_id", "last_offset", f.lit(True), "first_offset",
        f.lit(None).cast("boolean"), f.lit(False), f.lit(True),
    )  # fmt: skip
    unread = f.max("is_unread").over(Window.partitionBy("root", "group"))
    steps = (
        batches.union(rows)
        .withColumn("unread", unread)
        .where("not unread and (transactional or committed is not null)")
    )
    from_here = (
        Window.partitionBy("root", "group", "producer_id")
        .orderBy("base_offset", f.desc("is_row"))
        .rowsBetween(Window.currentRow, Window.unboundedFollowing)
    )
    marker = f.struct(f.col("base_offset").alias("at"), "committed")
    is_marker = f.col("committed").isNotNull()
    beside = (
        steps.withColumn("marker", f.first(f.when(is_marker, marker), ignorenulls=True).over(from_here))
        .withColumn("next_row_from", f.first("row_from", ignorenulls=True).over(from_here))
        .where("committed is null")
        .join(
            frames.newest.select("root", "group", "log_index", "last_stable", "start_offset"),
            ["root", "group"],
        )
        .where("is_row or base_offset < last_stable")
    )
    is_row, commits = f.col("is_row"), f.col("marker.committed")
    covered = f.coalesce(f.col("next_row_from") <= f.col("base_offset"), f.lit(False))
    has_marker = f.coalesce((f.col("marker.at") == f.col("base_offset")) & ~commits, f.lit(False))
    findings = broken(
        beside,
        [
            (
                is_row & ~has_marker,
                f.concat(_whose(), f.lit(" was aborted here, says the state; no such marker is here")),
            ),
            (
                ~is_row & covered & commits,
                f.concat(_whose(), f.lit(" was aborted, says the state, and its marker says committed")),
            ),
            (
                # A state forgets what was aborted below its start offset.
                ~is_row & ~covered & ~commits & (f.col("marker.at") >= f.col("start_offset")),
                f.concat(_whose(), f.lit(" was aborted, says its marker, and no row of the state")),
            ),
            (
                ~is_row & ~covered & commits.isNull(),
                f.concat(_whose(), f.lit(" is not open, and no marker and no row has ended it")),
            ),
        ],
        "log_index", "base_offset",
    )  # fmt: skip
    counts = beside.groupBy("root").agg(
        f.count_if(~is_row).alias("batches of transactions"), f.count_if(is_row).alias("aborted transactions")
    )
    return Answer(counts, "batches of transactions", findings)


def _number_of(rows: DataFrame, name: str) -> DataFrame:
    return rows.groupBy("root").agg(f.count("first_offset").alias(name))


def _beside(frames: Frames, told: DataFrame, said: DataFrame, key: list[str]) -> DataFrame:
    """Differences of the batches and the state; columns root, group, log_index, base_offset, problem.

    Of a transaction whose first batches are below the start offset and gone, or in level one where that is
    settled, only its end can be told.
    """
    unreadable = (
        frames.batches.where("newest")
        .groupBy("root", "group")
        .agg(
            f.max(f.col("header_records").isNull()).alias("unread"),
            f.greatest(f.min("base_offset"), f.max("settled")).alias("from"),
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
