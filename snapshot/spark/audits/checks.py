"""The audits themselves: what each asks of the rows of documents, batches and replays.

Each gives three frames with a `root` column, one value for each cluster's storage: counts, findings and
remarks. Findings name the group and, where there is one, checkpoint, offset, object and node, so that a
person finds the place. docs/audits.md has a section for each, under its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgpack
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from snapshot.spark.audits.replay import AGREES, DIFFERS, NOT_COVERED
from statemachine.controller import Controller
from statemachine.partition import PartitionStateMachine
from statemachine.producers import MAX_SEQUENCE


class Frames(NamedTuple):
    """What audits look at; each is read once, whatever their number."""

    documents: DataFrame
    newest: DataFrame
    """Of each group the document its batches were taken from."""
    batches: DataFrame
    replays: DataFrame


class Answer(NamedTuple):
    """Rows by storage. `counts` has a column for each count; `looked_at` names the one that must not be 0."""

    counts: DataFrame
    looked_at: str
    findings: DataFrame
    remarks: DataFrame | None = None


class Audit(NamedTuple):
    name: str
    question: str
    ask: Callable[[Frames], Answer]


def replicas_agree(frames: Frames) -> Answer:
    documents = frames.documents
    digests = (
        documents.where("error is null")
        .groupBy("root", "group", "log_index", "digest")
        .agg(f.array_sort(f.collect_list("node")).alias("nodes"))
        .withColumn(
            "text",
            f.concat(f.lit("nodes "), f.array_join("nodes", ", "), f.lit(": "), f.substring("digest", 1, 12)),
        )
    )
    checkpoints = (
        documents.groupBy("root", "group", "log_index")
        .agg(
            f.count_if(f.col("error").isNull()).alias("readable"),
            f.collect_set("digest").alias("digests"),
            f.array_sort(f.collect_set(f.col("node").cast("long"))).alias("present"),
            f.array_sort(f.array_distinct(f.flatten(f.collect_list("voters")))).alias("voters"),
        )
        .withColumn("missing", f.array_except("voters", "present"))
    )
    differing = (
        digests.groupBy("root", "group", "log_index")
        .agg(f.count("*").alias("different"), f.array_sort(f.collect_list("text")).alias("texts"))
        .where("different > 1")
        .select(
            "root", "group", "log_index",
            f.concat(f.lit("replicas differ: "), f.array_join("texts", "; ")).alias("problem"),
        )
    )  # fmt: skip
    unreadable = documents.where("error is not null").select(
        "root", "group", "log_index",
        f.concat(f.lit("node "), f.col("node"), f.lit("'s document: "), f.col("error")).alias("problem"),
    )  # fmt: skip
    alone = checkpoints.where("size(voters) > 1 and readable = 1 and size(present) = 1").select(
        "root", "group", "log_index",
        f.lit("only one replica published: there is nothing to compare it with").alias("problem"),
    )  # fmt: skip
    missing = checkpoints.where("size(missing) > 0").select(
        "root", "group", "log_index",
        f.concat(f.lit("no document of node "), f.array_join("missing", ", ")).alias("problem"),
    )  # fmt: skip
    counts = checkpoints.groupBy("root").agg(
        f.sum(f.size("present")).alias("documents"),
        f.count("*").alias("checkpoints"),
        f.sum(f.size("missing")).alias("missing documents"),
    )
    return Answer(counts, "documents", differing.union(unreadable).union(alone), missing)


def _fields(machine: Controller | PartitionStateMachine) -> list[str]:
    return list(msgpack.unpackb(machine.snapshot()))


STATE_FIELDS = {
    "partition": _fields(PartitionStateMachine(0, lambda index, state: None)),
    "controller": _fields(Controller(lambda index, state: None)),
}
"""What a machine's state holds: an empty one shows it."""


def no_window(frames: Frames) -> Answer:
    readable = frames.documents.where("error is null")
    allowed = f.create_map(
        *[part for kind, names in STATE_FIELDS.items() for part in (f.lit(kind), f.array(*map(f.lit, names)))]
    )
    strange = readable.withColumn("strange", f.array_except("state_fields", allowed[f.col("kind")]))
    findings = strange.where("size(strange) > 0").select(
        "root", "group", "log_index", "node",
        f.concat(f.lit("the state has a field "), f.array_join("strange", ", ")).alias("problem"),
    )  # fmt: skip
    return Answer(readable.groupBy("root").agg(f.count("*").alias("documents")), "documents", findings)


_RISING = {
    "state_term": "the term",
    "creation_epoch": "the creation epoch",
    "previous_applied_epoch": "the previous applied epoch",
    "max_applied_epoch": "the highest applied epoch",
    "max_applied_epoch_index": "the log index of the highest applied epoch",
    "cluster_epoch": "the cluster epoch",
    "max_collectable": "the highest collectable epoch",
}


def epochs_never_regress(frames: Frames) -> Answer:
    readable = frames.documents.where("error is null")
    before = Window.partitionBy("root", "group").orderBy("log_index")
    steps = readable.groupBy("root", "group", "log_index").agg(
        *(f.min(name).alias(name) for name in _RISING),
        *(f.max(name).alias(f"{name}_max") for name in _RISING),
    )
    rules: list[tuple[Column, Column]] = []
    for name, words in _RISING.items():
        # Running, so that one bad checkpoint does not hide behind the next.
        highest = f.max(f"{name}_max").over(before.rowsBetween(Window.unboundedPreceding, -1))
        rules.append(
            (f.col(name) < highest, f.concat(f.lit(f"{words} goes back from "), highest, f.lit(" to "), name))
        )
    going_back = _broken(steps, rules, "log_index")
    window_rules = [
        (
            f.col("previous_applied_epoch") > f.col("max_applied_epoch"),
            f.concat(
                f.lit("the previous applied epoch "), "previous_applied_epoch",
                f.lit(" is above the highest, "), "max_applied_epoch",
            ),
        ),
        (
            f.col("creation_epoch") > f.col("previous_applied_epoch"),
            f.concat(
                f.lit("the creation epoch "), "creation_epoch",
                f.lit(" is above the previous applied one, "), "previous_applied_epoch",
            ),
        ),
        (
            f.col("max_applied_epoch_index") > f.col("log_index"),
            f.concat(f.lit("the highest epoch was applied later, at entry "), "max_applied_epoch_index"),
        ),
    ]  # fmt: skip
    # Replicas that agree need be named once.
    within = _broken(readable, window_rules, "log_index").distinct()
    counts = steps.groupBy("root").agg(
        f.countDistinct("group").alias("groups"), f.count("*").alias("checkpoints")
    )
    return Answer(counts, "checkpoints", going_back.union(within))


def _broken(rows: DataFrame, rules: list[tuple[Column, Column]], *places: str) -> DataFrame:
    """A row for each rule that a row breaks: (condition of the breach, what to say)."""
    problems = f.array_compact(f.array(*(f.when(broken, said) for broken, said in rules)))
    return rows.withColumn("problems", problems).select(
        "root", "group", *places, f.explode("problems").alias("problem")
    )


def references_exist_and_crc(frames: Frames) -> Answer:
    batches = frames.batches
    findings = batches.where("problem is not null").select(
        "root", "group", "log_index", "base_offset", "object", "position", "problem"
    )
    counts = batches.groupBy("root").agg(
        f.count("*").alias("batches"),
        f.countDistinct("object").alias("objects"),
        f.count_if(f.col("object").isNull()).alias("inline batches"),
        f.sum("length").alias("bytes"),
    )
    return Answer(counts, "batches", findings)


def offsets_contiguous(frames: Frames) -> Answer:
    partitions = frames.newest.where("kind = 'partition'")
    extents = frames.batches.where("newest")
    order = Window.partitionBy("root", "group").orderBy("number")
    expected = f.lag(f.col("base_offset") + f.col("record_count")).over(order)
    gaps = extents.withColumn("expected", expected).where("base_offset != expected").select(
        "root", "group", "log_index", "base_offset",
        f.concat(
            f.lit("a batch begins at offset "), "base_offset",
            f.lit(", the one before ends at "), "expected",
        ).alias("problem"),
    )  # fmt: skip
    miscounted = extents.where("header_records != record_count").select(
        "root", "group", "log_index", "base_offset",
        f.concat(
            f.lit("the batch holds "), "header_records", f.lit(" records, its offsets are counted for "),
            "record_count",
        ).alias("problem"),
    )  # fmt: skip
    ends = extents.groupBy("root", "group").agg(
        f.min_by("base_offset", "number").alias("first"),
        f.min_by(f.col("base_offset") + f.col("record_count"), "number").alias("first_end"),
        f.max_by(f.col("base_offset") + f.col("record_count"), "number").alias("last_end"),
        f.sum("record_count").alias("records"),
    )
    whole = partitions.join(ends, ["root", "group"], "left")
    edges = _broken(
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
    return Answer(counts, "partitions", gaps.union(miscounted).union(edges))


def producer_sequences(frames: Frames) -> Answer:
    batches = frames.batches.where("newest")
    in_group = Window.partitionBy("root", "group").orderBy("number")
    # A batch that cannot be read might be any producer's: nothing is said about a gap across it.
    unread = f.sum(f.col("header_records").isNull().cast("long")).over(in_group)
    claimed = batches.withColumn("unread", unread).where("producer_id >= 0")
    order = Window.partitionBy("root", "group", "producer_id").orderBy("number")
    steps = (
        claimed.withColumn("epoch_before", f.lag("producer_epoch").over(order))
        .withColumn("unread_before", f.lag("unread").over(order))
        .withColumn(
            "expected",
            f.when(f.col("producer_epoch") > f.col("epoch_before"), f.lit(0)).otherwise(
                f.lag(f.col("base_sequence") + f.col("header_records")).over(order).bitwiseAND(MAX_SEQUENCE)
            ),
        )
        .withColumn("ahead", (f.col("base_sequence") - f.col("expected")).bitwiseAND(MAX_SEQUENCE))
    )
    new_epoch = f.col("producer_epoch") > f.col("epoch_before")
    gap = (f.col("ahead") > 0) & (f.col("ahead") <= MAX_SEQUENCE // 2)
    same = f.col("producer_epoch") == f.col("epoch_before")
    findings = _broken(
        steps,
        [
            (
                f.col("producer_epoch") < f.col("epoch_before"),
                f.concat(_producer(), f.lit(" goes back from epoch "), "epoch_before"),
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
        f.count_if(f.col("producer_id") >= 0).alias("batches of producers"),
        f.countDistinct("group", f.when(f.col("producer_id") >= 0, f.col("producer_id"))).alias("producers"),
        f.count_if(f.col("header_records").isNull()).alias("unreadable batches"),
    )
    return Answer(counts, "batches of producers", findings)


def _producer() -> Column:
    return f.concat(f.lit("producer "), "producer_id", f.lit(" epoch "), "producer_epoch")


def replay(frames: Frames) -> Answer:
    replays = frames.replays
    findings = replays.where(f.col("outcome") == DIFFERS).select(
        "root", "group", "log_index",
        f.concat(f.lit("after replaying from "), "after", f.lit(": "), "problem").alias("problem"),
    )  # fmt: skip
    remarks = replays.where(f.col("outcome") == NOT_COVERED).select(
        "root", "group", "log_index", f.concat(f.lit("not covered: "), "problem").alias("problem")
    )
    counts = replays.groupBy("root").agg(
        f.count("*").alias("checkpoints"),
        f.count_if(f.col("outcome") != NOT_COVERED).alias("replayed"),
        f.count_if(f.col("outcome") == AGREES).alias("agree"),
        f.count_if(f.col("outcome") == NOT_COVERED).alias("not covered"),
        f.coalesce(f.sum("entries"), f.lit(0)).alias("entries"),
    )
    return Answer(counts, "replayed", findings, remarks)


AUDITS = (
    Audit("replicas_agree", "Did all replicas publish the same bytes at each checkpoint?", replicas_agree),
    Audit("no_window", "Is no leader's epoch window part of any state?", no_window),
    Audit("epochs_never_regress", "Do epochs and terms only go up, in their order?", epochs_never_regress),
    Audit(
        "references_exist_and_crc",
        "Is every batch that is referred to there, intact, and what its extent says?",
        references_exist_and_crc,
    ),
    Audit(
        "offsets_contiguous",
        "Are there batches for every offset from start to high watermark?",
        offsets_contiguous,
    ),
    Audit("producer_sequences", "Has no producer a missing or a doubled sequence?", producer_sequences),
    Audit("replay", "Does each checkpoint with the log after it give the next one?", replay),
)
"""All audits, in the order of the report."""
