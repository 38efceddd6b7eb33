"""The time that a step may take where a pause may be asked for, and a pause of a version that is slow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strandline.cluster.view_worker import phases, version_task
from strandline.cluster.view_worker import steps as steps_of_records
from strandline.cluster.view_worker.fetched import Place
from strandline.cluster.view_worker.laps import Laps
from strandline.cluster.view_worker.node_link import TopicPlace
from strandline.cluster.view_worker.reached import pack_reached
from strandline.cluster.view_worker.version_task import VersionTask
from strandline.snapshot.views.circuit import Circuit
from strandline.statemachine.controller.controller_commands import (
    PauseViews,
    ResumeViews,
    ViewCommand,
    ViewsPaused,
)
from strandline.statemachine.controller.view_state import Pause
from tests.cluster.played_views import CREATED, Link, PlayedCluster, PlayedProducer

LIVE, NEXT = 11, 12
GROUP = f"view.p.{CREATED}"
TOTALS = """CREATE TABLE sales (shop STRING, amount BIGINT);
CREATE VIEW totals AS SELECT shop, count(*) AS n, sum(amount) AS amount FROM sales GROUP BY shop;
"""


class Clock:
    """Time goes on by the records that a circuit takes, and by those that are written."""

    def __init__(self) -> None:
        self.now = 0.0
        self.of_a_record = 0.0
        self.of_a_change = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock, step, write = Clock(), Circuit.step, PlayedProducer.write

    def stepped(circuit: Circuit, deltas: Mapping[str, Any], *bound: Any) -> Any:
        clock.now += clock.of_a_record * sum(map(len, deltas.values()))
        return step(circuit, deltas, *bound)

    def written(producer: PlayedProducer, place: TopicPlace, keys: Any, values: Any) -> None:
        clock.now += clock.of_a_change * len(keys)
        write(producer, place, keys, values)

    monkeypatch.setattr(Circuit, "step", stepped)
    monkeypatch.setattr(PlayedProducer, "write", written)
    return clock


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Iterator[PlayedCluster]:
    monkeypatch.setattr(version_task, "FIRST_STATE_SECONDS", 1e9)
    monkeypatch.setattr(steps_of_records, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(steps_of_records, "STEP_SECONDS", 0.5)
    monkeypatch.setattr(steps_of_records, "LEAST_RECORDS", 4)
    made = PlayedCluster(tmp_path / "store", {LIVE: TOTALS, NEXT: TOTALS}, live=LIVE)
    made.at_once = 1000
    around = made._around
    monkeypatch.setattr(made, "_around", lambda: replace(around(), monotonic=clock))
    yield made
    made.close()


def live(cluster: PlayedCluster) -> VersionTask:
    task = cluster.process(LIVE)
    task.phase = "following"
    task.sinks.follow(all_sinks=True)
    return task


def taken(task: VersionTask) -> list[int]:
    """The records of each step, until there are none."""
    return [*iter(task.go_on, 0)]


def sales(count: int) -> list[tuple[int, str, int]]:
    """Each of another shop, so that each is a change."""
    return [(0, f"shop {number}", 1) for number in range(count)]


@pytest.mark.parametrize("what", ["of_a_record", "of_a_change"])
def test_a_step_of_a_version_that_follows_aims_at_a_bounded_time(
    cluster: PlayedCluster, clock: Clock, what: str
) -> None:
    """By what the records and what their changes take; quick steps grow, and the result is the same."""
    setattr(clock, what, 0.02)
    task = live(cluster)
    cluster.sell(*sales(100))
    assert taken(task) == [4, 8, 25, 25, 25, 13], "first as few as may be, then as many as take half a second"
    setattr(clock, what, 0.0)
    cluster.sell(*sales(100))
    assert taken(task) == [25, 50, 25]
    setattr(clock, what, 10.0)
    cluster.sell(*sales(120))
    assert taken(task)[1:3] == [4, 4], "no fewer, however long they take"
    assert cluster.table("totals") == cluster.totals(GROUP)


def test_few_records_that_are_there_tell_nothing_of_many(cluster: PlayedCluster, clock: Clock) -> None:
    clock.of_a_record = 0.02
    task = live(cluster)
    cluster.sell(*sales(50))
    taken(task)
    for _ in range(8):
        cluster.sell((0, "a", 1))
        assert taken(task) == [1]
    cluster.sell(*sales(50))
    assert taken(task) == [25, 25]


def test_a_version_that_is_filled_takes_whole_steps(cluster: PlayedCluster, clock: Clock) -> None:
    clock.of_a_record = 10.0
    task = cluster.process(NEXT, live=False)
    cluster.sell(*sales(300))
    assert taken(task) == [300]


def in_a_pause(
    cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch, reached: bytes | None, ended: bool
) -> list[str]:
    """Have a pause that is asked for be reached, or ended. The commands, as they come."""
    done: list[str] = []

    def submit(link: Link, command: ViewCommand) -> int:
        done.append(type(command).__name__)
        if isinstance(command, PauseViews) and not ended:
            cluster.program = cluster.program._replace(pause=Pause(1, command.wanted, reached))
        if isinstance(command, ResumeViews):
            cluster.program = cluster.program._replace(pause=None)
        return 1

    monkeypatch.setattr(Link, "submit", submit)
    return done


@pytest.mark.parametrize("ended", [True, False])
def test_the_next_version_waits_while_the_live_one_comes_to_the_cut_and_no_longer_than_the_pause(
    cluster: PlayedCluster, clock: Clock, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    task = cluster.process(NEXT, live=False)
    done = in_a_pause(cluster, monkeypatch, None, ended)
    slept = 0.0

    def sleep(seconds: float) -> None:
        nonlocal slept
        slept += seconds
        clock.now += seconds

    task.around = replace(task.around, sleep=sleep)
    assert not phases._cut_over(task, Laps(clock))
    assert done == ["PauseViews", "ResumeViews"]
    assert slept == (0.0 if ended else pytest.approx(phases.STOP_SECONDS, abs=0.01))


def test_a_live_version_that_comes_to_the_cut_in_many_steps_does_not_end_the_pause(
    cluster: PlayedCluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not stopped yet, and readers see what it writes."""
    clock.of_a_record = 0.05
    task = live(cluster)
    cluster.sell(*sales(200))
    wanted: dict[Place, int] = {("sales", 0): 200}
    pause = Pause(4, pack_reached(wanted, {}), None)
    cluster.program = cluster.program._replace(pause=pause)
    done: list[ViewCommand] = []
    monkeypatch.setattr(Link, "submit", lambda link, command: done.append(command))
    phases._stop(task, pause, phases._Lasting(task, pause.number))
    assert clock.now > 1.5 * phases.MOST_PAUSE_SECONDS
    assert [type(one) for one in done] == [ViewsPaused]
    assert len(cluster.transactions) > 10, "it wrote meanwhile"
