"""A line that says how far Spark is, while a person waits for an audit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

LOOK_SECONDS: Final = 0.5
JOIN_SECONDS: Final = 2.0
"""Longest wait for the last look, which asks Java."""


@contextmanager
def watched(spark: SparkSession, tell: Callable[[str], None]) -> Iterator[None]:
    """Tell how far the session's jobs are, twice a second, for as long as the block lasts."""
    tracker, began, ended = spark.sparkContext.statusTracker(), time.monotonic(), threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_SECONDS):
            try:
                tell(line(tracker, time.monotonic() - began))
            except (Py4JError, OSError):
                return  # the session ends, and the audit says why

    watcher = threading.Thread(target=look, name="audit-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join(JOIN_SECONDS)


def line(tracker: Any, seconds: float) -> str:
    """The time so far, and the tasks of the stages that run; between two stages Spark plans."""
    found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    running = [info for info in found if info is not None]
    if not running:
        return f"auditing, {seconds:,.0f} s: Spark plans"
    done, all_ = (sum(getattr(info, name) for info in running) for name in ("numCompletedTasks", "numTasks"))
    return f"auditing, {seconds:,.0f} s: {done:,} of {all_:,} tasks that are known are done"
