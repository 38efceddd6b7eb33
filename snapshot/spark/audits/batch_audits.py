"""The audits of what a partition's newest checkpoint refers to: batches, offsets, producers' sequences.

docs/audits.md has a section for each, under its name.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from strandline.snapshot.spark.audits.audit import Answer, Frames, broken
from strandline.snapshot.spark.audits.references import PLACES
from strandline.statemachine.partition.producer_state import MAX_SEQUENCE


def references_exist_and_crc(frames: Frames) -> Answer:
    batches = frames.batches
    findings = batches.where("problem is not null").select(
        "root", "group", "log_index", "base_offset", "object", "position", "problem"
    )
    counts = batches.groupBy("root").agg(
        f.count("*").alias("batches"),
        f.countDistinct("object").alias("objects"),
        f.countDistinct(f.when(f.col("level") == 1, f.col("object"))).alias("level-one objects"),
        f.count_if((f.col("level") == 0) & f.col("object").isNull()).alias("inline batches"),
        f.sum("length").alias("bytes"),
        f.countDistinct(f.when(f.col("proven"), f.col("object"))).alias("objects proven before"),
    )
    return Answer(counts, "batches", findings)


def offsets_contiguous(frames: Frames) -> Answer:
    partitions = frames.newest.where("kind = 'partition'")
    parts = _parts(frames)
    order = Window.partitionBy("root", "group").orderBy("number", "place")
    apart = (
        parts.withColumn("expected", f.lag("end_offset").over(order))
        # Compaction leaves holes, up to where level one is settled; what is named follows on one another.
        .where(
            "base_offset < expected or (base_offset > expected and (place = 0 or base_offset > settled))"
        )
        .select(
            "root", "group", "log_index", "base_offset",
            f.concat(
                f.when(f.col("place") == 2, f.lit("an object ends at offset ")).otherwise(
                    f.lit("a batch begins at offset ")
                ),
                "base_offset", f.lit(", the one before ends at "), "expected",
            ).alias("problem"),
        )
    )  # fmt: skip
    miscounted = frames.batches.where("newest and header_records != record_count").select(
        "root", "group", "log_index", "base_offset",
        f.concat(
            f.lit("the batch holds "), "header_records", f.lit(" records, its offsets are counted for "),
            "record_count",
        ).alias("problem"),
    )  # fmt: skip
    ends = parts.groupBy("root", "group").agg(
        f.min_by("base_offset", f.struct("number", "place")).alias("first"),
        f.min_by("extent_end", "number").alias("first_end"),
        f.max("end_offset").alias("last_end"),
        f.sum("record_count").alias("records"),
    )
    whole = partitions.join(ends, ["root", "group"], "left")
    edges = broken(
        whole,
        [
            (
                f.col("last_end").isNull() & (f.col("start_offset") != f.col("next_offset")),
                f.concat(f.lit("no batch from offset "), "start_offset", f.lit(" to "), "next_offset"),
            ),
            (
                (f.col("start_offset") < f.col("first")) | (f.col("start_offset") >= f.col("first_end")),
                f.concat(
                    f.lit("the first batch, at "),
                    "first",
                    f.lit(", does not hold the start, "),
                    "start_offset",
                ),
            ),
            (
                f.col("last_end") != f.col("next_offset"),
                f.concat(
                    f.lit("the batches end at offset "),
                    "last_end",
                    f.lit(", the high watermark is "),
                    "next_offset",
                ),
            ),
        ],
        "log_index",
    ).select("root", "group", "log_index", f.lit(None).cast("long").alias("base_offset"), "problem")
    counts = whole.groupBy("root").agg(
        f.count("*").alias("partitions"), f.sum(f.coalesce("records", f.lit(0))).alias("records")
    )
    return Answer(counts, "partitions", apart.union(miscounted).union(edges))


def _parts(frames: Frames) -> DataFrame:
    """The parts that the newest checkpoints name, in the order of `number` and `place`: the beginning of each
    object of level one (0), its batches (1) and its end (2), and the batches of level zero (0)."""
    names = ("base_offset", "end_offset", "extent_end", "record_count")
    columns = ("root", "group", "log_index", "number", "settled")
    named, of_objects = frames.references.where("newest"), frames.batches.where("newest and level = 1")
    objects = named.where("level = 1")
    begin, end = f.col("extent_base"), f.col("extent_end")
    nothing = f.lit(0).cast("long")
    return (
        named.where("level = 0").select(*columns, f.lit(0).alias("place"), *names)
        .union(
            objects.select(
                *columns, f.lit(0), begin.alias("base_offset"), begin.alias("end_offset"), end, nothing
            )
        )
        .union(of_objects.select(*columns, f.lit(1), *names))
        .union(
            objects.withColumn("number", f.col("number") + (PLACES - 1)).select(
                *columns, f.lit(2), end.alias("base_offset"), end.alias("end_offset"), end, nothing
            )
        )
    )  # fmt: skip


def producer_sequences(frames: Frames) -> Answer:
    batches = frames.batches.where("newest")
    in_group = Window.partitionBy("root", "group").orderBy("number")
    # A batch that cannot be read might be any producer's: nothing is said about a gap across it.
    unread = f.sum(f.col("header_records").isNull().cast("long")).over(in_group)
    order = Window.partitionBy("root", "group", "producer_id").orderBy("number")
    marked = f.max(f.when(f.col("committed").isNotNull(), f.col("producer_epoch"))).over(
        order.rowsBetween(Window.unboundedPreceding, -1)
    )
    claimed = (
        batches.withColumn("unread", unread)
        .withColumn("marker_epoch", marked)
        .where("producer_id >= 0 and committed is null")
    )
    steps = (
        claimed.withColumn("epoch_before", f.lag("producer_epoch").over(order))
        .withColumn("unread_before", f.lag("unread").over(order))
        .withColumn("offset_before", f.lag("end_offset").over(order))
        .withColumn(
            "expected",
            f.when(f.col("producer_epoch") > f.col("epoch_before"), f.lit(0)).otherwise(
                # Of a compacted batch the last sequence is that of its last offset (KIP-98).
                f.lag(f.col("base_sequence") + f.col("end_offset") - f.col("base_offset"))
                .over(order)
                .bitwiseAND(MAX_SEQUENCE)
            ),
        )
        .withColumn("ahead", (f.col("base_sequence") - f.col("expected")).bitwiseAND(MAX_SEQUENCE))
        # Compaction may have removed the batches between, and each of their records had an offset.
        .where(
            "offset_before is null or offset_before >= settled or ahead > base_offset - offset_before"
            " or producer_epoch < greatest(epoch_before, marker_epoch)"
        )
    )
    new_epoch = f.col("producer_epoch") > f.col("epoch_before")
    gap = (f.col("ahead") > 0) & (f.col("ahead") <= MAX_SEQUENCE // 2)
    same = f.col("producer_epoch") == f.col("epoch_before")
    findings = broken(
        steps,
        [
            (
                f.col("producer_epoch") < f.col("epoch_before"),
                f.concat(_producer(), f.lit(" goes back from epoch "), "epoch_before"),
            ),
            (
                (f.col("producer_epoch") < f.col("marker_epoch"))
                & ~f.coalesce(f.col("producer_epoch") < f.col("epoch_before"), f.lit(False)),
                f.concat(_producer(), f.lit(" comes behind a marker of epoch "), "marker_epoch"),
            ),
            (
                same & gap & (f.col("unread") == f.col("unread_before")),
                f.concat(
                    _producer(), f.lit(" misses sequences from "), "expected", f.lit(" to "), "base_sequence"
                ),
            ),
            (
                same & (f.col("ahead") > MAX_SEQUENCE // 2),
                f.concat(
                    _producer(), f.lit(" has sequence "), "base_sequence", f.lit(" twice: "), "expected",
                    f.lit(" is next"),
                ),
            ),
            (
                new_epoch & (f.col("base_sequence") != 0) & (f.col("unread") == f.col("unread_before")),
                f.concat(_producer(), f.lit(" begins its epoch with sequence "), "base_sequence"),
            ),
        ],
        "log_index", "base_offset", "object",
    )  # fmt: skip
    counts = batches.groupBy("root").agg(
        f.count("*").alias("batches"),
        f.count_if((f.col("producer_id") >= 0) & f.col("committed").isNull()).alias("batches of producers"),
        f.countDistinct("group", f.when(f.col("producer_id") >= 0, f.col("producer_id"))).alias("producers"),
        f.count_if(f.col("header_records").isNull()).alias("unreadable batches"),
    )
    return Answer(counts, "batches of producers", findings)


def _producer() -> Column:
    return f.concat(f.lit("producer "), "producer_id", f.lit(" epoch "), "producer_epoch")
