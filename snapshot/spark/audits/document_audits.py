"""The audits of what documents say: of each other, of themselves, and beside the log between them.

docs/audits.md has a section for each, under its name.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgpack
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from strandline.snapshot.spark.audits.audit import Answer, Frames, broken
from strandline.snapshot.spark.audits.replay import AGREES, DIFFERS, NOT_COVERED, new_machine
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_snapshot import FIELDS
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.transactions.transactions import TransactionsMachine


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
    # What is retained no more is being removed. The newest document says what is; the controller has no list,
    # so only its newest counts. Some of the others may be gone, and some come back with a node that starts.
    newest = frames.newest.select("root", "group", f.col("log_index").alias("newest"), "retained")
    kept = checkpoints.join(newest, ["root", "group"], "left").where(
        "newest is null or log_index >= newest or array_contains(retained, log_index)"
    )
    alone = kept.where("size(voters) > 1 and readable = 1 and size(present) = 1").select(
        "root", "group", "log_index",
        f.lit("only one replica published: there is nothing to compare it with").alias("problem"),
    )  # fmt: skip
    missing = kept.where("size(missing) > 0").select(
        "root", "group", "log_index",
        f.concat(f.lit("no document of node "), f.array_join("missing", ", ")).alias("problem"),
    )  # fmt: skip
    counts = checkpoints.groupBy("root").agg(
        f.sum(f.size("present")).alias("documents"),
        f.count("*").alias("checkpoints"),
        f.sum(f.size("missing")).alias("missing documents"),
    )
    return Answer(counts, "documents", differing.union(unreadable).union(alone), missing)


STATE_FIELDS = {
    # An empty controller is at the lowest feature level, and writes fewer.
    Controller.kind: list(FIELDS),
    **{
        kind: list(msgpack.unpackb(new_machine(kind, 0).snapshot()))
        for kind in (PartitionStateMachine.kind, GroupsMachine.kind, TransactionsMachine.kind)
    },
}
"""Fields of a machine's state."""


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
}


def going_back(readable: DataFrame, rising: Mapping[str, str]) -> tuple[DataFrame, DataFrame]:
    """A row for each checkpoint, and a finding for each that has less than one before it; `rising` are
    columns, and what to call them."""
    before = Window.partitionBy("root", "group").orderBy("log_index")
    steps = readable.groupBy("root", "group", "log_index").agg(
        *(f.min(name).alias(name) for name in rising),
        *(f.max(name).alias(f"{name}_max") for name in rising),
    )
    rules: list[tuple[Column, Column]] = []
    for name, words in rising.items():
        # Running, so that one bad checkpoint does not hide behind the next.
        highest = f.max(f"{name}_max").over(before.rowsBetween(Window.unboundedPreceding, -1))
        rules.append(
            (f.col(name) < highest, f.concat(f.lit(f"{words} goes back from "), highest, f.lit(" to "), name))
        )
    return steps, broken(steps, rules, "log_index")


def epochs_never_regress(frames: Frames) -> Answer:
    readable = frames.documents.where("error is null")
    steps, regressing = going_back(readable, _RISING)
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
    within = broken(readable, window_rules, "log_index").distinct()
    counts = steps.groupBy("root").agg(
        f.countDistinct("group").alias("groups"), f.count("*").alias("checkpoints")
    )
    return Answer(counts, "checkpoints", regressing.union(within))


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
