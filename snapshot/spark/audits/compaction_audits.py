"""The audits of compaction: what states say of level one, and the tables that a partition's copies give.

docs/audits.md has a section for each, under its name.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from strandline.snapshot.spark.audits.audit import Answer, Frames, broken
from strandline.snapshot.spark.audits.copies import NEWEST, Pairing
from strandline.snapshot.spark.audits.document_audits import going_back
from strandline.snapshot.spark.audits.key_problems import AGREE, KEPT, LATEST, RESURRECTED, key_text
from strandline.snapshot.spark.audits.work import local_frame

_RISING = {
    "mtro": "MTRO",
    "mxro": "MXRO",
    "ripe_tombstones": "the offset below which tombstones may go",
    "ripe_markers": "the offset below which markers may go",
    "level_one_clean": "the offset to which level one is clean",
    "level_one_settled": "the offset to which level one is settled",
}
_NODE_FINDING = "root int, `group` long, log_index long, node int, problem string"


def removal_offsets_monotone(frames: Frames) -> Answer:
    readable = frames.documents.where("error is null and kind = 'partition'")
    steps, regressing = going_back(readable, _RISING)
    end = f.greatest(f.col("last_reconciled") + 1, "start_offset")
    rules = [
        *(
            _above(name, _RISING[limit], f.col(limit))
            for name, limit in (
                ("ripe_tombstones", "mtro"),
                ("mtro", "level_one_clean"),
                ("ripe_markers", "mxro"),
                ("mxro", "level_one_settled"),
                ("level_one_clean", "level_one_settled"),
            )
        ),
        _above("level_one_settled", "the end of level one", end),
        _above("level_one_settled", "the last stable offset", f.col("last_stable")),
    ]
    # Replicas that agree need be named once.
    within = broken(readable, rules, "log_index").distinct()
    compacted = f.broadcast(_compacted(frames))
    counts = (
        steps.join(compacted, ["root", "group"])
        .groupBy("root")
        .agg(f.countDistinct("group").alias("compacted partitions"), f.count("*").alias("checkpoints"))
    )
    return Answer(counts, "checkpoints", regressing.union(within))


def _above(name: str, words: str, limit: Column) -> tuple[Column, Column]:
    said = f.concat(f.lit(f"{_RISING[name]}, "), name, f.lit(f", is above {words}, "), limit)
    return f.col(name) > limit, said


def _compacted(frames: Frames) -> DataFrame:
    groups = [(one.root, one.group) for one in frames.tables.copies]
    return local_frame(frames.documents.sparkSession, groups, "root int, `group` long")


def level_one_is_clean(frames: Frames) -> Answer:
    newest = frames.newest.select("root", "group", "log_index", "start_offset")
    keys = frames.tables.keys.where("times > 0")
    twice = (
        keys.where("key is null or times > 1")
        .join(newest, ["root", "group"])
        .select(
            "root", "group", "log_index", f.col("first_clean").alias("base_offset"),
            f.when(f.col("key").isNull(), f.concat("times", f.lit(" records from here on have no key")))
            .otherwise(f.concat(key_text(), f.lit(" is there "), "times", f.lit(" times")))
            .alias("problem"),
        )
    )  # fmt: skip
    raw = (
        frames.batches.where("newest and level = 1 and transactional and committed is null")
        .drop("log_index")
        .join(newest, ["root", "group"])
        .where("base_offset >= start_offset and base_offset < settled")
        .select(
            "root", "group", "log_index", "base_offset",
            f.concat(
                f.lit("a batch of a transaction lies where level one is settled, below "), "settled"
            ).alias("problem"),
        )
    )  # fmt: skip
    counts = keys.groupBy("root").agg(f.count("key").alias("keys where level one is clean"))
    return Answer(counts, "keys where level one is clean", twice.union(raw))


def latest_value_survives(frames: Frames) -> Answer:
    return Answer(_compared(frames, Pairing.LEVEL_ONE), "keys compared", _found(frames, LATEST))


def nothing_resurrected(frames: Frames) -> Answer:
    counts = _compared(frames, Pairing.LEVEL_ONE, Pairing.LEVEL_ONE_AND_LOCAL)
    return Answer(counts, "keys compared", _found(frames, RESURRECTED))


def tombstones_kept(frames: Frames) -> Answer:
    newest = frames.newest.select(
        "root", "group", f.col("log_index").alias("newest_index"),
        f.greatest("ripe_markers", "start_offset").alias("kept_from"),
    )  # fmt: skip
    # A batch that cannot be read may be any marker.
    unread = f.max(f.col("newest") & f.col("header_records").isNull()).over(
        Window.partitionBy("root", "group")
    )
    markers = (
        frames.batches.withColumn("unread", unread)
        .where("not unread and committed is not null")
        .groupBy("root", "group", "base_offset")
        .agg(f.max("newest").alias("there"))
        .join(newest, ["root", "group"])
        .where("base_offset >= kept_from")
    )
    gone = markers.where("not there").select(
        "root", "group", f.col("newest_index").alias("log_index"), f.lit(None).cast("int").alias("node"),
        "base_offset", f.lit("a marker that may not go yet was there, and is gone").alias("problem"),
    )  # fmt: skip
    due = frames.tables.counts.select("root", "due", f.lit(0).cast("long").alias("markers"))
    of_markers = markers.select("root", f.lit(1).cast("long"), f.lit(1).cast("long"))
    counts = (
        due.union(of_markers)
        .groupBy("root")
        .agg(f.sum("due").alias("tombstones and markers"), f.sum("markers").alias("markers"))
    )
    return Answer(counts, "tombstones and markers", _found(frames, KEPT).unionByName(gone))


def local_logs_agree(frames: Frames) -> Answer:
    damaged, remarks = [], []
    for one in frames.tables.copies:
        newest = one.level_one[NEWEST]
        place = (one.root, one.group, newest.log_index)
        remarks += [(*place, node, "there is no local document of this node") for node in one.missing]
        for local in one.local:
            header = frames.tables.headers[one.root, one.group][local.number]
            at = (one.root, one.group, local.name.log_index, local.name.node)
            if header["error"] is not None:
                damaged.append((*at, f"its local document: {header['error']}"))
            elif local.name.log_index != newest.log_index:
                continue
            elif header["log_end"] > newest.end:
                remarks.append((*at, f"its log ends at {header['log_end']}, above the checkpoint's records"))
            elif newest.ripe_tombstones > max(header["log_end"], header["floor"], newest.first):
                ends = f"its log ends at {header['log_end']}, and its floor is {header['floor']}"
                damaged.append(
                    (*at, f"{ends}: tombstones below {newest.ripe_tombstones} may be gone already")
                )
    spark = frames.documents.sparkSession
    findings = _found(frames, AGREE).unionByName(
        local_frame(spark, damaged, _NODE_FINDING).withColumn("base_offset", f.lit(None).cast("long"))
    )
    counts = _compared(frames, Pairing.COPIES)
    return Answer(counts, "keys compared", findings, local_frame(spark, remarks, _NODE_FINDING))


def _found(frames: Frames, audit: str) -> DataFrame:
    return frames.tables.findings.where(f.col("audit") == audit).drop("audit")


def _compared(frames: Frames, *pairings: Pairing) -> DataFrame:
    chosen = frames.tables.counts.where(f.col("pairing").isin(*(one.value for one in pairings)))
    return chosen.groupBy("root").agg(f.sum("compared").alias("keys compared"))
