"""The pause of a cutover, at a played cluster: what is in it, what is not, and that it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strandline.cluster.view_worker import phases, version_task
from strandline.cluster.view_worker import steps as steps_of_records
from strandline.cluster.view_worker.laps import Laps
from strandline.cluster.view_worker.node_link import NodeRefuses
from strandline.cluster.view_worker.reached import pack_reached, unpack_reached
from strandline.cluster.view_worker.state_objects import StateObjects
from strandline.cluster.view_worker.steps import CannotRun
from strandline.cluster.view_worker.version_task import VersionTask
from strandline.node.admin.views import CUT_BYTES
from strandline.statemachine.controller.controller_commands import (
    MAX_CUT_BYTES,
    CutOverViews,
    PauseViews,
    ResumeViews,
    ViewCommand,
    ViewsPaused,
)
from strandline.statemachine.controller.view_state import Pause
from tests.cluster.played_views import CREATED, Link, PlayedCluster

LIVE, NEXT = 11, 12
FILLING = f"view.p.{CREATED}.{NEXT}"
TOTALS = """CREATE TABLE sales (shop STRING, amount BIGINT);
CREATE VIEW totals AS SELECT shop, count(*) AS n, sum(amount) AS amount FROM sales GROUP BY shop;
"""
LARGE = "CREATE VIEW large AS SELECT shop, amount, _partition, _offset FROM sales WHERE amount > 5;"
BEFORE = ((0, "a", 1), (1, "b", 20), (0, "a", 30))
AMID = ((0, "c", 7), (1, "c", 8), (0, "a", 9), (1, "b", 1))


class Controller:
    """Answers a pause with the ends of the inputs, when more has come meanwhile; notes what is done."""

    def __init__(self, cluster: PlayedCluster) -> None:
        self.cluster = cluster
        self.done: list[str] = []
        self.connected: list[str] = []
        """Producers that were connected by the pause."""
        self.stood_back: list[bool] = []
        """What was asked for the processor by then."""

    def submit(self, link: Link, command: ViewCommand) -> int:
        self.done.append(type(command).__name__)
        program = self.cluster.program
        match command:
            case PauseViews():
                self.connected = [*self.cluster.connected]
                self.stood_back = [*self.cluster.stood_back]
                self.cluster.sell(*AMID)
                ends = {place: len(log) for place, log in self.cluster.logs.items()}
                self.cluster.program = program._replace(pause=Pause(1, b"", pack_reached(ends, {})))
            case ResumeViews():
                self.cluster.program = program._replace(pause=None)
            case CutOverViews(checkpoint=state):
                assert program.next is not None
                live = program.next._replace(checkpoint=state)
                self.cluster.program = program._replace(live=live, next=None, pause=None)
        return 1


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlayedCluster]:
    monkeypatch.setattr(version_task, "FIRST_STATE_SECONDS", 3600.0)
    monkeypatch.setattr(steps_of_records, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(phases, "PAUSE_SECONDS", 30.0)
    made = PlayedCluster(tmp_path / "store", {LIVE: TOTALS, NEXT: TOTALS + LARGE}, live=LIVE)
    made.sell(*BEFORE)
    yield made
    made.close()


@pytest.fixture
def controller(cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch) -> Controller:
    """It also notes transactions, states, holds and deletions."""
    made = Controller(cluster)

    def noting(owner: Any, name: str, said: str) -> None:
        whole = getattr(owner, name)

        def noted(*given: Any, **more: Any) -> Any:
            made.done.append(said)
            return whole(*given, **more)

        monkeypatch.setattr(owner, name, noted)

    noting(VersionTask, "commit", "transaction")
    noting(VersionTask, "_hold", "hold")
    noting(StateObjects, "save", "state")
    noting(StateObjects, "delete", "delete")
    monkeypatch.setattr(Link, "submit", lambda link, command: made.submit(link, command))
    return made


@pytest.mark.parametrize("at_once", [1, 10])
def test_a_pause_has_one_state_and_one_transaction_and_waits_for_nothing_else(
    cluster: PlayedCluster, controller: Controller, at_once: int
) -> None:
    """Also where what the live version has taken comes record by record."""
    cluster.at_once = at_once
    task = cluster.process(NEXT, live=False)
    phases._next(task)
    begin, end = controller.done.index("PauseViews"), controller.done.index("StartViewWorker", 1)
    assert controller.done[begin:end] == ["PauseViews", "state", "transaction", "CutOverViews"]
    assert set(controller.done[end:]) >= {"hold", "delete"}, "both come once the live version has gone on"
    assert cluster.released == [("sales", FILLING, [0, 1])], "what the filling held is held no more"
    assert cluster.table("totals") == cluster.totals(FILLING)
    assert len(cluster.table("large")) == 5


def test_a_state_is_stored_before_the_pause(cluster: PlayedCluster, controller: Controller) -> None:
    phases._next(cluster.process(NEXT, live=False))
    before = controller.done[: controller.done.index("PauseViews")]
    assert before.count("state") == 2, "when it was filled, and when it was near"
    assert controller.connected == [f"view.p.{CREATED}"], "the live version's producer is connected"


def test_a_version_stands_back_while_it_is_filled_and_at_no_pause(
    cluster: PlayedCluster, controller: Controller
) -> None:
    phases._next(cluster.process(NEXT, live=False))
    assert controller.stood_back == cluster.stood_back == [True, False]


def test_what_was_taken_in_a_pause_that_fails_is_written(
    cluster: PlayedCluster, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, late = VersionTask.take, [0.0]

    def slow(task: VersionTask, bounds: Any) -> Any:
        late.append(phases.PAUSE_SECONDS)
        return take(task, bounds)

    monkeypatch.setattr(VersionTask, "take", slow)
    task = filled(cluster)
    task._steps.cap = 1
    task.around = replace(task.around, monotonic=lambda: time.monotonic() + sum(late))
    assert not phases._cut_over(task, Laps(task.around.monotonic))
    assert controller.done[-3:] == ["PauseViews", "transaction", "ResumeViews"]
    task.commit()
    assert len(cluster.table("large")) > 2
    assert cluster.table("totals") == cluster.totals(FILLING), "what it took in the pause is there"


def test_the_live_version_stops_at_the_cut_that_is_asked_for_in_one_transaction(
    cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.at_once = 10
    task = cluster.process(LIVE)
    task.sinks.follow(all_sinks=True)
    while task.go_on():
        pass
    cluster.sell(*AMID)
    wanted = {one: len(log) for one, log in cluster.logs.items()}
    cluster.sell((0, "later", 1), (1, "later", 1))
    before, done = len(cluster.transactions), list[ViewCommand]()
    monkeypatch.setattr(Link, "submit", lambda link, command: done.append(command))
    pause = Pause(4, pack_reached(wanted, {}), None)
    cluster.program = cluster.program._replace(pause=pause)
    phases._stop(task, pause, phases._Lasting(task, pause.number))
    assert len(cluster.transactions) == before + 1
    [paused] = done
    assert isinstance(paused, ViewsPaused)
    assert unpack_reached(paused.reached)[0] == wanted == task.committed
    cluster.program = cluster.program._replace(pause=None)
    assert task.go_on() > 0, "what came behind the cut is taken once the pause is over"
    while task.go_on():
        pass
    assert cluster.table("totals") == cluster.totals(f"view.p.{CREATED}")


def test_the_largest_cut_that_is_begun_with_can_be_told() -> None:
    assert CUT_BYTES // 12 > 4000, "so docs/views.md says"
    digests = {f"{number:064x}": bytes(16) for number in range(300)}
    for name, partitions in (("t", (CUT_BYTES - 7) // 12), ("t" * 249, 1)):
        each = 12 * partitions + 6 + len(name)
        topics = [f"{number:03}{name[3:]}" if len(name) > 1 else name for number in range(CUT_BYTES // each)]
        cut = {(topic, number): (1 << 63) - 1 for topic in topics for number in range(partitions)}
        packed = pack_reached(cut, digests)
        assert len(packed) <= MAX_CUT_BYTES
        assert unpack_reached(packed) == (cut, digests)


def test_a_cut_that_is_too_large_ends_the_attempt_and_no_process(
    cluster: PlayedCluster, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic may have grown since the version was begun."""
    task = filled(cluster)
    monkeypatch.setattr(phases, "MAX_CUT_BYTES", 40)
    with pytest.raises(CannotRun, match="TOO_MANY_PARTITIONS: the inputs have 2 partitions"):
        phases._cut_over(task, Laps(task.around.monotonic))
    assert "PauseViews" not in controller.done
    live = cluster.process(LIVE)
    live.sinks.follow(all_sinks=True)
    pause = Pause(4, pack_reached({}, {}), None)
    cluster.program = cluster.program._replace(pause=pause)
    phases._stop(live, pause, phases._Lasting(live, pause.number))
    assert controller.done[-1] == "ResumeViews"
    assert "ViewsPaused" not in controller.done


class Gone(Exception):
    """The live version's process is at its end."""


@pytest.mark.parametrize("refused", [False, True])
def test_the_live_version_ends_a_pause_that_lasts(
    cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """The process that is to cut over may stand still, or wait for its store."""
    monkeypatch.setattr(phases, "MOST_PAUSE_SECONDS", 0.05)
    done: list[str] = []
    transactions: list[int] = []

    def submit(link: Link, command: ViewCommand) -> int:
        done.append(type(command).__name__)
        transactions.append(len(cluster.transactions))
        if isinstance(command, ViewsPaused):
            cluster.sell(*AMID)
        if isinstance(command, ResumeViews):
            assert command.pause == 4
            if refused and done.count("ResumeViews") == 1:
                raise NodeRefuses("the controller does not answer", late=False)
            cluster.program = cluster.program._replace(pause=None)
        return 1

    monkeypatch.setattr(Link, "submit", submit)
    task = cluster.process(LIVE)
    cluster.program = cluster.program._replace(pause=Pause(4, pack_reached({}, {}), None))
    commit = VersionTask.commit

    def last(one: VersionTask, *said: Any) -> None:
        commit(one, *said)
        if "ResumeViews" in done:
            raise Gone

    monkeypatch.setattr(VersionTask, "commit", last)
    with pytest.raises(Gone):
        phases._live(task)
    assert done == ["StartViewWorker", "ViewsPaused", *["ResumeViews"] * (1 + refused)]
    assert len({*transactions[1:]}) == 1, "nothing was committed in the pause"


@pytest.mark.parametrize("resumed", [True, False])
def test_the_live_version_goes_on_where_a_partition_does_not_come_to_the_cut(
    cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch, resumed: bool
) -> None:
    """Its leader may be gone for long; the one that cuts over has ended the pause, or has died."""
    monkeypatch.setattr(phases, "MOST_PAUSE_SECONDS", 60.0 if resumed else 0.05)
    task = cluster.process(LIVE)
    task.sinks.follow(all_sinks=True)
    while task.go_on():
        pass
    wanted = {one: len(log) + 1 for one, log in cluster.logs.items()}
    cluster.sell((1, "there", 1), (1, "behind", 1))  # nothing comes of the other partition
    pause = Pause(4, pack_reached(wanted, {}), None)
    cluster.program = cluster.program._replace(pause=pause)
    done, looks = list[ViewCommand](), 0
    check = VersionTask.check

    def submit(link: Link, command: ViewCommand) -> int:
        done.append(command)
        cluster.program = cluster.program._replace(pause=None)
        return 1

    def checked(one: VersionTask) -> None:
        nonlocal looks
        looks += 1
        assert looks < 1000, "it stands still"
        time.sleep(0.001)
        if resumed and looks == 3:
            cluster.program = cluster.program._replace(pause=None)
        check(one)

    monkeypatch.setattr(Link, "submit", submit)
    monkeypatch.setattr(VersionTask, "check", checked)
    phases._stop(task, pause, phases._Lasting(task, pause.number))
    assert [type(one) for one in done] == ([] if resumed else [ResumeViews])
    while task.go_on():
        pass
    assert cluster.table("totals") == cluster.totals(f"view.p.{CREATED}")
    assert {"there", "behind"} <= {row["shop"] for row in cluster.table("totals").values()}


@pytest.mark.parametrize(
    ("stops", "said"),
    [
        (True, "this version did not come to the cut at which the live one had stopped within"),
        (False, "the live version did not come to a common cut within"),
    ],
)
def test_an_attempt_that_ends_says_which_version_was_late(
    cluster: PlayedCluster, controller: Controller, monkeypatch: pytest.MonkeyPatch, stops: bool, said: str
) -> None:
    """Only a live version that cannot run is to be stopped."""

    def reached(task: VersionTask, number: int, until: float) -> bytes | None:
        pause = task.link.known.program.pause
        assert pause is not None
        return pause.reached if stops else None

    monkeypatch.setattr(phases, "PAUSES", 2)
    monkeypatch.setattr(phases, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(phases, "PAUSE_SECONDS", -1.0)
    monkeypatch.setattr(phases, "_reached", reached)
    with pytest.raises(CannotRun, match=said) as late:
        phases._next(cluster.process(NEXT, live=False))
    assert ("view stop" in str(late.value)) != stops
    assert controller.done.count("ResumeViews") == 2


def filled(cluster: PlayedCluster) -> VersionTask:
    """The next version's process, about to cut over."""
    task = cluster.process(NEXT, live=False)
    task.sinks.follow(all_sinks=False)
    phases._fill(task)
    phases._dump(task)
    task.sinks.follow(all_sinks=True)
    return task


def live_version_tells(
    monkeypatch: pytest.MonkeyPatch, cut_of: Callable[[dict[Any, int]], dict[Any, int]]
) -> None:
    """In a pause, another cut than it came to, made by `cut_of`, and other digests."""
    reached = phases._reached

    def other(task: VersionTask, number: int, until: float) -> bytes | None:
        packed = reached(task, number, until)
        assert packed is not None
        cut, _ = unpack_reached(packed)
        return pack_reached(cut_of(dict(cut)), dict.fromkeys(task.digests(), b"another"))

    monkeypatch.setattr(phases, "_reached", other)


@pytest.mark.parametrize("grown", [True, False])
def test_a_topic_that_has_grown_for_one_of_both_versions_yet_ends_the_pause_and_no_attempt(
    cluster: PlayedCluster, controller: Controller, monkeypatch: pytest.MonkeyPatch, grown: bool
) -> None:
    """Each process begins again when it hears of the new partition, which may have records by then."""
    task = filled(cluster)
    live_version_tells(
        monkeypatch, lambda cut: {**cut, ("sales", 2): 3} if grown else {("sales", 0): cut["sales", 0]}
    )
    assert not phases._cut_over(task, Laps(task.around.monotonic))
    assert controller.done[-2:] == ["PauseViews", "ResumeViews"]


def test_versions_that_keep_something_else_end_the_attempt_with_a_cure(
    cluster: PlayedCluster, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = filled(cluster)
    live_version_tells(monkeypatch, lambda cut: cut)
    with pytest.raises(
        CannotRun, match=r"divergence: operator .* keeps something else .* `strandline view stop p`"
    ):
        phases._cut_over(task, Laps(task.around.monotonic))
