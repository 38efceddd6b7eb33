"""`strandline export` of a stored cluster: files that others read, killed at every step, again and again."""

from __future__ import annotations

import fcntl
import json
import os
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pandas as pd  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from strandline.snapshot.spark.export.check import check
from strandline.snapshot.spark.export.documents import manifest_name, plan_name
from strandline.snapshot.spark.export.errors import ExportError
from strandline.snapshot.spark.export.planning import Limits
from strandline.snapshot.spark.export.running import Exported
from strandline.snapshot.spark.export.target import open_target
from strandline.statemachine.controller.controller_commands import DeleteTopic
from strandline.statemachine.partition.partition_commands import SetStartOffset
from tests.cluster.command import Done, as_json, strandline
from tests.objectstore.s3_endpoint import endpoint
from tests.spark.collected_cluster import write
from tests.spark.exporting import Killed, Mortal, export, exported, here
from tests.spark.planned import readable
from tests.spark.stored_cluster import StoredCluster, build_cluster

__all__ = ["endpoint"]


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test loses power, and a busy disk takes a second for each sync; one test looks at the syncs."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def cluster(tmp_path: Path) -> StoredCluster:
    return build_cluster(tmp_path / "objects", batches_a_round=2)


@pytest.mark.parametrize("by", ["none", "partition", "day", "hour"])
def test_files_have_each_record_once_and_other_readers_find_them(
    cluster: StoredCluster, tmp_path: Path, by: str
) -> None:
    folder = tmp_path / "lake"
    done = export(cluster, open_target(str(folder)), by=by)
    assert done.rounds > 2
    assert not done.resumed
    assert exported(folder) == readable(cluster)
    assert done.records == sum(map(len, readable(cluster).values()))
    found = check(open_target(str(folder)))
    assert (found.problems, found.records, found.files) == ([], done.records, done.files)
    frame = pd.read_parquet(folder / "topic=visits")
    visits = readable(cluster, "visits")
    assert sorted(frame["offset"]) == sorted(one.offset for records in visits.values() for one in records)
    names = {path.parent.name.partition("=")[0] for path in folder.rglob("*.parquet")}
    assert names == {"topic" if by == "none" else by}
    for path in folder.rglob("*.parquet"):
        offsets = pq.read_table(path, partitioning=None).column("offset").to_pylist()
        assert offsets, "no file is empty"


def test_a_second_run_exports_what_is_new(cluster: StoredCluster, tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    export(cluster, open_target(str(folder)), "orders", by="partition")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")}
    assert export(cluster, open_target(str(folder)), "orders") == Exported()
    write(cluster, *cluster.partitions.values())
    cluster.checkpoint()
    done = export(cluster, open_target(str(folder)), "orders,clicks")
    clicks = sum(map(len, readable(cluster, "clicks").values()))
    assert done.records == 3 * 3 + clicks
    assert exported(folder) == readable(cluster, "orders", "clicks")
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert check(open_target(str(folder))).problems == []


def kill_everywhere(
    cluster: StoredCluster, folder: Path, by: str, between: Callable[[int], None] = lambda _: None
) -> int:
    """Kill each run one change later than the one before it until one ends; returns how many were killed."""
    inner = open_target(str(folder))
    for killed in range(1000):
        try:
            export(cluster, Mortal(inner, 1 + killed // 2 % 3, killed % 2 == 1), by=by, run=here)
        except Killed:
            between(killed)
            continue
        return killed
    raise AssertionError("it makes no progress")


@pytest.mark.parametrize("by", ["none", "day"])
def test_killed_at_every_change_it_ends_with_each_record_once(
    cluster: StoredCluster, tmp_path: Path, by: str
) -> None:
    folder = tmp_path / "lake"

    def look(killed: int) -> None:
        """A reader between two runs finds no record twice; some runs find newer records to export."""
        if killed:
            assert check(open_target(str(folder))).problems == []
        if killed % 7 == 3 and killed < 30:
            write(cluster, *cluster.partitions.values())
            cluster.checkpoint()

    assert kill_everywhere(cluster, folder, by, look) > 20
    assert exported(folder) == readable(cluster)
    found = check(open_target(str(folder)))
    assert (found.problems, found.unfinished) == ([], None)
    assert not list((folder / "_strandline" / "done").rglob("*.json"))


def test_two_runs_at_once_write_the_same_files(cluster: StoredCluster, tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    inner = open_target(str(folder))

    class Second(Mortal):
        """Lets another run do all of it before this one's first file."""

        def create(self, key: str, data: bytes | memoryview) -> bool:
            if key.endswith(".parquet") and self.left:
                self.left = 0
                write(cluster, *cluster.partitions.values())
                cluster.checkpoint()
                export(cluster, inner)
            return self.inner.create(key, data)

        def delete(self, key: str) -> None:
            self.inner.delete(key)

    export(cluster, Second(inner, 1, False))
    assert exported(folder) == readable(cluster)
    assert check(inner).problems == []


def test_a_file_is_synced_before_it_has_its_name_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = open_target(str(tmp_path / "lake"))
    path = tmp_path / "lake" / "topic=a" / "one.parquet"
    steps: list[str] = []

    def fsync(file: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{file}"))
        steps.append("folder" if name == path.parent else "file" if "unfinished" in str(name) else "other")
        if steps[-1] == "file":
            assert not path.exists()
            assert os.fstat(file).st_size == 3
        if steps[-1] == "folder":
            assert path.read_bytes() == b"one"

    monkeypatch.setattr(os, "fsync", fsync)
    assert target.create("topic=a/one.parquet", b"one")
    assert [step for step in steps if step != "other"] == ["file", "folder"]
    monkeypatch.setattr(os, "fsync", lambda file: None)
    assert not target.create("topic=a/one.parquet", b"two")
    assert path.read_bytes() == b"one"
    assert not list((tmp_path / "lake" / "_strandline" / "unfinished").iterdir())


def test_unfinished_files_of_processes_that_are_gone_are_swept_and_no_others(tmp_path: Path) -> None:
    target = open_target(str(tmp_path))
    folder = tmp_path / "_strandline" / "unfinished"
    with open(folder / "living", "wb") as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        (folder / "gone").write_bytes(b"half")
        assert target.sweep() == 1
        assert [path.name for path in folder.iterdir()] == ["living"]
    assert target.list("") == []


def test_deleted_records_are_refused_or_told(cluster: StoredCluster, tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    target = open_target(str(folder))
    export(cluster, target, "orders")
    orders = cluster.partitions["orders", 1]
    wanted = readable(cluster, "orders")
    end = orders.machine.next_offset
    write(cluster, orders)
    orders.execute(SetStartOffset(end + 2))
    cluster.checkpoint()
    with pytest.raises(ExportError, match=f"orders-1: offsets {end} to {end + 1} were deleted") as caught:
        export(cluster, target, "orders")
    assert "--lost-records accept" in caught.value.cure
    done = export(cluster, target, "orders", accept_loss=True)
    assert (done.records, len(done.lost)) == (1, 1)
    found = check(target)
    assert (found.problems, len(found.lost)) == ([], 1)
    wanted["orders", 1].append(orders.readable[-1])
    assert exported(folder) == wanted


@pytest.mark.parametrize("by", ["none", "day"])
def test_a_file_counts_whose_records_are_gone_when_its_round_is_ended(
    cluster: StoredCluster, tmp_path: Path, by: str
) -> None:
    folder = tmp_path / "lake"
    target = open_target(str(folder))
    whole = readable(cluster, "orders")
    with pytest.raises(Killed):
        # Killed once there are the plan and the only file of it.
        export(cluster, Mortal(target, 2, True), "orders", by=by, limits=Limits(), run=here)
    for number in range(3):
        partition = cluster.partitions["orders", number]
        partition.execute(SetStartOffset(partition.machine.next_offset - 1))
    cluster.checkpoint()
    done = export(cluster, target, "orders", limits=Limits(), accept_loss=by == "day")
    assert done.resumed
    assert exported(folder) == whole
    assert done.records == sum(map(len, whole.values()))
    assert check(target).problems == []


@pytest.mark.parametrize("begin", ["earliest", "latest"])
def test_a_topic_that_was_made_again_is_another(cluster: StoredCluster, tmp_path: Path, begin: str) -> None:
    """All of it is new, wherever a topic was to begin that the target has nothing of."""
    folder = tmp_path / "lake"
    target = open_target(str(folder))
    export(cluster, target, "clicks")
    old = exported(folder)["clicks", 0]
    cluster.control(DeleteTopic(cluster.topics["clicks"].topic_id))
    for number in range(2):
        del cluster.partitions["clicks", number]
    cluster.create_topic("filler", 1)  # whose id the next one would have otherwise
    cluster.create_topic("clicks", 1)
    write(cluster, cluster.partitions["clicks", 0])
    cluster.checkpoint()
    with pytest.raises(ExportError, match="topic 'clicks' was deleted and created again"):
        export(cluster, target, "clicks")
    assert export(cluster, target, "clicks", accept_loss=True, startingOffsets=begin).records == 3
    assert exported(folder)["clicks", 0] == sorted([*old, *cluster.partitions["clicks", 0].records])
    assert check(target).problems == []


def damage_bytes(folder: Path) -> str:
    path = min(folder.rglob("*.parquet"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return "is not what was exported"


def damage_gone(folder: Path) -> str:
    min(folder.rglob("*.parquet")).unlink()
    return "is missing"


def damage_twice(folder: Path) -> str:
    path = min(folder.rglob("*.parquet"))
    path.with_name("copy.parquet").write_bytes(path.read_bytes())
    return "copy.parquet is in no manifest"


def damage_round(folder: Path) -> str:
    (folder / manifest_name(2)).unlink()
    return f"{manifest_name(2)} is missing"


def changed_plan(folder: Path, by: int) -> None:
    for name in (plan_name(2), manifest_name(2)):
        told = json.loads((folder / name).read_text())
        told.get("plan", told)["units"][0]["ranges"][0]["first"] += by
        (folder / name).write_text(json.dumps(told))


def damage_overlap(folder: Path) -> str:
    changed_plan(folder, -1)
    return "twice"


def damage_gap(folder: Path) -> str:
    changed_plan(folder, 1)
    return "has no offsets"


def damage_records(folder: Path) -> str:
    told = json.loads((folder / manifest_name(2)).read_text())
    told["files"][0]["records"] += 1
    (folder / manifest_name(2)).write_text(json.dumps(told))
    return "records, and the manifest says"


@pytest.mark.parametrize(
    "damage",
    [damage_bytes, damage_gone, damage_twice, damage_round, damage_overlap, damage_gap, damage_records],
)
def test_a_check_finds_damage(
    cluster: StoredCluster,
    tmp_path: Path,
    damage: Callable[[Path], str],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "lake"
    export(cluster, open_target(str(folder)))
    wanted = damage(folder)
    found = check(open_target(str(folder))).problems
    assert any(wanted in line for line in found), found
    done = strandline(capfd, monkeypatch, "export", "--check", "--to", str(folder))
    assert done.status == 1
    assert wanted in done.out


def test_the_command_exports_checks_and_says_what_is_wrong(
    cluster: StoredCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = str(tmp_path / "lake")

    def run(*arguments: str) -> Done:
        return strandline(capfd, monkeypatch, "export", *arguments, "--storage", cluster.url, "--to", lake)

    def refused(*arguments: str) -> str:
        done = run(*arguments)
        assert done.status in (1, 2)
        assert done.out == ""
        assert done.err.startswith("strandline: ")
        assert done.err.count("\n") == 1
        return done.err

    assert "no topic is named" in refused()
    assert "there is no topic 'nope' in what is published" in refused("nope")
    assert "week is a column of values, and they are bytes" in refused("orders", "--partition-by", "week")
    assert "there is no such folder; " in refused("--check")
    told = as_json(run("orders", "--from", "5", "--partition-by", "day", "--json"))
    wanted = [one for records in readable(cluster, "orders").values() for one in records if one.offset >= 5]
    assert (told["records"], told["rounds"]) == (len(wanted), 1)
    assert run("orders").out == f"nothing new: {lake} has all that the newest checkpoint has\n"
    assert "was begun with --partition-by day; say the same" in refused("orders", "--partition-by", "hour")
    done = run("--check")
    assert done.status == 0
    assert done.out.endswith("1 round: each record once\n")
    assert f"{len(wanted)} records" in done.out


@pytest.mark.s3
def test_a_bucket_takes_each_file_once_too(cluster: StoredCluster, endpoint: str) -> None:
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/lake", method="PUT"), timeout=60).close()
    options = {"endpoint": endpoint, "region": "us-east-1", "access_key_id": "t", "secret_access_key": "t"}
    target = open_target("s3://lake/files", options)
    assert target.create("a/b", b"one")
    assert not target.create("a/b", b"two")
    assert target.get("a/b") == b"one"
    target.delete("a/b")
    target.delete("a/b")
    assert target.list("") == []
    for kill in (1, 2, 3, 4):
        with pytest.raises(Killed):
            export(cluster, Mortal(target, kill, kill % 2 == 0), by="day", run=here)
    export(cluster, target)
    found = check(target)
    assert (found.problems, found.unfinished) == ([], None)
    assert found.records == sum(map(len, readable(cluster).values()))
