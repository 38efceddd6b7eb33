"""An audit of little says what one of much says; and what Spark is told for it, and what the driver has."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from strandline.snapshot.spark.audits import AuditRun, ClusterStorage, Verdict, audit_storages, small
from strandline.snapshot.spark.audits.small import _SETTINGS, SMALL_OFFSETS, held, is_small, settings
from strandline.snapshot.storage import open_storage
from tests.spark.compacted_cluster import build_compacted
from tests.spark.damage import Copy
from tests.spark.stored_cluster import CLUSTER

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
        return {name: own.conf.get(name, None) for name in _SETTINGS}

    own.conf.set("spark.sql.shuffle.partitions", "7")
    before = now()
    with suppress(KeyError), settings(own, few):
        assert (now() == _SETTINGS) is few
        raise KeyError
    assert now() == before


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
