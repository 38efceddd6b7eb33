"""An audit of little says what one of much says; and what Spark is told for it, and what the driver has."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from strandline.snapshot.spark.audits import (
    AuditRun,
    ClusterStorage,
    Verdict,
    audit_storages,
    key_problems,
    key_tables,
    lacking,
    small,
)
from strandline.snapshot.spark.audits import run as audits_run
from strandline.snapshot.spark.audits.audit import Audit, Frames
from strandline.snapshot.spark.audits.checks import AUDITS
from strandline.snapshot.spark.audits.copies import PAIR
from strandline.snapshot.spark.audits.small import _LITTLE, _MUCH, SMALL_OFFSETS, held, is_small, settings
from strandline.snapshot.spark.audits.work import local_frame
from strandline.snapshot.storage import open_storage
from strandline.statemachine.controller.controller_commands import Bootstrap
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from tests.spark.compacted_cluster import build_compacted
from tests.spark.damage import Copy
from tests.spark.stored_cluster import CLUSTER, NODES, StoredCluster
from tests.statemachine.controller_harness import registration

NESTED = "id bigint NOT NULL, name string, raw binary, part struct<a: bigint>, some array<struct<b: int>>"


def storages(root: Path) -> dict[str, ClusterStorage]:
    """A cluster, and one that lacks objects of both levels."""
    whole = build_compacted(root / "whole").cluster
    lacking = Copy(whole, root / "lacking")
    for level in ("l0", "l1"):
        first, *_ = sorted(path for path in (lacking.root / level).rglob("*") if path.is_file())
        first.unlink()
    roots = {"whole": whole.root, "lacking": lacking.root}
    return {name: ClusterStorage(open_storage(str(path)), CLUSTER) for name, path in roots.items()}


def row(root: int, group: int, end: int | None) -> dict[str, int | None]:
    return {"root": root, "group": group, "next_offset": end}


def test_it_is_small_by_the_newest_ends_of_all_partitions() -> None:
    half = SMALL_OFFSETS // 2
    assert is_small([])
    assert is_small([row(0, 0, None), row(0, 1, half), row(0, 1, half), row(0, 1, 5), row(0, 2, half)])
    assert not is_small([row(0, 1, half), row(0, 2, half + 1)])
    assert not is_small([row(0, 1, half), row(1, 1, half + 1)])


@pytest.mark.parametrize("few", [True, False])
def test_a_session_has_its_own_settings_after_it(spark: SparkSession, few: bool) -> None:
    own = spark.newSession()  # the settings of the one that tests share stay as they are

    def now() -> dict[str, str | None]:
        return {name: own.conf.get(name, None) for name in _LITTLE | _MUCH}

    own.conf.set("spark.sql.shuffle.partitions", "7")
    before = now()
    with suppress(KeyError), settings(own, few):
        assert now() == before | (_LITTLE if few else _MUCH)
        raise KeyError
    assert now() == before


def test_the_driver_collects_no_side_of_a_join_of_much(spark: SparkSession) -> None:
    """Spark takes what Python makes of one number for as small as that, however much it is."""

    def planned() -> str:
        many = spark.range(1).mapInArrow(lambda given: given, "id bigint").localCheckpoint()
        joined = many.join(spark.range(10).mapInArrow(lambda given: given, "id bigint"), "id")
        return str(joined._jdf.queryExecution().executedPlan().toString())

    with settings(spark, small=False):
        assert "SortMergeJoin" in planned()
    assert "BroadcastHashJoin" in planned()  # else the setting guards nothing


@pytest.mark.parametrize(
    ("rows", "few", "plan"),
    [(0, True, "LocalRelation"), (3, True, "LocalRelation"), (4, True, "InMemoryRelation"),
     (0, False, "InMemoryRelation"), (3, False, "InMemoryRelation")],
)  # fmt: skip
def test_the_driver_has_few_rows_and_spark_keeps_the_rest(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, rows: int, few: bool, plan: str
) -> None:
    monkeypatch.setattr(small, "FEW_ROWS", 3)
    made = nested(spark, rows)
    kept = held(made, few)
    try:
        assert kept.schema == made.schema
        assert sorted(kept.collect()) == sorted(made.collect())
        assert plan in kept._jdf.queryExecution().withCachedData().toString()
        assert rows < 4 or kept.rdd.getNumPartitions() == 1
    finally:
        made.unpersist()


def nested(spark: SparkSession, rows: int) -> DataFrame:
    """So many rows, in three tasks, of the kinds of columns that documents have."""
    columns = (
        "id", "IF(id % 2 = 0, CAST(id AS STRING), NULL)", "CAST('x' AS BINARY)", "named_struct('a', id)",
        "array(named_struct('b', CAST(id AS INT)))",
    )  # fmt: skip
    return spark.range(0, rows, 1, 3).selectExpr(*columns).to(spark.createDataFrame([], NESTED).schema)


def test_where_nothing_is_compacted_tables_have_the_columns_that_they_always_have(
    spark: SparkSession,
) -> None:
    nothing = key_tables.read_tables(spark, [], [], [], small=True)
    local = local_frame(spark, [], key_tables.LOCAL_SCHEMA)
    keys = key_tables._key_rows(spark, [], [], [], local, True)
    judged = key_problems.judged_keys(keys, local_frame(spark, [], PAIR))
    whole = (keys, key_problems.key_findings(judged), key_problems.key_counts(judged))
    for made, rows in zip((nothing.keys, nothing.findings, nothing.counts), whole, strict=True):
        assert made.schema.simpleString() == rows.schema.simpleString()
        assert made.isEmpty()


class Asked:
    """Notes what an audit takes of the frames."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self.taken: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.taken.add(name)
        return getattr(self._frames, name)


def empty_clusters(root: Path) -> dict[str, ClusterStorage]:
    """Clusters without a topic: a whole one, and some with damage."""
    made = StoredCluster(root / "whole")
    made.controller.begin_term(1, 1)
    made.control(Bootstrap(CLUSTER, "first"))
    for node in NODES:
        made.control(registration(node))
    for _ in range(3):
        made.advance(made.epoch + 4)
        made.now += 3_600_000
        made.checkpoint()
    copies = {name: Copy(made, root / name) for name in ("differs", "replay", "left")}
    newest = copies["differs"].indexes(CONTROLLER_GROUP)[-1]
    for name, nodes in (("differs", NODES[:1]), ("replay", NODES)):
        copies[name].change_state(
            CONTROLLER_GROUP, newest, lambda state: state.update(next_group=state["next_group"] + 1), nodes
        )
    copies["left"].put_level_zero(1)
    roots = {"whole": made.root, **{name: copy.root for name, copy in copies.items()}}
    return {name: ClusterStorage(open_storage(str(path)), CLUSTER) for name, path in roots.items()}


@pytest.mark.timeout(400)
def test_audits_that_are_not_asked_of_an_empty_cluster_would_say_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers: list[int] = []
    given: list[Frames] = []

    def noted(audits: tuple[Audit, ...], frames: Frames) -> list[Audit]:
        given.append(frames)
        numbers.append(len(asked := lacking.asked(audits, frames)))
        return asked

    monkeypatch.setattr(audits_run, "asked", noted)
    clusters = empty_clusters(tmp_path)
    few = dict(zip(clusters, audit_storages(spark, [*clusters.values()]), strict=True))
    found = {name: {one.name for one in told.results if one.findings} for name, told in few.items()}
    assert found == {
        "whole": set(),
        "differs": {"replicas_agree", "replay"},
        "replay": {"replay"},
        "left": {"nothing_collectable_left"},
    }
    monkeypatch.setattr(lacking, "_most", lambda rows: None)
    for name, told in zip(clusters, audit_storages(spark, [*clusters.values()]), strict=True):
        assert few[name].results == told.results
        assert [[*one.counts] for one in few[name].results] == [[*one.counts] for one in told.results]
    always = [audit.name for audit in AUDITS if not audit.about]
    assert numbers == [len(always), len(AUDITS)]
    for audit in AUDITS:
        frames: Any = Asked(given[0])
        audit.ask(frames)
        about = {"tables" if kind.startswith("key") else kind for kind in audit.about}
        assert audit.name in always or frames.taken & {*lacking.KINDS, "tables"} <= about, audit.name


@pytest.mark.timeout(400)
def test_an_audit_of_little_says_what_one_of_much_says(
    spark: SparkSession,
    audited: dict[str, dict[str, AuditRun]],
    audited_storages: dict[str, dict[str, ClusterStorage]],
) -> None:
    much, given = audited[__name__], audited_storages[__name__]
    little = dict(zip(given, audit_storages(spark, [*given.values()]), strict=True))
    for name, run in much.items():
        assert little[name].results == run.results
        assert little[name].figures == run.figures
    found = {one.name for one in little["lacking"].results if one.verdict is Verdict.FINDING}
    assert {"references_exist_and_crc", "nothing_deleted_above_m"} <= found
    assert not little["whole"].finding
