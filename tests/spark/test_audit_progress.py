"""What a person who waits for an audit is told, of a session that is played."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from strandline.snapshot.spark.audits import progress
from strandline.snapshot.spark.audits.progress import line, watched


class Tracker:
    """Stages by number: tasks done, and all; None for one that has just ended."""

    def __init__(self, stages: dict[int, tuple[int, int] | None], read: Sequence[int] = ()) -> None:
        self.stages = stages
        self.read = list(read)
        """Stages of the job that reads objects."""
        self.broken = False

    def getActiveStageIds(self) -> list[int]:
        if self.broken:
            raise Py4JError("the session is gone")
        return list(self.stages)

    def getJobIdsForGroup(self, group: str) -> list[int]:
        return [3] if group == GROUP and self.read else []

    def getJobInfo(self, job: int) -> Any:
        return SimpleNamespace(stageIds=self.read)

    def getStageInfo(self, stage: int) -> Any:
        tasks = self.stages[stage]
        if tasks is None:
            return None
        return SimpleNamespace(numCompletedTasks=tasks[0], numTasks=tasks[1])


def test_the_line() -> None:
    assert line(Tracker({}), 3.4) == "auditing, 3 s: Spark plans"
    assert line(Tracker({4: None}), 3.4) == "auditing, 3 s: Spark plans"
    running = Tracker({4: (3, 8), 5: None, 6: (0, 1_200)})
    assert line(running, 1_000) == "auditing, 1,000 s: 3 of 1,208 tasks that are known are done"


GROUP = "reads"


@pytest.mark.parametrize(
    ("stages", "read", "said"),
    [
        ({}, [], "Spark plans"),
        ({6: (1, 8)}, [], "1 of 8 tasks that are known are done"),
        ({6: (1, 8), 7: None}, [6, 7], "1 of 8 tasks that are known are done"),
        ({6: (8, 8), 7: (1, 100)}, [7, 6], "about 0.1 of 12.0 GB are read"),
        ({6: (8, 8), 7: (25, 100)}, [6, 7], "about 3.0 of 12.0 GB are read, 90 s of reading left"),
    ],
)
def test_while_objects_are_read_the_line_has_bytes_and_time_left(
    stages: dict[int, tuple[int, int] | None], read: list[int], said: str
) -> None:
    reads = progress.Reading(GROUP, 12_000_000_000, 100.0)
    assert line(Tracker(stages, read), 40, reads, 130.0) == f"auditing, 40 s: {said}"
    assert "GB" not in line(Tracker(stages, read), 40)


def test_bytes_are_told_of_the_one_job_that_reads_them(spark: SparkSession) -> None:
    context, lines = spark.sparkContext, list[str]()
    context.setJobGroup("mine", "of the caller")
    try:
        with progress.reading(spark, 5_000_000_000):
            known = progress._reading[context.applicationId]
            assert spark.range(0, 100, 1, 4).count() == 100
            lines.append(line(context.statusTracker(), 1, known, known.began + 9))
        assert context.getLocalProperty("spark.jobGroup.id") == "mine"
        assert context.applicationId not in progress._reading
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]
    assert lines == ["auditing, 1 s: about 5.0 of 5.0 GB are read, 0 s of reading left"]


@pytest.mark.parametrize("broken", [False, True])
def test_it_is_told_until_the_block_or_the_session_ends(
    monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    monkeypatch.setattr(progress, "LOOK_SECONDS", 0.001)
    tracker, lines, told = Tracker({}), list[str](), threading.Event()
    context = SimpleNamespace(statusTracker=lambda: tracker, applicationId="played")
    spark = SimpleNamespace(sparkContext=context)

    def tell(text: str) -> None:
        lines.append(text)
        told.set()

    with watched(cast(SparkSession, spark), tell):
        assert told.wait(30)
        tracker.broken = broken
        for thread in threading.enumerate():
            if broken and thread.name == "audit-progress":
                thread.join(30)
    count = len(lines)
    assert not failed
    assert not any(thread.name == "audit-progress" for thread in threading.enumerate())
    assert len(lines) == count
