"""What an audit is: a question, put to rows that were read once for all of them.

Each gives frames with a `root` column, one value for each cluster's storage: counts, findings and remarks.
Findings name the group and, where there is one, checkpoint, offset, object and node, so that a person finds
the place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f


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


def broken(rows: DataFrame, rules: list[tuple[Column, Column]], *places: str) -> DataFrame:
    """A row for each rule that a row breaks: (condition of the breach, what to say)."""
    problems = f.array_compact(f.array(*(f.when(broken, said) for broken, said in rules)))
    return rows.withColumn("problems", problems).select(
        "root", "group", *places, f.explode("problems").alias("problem")
    )
