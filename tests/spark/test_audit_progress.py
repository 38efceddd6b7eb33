"""What a person who waits for an audit is told, of a session that is played."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from strandline.snapshot.spark.audits import progress
from strandline.snapshot.spark.audits.progress import line, watched


class Tracker:
    """Stages by number: tasks done, and all; None for one that has just ended."""

    def __init__(self, stages: dict[int, tuple[int, int] | None]) -> None:
        self.stages = stages
        self.broken = False

    def getActiveStageIds(self) -> list[int]:
        if self.broken:
            raise Py4JError("the session is gone")
        return list(self.stages)

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


@pytest.mark.parametrize("broken", [False, True])
def test_it_is_told_until_the_block_or_the_session_ends(
    monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    failed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    monkeypatch.setattr(progress, "LOOK_SECONDS", 0.001)
    tracker, lines, told = Tracker({}), list[str](), threading.Event()
    spark = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))

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
