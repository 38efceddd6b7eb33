"""`strandline export --follow`: what is new until a signal, past errors that pass, in a thread's company."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from strandline.cluster.commands import export_follow
from strandline.snapshot.names import PREFIX, parse_name
from strandline.snapshot.spark.export.documents import ROUNDS
from strandline.snapshot.spark.export.run import Export
from strandline.snapshot.spark.export.running import Exported
from strandline.snapshot.spark.export.target import open_target
from strandline.snapshot.spark.newest import NewestCheckpoints
from strandline.snapshot.storage import StorageError
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from tests.cluster.command import strandline
from tests.spark.collected_cluster import write
from tests.spark.exporting import Killed, Mortal, export, exported, here
from tests.spark.planned import readable
from tests.spark.stored_cluster import StoredCluster, build_cluster

Until = Callable[[Callable[[], object]], None]
"""Waits until something is there; it raises, too, once the command has ended."""


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test loses power, and a busy disk takes a second for each sync."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def cluster(tmp_path: Path) -> StoredCluster:
    return build_cluster(tmp_path / "objects", batches_a_round=2)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the command warns of."""
    lines: list[str] = []
    monkeypatch.setattr(export_follow, "warn", lines.append)
    return lines


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Exported]:
    """What was done by each look that has ended."""
    ended: list[Exported] = []
    run = Export.run

    def counted(self: Export, *given: Any) -> Exported:
        ended.append(run(self, *given))
        return ended[-1]

    monkeypatch.setattr(Export, "run", counted)
    return ended


class _Ended(Exception):
    """The command has ended, and nothing that is waited for will come."""


@contextmanager
def meanwhile(happens: Callable[[Until], None], number: int = signal.SIGTERM) -> Iterator[None]:
    """Let something happen in a thread, then a signal to this process. The thread ends with this context."""
    ended = threading.Event()

    def until(there: Callable[[], object]) -> None:
        while not there():
            if ended.wait(0.02):
                raise _Ended

    def run() -> None:
        try:
            happens(until)
        except _Ended:
            return
        finally:
            if not ended.is_set():
                os.kill(os.getpid(), number)

    before = signal.signal(number, _no_one)  # a command that has just ended must not take the tests with it
    other = threading.Thread(target=run)
    other.start()
    try:
        yield
    finally:
        ended.set()
        other.join()
        signal.signal(number, before)


def _no_one(*_: object) -> None:
    """No signal of these tests is for anyone but the command."""


def following(cluster: StoredCluster, lake: Path, *more: str) -> list[str]:
    right = ["orders", "--storage", cluster.url, "--to", str(lake), "--json"]
    return ["export", *right, "--follow", "--every", "0.1", *more]


def rounds(lake: Path) -> int:
    return len(list(lake.glob(f"{ROUNDS}*.manifest.json")))


def has_rounds(lake: Path, count: int) -> bool:
    return rounds(lake) >= count


def go_on(cluster: StoredCluster) -> None:
    """Write to all topics, and take a checkpoint."""
    write(cluster, *cluster.partitions.values())
    cluster.checkpoint()


def records(out: str) -> int:
    """The sum of what the command's lines tell."""
    return sum(json.loads(line)["records"] for line in out.splitlines())


def all_of(cluster: StoredCluster) -> int:
    return sum(map(len, readable(cluster, "orders").values()))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_follows_exports_what_is_new_until_a_signal(
    cluster: StoredCluster,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
) -> None:
    lake = tmp_path / "lake"

    def happens(until: Until) -> None:
        for count in (1, 2):
            until(partial(has_rounds, lake, count))
            go_on(cluster)
        until(lambda: rounds(lake) >= 3)
        # A round may have come amid a checkpoint.
        until(lambda: exported(lake) == readable(cluster, "orders"))

    with meanwhile(happens, number):
        done = strandline(capfd, monkeypatch, *following(cluster, lake))
        after = signal.getsignal(number)
    assert (done.status, done.err) == (0, "")
    assert exported(lake) == readable(cluster, "orders")
    assert records(done.out) == all_of(cluster)
    assert after is _no_one


@pytest.fixture
def halves(cluster: StoredCluster, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on all documents of partitions are cut; the next call makes them whole."""
    put, cut = cluster.put, dict[str, bytes]()

    def half(key: str, data: bytes) -> None:
        if key.startswith(PREFIX) and parse_name(key).group != CONTROLLER_GROUP:
            cut[key] = data
            data = data[: len(data) // 2]
        put(key, data)

    def turn() -> None:
        if cut:
            monkeypatch.setattr(cluster, "put", put)
            for key, data in cut.items():
                put(key, data)
        else:
            monkeypatch.setattr(cluster, "put", half)

    return turn


def test_a_run_that_follows_goes_on_past_an_error_that_passes(
    cluster: StoredCluster,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    halves: Callable[[], None],
    told: list[str],
    looks: list[Exported],
) -> None:
    lake = tmp_path / "lake"

    def happens(until: Until) -> None:
        until(lambda: looks)
        halves()
        go_on(cluster)
        until(lambda: told)
        halves()
        until(lambda: exported(lake) == readable(cluster, "orders"))
        until(lambda: len(told) > 1)

    with meanwhile(happens):
        done = strandline(capfd, monkeypatch, *following(cluster, lake))
    assert (done.status, done.err) == (0, "")
    assert records(done.out) == all_of(cluster)
    assert told[0].startswith(PREFIX)
    assert told[0].endswith("; it looks again, for up to 10 minutes")
    assert told[-1].startswith("it goes on, ")


@pytest.mark.parametrize("first", [False, True])
def test_a_run_that_follows_ends_with_an_error_that_stays(
    cluster: StoredCluster,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    halves: Callable[[], None],
    told: list[str],
    looks: list[Exported],
    first: bool,
) -> None:
    """At once where it is there from the beginning, as a wrong option is."""
    lake = tmp_path / "lake"
    monkeypatch.setattr(export_follow, "PATIENCE_SECONDS", 3600.0 if first else 0.3)

    def happens(until: Until) -> None:
        if not first:
            until(lambda: looks)
            halves()
            go_on(cluster)
        until(lambda: False)

    if first:
        halves()
        go_on(cluster)
    with meanwhile(happens):
        done = strandline(capfd, monkeypatch, *following(cluster, lake))
    assert done.status == 1
    assert done.err.startswith(f"strandline: {PREFIX}")
    assert done.err.count("\n") == 1
    assert bool(told) is not first
    assert bool(done.out) is not first


def test_a_run_that_follows_and_gets_on_between_errors_does_not_end_with_them(
    cluster: StoredCluster,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bucket that fails now and then, and a long way behind."""
    monkeypatch.setattr(export_follow, "PATIENCE_SECONDS", 0.5)
    run, calls = Export.run, list[float]()

    def failing(self: Export, tell: Any, stopped: Any, done: Exported) -> Exported:
        run(self, tell, stopped, done)
        calls.append(time.monotonic())
        if 0 < calls[-1] - calls[0] < 1.5:
            done.rounds += 1
            raise StorageError("the bucket does not answer")
        return done

    monkeypatch.setattr(Export, "run", failing)

    def happens(until: Until) -> None:
        until(lambda: calls and calls[-1] - calls[0] > 1.5)

    with meanwhile(happens):
        done = strandline(capfd, monkeypatch, *following(cluster, tmp_path / "lake"))
    assert done.status == 0, done.err


def test_a_round_whose_commit_failed_is_told_and_committed_once(
    cluster: StoredCluster,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    told: list[str],
    looks: list[Exported],
) -> None:
    lake = tmp_path / "lake"
    commit = DeltaTable.create_write_transaction

    def failing(table: DeltaTable, *args: Any, **options: Any) -> None:
        if looks and not told:
            raise OSError("the bucket is away")
        commit(table, *args, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", failing)

    def happens(until: Until) -> None:
        until(lambda: looks)
        go_on(cluster)
        until(lambda: len(told) > 1)

    with meanwhile(happens):
        done = strandline(capfd, monkeypatch, *following(cluster, lake, "--format", "delta"))
    assert (done.status, done.err) == (0, "")
    assert "the bucket is away" in told[0]
    rows = DeltaTable(str(lake / "topic=orders")).to_pyarrow_table()
    assert records(done.out) == all_of(cluster) == rows.num_rows


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("comes", [False, True])
def test_an_object_that_is_gone_is_looked_for_in_a_newer_state(
    cluster: StoredCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planned: bool, comes: bool
) -> None:
    """Two objects were merged and are deleted, and what is published does not say so yet."""
    target, whole = open_target(str(tmp_path / "lake")), cluster.partitions["visits", 1]
    if planned:
        with pytest.raises(Killed):
            export(cluster, Mortal(target, 1, True), "visits", run=here)
    merged = [whole.level_one_name(one) for one in list(whole.machine.level_one)[:2]]
    assert len(merged) == 2
    whole.merge(0, 2)
    for name in merged:
        (cluster.root / name).unlink()
    waits: list[float] = []

    def renewed(checkpoints: NewestCheckpoints, seconds: float) -> bool:
        waits.append(seconds)
        if comes and len(waits) == 2:
            cluster.checkpoint()
        checkpoints.look(whole=True)
        return True

    monkeypatch.setattr(NewestCheckpoints, "renewed", renewed)
    if comes:
        export(cluster, target, "visits")
        assert exported(tmp_path / "lake") == readable(cluster, "visits")
    else:
        with pytest.raises(StorageError, match=f"no object {merged[0]}"):
            export(cluster, target, "visits")
    assert waits == ([1.0, 2.0] if comes else [1.0, 2.0, 4.0])
