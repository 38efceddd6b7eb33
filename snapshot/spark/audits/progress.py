"""A line that says how far Spark is, while a person waits for an audit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

LOOK_SECONDS: Final = 0.5
_TOLD_FROM: Final = 0.05
_GROUP: Final = ("spark.jobGroup.id", "spark.job.description")
"""Properties of a thread's jobs, which the caller of an audit may have set."""
JOIN_SECONDS: Final = 2.0
"""Longest wait for the last look, which asks Java."""


@dataclass(frozen=True)
class Reading:
    """Objects that are being read now, in a job of this group: `bytes` in all, by what partitions claim."""

    group: str
    bytes: int
    began: float
    """Seconds of the monotonic clock."""


_reading: dict[str, Reading] = {}
"""By application: what `watched` tells of, and `reading` knows."""


@contextmanager
def reading(spark: SparkSession, total: int) -> Iterator[None]:
    """Let `watched` tell how much of so many bytes the one job of this block has read."""
    context = spark.sparkContext
    one = Reading(f"strandline-audit-reading-{id(spark):x}", total, time.monotonic())
    before = {name: context.getLocalProperty(name) for name in _GROUP}
    context.setJobGroup(one.group, "an audit reads objects")
    _reading[context.applicationId] = one
    try:
        yield
    finally:
        del _reading[context.applicationId]
        for name, value in before.items():
            context.setLocalProperty(name, value)  # type: ignore[arg-type]


@contextmanager
def watched(spark: SparkSession, tell: Callable[[str], None]) -> Iterator[None]:
    """Tell how far the session's jobs are, twice a second, for as long as the block lasts."""
    context = spark.sparkContext
    tracker, began, ended = context.statusTracker(), time.monotonic(), threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_SECONDS):
            try:
                now = time.monotonic()
                tell(line(tracker, now - began, _reading.get(context.applicationId), now))
            except (Py4JError, OSError):
                return  # the session ends, and the audit says why

    watcher = threading.Thread(target=look, name="audit-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join(JOIN_SECONDS)


def line(tracker: Any, seconds: float, read: Reading | None = None, now: float = 0.0) -> str:
    """The time so far, and the bytes that are read or the tasks of the stages that run; between two stages
    Spark plans."""
    if read is not None and (said := _bytes(tracker, read, now)) is not None:
        return f"auditing, {seconds:,.0f} s: {said}"
    found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    running = [info for info in found if info is not None]
    if not running:
        return f"auditing, {seconds:,.0f} s: Spark plans"
    done, all_ = (sum(getattr(info, name) for info in running) for name in ("numCompletedTasks", "numTasks"))
    return f"auditing, {seconds:,.0f} s: {done:,} of {all_:,} tasks that are known are done"


def _bytes(tracker: Any, read: Reading, now: float) -> str | None:
    """The bytes that are read, by the tasks of the last stage, which read about as many each; None before it
    has begun. Time is told once a twentieth is read, of reading alone: queries come after it."""
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(read.group)]
    stages = [max(job.stageIds) for job in jobs if job is not None and len(job.stageIds)]
    last = tracker.getStageInfo(max(stages)) if stages else None
    if last is None or not last.numTasks:
        return None
    share = last.numCompletedTasks / last.numTasks
    said = f"about {share * read.bytes / 1e9:,.1f} of {read.bytes / 1e9:,.1f} GB are read"
    if share < _TOLD_FROM:
        return said
    left = (now - read.began) * (1 - share) / share
    return f"{said}, {left:,.0f} s of reading left"
