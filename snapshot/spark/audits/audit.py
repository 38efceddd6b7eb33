"""An audit: a question about rows that are read once for all audits.

Each gives frames with a `root` column, one value for each cluster's storage: counts, findings and remarks.
Findings name the group and, where there is one, checkpoint, offset, object and node, so that a person finds
the place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from strandline.snapshot.spark.audits.collecting import ClusterHistory, Grace
from strandline.snapshot.spark.audits.key_tables import Tables
from strandline.snapshot.spark.audits.references import GroupPlace


class Frames(NamedTuple):
    """Input of the audits; each frame is read once, whatever the number of audits."""

    documents: DataFrame
    newest: DataFrame
    """Of each group the document its batches were taken from."""
    references: DataFrame
    """References of partitions' checkpoints: batches in level zero, objects in level one."""
    batches: DataFrame
    replays: DataFrame
    written: DataFrame
    """Every batch that logs and checkpoints tell of, and where it lay in level zero."""
    events: DataFrame
    """Transactions in the covered logs."""
    said: DataFrame
    """The open and the aborted transactions of partitions' newest states."""
    stored: DataFrame
    """The objects of both levels that storage lists."""
    comparisons: DataFrame
    """Each level-one object beside what level zero still has of its records."""
    tables: Tables
    """Of compacted partitions: what each copy has of each key."""
    histories: Sequence[ClusterHistory]
    """By `root`, as are the next two."""
    places: Sequence[Mapping[int, GroupPlace]]
    """Each group's partition, by the controller's newest readable document."""
    gone: Sequence[Mapping[int, int]]
    """Number of published objects of each group of a deleted topic; nothing else counts them."""
    grace: Grace


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
    counts: tuple[str, ...]
    """Names of its answer's counts."""
    about: tuple[str, ...] = ()
    """Names of `lacking.KINDS` that it is about. Where there is not a row of any, it has nothing to
    count, to find or to remark, and is not asked. One that names nothing is always asked."""


def broken(rows: DataFrame, rules: list[tuple[Column, Column]], *places: str) -> DataFrame:
    """A row for each rule that a row breaks: (condition of the breach, what to say)."""
    problems = f.array_compact(f.array(*(f.when(broken, said) for broken, said in rules)))
    return rows.withColumn("problems", problems).select(
        "root", "group", *places, f.explode("problems").alias("problem")
    )
