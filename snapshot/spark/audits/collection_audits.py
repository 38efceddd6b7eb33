"""The audits of what is collected: that it goes, that nothing else goes, and that what decides it only grows.

docs/audits.md has a section for each, under its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from strandline.snapshot.spark.audits.audit import Answer, Frames, broken
from strandline.snapshot.spark.audits.document_audits import going_back
from strandline.snapshot.spark.audits.lacking import is_empty
from strandline.snapshot.spark.audits.work import local_frame
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP

_RISING = {
    "max_collectable": "M(p), the highest collectable epoch,",
    "last_reconciled": "the last reconciled offset",
    "last_reconciled_log_index": "the log index of the last reconciled offset",
    "start_offset": "the start offset",
    "next_offset": "the high watermark",
}
_NONE_JUDGED = (
    "root int, `judged objects` long, `level-zero objects` long, `level-one objects` long, undecided long, "
    "`foreign names` long, `collectable epoch` long"
)
_SAID = "root int, `group` long, log_index long, problem string"


def collectable_epochs_monotone(frames: Frames) -> Answer:
    readable = frames.documents.where("error is null and kind = 'partition'")
    said, summary = [], []
    for root, history in enumerate(frames.histories):
        rounds = history.rounds()
        highest = None
        for one in rounds:
            if highest is not None and one.maximum < highest:
                problem = f"M, the cluster's, goes back from {highest} to {one.maximum}"
                said.append((root, CONTROLLER_GROUP, one.controller.log_index, problem))
            highest = max(one.maximum, highest or one.maximum)
        summary.append((root, len(rounds), rounds[-1].maximum if rounds else 0))
    of_clusters = _local(frames, said, _SAID)
    if is_empty(readable):
        counts = _local(frames, [], "root int, partitions long, checkpoints long, rounds long, M long")
        return Answer(counts, "checkpoints", of_clusters)
    steps, of_partitions = going_back(readable, _RISING)
    of_partitions = of_partitions.union(_reconciled_without_its_entry(steps))
    counts = (
        steps.groupBy("root")
        .agg(f.countDistinct("group").alias("partitions"), f.count("*").alias("checkpoints"))
        .join(f.broadcast(_local(frames, summary, "root int, rounds long, M long")), "root")
    )
    return Answer(counts, "checkpoints", of_partitions.union(of_clusters))


def _reconciled_without_its_entry(steps: DataFrame) -> DataFrame:
    """The last reconciled offset moves with its entry's log index, which lies between the checkpoints."""
    offset, index = "last_reconciled", "last_reconciled_log_index"
    before = Window.partitionBy("root", "group").orderBy("log_index")
    pairs = steps.select(
        "root", "group", "log_index", offset, index,
        *(f.lag(name).over(before).alias(f"{name}_before") for name in ("log_index", offset, index)),
    )  # fmt: skip
    rules = [
        (
            (f.col(offset) > f.col(f"{offset}_before")) != (f.col(index) > f.col(f"{index}_before")),
            f.concat(
                f.lit("the last reconciled offset went from "), f"{offset}_before", f.lit(" to "), offset,
                f.lit(", and its log index from "), f"{index}_before", f.lit(" to "), index,
            ),
        ),
        (
            (f.col(index) > f.col(f"{index}_before")) & (f.col(index) <= f.col("log_index_before")),
            f.concat(
                f.lit("the last reconciled offset came with entry "), index,
                f.lit(", which the checkpoint before, at "), "log_index_before", f.lit(", has not seen"),
            ),
        ),
        (
            f.col(index) > f.col("log_index"),
            f.concat(f.lit("the last reconciled offset came later, with entry "), index),
        ),
    ]  # fmt: skip
    return broken(pairs, rules, "log_index")


def nothing_deleted_above_m(frames: Frames) -> Answer:
    held = [(root, history.held()) for root, history in enumerate(frames.histories)]
    known = _local(frames, [row for row in held if row[1] is not None], "root int, held long")
    told = frames.written.where("object is not null").select(
        "root", "group", "log_index", "base_offset", "object", "epoch"
    )
    referred = frames.batches.where("level = 0 and object is not null").select(*told.columns)
    there = frames.stored.where("level = 0").select(
        "root", *(f.lit(None).cast("long").alias(name) for name in ("group", "log_index", "base_offset")),
        "object", "epoch",
    )  # fmt: skip
    judged = (
        told.union(referred)
        .withColumn("there", f.lit(0))
        .union(there.withColumn("there", f.lit(1)))
        .groupBy("root", "object", "epoch")
        .agg(
            *(f.min(name).alias(name) for name in ("group", "log_index", "base_offset")),
            f.max("there").alias("there"),
        )
        .where("`group` is not null")
        .join(f.broadcast(known), "root")
    )
    above = f.col("epoch") > f.col("held")
    gone = f.col("there") == 0
    findings = judged.where(above & gone).select(
        "root", "group", "log_index", "base_offset", "object",
        f.concat(
            f.lit("an object of epoch "), "epoch", f.lit(" is gone, while M cannot be above "), "held"
        ).alias("problem"),
    )  # fmt: skip
    counts = judged.groupBy("root").agg(
        f.count_if(above).alias("objects above M"),
        f.count("*").alias("named objects"),
        f.count_if(gone & ~above).alias("collected"),
    )
    return Answer(counts, "objects above M", findings)


def nothing_collectable_left(frames: Frames) -> Answer:
    clusters, remarks, groups = [], [], []
    for root, history in enumerate(frames.histories):
        due, paused = history.due(frames.grace), history.paused(frames.grace)
        clusters.append(
            (root, due.maximum if due else None, list(due.controller.deleted_topics) if due else [])
        )
        if due is None:
            why = "collecting is, or was until lately, paused" if paused else "no checkpoint is old enough"
            remarks.append((root, CONTROLLER_GROUP, None, f"{why}: nothing of level zero is due"))
            continue
        for group, objects in frames.gone[root].items():
            if group < due.controller.next_group and group not in due.controller.partitions:
                problem = f"{objects} published objects of a group are left whose topic was deleted"
                groups.append((root, group, None, problem))
    of_groups = _local(frames, groups, _SAID).select(
        "root", "group", f.lit(None).cast("string").alias("object"), "problem"
    )
    said = _local(frames, remarks, _SAID)
    if is_empty(frames.stored):
        return Answer(_local(frames, [], _NONE_JUDGED), "judged objects", of_groups, said)
    judged = _judged(frames, _local(frames, clusters, "root int, due_epoch long, due_deleted array<string>"))
    findings = judged.where("problem is not null").select("root", "group", "object", "problem")
    counts = judged.groupBy("root").agg(
        f.count_if("judged").alias("judged objects"),
        f.count_if(f.col("level") == 0).alias("level-zero objects"),
        f.count_if(f.col("level") == 1).alias("level-one objects"),
        f.count_if((f.col("level") == 1) & ~f.col("judged")).alias("undecided"),
        f.count_if(f.col("level").isNull()).alias("foreign names"),
        f.coalesce(f.max("due_epoch"), f.lit(0)).alias("collectable epoch"),
    )
    return Answer(counts, "judged objects", findings.union(of_groups), said)


def _judged(frames: Frames, clusters: DataFrame) -> DataFrame:
    """Stored objects, each with what is wrong with its being there, and whether that can be told.

    A level-one object no state names may still become named: its command may lie in a log without a quorum,
    or its upload be under way. Both end with the leader's term. So what is not named is an orphan once its
    partition is in a later term, and overdue when it was so a grace ago.
    """
    partitions = []
    for root, history in enumerate(frames.histories):
        for one in history.partitions_due(frames.grace):
            if place := frames.places[root].get(one.group):
                partitions.append((root, place.topic_id.hex(), place.partition, *one))
    known = _local(
        frames, partitions, "root int, topic_id string, partition long, `group` long, "
        "removed array<string>, due_term long, overdue array<string>",
    )  # fmt: skip
    named = frames.batches.where("level = 1").select("root", "object", f.lit(True).alias("named")).distinct()
    stored = (
        frames.stored.join(f.broadcast(clusters), "root", "left")
        .join(f.broadcast(known), ["root", "topic_id", "partition"], "left")
        .join(named, ["root", "object"], "left")
    )
    is_removed = _contains("removed", "unique")
    orphan = ~is_removed & f.coalesce(f.col("term") < f.col("due_term"), f.lit(False))
    too_old = f.coalesce(f.col("epoch") <= f.col("due_epoch"), f.lit(False))
    problem = (
        f.when(too_old, _said("an object of epoch ", "epoch", " is left, M was ", "due_epoch"))
        .when(f.col("named") | (f.col("level") == 0), f.lit(None))
        .when(f.col("group").isNull() & _contains("due_deleted", "topic_id"), f.lit("its topic was deleted"))
        .when(_contains("overdue", "unique"), f.lit("it was removed, and no lease kept it"))
        .when(
            orphan, _said("nothing names it: it is of term ", "term", ", its partition was in ", "due_term")
        )
    )
    decided = (
        f.when(f.col("level") == 0, f.col("due_epoch").isNotNull())
        .when(f.col("level") == 1, f.coalesce(f.col("named"), is_removed) | f.col("problem").isNotNull())
        .otherwise(f.lit(False))
    )
    return stored.withColumn("problem", problem).withColumn("judged", decided)


def _contains(many: str, one: str) -> Column:
    return f.coalesce(f.array_contains(many, f.col(one)), f.lit(False))


def _said(*parts: str) -> Column:
    """Words and columns in turn."""
    return f.concat(*(f.col(part) if number % 2 else f.lit(part) for number, part in enumerate(parts)))


def _local(frames: Frames, rows: Sequence[tuple[Any, ...]], schema: str) -> DataFrame:
    """A few rows that were computed here."""
    return local_frame(frames.documents.sparkSession, rows, schema)
