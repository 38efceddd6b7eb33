"""`strandline export` to tables of Delta Lake and Iceberg: each record once, whatever is killed when."""

from __future__ import annotations

import os
import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog

from strandline.snapshot.spark.export.check import check
from strandline.snapshot.spark.export.delta import DeltaTables
from strandline.snapshot.spark.export.documents import DONE, ROUNDS, File, Manifest, Settings
from strandline.snapshot.spark.export.errors import ExportError
from strandline.snapshot.spark.export.formats import open_tables
from strandline.snapshot.spark.export.iceberg import ROUND, IcebergTables
from strandline.snapshot.spark.export.planning import Limits
from strandline.snapshot.spark.export.tables import Tables
from strandline.snapshot.spark.export.target import open_target
from tests.cluster.command import as_json, strandline
from tests.kafka.wire.batches import Record, build
from tests.objectstore.s3_endpoint import endpoint
from tests.spark.collected_cluster import write
from tests.spark.exporting import Killed, Mortal, export, here
from tests.spark.planned import Place, readable
from tests.spark.stored_cluster import StoredCluster, StoredRecord, Upload, build_cluster

__all__ = ["endpoint"]

KINDS: dict[str, type[Tables]] = {"delta": DeltaTables, "iceberg": IcebergTables}
ALL = "orders,clicks,visits"


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test loses power, and a busy disk takes a second for each sync."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredCluster:
    """Nothing is written to it."""
    return build_cluster(tmp_path_factory.mktemp("stored") / "objects", batches_a_round=2)


@pytest.fixture
def cluster(stored: StoredCluster, tmp_path: Path) -> StoredCluster:
    """A cluster of its own."""
    return build_cluster(tmp_path / "objects", batches_a_round=2)


def rows_of(folder: Path, topic: str, form: str) -> Any:
    """A table as its own library reads it, as Arrow has it; None if there is none."""
    if form == "delta":
        place = str(folder / f"topic={topic}")
        return DeltaTable(place).to_pyarrow_table() if DeltaTable.is_deltatable(place) else None
    catalog = load_catalog("strandline", type="sql", uri=f"sqlite:///{folder}/_strandline/catalog.db")
    name = ("strandline", topic)
    return catalog.load_table(name).scan().to_arrow() if catalog.table_exists(name) else None


def in_tables(folder: Path, form: str) -> dict[Place, list[StoredRecord]]:
    """All records of all tables."""
    found: dict[Place, list[StoredRecord]] = {}
    for topic in ALL.split(","):
        rows = rows_of(folder, topic, form)
        if rows is None:
            continue
        for partition, *record in duckdb.execute(
            'SELECT "partition", "offset", epoch_ms("timestamp"), key, value, leader_epoch '
            "FROM rows ORDER BY ALL"
        ).fetchall():
            found.setdefault((topic, partition), []).append(StoredRecord(*record))
    return found


@pytest.mark.parametrize("form", KINDS)
@pytest.mark.parametrize("by", ["none", "partition", "day", "hour"])
def test_tables_have_each_record_once(stored: StoredCluster, tmp_path: Path, form: str, by: str) -> None:
    target = open_target(str(tmp_path))
    done = export(stored, target, "orders,clicks", by=by, format=form)
    wanted = readable(stored, "orders", "clicks")
    assert in_tables(tmp_path, form) == wanted
    assert export(stored, target, ALL).rounds
    assert in_tables(tmp_path, form) == readable(stored)
    found = check(target)
    assert (found.problems, found.unfinished) == ([], None)
    assert found.records == sum(map(len, readable(stored).values())) > done.records
    if form == "delta":
        table = DeltaTable(str(tmp_path / "topic=orders"))
        assert table.metadata().partition_columns == ([] if by == "none" else [by])
    else:
        catalog = load_catalog("strandline", type="sql", uri=f"sqlite:///{tmp_path}/_strandline/catalog.db")
        iceberg = catalog.load_table(("strandline", "orders"))
        assert [field.name for field in iceberg.spec().fields] == ([] if by == "none" else [f"by_{by}"])
        snapshot = iceberg.current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        assert snapshot.summary.additional_properties[ROUND] == iceberg.properties[ROUND]


class Dying:
    """Ends the process before or after a commit to a table."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type[Tables], after: bool) -> None:
        self.left = 1
        """Commits up to and with the one beside which it ends; one that is repeated does not count."""
        commit: Callable[..., bool] = kind._committed

        def dying(tables: Tables, topic: str, files: list[File], manifest: Manifest) -> bool:
            self.left -= (tables.round_of(topic) or 0) < manifest.plan.round
            while self.left == 0 and after and not commit(tables, topic, files, manifest):
                pass  # the first time it makes the table
            if self.left == 0:
                raise Killed
            return commit(tables, topic, files, manifest)

        monkeypatch.setattr(kind, "_committed", dying)


@pytest.mark.parametrize("form", KINDS)
@pytest.mark.parametrize("after", [False, True])
def test_killed_beside_each_commit_it_ends_with_each_record_once(
    stored: StoredCluster, tmp_path: Path, form: str, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = open_target(str(tmp_path))
    dying = Dying(monkeypatch, KINDS[form], after)
    for killed in range(40):
        # Where it is killed before a commit, the run after it has to come one commit further.
        dying.left = 1 if after else 1 + killed % 2
        try:
            export(stored, target, "orders,clicks", by="day", format=form, run=here)
        except Killed:
            if form == "delta":  # a file that is added again would otherwise be the same to Delta
                tables = open_tables(Settings(format=form), target, {})
                assert tables is not None
                tables.compact("orders")
                tables.compact("clicks")
            assert check(target).problems == []
            continue
        break
    assert killed > 3
    assert in_tables(tmp_path, form) == readable(stored, "orders", "clicks")
    assert (check(target).problems, check(target).unfinished) == ([], None)


@pytest.mark.parametrize("form", KINDS)
def test_killed_at_changes_of_the_target_it_ends_with_each_record_once(
    stored: StoredCluster, tmp_path: Path, form: str
) -> None:
    inner = open_target(str(tmp_path))
    for killed in range(100):
        try:
            target = Mortal(inner, 3 + killed % 4, killed % 2 == 1)
            export(stored, target, "orders", by="day", format=form, run=here)
        except Killed:
            continue
        break
    assert killed > 2
    assert in_tables(tmp_path, form) == readable(stored, "orders")
    assert check(inner).problems == []


@pytest.mark.parametrize("form", KINDS)
@pytest.mark.parametrize("made", [False, True])
def test_of_two_commits_of_a_round_at_once_one_counts(
    cluster: StoredCluster, tmp_path: Path, form: str, made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second has looked at the table, or for it, before the first has committed."""
    target = open_target(str(tmp_path))
    if made:
        export(cluster, target, "orders", format=form)
        write(cluster, *cluster.partitions.values())
        cluster.checkpoint()
    kind: Any = KINDS[form]
    look, commit = kind._open, kind._committed
    running: list[tuple[str, list[File], Manifest]] = []

    def committed(tables: Tables, *what: Any) -> bool:
        running.append(what)
        return bool(commit(tables, *what))

    def opened(tables: Tables, topic: str) -> Any:
        found = look(tables, topic)
        if running:
            what = running.pop()
            monkeypatch.setattr(kind, "_open", look)
            other = open_tables(Settings(format=form), target, {})
            assert other is not None
            while not commit(other, *what):
                pass  # the first time it makes the table
            monkeypatch.setattr(kind, "_open", opened)
        return found

    monkeypatch.setattr(kind, "_committed", committed)
    monkeypatch.setattr(kind, "_open", opened)
    export(cluster, target, "orders", format=form)
    monkeypatch.undo()
    assert in_tables(tmp_path, form) == readable(cluster, "orders")
    assert check(target).problems == []


@pytest.mark.parametrize("form", KINDS)
def test_a_check_finds_what_is_in_a_table_twice_or_not_at_all(
    stored: StoredCluster, tmp_path: Path, form: str
) -> None:
    target = open_target(str(tmp_path))
    export(stored, target, "orders", format=form)
    if form == "delta":
        table = DeltaTable(str(tmp_path / "topic=orders"))
        gone = table.delete('"offset" = 3 AND partition = 1')
        assert gone["num_deleted_rows"] == 1
    else:
        catalog = load_catalog("strandline", type="sql", uri=f"sqlite:///{tmp_path}/_strandline/catalog.db")
        catalog.load_table(("strandline", "orders")).delete("offset = 3 and partition = 1")
    assert any("and the manifests say" in line for line in check(target).problems)
    one_row = rows_of(tmp_path, "orders", form).slice(0, 1)
    if form == "delta":
        write_deltalake(str(tmp_path / "topic=orders"), one_row, mode="append")
    else:
        catalog.load_table(("strandline", "orders")).append(one_row)
    assert any("has 1 records twice" in line for line in check(target).problems)


@pytest.mark.parametrize("form", KINDS)
def test_a_table_without_documents_is_refused(stored: StoredCluster, tmp_path: Path, form: str) -> None:
    target = open_target(str(tmp_path))
    export(stored, target, "orders", format=form)
    shutil.rmtree(tmp_path / ROUNDS)
    for path in (tmp_path / "topic=orders").glob("*.parquet"):
        path.rename(path.with_name(f"part-{path.name}"))  # as after a compaction
    with pytest.raises(ExportError, match="is a table, and no document of an export is there"):
        export(stored, target, "orders", format=form)


def test_small_files_of_delta_become_large_ones(cluster: StoredCluster, tmp_path: Path) -> None:
    target = open_target(str(tmp_path))
    export(cluster, target, "orders", format="delta")
    tables = open_tables(Settings(format="delta"), target, {})
    assert tables is not None
    before = DeltaTable(tables.place("orders")).file_uris()
    # Another run may have files there that no commit has yet, and a reader may be at the small ones.
    uncommitted = tmp_path / "topic=orders" / "99999999-00000.parquet"
    uncommitted.write_bytes(b"of a round that is under way")
    assert tables.compact("orders") == len(before) > 2
    assert len(DeltaTable(tables.place("orders")).file_uris()) == 1
    assert all(Path(one.removeprefix("file://")).exists() for one in (*before, str(uncommitted)))
    assert tables.compact("clicks") == 0
    write(cluster, *cluster.partitions.values())
    cluster.checkpoint()
    assert export(cluster, target, "orders").records == 9
    assert in_tables(tmp_path, "delta") == readable(cluster, "orders")
    assert check(target).problems == []


def test_a_file_that_was_swept_before_its_commit_is_written_again(
    stored: StoredCluster, tmp_path: Path
) -> None:
    inner = open_target(str(tmp_path))
    while not (tmp_path / DONE).is_dir():
        with pytest.raises(Killed):
            export(stored, Mortal(inner, 3, True), "orders", by="day", format="delta", run=here)
    for path in (tmp_path / "topic=orders").rglob("*.parquet"):
        path.unlink()
    export(stored, inner, "orders")
    assert in_tables(tmp_path, "delta") == readable(stored, "orders")


def test_times_that_no_calendar_has_are_in_tables_too(cluster: StoredCluster, tmp_path: Path) -> None:
    orders = cluster.partitions["orders", 0]
    times = (253_402_300_799_999, 253_402_300_800_000, 253_500_000_000_000)
    records = tuple(Record(b"odd", time, None) for time in times)
    first = orders.machine.next_offset
    cluster.upload(Upload(orders, records, build(records), (-1, -1, -1)))
    cluster.checkpoint()
    for form in KINDS:
        folder = tmp_path / form
        export(cluster, open_target(str(folder)), "orders", by="day", format=form)
        odd = [one.timestamp for one in in_tables(folder, form)["orders", 0] if one.offset >= first]
        assert odd == (list(times) if form == "delta" else [times[0]] * 3)
        assert check(open_target(str(folder))).problems == []


def test_the_command_says_what_is_wrong_with_formats(
    stored: StoredCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = str(tmp_path / "lake")

    def run(*arguments: str) -> Any:
        return strandline(capfd, monkeypatch, "export", *arguments, "--storage", stored.url, "--to", lake)

    def refused(*arguments: str) -> str:
        done = run(*arguments)
        assert done.status in (1, 2)
        assert (done.out, done.err.count("\n")) == ("", 1)
        return str(done.err)

    assert "choose from parquet, delta, iceberg" in refused("orders", "--format", "hudi")
    assert not Path(lake).exists()
    assert "--catalog is of --format iceberg" in refused("orders", "--format", "delta", "--catalog", "a=b")
    with pytest.raises(ExportError, match="which has no Iceberg catalog"):
        open_tables(Settings(format="iceberg"), open_target("s3://lake/a", {"region": "us-east-1"}), {})
    wrong = refused("orders", "--format", "iceberg", "--catalog", "type=nope")
    assert "nope" in wrong
    with monkeypatch.context() as patch:
        patch.setattr("strandline.snapshot.extras.find_spec", lambda name: name != "deltalake" or None)
        assert "pip install 'strandline[export]'" in refused("orders", "--format", "delta")
    assert as_json(run("orders", "--format", "delta", "--json"))["records"]
    told = as_json(run("orders", "--compact", "--json"))
    assert (told["records"], told.get("compacted")) == (0, None)  # the topic has one file
    assert "--follow and --compact" in refused("orders", "--compact", "--follow")
    assert "was begun with --format delta; say the same" in refused("orders", "--format", "iceberg")
    done = run("--check")
    assert done.out.endswith("each record once\n")
    lake = str(tmp_path / "files")
    assert "--compact is of --format delta" in refused("orders", "--compact")


@pytest.mark.s3
@pytest.mark.parametrize("form", KINDS)
def test_tables_lie_in_a_bucket_too(stored: StoredCluster, tmp_path: Path, endpoint: str, form: str) -> None:
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{form}", method="PUT"), timeout=60).close()
    options = {"endpoint": endpoint, "region": "us-east-1", "access_key_id": "t", "secret_access_key": "t"}
    target = open_target(f"s3://{form}/lake", options)
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"} if form == "iceberg" else {}
    for _ in range(2):
        export(stored, target, "orders", by="day", format=form, limits=Limits(), catalog=catalog)
    found = check(target, catalog)
    assert (found.problems, found.unfinished) == ([], None)
    assert found.records == sum(map(len, readable(stored, "orders").values()))
