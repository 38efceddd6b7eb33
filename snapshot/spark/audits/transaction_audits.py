"""Audits of transactions over all partitions and groups: each is whole, and each marker was decided.

The coordinators' decisions are compared with the partitions and groups, from the logs of all of them.
docs/audits.md has a section for each, under its name.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from strandline.snapshot.spark.audits.audit import Answer, Frames, broken
from strandline.snapshot.spark.audits.transaction_events import (
    COMPLETED,
    COVERED,
    DECIDED,
    ENLISTED,
    KNOWN,
    MARKER,
    OUTSIDE,
    WRITTEN,
)
from strandline.statemachine.internal_topics import TRANSACTIONS_KIND, TRANSACTIONS_TOPIC

SLACK_MS: Final = 60_000
"""Maximum difference of two nodes' clocks. An event less than that before the end of a group's log can lie
behind that end."""
_ID: Final = ["root", "producer_id", "transaction"]


def every_marker_has_its_transaction(frames: Frames) -> Answer:
    markers = _of(frames, MARKER).withColumnRenamed("offset", "base_offset")
    decided = _decided(frames).select(
        *_ID, f.col("committed").alias("decision"), f.col("producer_epoch").alias("decided_epoch")
    )
    beside = (
        markers.join(decided, _ID, "left")
        .join(_coordinators(frames), ["root", "producer_id"], "left")
        .join(_all_covered(frames), "root", "left")
        .join(_stored_markers(frames), ["root", "group", "base_offset"], "left")
    )
    undecided = f.col("decision").isNull()
    history = f.col("transaction") <= f.col("known_number")
    awaited = (f.col("transaction") >= f.col("newest_number")) & (
        f.col("time") > f.col("known_until") - SLACK_MS
    )
    nobodys = f.col("known_number").isNull() & f.col("all_from") & (
        f.col("time") <= f.col("all_until") - SLACK_MS
    )  # fmt: skip
    findings = broken(
        beside,
        [
            (
                f.col("open_number") != f.col("transaction"),
                f.concat(_marker(), f.lit(" ends transaction "), "open_number"),
            ),
            (
                f.col("decision") != f.col("committed"),
                f.concat(
                    _marker(), f.lit(" says "), _outcome("committed"), f.lit(", its coordinator decided "),
                    _outcome("decision"),
                ),
            ),
            (
                f.col("decided_epoch") != f.col("producer_epoch"),
                f.concat(
                    _marker(), f.lit(" has epoch "), "producer_epoch", f.lit(", its coordinator decided "),
                    "decided_epoch",
                ),
            ),
            (
                undecided & f.col("known_number").isNotNull() & ~history & ~awaited,
                f.concat(_marker(), f.lit(" was never decided")),
            ),
            (undecided & nobodys, f.concat(_marker(), f.lit(": no coordinator knows its producer"))),
            (
                f.col("stored_says") != f.col("committed"),
                f.concat(
                    _marker(), f.lit(" says "), _outcome("committed"), f.lit(", the stored batch "),
                    _outcome("stored_says"),
                ),
            ),
        ],
        "log_index", "base_offset",
    )  # fmt: skip
    counts = beside.groupBy("root").agg(
        f.count("*").alias("markers"),
        f.count_if(f.col("decision").isNotNull()).alias("decided"),
        f.count_if(undecided & (history | awaited)).alias("decided outside of the covered logs"),
    )
    return Answer(counts, "decided", findings)


def transactions_are_whole(frames: Frames) -> Answer:
    markers = _of(frames, MARKER)
    torn = (
        markers.groupBy(*_ID)
        .agg(
            f.min("committed").alias("least"),
            f.max("committed").alias("most"),
            f.min(f.when(f.col("committed"), f.col("group"))).alias("there"),
            f.min_by("group", "committed").alias("group"),
            f.min_by("log_index", "committed").alias("log_index"),
            f.min_by("offset", "committed").alias("base_offset"),
        )
        .where("least != most")
        .select(
            "root", "group", "log_index", "base_offset",
            f.concat(
                _transaction(), f.lit(" is aborted here and committed in group "), "there"
            ).alias("problem"),
        )
    )  # fmt: skip
    parts = _of(frames, ENLISTED).select(*_ID, f.col("target").alias("group")).distinct()
    completed = _of(frames, COMPLETED).select(
        *_ID, "committed", f.col("time").alias("completed_at"), "transactional_id"
    )
    covered = _of(frames, COVERED).select(
        "root", "group", "log_index", f.col("time").alias("covered_from"), "until",
        f.col("committed").alias("whole"),
    )  # fmt: skip
    known = _of(frames, KNOWN).select(
        "root", "group", "producer_id", f.col("transaction").alias("known_number")
    )
    marked = markers.select(*_ID, "group", f.lit(True).alias("marked")).distinct()
    due = (
        parts.join(completed, _ID)
        .join(covered, ["root", "group"])
        .join(known, ["root", "group", "producer_id"], "left")
        .join(marked, [*_ID, "group"], "left")
        .where(f.col("completed_at") <= f.col("until") - SLACK_MS)
        .where(f.col("whole") | (f.col("completed_at") >= f.col("covered_from") + SLACK_MS))
        .where("known_number is null or known_number < transaction")
    )
    missing = due.where("marked is null").select(
        "root", "group", "log_index", f.lit(None).cast("long").alias("base_offset"),
        f.concat(
            _transaction(), f.lit(" of "), "transactional_id", f.lit(" is complete, "), _outcome("committed"),
            f.lit(", and has no marker here"),
        ).alias("problem"),
    )  # fmt: skip
    foreign = _foreign(frames, parts)
    sizes = completed.groupBy("root").agg(
        f.count("*").alias("transactions"), f.count_if("committed").alias("committed")
    )
    counts = (
        sizes.join(due.groupBy("root").agg(f.count("*").alias("parts with a marker due")), "root", "left")
        .join(
            _of(frames, WRITTEN).groupBy("root").agg(f.count("*").alias("parts written to")), "root", "left"
        )
        .fillna(0)
    )
    findings = (
        torn.union(missing).union(foreign).union(_behind_its_marker(frames)).union(_of_no_member(frames))
    )
    return Answer(counts, "parts with a marker due", findings)


def _foreign(frames: Frames, parts: DataFrame) -> DataFrame:
    """Records of a partition that was never added to their transaction."""
    is_part = parts.withColumn("is_part", f.lit(True))
    written = (
        _of(frames, WRITTEN)
        .join(is_part, [*_ID, "group"], "left")
        .join(_coordinators(frames), ["root", "producer_id"], "left")
        .where("is_part is null and known_number < transaction")
        .where(
            (f.col("transaction") < f.col("newest_number"))
            | (f.col("time") <= f.col("known_until") - SLACK_MS)
        )
    )
    return written.select(
        "root", "group", "log_index", f.col("offset").alias("base_offset"),
        f.concat(_transaction(), f.lit(" has something here, and this is not part of it")).alias("problem"),
    )  # fmt: skip


def _behind_its_marker(frames: Frames) -> DataFrame:
    """Records behind the marker of their transaction, or of a later one.

    A coordinator that has sent all its markers sends no other: nothing ends such a transaction, and the last
    stable offset stays at its start (KIP-890).
    """
    before = (
        Window.partitionBy("root", "group", "producer_id")
        .orderBy(f.coalesce("offset", f.lit(-1)))
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    ends = f.when(f.col("event").isin(MARKER, KNOWN), f.col("transaction"))
    return (
        frames.events.where(f.col("event").isin(MARKER, KNOWN, WRITTEN))
        .withColumn("ended", f.max(ends).over(before))
        .where((f.col("event") == WRITTEN) & (f.col("transaction") <= f.col("ended")))
        .select(
            "root", "group", "log_index", f.col("offset").alias("base_offset"),
            f.concat(
                _transaction(), f.lit(" has something here behind the marker of transaction "), "ended"
            ).alias("problem"),
        )
    )  # fmt: skip


def _of_no_member(frames: Frames) -> DataFrame:
    """Offsets that a state has taken although their sender was no member of the group's generation then."""
    taken = (
        frames.documents.where("error is null")
        .select("root", "group", f.explode("offset_entries").alias("offset"))
        .distinct()
    )
    return (
        _of(frames, OUTSIDE)
        .join(taken, ["root", "group", "offset"])
        .select(
            "root", "group", "log_index", f.lit(None).cast("long").alias("base_offset"),
            f.concat(
                _transaction(), f.lit(" has offsets here by entry "), "offset",
                f.lit(", which no member of the group's generation sent"),
            ).alias("problem"),
        )
    )  # fmt: skip


def _of(frames: Frames, event: str) -> DataFrame:
    return frames.events.where(f.col("event") == event)


def _decided(frames: Frames) -> DataFrame:
    return _of(frames, DECIDED)


def _coordinators(frames: Frames) -> DataFrame:
    """For each producer id that a covered log of a coordinator knows: up to which number it is history, the
    newest number, and until when its log is covered."""
    told = frames.events.where((f.col("kind") == TRANSACTIONS_KIND) & f.col("producer_id").isNotNull())
    numbers = told.groupBy("root", "group", "producer_id").agg(
        f.coalesce(f.max(f.when(f.col("event") == KNOWN, f.col("transaction"))), f.lit(0)).alias(
            "known_number"
        ),
        f.max("transaction").alias("newest_number"),
    )
    until = _of(frames, COVERED).select("root", "group", f.col("until").alias("known_until"))
    return numbers.join(until, ["root", "group"]).drop("group")


def _all_covered(frames: Frames) -> DataFrame:
    """Whether the logs of all coordinators are covered from their beginning, and until when all are."""
    coordinators = [
        Counter(place.topic for place in places.values())[TRANSACTIONS_TOPIC] for places in frames.places
    ]
    expected = f.array(*map(f.lit, coordinators))
    return (
        _of(frames, COVERED)
        .where(f.col("kind") == TRANSACTIONS_KIND)
        .groupBy("root")
        .agg(f.count_if("committed").alias("whole"), f.min("until").alias("all_until"))
        .select("root", (f.col("whole") == expected[f.col("root")]).alias("all_from"), "all_until")
    )


def _stored_markers(frames: Frames) -> DataFrame:
    """Decisions of the markers that the newest checkpoints refer to."""
    return frames.batches.where("newest and committed is not null").select(
        "root", "group", "base_offset", f.col("committed").alias("stored_says")
    )


def _transaction() -> Column:
    return f.concat(f.lit("transaction "), "transaction", f.lit(" of producer "), "producer_id")


def _marker() -> Column:
    return f.concat(f.lit("the marker of "), _transaction())


def _outcome(column: str) -> Column:
    return f.when(f.col(column), f.lit("committed")).otherwise(f.lit("aborted"))
