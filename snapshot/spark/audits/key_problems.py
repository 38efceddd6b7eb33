"""Every key of a compacted partition in every pair of its copies: what is wrong with it there."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from strandline.snapshot.spark.audits.copies import NEWEST, Pairing
from strandline.snapshot.spark.audits.work import local_frame

LATEST, KEPT, RESURRECTED, AGREE = (
    "latest_value_survives",
    "tombstones_kept",
    "nothing_resurrected",
    "local_logs_agree",
)
"""The audits that ask about pairs of copies."""


def judged_keys(keys: DataFrame, pairs: DataFrame) -> DataFrame:
    """Every key in every pair of copies, with the `problems` that are found, structs of audit, base_offset
    and problem. `due`: it has a tombstone that may not go yet.

    Where something could not be read, no table is known, and nothing is compared.
    """
    unread = keys.where("key is null and element_at(lasts, -1) is not null").select("root", "group")
    beside = (
        keys.where("key is not null")
        .join(f.broadcast(unread), ["root", "group"], "left_anti")
        .join(f.broadcast(pairs), ["root", "group"])
        .where("key < bound")
    )
    beside = _with_lasts(beside)
    left_at, right_at, own_at = (f.col(f"{side}.offset") for side in ("left", "right", "own"))
    left_lives, right_lives = (
        _is(f.col(f"{side}.offset").isNotNull() & ~f.col(f"{side}.tombstone")) for side in ("left", "right")
    )
    # Below where the earlier one ends: what lies above was written since.
    right_was_there = _is(right_at < f.col("until"))
    due = (
        _of(Pairing.LEVEL_ONE, Pairing.LOCAL)
        & _is(f.col("left.tombstone"))
        & _is(left_at >= f.col("ripe"))
        # A log that was reset since has not come so far again.
        & ~(_of(Pairing.LOCAL) & _is(left_at >= f.col("log_end")))
    )
    differs = ~f.when(left_lives, left_at).eqNullSafe(f.when(right_lives, right_at))
    on_node = f.when(f.col("node").isNotNull(), f.concat(f.lit(" on node "), "node")).otherwise(f.lit(""))
    problems = (
        _problem(
            LATEST,
            _of(Pairing.LEVEL_ONE) & left_lives & right_at.isNull() & f.col("told"),
            left_at,
            f.concat(key_text(), f.lit(" had its latest value there, and has none any more")),
        ),
        _problem(
            LATEST,
            _of(Pairing.LEVEL_ONE)
            & left_lives
            & right_was_there
            & ((right_at != left_at) | f.col("right.tombstone")),
            left_at,
            f.concat(key_text(), f.lit(" had its latest value there, its last record is now at "), right_at),
        ),
        _problem(
            KEPT,
            due & ~_is(own_at >= left_at),
            left_at,
            f.concat(key_text(), f.lit(" has lost its tombstone"), on_node, f.lit(", which may not go yet")),
        ),
        _problem(
            RESURRECTED,
            _of(Pairing.LEVEL_ONE, Pairing.LEVEL_ONE_AND_LOCAL) & ~left_lives & right_lives & right_was_there,
            right_at,
            f.concat(key_text(), f.lit(" was deleted, and has this value again"), on_node),
        ),
        _problem(
            AGREE,
            _of(Pairing.COPIES) & differs,
            f.coalesce(right_at, left_at),
            f.concat(
                key_text(), f.lit(" has its value at "), _value(right_lives, right_at), on_node,
                f.lit(", in level one at "), _value(left_lives, left_at),
            ),
        ),
    )  # fmt: skip
    return beside.select(
        "root", "group", "pairing", "log_index", "node", due.alias("due"),
        f.array_compact(f.array(*problems)).alias("problems"),
    )  # fmt: skip


def _with_lasts(beside: DataFrame) -> DataFrame:
    """The last records of the key as structs: `left`, `right`, and `own`, which the right copy itself has."""
    last_now = f.element_at("lasts", f.lit(NEWEST))
    goes_on = f.col("node").isNotNull() & (f.col("now.offset") >= f.col("log_end"))
    found = (
        beside.withColumn("now", last_now)
        .withColumn("left", f.element_at("lasts", f.col("left")))
        .withColumn("own", f.element_at("lasts", f.col("right")))
        # Above its end a local log goes on as level one does.
        .withColumn("right", f.when(goes_on, f.col("now")).otherwise(f.col("own")))
    )
    # The first object, or segment, may begin below the start offset.
    return found.withColumns(
        {
            side: f.when(f.col(f"{side}.offset") >= f.col("start"), f.col(side))
            for side in ("left", "right", "own")
        }
    )


def _of(*pairings: Pairing) -> Column:
    return f.col("pairing").isin(*(one.value for one in pairings))


def _is(condition: Column) -> Column:
    return f.coalesce(condition, f.lit(False))


def _value(lives: Column, offset: Column) -> Column:
    return f.when(lives, offset.cast("string")).otherwise(f.lit("none"))


def _problem(audit: str, condition: Column, offset: Column, words: Column) -> Column:
    found = f.struct(f.lit(audit).alias("audit"), offset.alias("base_offset"), words.alias("problem"))
    return f.when(condition, found)


def key_text() -> Column:
    """A key, of which only the hash is known, for people."""
    return f.concat(f.lit("the key of hash "), f.lower(f.substring(f.hex("key"), 1, 16)))


def no_keys(spark: SparkSession) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Keys, `key_findings` and `key_counts` where there is no copy: planning them takes a second."""
    keys = "root int, `group` long, key binary, lasts map<int, struct<offset: long, tombstone: boolean>>"
    findings = "audit string, root int, `group` long, log_index long, node int, base_offset long"
    columns = (
        f"{keys}, times long, first_clean long",
        f"{findings}, problem string",
        "root int, pairing string, compared long, due long",
    )
    rows, found, counted = (local_frame(spark, [], one) for one in columns)
    return rows, found, counted


def key_findings(judged: DataFrame) -> DataFrame:
    """A row for each problem: audit, root, group, log_index, node, base_offset, problem."""
    rows = judged.where("size(problems) > 0").withColumn("found", f.explode("problems"))
    return rows.select(
        "found.audit", "root", "group", "log_index", "node", "found.base_offset", "found.problem"
    )


def key_counts(judged: DataFrame) -> DataFrame:
    """By root and pairing: keys compared, and those of which a tombstone may not go yet."""
    return judged.groupBy("root", "pairing").agg(
        f.count("*").alias("compared"), f.count_if("due").alias("due")
    )
