"""What ends a version, and what does not: each with its cause and its cure, nothing half done."""

from __future__ import annotations

import errno
import mmap
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from strandline.cluster.view_worker import limits, local_runs, memory, phases, version_task
from strandline.cluster.view_worker import steps as steps_of_records
from strandline.cluster.view_worker.node_link import Known, NodeRefuses
from strandline.cluster.view_worker.store_thread import StoreThread
from strandline.cluster.view_worker.version_task import Replaced
from strandline.node.objectstore.store import OutcomeUnknown
from strandline.snapshot.views import stored_state
from strandline.snapshot.views.circuit import Bound
from strandline.snapshot.views.sql.programs import program_of
from strandline.statemachine.controller.controller_commands import CancelViews, StopViews
from tests.cluster.played_views import LIMIT, Link, PlayedCluster

TABLE: Final = "CREATE TABLE sales (shop STRING, amount BIGINT)"
TOTALS: Final = """;
CREATE VIEW totals AS SELECT shop, count(*) AS n, sum(amount) AS amount FROM sales GROUP BY shop;
"""
COUNTS: Final = "CREATE VIEW counts AS SELECT amount, count(*) AS n FROM sales GROUP BY amount;\n"
SKIP: Final = " OPTIONS (on_error 'skip')"
LIVE, NEXT = 11, 12


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlayedCluster]:
    """A live version, and a next one with one view more."""
    monkeypatch.setattr(version_task, "FIRST_STATE_SECONDS", 3600.0)
    monkeypatch.setattr(version_task, "_TELL_SECONDS", 0.0)
    monkeypatch.setattr(steps_of_records, "WAIT_SECONDS", 0.0)
    texts = {LIVE: TABLE + TOTALS, NEXT: TABLE + TOTALS + COUNTS}
    played = PlayedCluster(tmp_path / "store", texts, live=LIVE)
    played.sell((0, "a", 1), (1, "b", 2), (0, "b", 3))
    yield played
    played.close()


def ended(cluster: PlayedCluster, *, live: bool) -> str:
    """Run a version to its end; the reason that it gives the controller, which ends this version alone."""
    code, link = cluster.run(LIVE if live else NEXT, live=live)
    assert code == 0
    said = link.said[-1]
    assert isinstance(said, StopViews if live else CancelViews), said
    assert said.attempt == (LIVE if live else NEXT)
    return said.reason


def goes_on(cluster: PlayedCluster) -> None:
    """The live version takes what is written, and its views are those of its records."""
    task = cluster.process(LIVE)
    task.sinks.follow(all_sinks=True)
    cluster.sell((1, "c", 4))
    for _ in range(4):
        task.go_on()
    assert cluster.table("totals")['["c"]'] == {"shop": "c", "n": 1, "amount": 4}


@pytest.mark.parametrize("live", [True, False])
def test_a_process_that_takes_too_much_memory_ends_its_version(cluster: PlayedCluster, live: bool) -> None:
    cluster.resident = LIMIT + 1
    reason = ended(cluster, live=live)
    assert reason.startswith(
        "MEMORY: the process takes 1,000,001 bytes, and views.process_bytes is 1,000,000: "
    )
    assert reason.endswith("then apply the program again")
    cluster.resident = LIMIT
    goes_on(cluster)


def test_steps_are_small_while_a_process_takes_too_much_and_grow_again() -> None:
    taken = [9]
    freed: list[bool] = []
    bound = memory.MemoryBound(5, lambda: taken[0], lambda: freed.append(True))
    steps: Any = type("Steps", (), {"cap": 0})()
    for _ in range(memory.LOOKS):
        bound.check(steps)
    assert steps.cap == memory.SMALL_STEP
    assert len(freed) == memory.LOOKS
    taken[0] = 5
    bound.check(steps)
    assert steps.cap == steps_of_records.STEP_RECORDS
    taken[0] = 9
    bound.check(steps)  # looks are counted from one again
    assert 1 << 20 < memory.own_memory() < 1 << 40
    memory.give_back()


def test_a_full_disk_ends_a_filling_and_leaves_the_live_version(
    cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/new.run")

    with monkeypatch.context() as patched:
        patched.setattr(local_runs, "write_run", full)
        reason = ended(cluster, live=False)
        assert not cluster.written()
        assert "NO_SPACE: No space left on device: the disk of /tmp/new.run" in reason
        assert reason.endswith("make room there, then apply the program again")
        # The live version waits for room: another process goes on from what is committed.
        task = cluster.process(LIVE)
        task.sinks.follow(all_sinks=True)
        task.go_on()
        with pytest.raises(OSError, match="No space"):
            task.store_state()
    goes_on(cluster)


@pytest.mark.parametrize("live", [False, True])
def test_a_full_disk_is_named_where_the_system_names_no_file(
    cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(local_runs.LocalRuns, "stored", full)
    monkeypatch.setattr(version_task, "FIRST_STATE_SECONDS", 0.0)
    if live:
        code, link = cluster.run(LIVE)
        assert code == 1, "another process begins"
        reason = link.status["failure"]
    else:
        reason = ended(cluster, live=False)
    assert reason.startswith("NO_SPACE: No space left on device: the disk of ")
    assert reason.endswith(": make room there" if live else ": make room there, then apply the program again")
    assert str(cluster.files) in reason


@pytest.mark.parametrize("live", [False, True])
def test_what_the_node_could_not_do_is_told(
    cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    def refuse(*_: Any) -> Any:
        raise NodeRefuses("sales-1 is not held: no leader is known", late=False)

    monkeypatch.setattr(version_task, "hold", refuse)
    code, link = cluster.run(LIVE if live else NEXT, live=live)
    assert code == 1, "another process begins"
    assert link.status["failure"] == "sales-1 is not held: no leader is known"


def test_a_store_that_does_not_answer_ends_no_filling(
    cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unanswered(self: Any, key: str, parts: Any) -> None:
        raise OutcomeUnknown("put", key, "no answer within 30 s")

    with monkeypatch.context() as patched:
        patched.setattr(StoreThread, "put", unanswered)
        code, link = cluster.run(NEXT, live=False)
    assert code == 1, "another process begins"
    assert not any(isinstance(one, CancelViews) for one in link.said)
    assert "no answer within 30 s" in link.status["failure"]
    task = cluster.process(NEXT, live=False)
    phases._fill(task)
    phases._dump(task)
    assert len(cluster.table("counts")) == 3


@pytest.mark.parametrize("live", [True, False])
def test_a_state_of_another_release_is_left_for_it(
    cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    attempt = LIVE if live else NEXT
    with monkeypatch.context() as patched:
        patched.setattr(stored_state, "VERSION", 2)
        task = cluster.process(attempt, live=live)
        task.go_on()
        task.phase = "following"
        task.store_state()
    before = cluster.objects(attempt)
    code, link = cluster.run(attempt, live=live)
    assert code == 1
    assert not any(isinstance(one, StopViews | CancelViews) for one in link.said), "its release can go on"
    assert "STATE_VERSION: another release wrote views/7/" in link.status["failure"]
    assert "run that release on this node" in link.status["failure"]
    assert cluster.objects(attempt) == before


def test_a_text_that_this_release_does_not_take_is_told_and_left_to_another_release(
    cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(version_task, "digest", lambda sink: "another")
        code, link = cluster.run(LIVE)
    assert code == 1
    assert "this release makes other operators" in link.status["failure"]
    assert "`strandline view stop` it" in link.status["failure"]
    assert cluster.epochs == {}, "the process before goes on"
    with monkeypatch.context() as patched:
        patched.setattr(version_task, "program_of", lambda text: program_of("CREATE VIEW v AS SELECT 1"))
        code, link = cluster.run(LIVE)
    assert code == 1
    assert "UNSUPPORTED_SQL" in link.status["failure"]
    goes_on(cluster)


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("kind", ["state", "run"])
def test_a_state_that_is_gone_is_told_with_the_cure(cluster: PlayedCluster, kind: str, live: bool) -> None:
    """A restore to a point of an hour ago finds the states of now alone."""
    attempt = LIVE if live else NEXT
    task = cluster.process(attempt, live=live)
    task.go_on()
    task.store_state()
    name = min(one for one in cluster.objects(attempt) if one.endswith(f".{kind}"))
    (cluster.folder / name).unlink()
    shutil.rmtree(cluster.files)  # of the node that ran it
    code, link = cluster.run(attempt, live=live)
    assert code == 1
    assert not any(isinstance(one, StopViews) for one in link.said), "the object may come back"
    assert link.status["failure"].startswith(f"STATE_GONE: {name} is not in the storage: bring it back; or, ")
    assert "stop the version (`strandline view stop`) and apply it again" in link.status["failure"]


@pytest.mark.parametrize("live", [True, False])
def test_an_input_that_was_deleted_or_made_anew_ends_the_version(cluster: PlayedCluster, live: bool) -> None:
    cluster.deleted = True
    reason = ended(cluster, live=live)
    assert reason.startswith(
        "TABLE_CHANGED_UNDER_VIEW: topic sales was deleted, or is another one now: apply"
    )
    assert not cluster.written()


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("value", [b"{", b'{"shop": 5}', b'{"amount": 1.5}', b"\xff", b"[]"])
def test_a_record_that_cannot_be_read_ends_the_version_with_its_place(
    cluster: PlayedCluster, live: bool, value: bytes
) -> None:
    cluster.logs["sales", 1].append(value)
    reason = ended(cluster, live=live)
    assert reason.startswith("record 1 of sales-1 cannot be read: ")
    assert "on_error 'skip'" in reason
    if not live:
        assert not cluster.written()


@pytest.mark.parametrize("most", [1, 100])
def test_records_that_are_skipped_are_counted_once_and_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Also where a step changes too much, and is made again with fewer records."""
    monkeypatch.setattr(steps_of_records, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(limits, "STEP_CHANGES", Bound(most, 1 << 20))
    cluster = PlayedCluster(tmp_path / "store", {LIVE: TABLE + SKIP + TOTALS}, live=LIVE)
    cluster.sell((0, "a", 1))
    cluster.logs["sales", 0] += [b"{", b'{"shop": 5}']
    cluster.sell((0, "a", 2), (0, "b", 3))
    cluster.at_once = 40
    task = cluster.process(LIVE)
    task.sinks.follow(all_sinks=True)
    while task.go_on():
        pass
    assert cluster.table("totals") == {
        '["a"]': {"shop": "a", "n": 2, "amount": 3},
        '["b"]': {"shop": "b", "n": 1, "amount": 3},
    }
    assert len(cluster.transactions) == (1 if most > 1 else 3)
    link = task.link
    assert isinstance(link, Link)
    task.tell()
    assert link.status["skipped"] == 2
    cluster.close()


def test_a_process_ends_for_the_next_one_to_read_a_topic_that_has_grown(
    cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = cluster.process(LIVE)
    task.check()
    known = cluster.known
    topics = {one: replace(place, partitions=place.partitions + 1) for one, place in known.topics.items()}
    monkeypatch.setattr(PlayedCluster, "known", Known(known.program, topics))
    with pytest.raises(Replaced):
        task.check()


def test_what_is_held_from_cleaning_is_told_and_is_nothing_once_a_state_is_stored(
    cluster: PlayedCluster,
) -> None:
    task = cluster.process(NEXT, live=False)
    task.go_on()
    link: Any = task.link
    task.tell()
    assert link.status["held_bytes"] == sum(map(len, cluster.logs["sales", 0] + cluster.logs["sales", 1]))
    task.store_state()
    task.tell()
    assert link.status["held_bytes"] == 0


def test_objects_of_attempts_that_ended_are_found() -> None:
    from strandline.node.views.view_host import is_left

    known = {7: {11, 12}}
    assert [
        is_left(f"views/{name}/f/0000000001.run", known, 20)
        for name in ("7/11", "7/12", "7/9", "7/21", "5/6", "21/21", "x/5", "7/x")
    ] == [False, False, True, False, True, False, False, False]


def test_pages_of_a_mapped_file_are_not_what_a_process_takes(tmp_path: Path) -> None:
    size = 64 << 20
    file = tmp_path / "file"
    file.write_bytes(bytes(size))
    before = memory.own_memory()
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[at] for at in range(0, size, mmap.PAGESIZE)) == 0
        assert memory.own_memory() - before < size // 2
    # A buffer of the allocator may lie in memory that this process has had since an earlier test.
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as own:
        own.write(bytes(size))
        assert memory.own_memory() - before > size // 2
