"""A version's process after a death: the replay is silent, and what follows is written once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from strandline.cluster.view_worker import limits, outputs, phases, version_task
from strandline.cluster.view_worker import steps as steps_of_records
from strandline.cluster.view_worker.node_link import HoldLost
from strandline.cluster.view_worker.steps import CannotRun
from strandline.cluster.view_worker.version_task import VersionTask
from strandline.snapshot.views.circuit import Bound
from tests.cluster.played_views import CREATED, Died, PlayedCluster

TOTALS: Final = """
CREATE TABLE sales (shop STRING, amount BIGINT);
CREATE VIEW totals AS SELECT shop, count(*) AS n, sum(amount) AS amount FROM sales GROUP BY shop;
"""
LARGE: Final = """
CREATE VIEW large AS SELECT shop, amount, _partition, _offset FROM sales WHERE amount > 5;
"""
GROUP: Final = f"view.p.{CREATED}"
LIVE: Final = 11
NEXT: Final = 12


def played(cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlayedCluster]:
    monkeypatch.setattr(version_task, "FIRST_STATE_SECONDS", 3600.0)  # a test says when
    monkeypatch.setattr(steps_of_records, "WAIT_SECONDS", 0.0)
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlayedCluster]:
    yield from played(PlayedCluster(tmp_path / "store", {LIVE: TOTALS}, live=LIVE), monkeypatch)


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlayedCluster]:
    """A live version, and a next one with a view whose rows no operator keeps."""
    texts = {LIVE: TOTALS, NEXT: TOTALS + LARGE}
    yield from played(PlayedCluster(tmp_path / "store", texts, live=LIVE), monkeypatch)


def begun(cluster: PlayedCluster) -> VersionTask:
    """Begin a process, which must write nothing before it is told to follow."""
    before = len(cluster.transactions), dict(cluster.offsets[GROUP])
    task = cluster.process(LIVE)
    assert (len(cluster.transactions), dict(cluster.offsets[GROUP])) == before, "the replay was not silent"
    task.sinks.follow(all_sinks=True)
    return task


def steps(cluster: PlayedCluster, task: VersionTask, count: int = 4) -> None:
    """Go on, and look after each step whether what is written is the view of the cut that is committed."""
    for _ in range(count):
        task.go_on()
        assert cluster.table("totals") == cluster.totals(GROUP)


def shown_twice(cluster: PlayedCluster) -> list[Any]:
    written = cluster.written()
    return [one for one in written if written.count(one) > 1]


FIRST: Final = [(0, "a", 1), (1, "b", 2), (0, "b", 3), (1, "c", 4), (0, "a", 5)]
SECOND: Final = [(0, "a", 6), (1, "b", 7), (0, "d", 8), (1, "d", 9)]
THIRD: Final = [(0, "d", 10), (1, "e", 11)]


@pytest.mark.parametrize("at_once", [1, 2, 9])
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("waiting", [True, False])
def test_what_was_committed_is_replayed_in_silence_and_what_is_new_is_written_once(
    cluster: PlayedCluster, at_once: int, stored: bool, waiting: bool
) -> None:
    cluster.at_once = at_once
    task = begun(cluster)
    cluster.sell(*FIRST)
    steps(cluster, task, 6)
    if stored:
        task.store_state()
    cluster.sell(*SECOND)
    steps(cluster, task, 6)
    before = cluster.written()
    if waiting:
        cluster.sell(*THIRD)  # the replay reads beyond its end
    again = begun(cluster)
    assert again.status["replayed"] == len(SECOND) + (0 if stored else len(FIRST))
    assert [*again.status["start_parts"]] == ["join", "state", "replay"]
    if not waiting:
        steps(cluster, again)
        assert cluster.written() == before
        cluster.sell(*THIRD)
    steps(cluster, again, 6)
    assert {key for _, key, _ in cluster.written()[len(before) :]} == {b'["d"]', b'["e"]'}
    assert cluster.table("totals")['["d"]'] == {"shop": "d", "n": 3, "amount": 27}
    assert not shown_twice(cluster)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("where", ["produced", "ended"])
def test_a_death_around_the_end_of_a_transaction_neither_doubles_nor_loses_it(
    cluster: PlayedCluster, stored: bool, where: str
) -> None:
    task = begun(cluster)
    cluster.sell(*FIRST)
    steps(cluster, task)
    if stored:
        task.store_state()
    cluster.sell(*SECOND)
    cluster.die = lambda at: at == where
    with pytest.raises(Died):
        task.go_on()
    cluster.die = lambda at: False
    again = begun(cluster)
    steps(cluster, again)
    assert set(cluster.table("totals")) == {f'["{shop}"]' for shop in "abcd"}
    assert not shown_twice(cluster)


@pytest.mark.parametrize("earlier", [True, False])
@pytest.mark.parametrize("where", ["produced", "ended"])
def test_a_death_between_a_state_and_the_commit_of_its_name_leaves_the_state_before(
    cluster: PlayedCluster, earlier: bool, where: str
) -> None:
    task = begun(cluster)
    cluster.sell(*FIRST)
    steps(cluster, task)
    if earlier:
        task.store_state()
    named = task.state
    cluster.sell(*SECOND)
    steps(cluster, task)
    cluster.die = lambda at: at == where
    with pytest.raises(Died):
        task.store_state()
    cluster.die = lambda at: False
    again = begun(cluster)
    if where == "produced":
        assert again.state == named
        assert again.status["replayed"] == len(SECOND) + (0 if earlier else len(FIRST))
    else:
        assert again.state != named
        assert again.status["replayed"] == 0
    cluster.sell(*THIRD)
    steps(cluster, again)
    again.store_state()
    assert again.state in cluster.objects(LIVE)
    assert not shown_twice(cluster)


def test_objects_of_a_dead_process_are_deleted_once_the_next_one_has_committed(
    cluster: PlayedCluster,
) -> None:
    task = begun(cluster)
    cluster.sell(*FIRST)
    steps(cluster, task)
    task.store_state()
    cluster.die = lambda at: at == "produced"
    with pytest.raises(Died):
        task.store_state()
    cluster.die = lambda at: False
    left = cluster.objects(LIVE)
    again = begun(cluster)
    cluster.sell(*SECOND)
    steps(cluster, again)
    again.store_state()
    kept = again._states._needed[0] | again._states._needed[1]
    assert cluster.objects(LIVE) == kept
    assert left - kept


def test_objects_that_the_last_two_states_do_not_need_are_deleted(cluster: PlayedCluster) -> None:
    task = begun(cluster)
    for sales in (FIRST, SECOND, THIRD, FIRST):
        cluster.sell(*sales)
        steps(cluster, task)
        task.store_state()
    assert len(task._states._needed) == 2
    assert cluster.objects(LIVE) == task._states._needed[0] | task._states._needed[1]


def test_a_process_that_was_shut_out_while_it_began_deletes_nothing(
    cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = begun(cluster)
    cluster.sell(*FIRST)
    steps(cluster, task)
    task.store_state()
    real = outputs.committed

    def committed(*asked: Any) -> Any:
        """Between a process's question and its beginning another does its work."""
        found = real(*asked)
        monkeypatch.setattr(outputs, "committed", real)
        other = begun(cluster)
        cluster.sell(*SECOND)
        steps(cluster, other)
        other.store_state()
        return found

    monkeypatch.setattr(outputs, "committed", committed)
    late = cluster.process(LIVE)
    with pytest.raises(Died):
        late.store_state()
    assert begun(cluster).status["replayed"] == 0


def test_a_next_version_that_begins_again_leaves_the_live_ones_state(two: PlayedCluster) -> None:
    task = begun(two)
    two.sell(*FIRST)
    steps(two, task)
    task.store_state()
    kept = two.objects(LIVE)
    filling = two.process(NEXT, live=False)
    phases._fill(filling)
    two.process(NEXT, live=False).store_state()
    assert two.objects(LIVE) == kept
    assert begun(two).status["replayed"] == 0


def test_a_version_that_dies_while_it_writes_its_content_goes_on_with_all_its_views(
    two: PlayedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.program = two.program._replace(live=None)
    two.sell(*FIRST, *SECOND)
    monkeypatch.setattr(phases, "_cut_over", lambda task, laps: True)
    monkeypatch.setattr(VersionTask, "go_live", lambda _: None)
    filling = two.process(NEXT, live=False)
    two.die = lambda at: at == "produced" and filling.part == 1
    with pytest.raises(Died):
        phases._next(filling)
    two.die = lambda at: False
    phases._next(two.process(NEXT, live=False))
    assert two.table("totals") == two.totals(f"{GROUP}.{NEXT}")
    assert len(two.table("large")) == 4
    assert not shown_twice(two)


def test_nothing_is_left_in_the_temporary_folder_by_a_process_that_is_killed(
    cluster: PlayedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "temporary"
    own.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    task = begun(cluster)
    cluster.sell(*FIRST)
    steps(cluster, task)
    task.store_state()
    again = begun(cluster)
    assert [*own.iterdir()] == []
    cluster.sell(*SECOND)
    steps(cluster, again)  # on runs whose files are gone


def test_a_row_above_its_topics_limit_ends_the_version_with_key_size_limit_and_cure(
    cluster: PlayedCluster,
) -> None:
    task = begun(cluster)
    cluster.sell(*FIRST)
    steps(cluster, task)
    cluster.limit = 2000
    cluster.sell((0, "z" * 3000, 1))
    before = cluster.written()
    with pytest.raises(CannotRun) as stopped:
        steps(cluster, task)
    said = str(stopped.value)
    assert 'ROW_TOO_LARGE: the row of view totals with key ["zzz' in said
    assert "topic totals takes 1872 (its max.message.bytes less 128)" in said
    assert "shorten them" in said
    assert len(said) < 600
    assert cluster.written() == before


@pytest.mark.parametrize("at_once", [3, 40])
def test_a_step_that_changes_too_much_is_made_again_with_fewer_records(
    cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(limits, "STEP_CHANGES", Bound(2, 1 << 20))
    cluster.at_once = at_once
    task = begun(cluster)
    cluster.sell(*[(number % 2, shop, number) for number, shop in enumerate("abcdefghabcdijkl")])
    steps(cluster, task, 40)
    assert len(cluster.table("totals")) == 12
    assert max(map(len, cluster.transactions)) == 2
    assert not shown_twice(cluster)
    assert {place: offset for place, (offset, _) in cluster.offsets[GROUP].items()} == task.inputs.position
    steps(cluster, begun(cluster))


def test_one_record_that_changes_too_much_ends_the_version(
    cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RECORD_CHANGES", Bound(0, 1 << 20))
    monkeypatch.setattr(limits, "STEP_CHANGES", Bound(0, 1 << 20))
    task = begun(cluster)
    cluster.sell(*FIRST)
    with pytest.raises(
        CannotRun, match="record 0 of sales-0 is too much for one transaction: a step changes 1"
    ):
        task.go_on()


def test_a_live_version_ends_the_holds_of_its_filling(cluster: PlayedCluster) -> None:
    begun(cluster)
    assert cluster.released == [("sales", f"{GROUP}.{LIVE}", [0, 1])]


def test_an_input_that_was_clean_before_is_filled_from_through_all_its_states(two: PlayedCluster) -> None:
    """A state amid the filling lies below what was cleaned: what the filling began with stays held."""
    two.at_once, two.clean = 1, 3
    two.sell(*FIRST)
    task = two.process(NEXT, live=False)
    task.sinks.follow(all_sinks=False)
    task.go_on()
    task.store_state()
    assert two.held[-1] == ("sales", {0: None, 1: None})
    again = two.process(NEXT, live=False)
    assert again.state == "", "records behind the state may be gone: it is filled again"
    assert again.phase == "filling"
    again.go_on()
    again.phase = "dumping"
    with pytest.raises(HoldLost):
        again.store_state()


def test_views_with_one_query_have_a_topic_each_also_where_one_was_there_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = TOTALS[TOTALS.index("CREATE VIEW") :].replace("totals", "again")
    for cluster in played(
        PlayedCluster(tmp_path / "two", {LIVE: TOTALS, NEXT: TOTALS + again}, live=LIVE), monkeypatch
    ):
        kept = cluster.program.live
        following = cluster.program.next
        assert kept is not None
        assert following is not None
        views = (kept.views[0], *following.views[1:])
        cluster.program = cluster.program._replace(next=following._replace(views=views))
        cluster.sell(*FIRST)
        task = cluster.process(NEXT, live=False)
        phases._fill(task)
        phases._dump(task)
        assert cluster.table("totals") == {}, "the live version writes it"
        assert cluster.table("again") == cluster.totals(f"{GROUP}.{NEXT}") != {}
        live = begun(cluster)
        steps(cluster, live, 6)
        cluster.program = cluster.program._replace(live=cluster.program.next, next=None)
        task.sinks.follow(all_sinks=True)
        task.go_live()
        cluster.sell(*SECOND)
        for _ in range(6):
            task.go_on()
        assert cluster.table("again") == cluster.table("totals") == cluster.totals(GROUP)
