"""`strandline export` where a table, a file or a document is gone or another's: it refuses, or goes on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.table import DeltaTable, TableOptimizer
from pyiceberg.catalog import load_catalog

from strandline.snapshot.spark.export.check import check
from strandline.snapshot.spark.export.delta import DeltaTables
from strandline.snapshot.spark.export.documents import DONE, ROUNDS
from strandline.snapshot.spark.export.errors import ExportError
from strandline.snapshot.spark.export.iceberg import IcebergTables
from strandline.snapshot.spark.export.planning import Limits
from strandline.snapshot.spark.export.target import open_target
from strandline.statemachine.partition.partition_commands import SetStartOffset
from tests.cluster.command import as_json, strandline
from tests.spark.collected_cluster import write
from tests.spark.exporting import Killed, Mortal, export, exported, here
from tests.spark.planned import readable
from tests.spark.stored_cluster import StoredCluster, build_cluster

KINDS = {"delta": DeltaTables, "iceberg": IcebergTables}


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test loses power, and a busy disk takes a second for each sync."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def cluster(tmp_path: Path) -> StoredCluster:
    return build_cluster(tmp_path / "objects", batches_a_round=2)


def go_on(cluster: StoredCluster) -> None:
    """Write to all topics, and take a checkpoint."""
    write(cluster, *cluster.partitions.values())
    cluster.checkpoint()


def sqlite(path: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{path}"}


def records_of(cluster: StoredCluster, *topics: str) -> int:
    return sum(map(len, readable(cluster, *topics).values()))


@pytest.mark.parametrize("form", KINDS)
@pytest.mark.parametrize("new", [False, True])
def test_a_table_that_was_dropped_does_not_get_later_rounds_alone(
    cluster: StoredCluster, tmp_path: Path, form: str, new: bool
) -> None:
    target = open_target(str(tmp_path / "lake"))
    assert export(cluster, target, "orders", format=form).rounds > 1
    if form == "delta":
        shutil.rmtree(tmp_path / "lake" / "topic=orders" / "_delta_log")
    else:
        catalog = load_catalog("strandline", **sqlite(tmp_path / "lake" / "_strandline" / "catalog.db"))
        catalog.drop_table(("strandline", "orders"))
    if new:
        go_on(cluster)
    with pytest.raises(ExportError, match=r"topic=orders lacks round \d+: the table is gone"):
        export(cluster, target, "orders")


def test_another_catalog_does_not_get_later_rounds_alone(cluster: StoredCluster, tmp_path: Path) -> None:
    target = open_target(str(tmp_path / "lake"))
    export(cluster, target, "orders", format="iceberg", catalog=sqlite(tmp_path / "one.db"))
    with pytest.raises(ExportError, match="--catalog is another"):
        export(cluster, target, "orders", catalog=sqlite(tmp_path / "other.db"))
    assert export(cluster, target, "orders", catalog=sqlite(tmp_path / "one.db")).rounds == 0


def test_two_targets_of_one_catalog_have_namespaces_of_their_own(
    cluster: StoredCluster, tmp_path: Path
) -> None:
    catalog = sqlite(tmp_path / "catalog.db")
    export(cluster, open_target(str(tmp_path / "one")), "orders", format="iceberg", catalog=catalog)
    other = open_target(str(tmp_path / "other"))
    export(cluster, other, "clicks", format="iceberg", catalog=catalog)
    with pytest.raises(ExportError, match=r"'orders' is not this export's: strandline\.orders lies at"):
        export(cluster, other, "orders", catalog=catalog)
    catalog["namespace"] = "second"
    third = open_target(str(tmp_path / "third"))
    export(cluster, third, "orders", format="iceberg", catalog=catalog)
    assert (check(third, catalog).problems, check(third, catalog).records) == (
        [],
        records_of(cluster, "orders"),
    )


@pytest.mark.parametrize("form", KINDS)
def test_a_table_of_another_writer_is_not_taken_for_a_new_topic(
    cluster: StoredCluster, tmp_path: Path, form: str
) -> None:
    lake = tmp_path / "lake"
    target = open_target(str(lake))
    export(cluster, target, "orders", format=form)
    if form == "delta":
        rows = DeltaTable(str(lake / "topic=orders")).to_pyarrow_table()
        write_deltalake(str(lake / "topic=clicks"), rows)
    else:
        catalog = load_catalog("strandline", **sqlite(lake / "_strandline" / "catalog.db"))
        rows = catalog.load_table(("strandline", "orders")).scan().to_arrow()
        place = str(lake / "topic=clicks")
        catalog.create_table(("strandline", "clicks"), rows.schema, location=place).append(rows)
    with pytest.raises(ExportError, match="'clicks' is not this export's"):
        export(cluster, target, "clicks")


@pytest.mark.parametrize("form", KINDS)
def test_a_topic_may_rest_for_some_rounds(cluster: StoredCluster, tmp_path: Path, form: str) -> None:
    target = open_target(str(tmp_path / "lake"))
    for topic in ("orders", "clicks", "orders", "clicks"):
        assert export(cluster, target, topic, format=form).rounds
        go_on(cluster)
    export(cluster, target, "orders,clicks")
    found = check(target)
    assert (found.problems, found.records) == ([], records_of(cluster, "orders", "clicks"))


@pytest.mark.parametrize("form", KINDS)
def test_files_that_were_swept_after_the_manifest_are_not_committed(
    cluster: StoredCluster, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    target = open_target(str(lake))

    def dying(*_: object) -> bool:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(KINDS[form], "_committed", dying)
        with pytest.raises(Killed):
            export(cluster, target, "orders", by="partition", format=form, limits=Limits())
    swept = sorted(lake.glob("topic=orders/**/*.parquet"))[:2]
    for path in swept:
        path.unlink()
    with pytest.raises(
        ExportError, match=f"{swept[0].name} and 1 more of round 1 is gone.*00001.manifest.json"
    ):
        export(cluster, target, "orders")
    for path in (lake / ROUNDS).glob("*.manifest.json"):
        path.unlink()
    export(cluster, target, "orders")
    assert (check(target).problems, check(target).records) == ([], records_of(cluster, "orders"))


def test_a_check_of_tables_tells_what_was_lost(cluster: StoredCluster, tmp_path: Path) -> None:
    target = open_target(str(tmp_path / "lake"))
    export(cluster, target, "orders", format="delta")
    go_on(cluster)
    for place, partition in cluster.partitions.items():
        if place[0] == "orders":
            partition.execute(SetStartOffset(partition.machine.next_offset))
    cluster.checkpoint()
    lost = export(cluster, target, "orders", accept_loss=True).lost
    assert lost
    assert check(target).lost == lost


@pytest.mark.parametrize("by", ["none", "day"])
def test_of_two_first_runs_the_second_goes_on_unless_it_asks_for_something_else(
    cluster: StoredCluster, tmp_path: Path, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has found no plan, and then finds the files of the first."""
    lake = str(tmp_path / "lake")
    late = open_target(lake)
    look = late.list

    def meanwhile(prefix: str) -> list[str]:
        if prefix == "":
            monkeypatch.setattr(late, "list", look)
            export(cluster, open_target(lake), "orders", by="none")
        return look(prefix)

    monkeypatch.setattr(late, "list", meanwhile)
    if by == "none":
        assert export(cluster, late, "orders", by=by).rounds == 0
    else:
        with pytest.raises(ExportError, match="was begun with --partition-by none: say the same"):
            export(cluster, late, "orders", by=by)
    assert exported(tmp_path / "lake") == readable(cluster, "orders")


@pytest.mark.parametrize("killed", [False, True])
def test_another_run_may_forget_the_units_of_a_round_that_it_ended(
    cluster: StoredCluster, tmp_path: Path, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This run has seen that there is a document of a unit, and it is gone when it is read."""
    lake = tmp_path / "lake"
    target = open_target(str(lake))
    while killed and not list(lake.glob(f"{DONE}*/*.json")):
        with pytest.raises(Killed):
            export(cluster, Mortal(open_target(str(lake)), 3, True), "orders", by="day", run=here)
    read: Callable[[str], bytes] = target.get
    create: Callable[..., bool] = target.create
    forgotten = []

    def forget(key: str) -> bytes:
        if key.startswith(DONE):
            forgotten.append(key)
            target.delete(key)
        return read(key)

    def too_late(key: str, data: Any) -> bool:
        return create(key, data) and not key.startswith(DONE)

    monkeypatch.setattr(target, "get", forget)
    if not killed:
        monkeypatch.setattr(target, "create", too_late)
    export(cluster, target, "orders", by="day")
    assert forgotten
    assert exported(lake) == readable(cluster, "orders")
    assert check(target).problems == []


def test_a_compaction_that_another_writer_hinders_comes_after_an_export_that_is_told(
    cluster: StoredCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise CommitFailedError("a concurrent transaction deleted data this operation read")

    monkeypatch.setattr(TableOptimizer, "compact", refused)
    right = [
        "orders",
        "--storage",
        cluster.url,
        "--to",
        str(tmp_path / "lake"),
        "--format",
        "delta",
        "--json",
    ]
    done = strandline(capfd, monkeypatch, "export", *right, "--compact")
    assert done.status == 1
    assert '"records": ' in done.out
    assert done.err.endswith("is not compacted; run it again\n")
    assert as_json(strandline(capfd, monkeypatch, "export", *right))["records"] == 0
