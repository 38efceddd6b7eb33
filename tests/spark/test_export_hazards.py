"""`strandline export` where it may lose, double or leave something: other clusters and runs, odd records."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from strandline.snapshot.spark.export.check import check
from strandline.snapshot.spark.export.documents import ROUNDS, plan_name
from strandline.snapshot.spark.export.errors import ExportError
from strandline.snapshot.spark.export.parquet import MADE_BY
from strandline.snapshot.spark.export.planning import Limits
from strandline.snapshot.spark.export.running import Exported
from strandline.snapshot.spark.export.target import Target, open_target
from strandline.snapshot.storage import open_storage
from strandline.statemachine.controller.restored_controller import TERMS
from strandline.statemachine.partition.partition_commands import SetStartOffset
from tests.cluster.command import strandline
from tests.cluster.odd_words import WORDS
from tests.kafka.wire.batches import Record, build
from tests.spark.collected_cluster import write
from tests.spark.compacted_cluster import TOPIC, build_compacted
from tests.spark.exporting import Killed, Mortal, export, exported, exporting, here
from tests.spark.planned import read, readable
from tests.spark.stored_cluster import CLUSTER, StoredCluster, Upload, build_cluster
from tests.spark.transactional_cluster import build_transactional

TRIED = 50
"""Command lines, of some hundred that there are."""


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test loses power, and a busy disk takes a second for each sync."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def cluster(tmp_path: Path) -> StoredCluster:
    return build_cluster(tmp_path / "objects", batches_a_round=2)


def of_another_name(cluster: StoredCluster, root: Path) -> StoredCluster:
    """A cluster of another id with the same topics: their ids are the same as well, and their offsets."""
    other = build_cluster(root, batches_a_round=2)
    (root / "snapshots" / CLUSTER).rename(root / "snapshots" / "another")
    return other


@pytest.mark.parametrize("kill", [1, 2, 3, None])
def test_a_target_takes_topics_of_one_cluster(
    cluster: StoredCluster, tmp_path: Path, kill: int | None
) -> None:
    target = open_target(str(tmp_path / "lake"))
    if kill is None:
        export(cluster, target, "orders")
    else:
        with pytest.raises(Killed):
            export(cluster, Mortal(target, kill, True), "orders", run=here)
    other = of_another_name(cluster, tmp_path / "other")
    for topics in ("orders", "clicks"):
        with pytest.raises(ExportError, match=f"has topics of cluster {CLUSTER}, and these are of another"):
            export(other, target, topics, accept_loss=True)
    export(cluster, target, "orders")
    assert exported(tmp_path / "lake") == readable(cluster, "orders")
    assert check(target).problems == []


def test_files_without_documents_are_not_written_again(cluster: StoredCluster, tmp_path: Path) -> None:
    target = open_target(str(tmp_path / "lake"))
    export(cluster, target, "orders", by="day")
    for path in (tmp_path / "lake" / ROUNDS).iterdir():
        path.unlink()
    with pytest.raises(ExportError, match="of an export whose documents are gone"):
        export(cluster, target, "orders", by="day")


def test_a_file_of_another_cluster_in_the_way_is_not_taken(cluster: StoredCluster, tmp_path: Path) -> None:
    """It has the same name, round, unit and offsets, as of an export to the same place."""
    other = of_another_name(cluster, tmp_path / "other")
    export(other, open_target(str(tmp_path / "theirs")), "orders")
    target = open_target(str(tmp_path / "lake"))
    with pytest.raises(Killed):
        export(cluster, Mortal(target, 1, True), "orders", run=here)
    for path in sorted((tmp_path / "theirs" / "topic=orders").iterdir())[:1]:
        target.create(f"topic=orders/{path.name}", path.read_bytes())
    with pytest.raises(ExportError, match="lies in the way: this export has not made it"):
        export(cluster, target, "orders")


def test_documents_of_the_first_format_go_on(cluster: StoredCluster, tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    target = open_target(str(folder))
    with pytest.raises(Killed):
        export(cluster, Mortal(target, 1, True), "orders", run=here)
    told = json.loads((folder / plan_name(1)).read_text())
    assert told.pop("cluster") == CLUSTER
    (folder / plan_name(1)).write_text(json.dumps({**told, "format": 1}))
    assert export(cluster, target, "orders").resumed
    assert exported(folder) == readable(cluster, "orders")
    assert check(target).problems == []
    of_round = {
        made["round"]: made
        for path in folder.rglob("*.parquet")
        for made in [json.loads(pq.read_schema(path).metadata[MADE_BY])]
    }
    assert "cluster" not in of_round[1], "an earlier build would not take the file for its own"
    assert of_round[2]["cluster"] == CLUSTER


class Meanwhile(Target):
    """A target that lets something else happen before this run's first file."""

    def __init__(self, inner: Target, happens: Callable[[], Any], before: str = ".parquet") -> None:
        self.inner, self.happens, self.before, self.url = inner, happens, before, inner.url
        self.happened = False

    def create(self, key: str, data: bytes | memoryview) -> bool:
        if key.endswith(self.before) and not self.happened:
            self.happened = True
            self.happens()
        return self.inner.create(key, data)

    def delete(self, key: str) -> None:
        self.inner.delete(key)

    def get(self, key: str) -> bytes:
        return self.inner.get(key)

    def list(self, prefix: str) -> list[str]:
        return self.inner.list(prefix)

    def sweep(self) -> int:
        return self.inner.sweep()


def trim(cluster: StoredCluster, topic: str) -> None:
    """Delete all records of a topic."""
    for place, partition in cluster.partitions.items():
        if place[0] == topic and partition.machine.next_offset:
            partition.execute(SetStartOffset(partition.machine.next_offset))
    cluster.checkpoint()


def test_what_another_run_has_exported_may_be_deleted(cluster: StoredCluster, tmp_path: Path) -> None:
    """A run finds a plan and, by the time that it looks for the records, a round that has happened."""
    target = open_target(str(tmp_path / "lake"))
    wanted = readable(cluster, "orders")

    def all_of_it() -> None:
        export(cluster, target, "orders", by="day", limits=Limits())
        trim(cluster, "orders")

    done = export(cluster, Meanwhile(target, all_of_it, ".plan.json"), "orders", by="day", limits=Limits())
    assert done.records == 0
    assert exported(tmp_path / "lake") == wanted
    assert check(target).problems == []


def test_a_run_that_comes_last_leaves_no_file_that_is_in_no_manifest(
    cluster: StoredCluster, tmp_path: Path
) -> None:
    """The run that was first found the records deleted, and the late one has read them before."""
    target = open_target(str(tmp_path / "lake"))

    def lose() -> None:
        trim(cluster, "orders")
        export(cluster, target, "orders", by="day", limits=Limits(), accept_loss=True)

    done = export(cluster, Meanwhile(target, lose), "orders", by="day", limits=Limits())
    assert len(done.lost) == 3
    assert check(target).problems == []
    assert not list((tmp_path / "lake").rglob("*.parquet"))


@pytest.mark.parametrize("between", ["rounds", "plan and files"])
def test_a_cluster_that_was_restored_to_before_what_was_exported_is_another(
    cluster: StoredCluster, tmp_path: Path, between: str
) -> None:
    """It has more records by then than were exported: the offsets alone would not show it."""
    restored = build_cluster(tmp_path / "restored", batches_a_round=2)
    clicks, target = restored.partitions["clicks", 0], open_target(str(tmp_path / "lake"))
    kept = clicks.machine.next_offset
    write(cluster, cluster.partitions["clicks", 0], count=5)
    cluster.checkpoint()
    if between == "rounds":
        export(cluster, target, "clicks")
    else:
        with pytest.raises(Killed):
            export(cluster, Mortal(target, 1, True), "clicks", limits=Limits(), run=here)
    clicks.begin_term(TERMS + clicks.term, 1)
    write(restored, clicks, count=9)
    restored.checkpoint()
    message = f"clicks-0: the cluster was restored, and has other records from offset {kept} on"
    for accept in (False, True):
        with pytest.raises(ExportError, match=message):
            export(restored, target, "clicks", accept_loss=accept)
    if between == "rounds":
        assert export(restored, target, "orders").records, "of which nothing that was exported is another"


def test_a_partition_that_a_topic_got_later_is_wanted_as_a_whole(
    cluster: StoredCluster, tmp_path: Path
) -> None:
    target = open_target(str(tmp_path / "lake"))
    assert cluster.partitions["orders", 0].machine.start_offset
    export(cluster, target, "orders", partitions="1,2")
    with pytest.raises(ExportError, match=r"orders-0: offsets 0 to \d+ were deleted"):
        export(cluster, target, "orders")
    assert len(export(cluster, target, "orders", accept_loss=True).lost) == 1
    assert exported(tmp_path / "lake") == readable(cluster, "orders")
    assert check(target).problems == []


def test_an_export_that_begins_with_an_offset_that_is_gone_says_so(
    cluster: StoredCluster, tmp_path: Path
) -> None:
    target, start = open_target(str(tmp_path / "lake")), cluster.partitions["orders", 0].machine.start_offset
    with pytest.raises(ExportError, match=f"orders-0: offsets 1 to {start - 1} were deleted before they"):
        export(cluster, target, "orders", startingOffsets="1")
    done = export(cluster, target, "orders", startingOffsets="1", accept_loss=True)
    assert done.lost == [f"orders-0: offsets 1 to {start - 1} were deleted"]
    wanted = {
        place: [one for one in found if one.offset] for place, found in readable(cluster, "orders").items()
    }
    assert exported(tmp_path / "lake") == wanted
    assert check(target).problems == []


def test_a_listing_below_which_another_run_writes_is_looked_at_again(
    cluster: StoredCluster, tmp_path: Path
) -> None:
    target = open_target(str(tmp_path / "lake"))
    export(cluster, target)

    class Torn(Meanwhile):
        """Its first listing has a later round, and lacks one before it."""

        def list(self, prefix: str) -> list[str]:
            found = super().list(prefix)
            if self.happened:
                return found
            self.happened = True
            return [name for name in found if name != plan_name(2)]

    assert export(cluster, Torn(target, lambda: None)).rounds == 0


@pytest.mark.parametrize("by", ["day", "hour"])
def test_times_that_no_calendar_has_are_in_a_folder_of_their_own(
    cluster: StoredCluster, tmp_path: Path, by: str
) -> None:
    orders = cluster.partitions["orders", 0]
    times = (-1, -62_135_596_800_000, -62_135_596_800_001, 253_402_300_799_999, 253_402_300_800_000, 2**62)
    records = tuple(Record(f"{time}".encode(), time, None) for time in times)
    cluster.upload(Upload(orders, records, build(records), (-1, -1, -1)))
    cluster.checkpoint()
    folder = tmp_path / "lake"
    export(cluster, open_target(str(folder)), "orders", by=by, limits=Limits())
    rows = duckdb.execute(
        f"SELECT {by}, value FROM read_parquet('{folder}/**/*.parquet', hive_partitioning = true, "
        'hive_types_autocast = false) WHERE "offset" >= ? AND "partition" = 0 ORDER BY "offset"',
        [orders.machine.next_offset - len(times)],
    ).fetchall()
    hours = ("-23", "-00", "-23") if by == "hour" else ("", "", "")
    days = [f"1969-12-31{hours[0]}", f"0001-01-01{hours[1]}", None, f"9999-12-31{hours[2]}", None, None]
    assert [(day, int(value)) for day, value in rows] == list(zip(days, times, strict=True))
    assert check(open_target(str(folder))).problems == []


def test_a_new_folder_is_there_after_a_loss_of_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))
    open_target(str(tmp_path / "a" / "lake"))
    assert synced[:2] == [str(tmp_path), str(tmp_path / "a")]


def test_whatever_a_command_says_it_ends_with_one_line_at_most(
    cluster: StoredCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each option with each odd word, where all else is right."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    right = ["orders", "--storage", cluster.url, "--to", str(tmp_path / "lake")]
    options = ("--to", "--to-option", "--from", "--storage", "--cluster-id", "--option", "--partition-by")
    given = [(option, word) for option in options for word in (*WORDS, "http://[")]
    given.remove(("--to", "/"))  # a folder that can be written
    for option, word in random.Random(7).sample(given, TRIED):
        done = strandline(capfd, monkeypatch, "export", *right, option, word)
        assert done.status in (0, 1, 2), (option, word)
        assert "Traceback" not in done.err, (option, word)
        assert "should not have happened" not in done.err, (option, word, done.err)
        assert not done.status or done.err.startswith("strandline: "), (option, word, done)
        assert done.err.count("\n") == bool(done.status), (option, word, done.err)


def test_a_run_that_is_stopped_leaves_the_rest_of_its_round(cluster: StoredCluster, tmp_path: Path) -> None:
    target = open_target(str(tmp_path / "lake"))
    answers = iter([False, True, True])
    made = exporting(cluster, target, "orders", run=here, limits=Limits(file_bytes=500, round_files=20))
    assert made.run(stopped=lambda: next(answers)) == Exported()
    assert len(list((tmp_path / "lake").rglob("*.parquet"))) == 1
    done = export(cluster, target, "orders")
    assert done.resumed
    assert exported(tmp_path / "lake") == readable(cluster, "orders")


def test_aborted_and_undecided_records_are_not_exported(tmp_path: Path) -> None:
    stored = build_transactional(tmp_path / "objects")
    target = open_target(str(tmp_path / "lake"))
    export(stored.cluster, target, "payments,receipts", by="day")
    wanted = {place: records for place, records in stored.committed().items() if records}
    assert exported(tmp_path / "lake") == wanted
    assert check(target).problems == []


def test_a_compacted_topic_has_holes_and_tombstones(tmp_path: Path) -> None:
    stored = build_compacted(tmp_path / "objects").cluster
    target = open_target(str(tmp_path / "lake"))
    export(stored, target, TOPIC)
    wanted = read(open_storage(stored.url), {"topic": TOPIC})
    assert any(record.value is None for records in wanted.values() for record in records)
    assert exported(tmp_path / "lake") == wanted
    assert check(target).problems == []
