"""Processes that learn of a cutover late, or begin right after it: readers' topics stay at its cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.cluster.view_worker import phases, version_task
from strandline.cluster.view_worker import steps as steps_of_records
from strandline.cluster.view_worker.node_link import HoldLost
from strandline.cluster.view_worker.reached import pack_reached
from strandline.cluster.view_worker.version_task import Replaced, VersionTask
from strandline.statemachine.controller.controller_commands import StopViews, ViewCommand, ViewsPaused
from strandline.statemachine.controller.view_state import Pause
from tests.cluster.played_views import CREATED, Link, PlayedCluster

LIVE, NEXT = 11, 12
GROUP = f"view.p.{CREATED}"
TOTALS = """CREATE TABLE sales (shop STRING, amount BIGINT);
CREATE VIEW totals AS SELECT shop, count(*) AS n, sum(amount) AS amount FROM sales GROUP BY shop;
"""
MORE = "CREATE VIEW most AS SELECT shop, max(amount) AS most FROM sales GROUP BY shop;"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlayedCluster]:
    monkeypatch.setattr(version_task, "FIRST_STATE_SECONDS", 3600.0)
    monkeypatch.setattr(steps_of_records, "WAIT_SECONDS", 0.0)
    made = PlayedCluster(tmp_path / "store", {LIVE: TOTALS, NEXT: TOTALS + MORE}, live=LIVE)
    live, following = made.program.live, made.program.next
    assert live is not None
    assert following is not None
    kept = following._replace(views=(live.views[0], *following.views[1:]))
    made.program = made.program._replace(next=kept)
    made.sell((0, "a", 1), (1, "b", 20))
    yield made
    made.close()


def cut_over(cluster: PlayedCluster, state: str) -> None:
    """Have the controller cut over to the next version, as it is told to the processes."""
    program = cluster.program
    assert program.next is not None
    live = program.next._replace(checkpoint=state)
    cluster.program = program._replace(live=live, next=None, pause=None, live_worker=0, next_worker=0)


def test_the_version_before_writes_nothing_where_the_cutover_comes_between_two_looks(
    cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node tells of a cutover at any moment. That ends the pause, whose end lets a version go on."""
    task = cluster.process(LIVE)
    check = VersionTask.check
    stopped: list[int] = []

    def submit(link: Link, command: ViewCommand) -> int:
        assert isinstance(command, ViewsPaused)
        stopped.append(len(cluster.transactions))
        cluster.sell((0, "a", 5))
        return 1

    def checked(one: VersionTask) -> None:
        check(one)
        if stopped and cluster.program.next is not None:
            cut_over(cluster, "state")

    cluster.program = cluster.program._replace(pause=Pause(4, pack_reached({}, {}), None))
    monkeypatch.setattr(Link, "submit", submit)
    monkeypatch.setattr(VersionTask, "check", checked)
    with pytest.raises(Replaced):
        phases.run(task)
    assert stopped == [len(cluster.transactions)]


def test_a_live_version_whose_records_were_cleaned_is_not_filled_into_readers_topics(
    cluster: PlayedCluster,
) -> None:
    """Its process died after the cutover, before a commit as the live one, and none ran for long."""
    task = cluster.process(NEXT, live=False)
    phases._fill(task)
    phases._dump(task)
    cut_over(cluster, task.state)
    cluster.clean = 1_000
    before = len(cluster.transactions)
    with pytest.raises(HoldLost):
        cluster.process(NEXT)
    code, link = cluster.run(NEXT)
    [stop] = [one for one in link.said if isinstance(one, StopViews)]
    assert (code, "is cleaned up to 1000" in stop.reason) == (0, True)
    assert len(cluster.transactions) == before
    assert GROUP not in cluster.offsets or not cluster.offsets[GROUP]
