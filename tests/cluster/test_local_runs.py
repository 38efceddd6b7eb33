"""Files of runs: what is whole and known is mapped without being read, anything else is fetched again."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgpack
import numpy as np
import polars as pl
import pytest

from strandline.cluster.view_worker import local_runs, version_task
from strandline.cluster.view_worker import steps as steps_of_records
from strandline.cluster.view_worker.local_runs import MOST_BEGUN, LocalRuns
from strandline.cluster.view_worker.store_thread import StoreThread
from strandline.cluster.view_worker.version_task import VersionTask
from strandline.snapshot.views import circuit, spine
from strandline.snapshot.views.run import Layout, Run, run_of
from strandline.snapshot.views.run_file import check_run, write_run
from tests.cluster.played_views import Died, PlayedCluster

LAYOUT: Final = Layout((pl.Int64(),), (0,))
NAME: Final = "a/1.run"


def run(*numbers: int) -> Run:
    return run_of(LAYOUT, pl.DataFrame({"c0": numbers}), (np.ones(len(numbers), np.int64),))


def numbers(found: Run | None) -> list[int] | None:
    return None if found is None else sorted(found.rows["c0"].to_list())


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were read to their end."""
    read: list[Path] = []

    def noted(path: Path) -> int:
        read.append(path)
        return check_run(path)

    monkeypatch.setattr(local_runs, "check_run", noted)
    return read


def kept(folder: Path) -> LocalRuns:
    """The files of a process that has stored a state."""
    files = LocalRuns(folder)
    files.keep(NAME, run(1, 2, 3))
    files.stored()
    return files


def test_the_next_process_maps_a_file_and_reads_none(tmp_path: Path, reads: list[Path]) -> None:
    kept(tmp_path)
    assert numbers(LocalRuns(tmp_path).find(NAME)) == [1, 2, 3]
    assert not reads


def another_run(file: Path) -> None:
    file.unlink()
    write_run(file, run(7))


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def no_note(file: Path) -> None:
    file.with_name(file.name + ".note").unlink()


def torn_note(file: Path) -> None:
    note = file.with_name(file.name + ".note")
    note.write_bytes(note.read_bytes()[:-3])


def note_of_another(file: Path) -> None:
    note = file.with_name(file.name + ".note")
    note.write_bytes(msgpack.packb([*msgpack.unpackb(note.read_bytes())[:4], 5]))
    os.utime(file)


def wiped(file: Path) -> None:
    shutil.rmtree(file.parent)


def a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(
    "harm",
    [
        another_run, flipped, no_note, torn_note, note_of_another, wiped, a_folder, Path.unlink,
        lambda file: os.truncate(file, 10), lambda file: os.truncate(file, 0),
    ],
)  # fmt: skip
def test_a_file_that_is_not_the_run_is_not_taken(tmp_path: Path, harm: Callable[[Path], Any]) -> None:
    kept(tmp_path)
    harm(tmp_path / NAME)
    files = LocalRuns(tmp_path)
    assert files.find(NAME) is None
    if harm is not a_folder:
        assert numbers(files.keep(NAME, run(1, 2, 3))) == [1, 2, 3]
        assert numbers(files.find(NAME)) == [1, 2, 3]


def test_after_another_boot_or_a_touch_a_file_is_read_once(
    tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(tmp_path)
    boot = tmp_path / "boot"
    boot.write_text("another\n")
    monkeypatch.setattr(local_runs, "_BOOT", boot)
    for _ in range(2):
        assert numbers(LocalRuns(tmp_path).find(NAME)) == [1, 2, 3]
        assert len(reads) == 1
    LocalRuns(tmp_path).stored()
    os.utime(tmp_path / NAME)
    for _ in range(2):
        assert numbers(LocalRuns(tmp_path).find(NAME)) == [1, 2, 3]
        assert len(reads) == 2


def test_where_processes_end_before_they_store_a_state_files_are_read(
    tmp_path: Path, reads: list[Path]
) -> None:
    kept(tmp_path)
    for number in range(MOST_BEGUN + 1):
        assert numbers(LocalRuns(tmp_path).find(NAME)) == [1, 2, 3]
        assert len(reads) == (number == MOST_BEGUN)
    LocalRuns(tmp_path).stored()
    assert numbers(LocalRuns(tmp_path).find(NAME)) == [1, 2, 3]
    assert len(reads) == 1


def test_files_go_when_no_spine_and_no_state_has_their_runs(tmp_path: Path) -> None:
    files = kept(tmp_path)
    living = files.keep("a/2.run", run(4))
    dead, unfinished = tmp_path / NAME, tmp_path / "b/3.run.new"
    unfinished.parent.mkdir()
    unfinished.touch()
    files.forget({NAME})
    assert dead.exists()
    files.forget(set())
    assert not dead.exists()
    assert files.name_of(living) == "a/2.run"
    files.delete_others(set())
    assert not unfinished.exists()
    assert (tmp_path / "a/2.run").exists()
    files.delete(["a/2.run"])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert numbers(living) == [4], "what is mapped stays"


@pytest.mark.parametrize("place", ["content", "rename", "note"])
def test_what_a_full_disk_took_of_a_file_makes_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    def half(path: Path, _: Run) -> int:
        path.write_bytes(b"half")
        return int(full())

    files = kept(tmp_path)
    with monkeypatch.context() as patched:
        match place:
            case "content":
                patched.setattr(local_runs, "write_run", half)
            case "rename":
                patched.setattr(Path, "rename", full)
            case "note":
                patched.setattr(LocalRuns, "_note", full)
        with pytest.raises(OSError, match="No space"):
            files.keep("a/2.run", run(4))
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {NAME, f"{NAME}.note"}


def test_two_processes_that_fetch_one_run_do_not_write_into_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before was killed and is not gone yet."""
    first, second = LocalRuns(tmp_path), LocalRuns(tmp_path)

    def amid(path: Path, one: Run) -> int:
        crc = write_run(path, one)
        with monkeypatch.context() as patched:
            patched.setattr(local_runs, "write_run", write_run)
            patched.setattr(os, "getpid", lambda: 0)
            assert numbers(second.keep(NAME, run(1))) == [1]
        return crc

    monkeypatch.setattr(local_runs, "write_run", amid)
    assert numbers(first.keep(NAME, run(1))) == [1]
    assert numbers(LocalRuns(tmp_path).find(NAME)) == [1]


@pytest.mark.parametrize("place", ["write_run", "map_run"])
def test_a_run_that_is_being_written_is_none_that_others_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A merge writes its pieces while the first state of a process is stored, which looks for leftovers."""
    files, amid = kept(tmp_path), getattr(local_runs, place)

    def meanwhile(path: Path, *one: Run) -> Any:
        done = amid(path, *one) if one else None
        files.delete_others({NAME})
        return done if one else amid(path)

    monkeypatch.setattr(local_runs, place, meanwhile)
    assert numbers(files.keep("a/2.run", run(4))) == [4]
    monkeypatch.undo()
    for found in (files, LocalRuns(tmp_path)):
        assert numbers(found.find("a/2.run")) == [4]
    LocalRuns(tmp_path).delete_others({NAME})
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.run*")}
    assert left == {NAME, f"{NAME}.note"}


PROGRAM: Final = """
CREATE TABLE sales (shop STRING, amount BIGINT);
CREATE VIEW totals AS SELECT shop, count(*) AS n, sum(amount) AS amount FROM sales GROUP BY shop;
"""


@pytest.mark.parametrize("place", ["write_run", "rename", "note", "put", "manifest"])
def test_a_process_that_dies_while_it_stores_leaves_what_the_next_one_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(version_task, "FIRST_STATE_SECONDS", 3600.0)
    monkeypatch.setattr(steps_of_records, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(spine, "INLINE_ROWS", 1)  # so that merges are kept as files too
    assert circuit.LEVELS
    cluster = PlayedCluster(tmp_path / "store", {1: PROGRAM}, live=1)
    try:
        for _ in range(3):
            _dies(cluster, monkeypatch, place)
        task = cluster.process(1)
        task.sinks.follow(all_sinks=True)
        while task.go_on():
            pass
        assert cluster.table("totals") == cluster.totals("view.p.7")
        assert len(cluster.table("totals")) == 30
    finally:
        cluster.close()


def test_a_process_that_begins_deletes_what_others_left_before_it_writes(tmp_path: Path) -> None:
    """On a disk that is full of it no state could be stored, and so it would stay."""
    cluster = PlayedCluster(tmp_path / "store", {1: PROGRAM}, live=1)
    try:
        cluster.sell((0, "a", 1), (1, "b", 2))
        task = cluster.process(1)
        task.sinks.follow(all_sinks=True)
        task.go_on()
        task.store_state()
        mine = {path for path in cluster.files.rglob("*.run*") if path.is_file()}
        assert mine
        left = cluster.files / "1/dead/0000000001.run"
        left.parent.mkdir(parents=True)
        for path in (left, left.with_name(f"{left.name}.77.new")):
            path.write_bytes(b"a piece of a merge")
        cluster.process(1)
        assert {path for path in cluster.files.rglob("*.run*") if path.is_file()} == mine
    finally:
        cluster.close()


@pytest.mark.parametrize("torn", ["", "x", "2 "])
def test_a_count_of_processes_that_is_torn_has_all_files_read(
    tmp_path: Path, reads: list[Path], torn: str
) -> None:
    kept(tmp_path)
    (tmp_path / "begun").write_text(torn)
    assert numbers(LocalRuns(tmp_path).find(NAME)) == [1, 2, 3]
    assert len(reads) == 1


def test_there_is_one_file_for_each_run_of_the_two_newest_states_and_none_besides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_task, "FIRST_STATE_SECONDS", 3600.0)
    monkeypatch.setattr(steps_of_records, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(spine, "INLINE_ROWS", 1)  # so that merges are kept as files too
    cluster = PlayedCluster(tmp_path / "store", {1: PROGRAM}, live=1)
    begun = cluster.files / "1/begun"
    try:
        for process in range(2):
            task = cluster.process(1)
            task.sinks.follow(all_sinks=True)
            assert begun.read_text() == "1"
            for number in range(6):
                for part in range(3):
                    cluster.sell((0, f"shop {process} {number} {part}", 1), (1, "a", 1))
                    task.go_on()
                task.store_state()
                assert not begun.exists(), "this process reads what it mapped"
                stored = {name.split("/", 3)[3] for name in cluster.objects(1) if name.endswith(".run")}
                files = {path.relative_to(begun.parent).as_posix() for path in begun.parent.rglob("*.run")}
                assert files == stored
    finally:
        cluster.close()


def _dies(cluster: PlayedCluster, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """A process takes ten shops' sales, stores them, takes ten more, and dies while it stores these."""
    first = len(cluster.logs["sales", 0])
    for shops in (range(first, first + 5), range(first + 5, first + 10)):
        cluster.sell(*((0, f"shop {shop}", shop) for shop in shops))
    task = cluster.process(1)
    task.sinks.follow(all_sinks=True)
    task.go_on()
    task.store_state()
    with monkeypatch.context() as patched:
        _die(patched, place)
        with pytest.raises(Died):
            _goes_on(task)


def _goes_on(task: VersionTask) -> None:
    while True:
        task.go_on()
        task.store_state()


def _die(patched: pytest.MonkeyPatch, place: str) -> None:
    def dies(*_: Any) -> Any:
        raise Died

    put = StoreThread.put

    def no_manifest(self: StoreThread, key: str, parts: Any) -> None:
        if key.endswith(".state"):
            raise Died
        put(self, key, parts)

    match place:
        case "write_run":
            patched.setattr(local_runs, "write_run", dies)
        case "rename":
            patched.setattr(Path, "rename", dies)
        case "note":
            patched.setattr(LocalRuns, "_note", dies)
        case "put":
            patched.setattr(StoreThread, "put", dies)
        case "manifest":
            patched.setattr(StoreThread, "put", no_manifest)
