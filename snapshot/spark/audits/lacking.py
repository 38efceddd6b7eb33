"""Kinds of rows that a cluster lacks: most audits of an empty one need not be asked.

To plan an audit takes Spark some tenths of a second in a Java that has just started, also where it then finds
that there are no rows. The driver has the rows of a small cluster, and the planner tells their number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark.sql import DataFrame

from strandline.snapshot.spark.audits.audit import Audit, Frames

KINDS: Final[Mapping[str, Callable[[Frames], DataFrame]]] = {
    "partitions": lambda frames: frames.documents.where("error is null and kind = 'partition'"),
    "references": lambda frames: frames.references,
    "batches": lambda frames: frames.batches,
    "written": lambda frames: frames.written,
    "events": lambda frames: frames.events,
    "said": lambda frames: frames.said,
    "comparisons": lambda frames: frames.comparisons,
    "keys": lambda frames: frames.tables.keys,
    "key findings": lambda frames: frames.tables.findings,
    "key counts": lambda frames: frames.tables.counts,
}


def lacking(frames: Frames) -> frozenset[str]:
    """The kinds of rows that there are none of, as far as the planner knows without a job."""
    return frozenset(name for name, rows in KINDS.items() if is_empty(rows(frames)))


def asked(audits: tuple[Audit, ...], frames: Frames) -> list[Audit]:
    """The audits that may have something to look at."""
    lacked = lacking(frames)
    return [audit for audit in audits if not audit.about or not lacked.issuperset(audit.about)]


def is_empty(rows: DataFrame) -> bool:
    """Whether the planner knows, without a job, that there are no rows."""
    return _most(rows) == 0


def _most(rows: DataFrame) -> int | None:
    most: Any = rows._jdf.queryExecution().optimizedPlan().maxRows()
    return int(most.get()) if most.isDefined() else None
