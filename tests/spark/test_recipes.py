"""The examples of the pages about exports and audits run as they stand there."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

import strandline.audit
import strandline.spark
from strandline.snapshot.spark.audits.result import AuditRun, Figures
from tests import ROOT
from tests.cluster.command import strandline as command
from tests.spark.planned import readable
from tests.spark.stored_cluster import StoredCluster, build_cluster

EXPORT, AUDITS = ((ROOT / "docs" / f"{page}.md").read_text() for page in ("export", "audits"))


def blocks(page: str, kind: str) -> Iterator[str]:
    yield from re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> StoredCluster:
    made = build_cluster(tmp_path_factory.mktemp("recipes") / "objects", batches_a_round=2)
    made.create_topic("flights", 1)
    flights = [json.dumps({"carrier": name, "delay": 3}).encode() for name in ("UA", "AA", "UA")]
    made.upload(made.partitions["flights", 0].batch(flights))
    made.checkpoint()
    return made


@pytest.mark.parametrize("number", range(3))
def test_the_commands_of_the_page_of_exports(
    cluster: StoredCluster,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    found = list(blocks(EXPORT, "console"))
    assert len(found) == 3, "this test runs them all"
    lines = [line.removeprefix("$ ") for line in found[number].splitlines() if line.startswith("$ ")]
    assert lines
    for line in lines:
        words = shlex.split(line.replace("/srv", str(tmp_path)), comments=True)
        assert words.pop(0) == "strandline"
        source = [] if "--check" in words else ["--storage", cluster.url]
        done = command(capfd, monkeypatch, *words, *source)
        assert done.status == 0, (line, done.err)
    if number == 0:
        (query,) = blocks(EXPORT, "sql")
        rows = duckdb.execute(query.replace("/srv", str(tmp_path))).fetchall()
        there = readable(cluster)
        for topic, count, _ in rows:
            assert count == sum(len(some) for place, some in there.items() if place[0] == topic)
        assert {row[0] for row in rows} == {"orders", "clicks"}


def test_exports_are_read_back_by_spark_and_the_libraries_of_tables(
    cluster: StoredCluster,
    spark: SparkSession,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One block has an expression for each format: each is of a target of its own."""
    counts = {topic: sum(map(len, readable(cluster, topic).values())) for topic in ("orders", "clicks")}

    def export(format: str, *more: str) -> None:
        place = ("--storage", cluster.url, "--to", str(tmp_path / format / "tables"))
        done = command(capfd, monkeypatch, "export", *counts, "--format", format, *place, *more)
        assert done.status == 0, done.err

    for format in ("parquet", "delta", "iceberg"):
        export(format)
    lake, tables, listed, expire = (
        text.replace("/srv/iceberg", "/srv/tables") for text in blocks(EXPORT, "python")
    )
    names: dict[str, Any] = {"spark": spark}
    exec(lake.replace("/srv/lake", str(tmp_path / "parquet" / "tables")), names)
    told = {row["topic"]: row["count"] for row in names["lake"].groupBy("topic").count().collect()}
    assert told == counts
    by_spark = sorted(
        (row["partition"], row["offset"], bytes(row["value"])) for row in names["lake"].collect()
    )
    wanted = [
        (number, one.offset, one.value)
        for topic in counts
        for (_, number), records in readable(cluster, topic).items()
        for one in records
    ]
    assert by_spark == sorted(wanted)

    *imports, delta, iceberg = (ast.unparse(one) for one in ast.parse(tables).body)
    exec("\n".join(imports), names)
    for format, expression in (("delta", delta), ("iceberg", iceberg)):
        frame = eval(expression.replace("/srv", str(tmp_path / format)), names)
        assert len(frame) == counts["orders"]
    exec(listed.replace("/srv", str(tmp_path / "delta")), names)
    assert names["listed"].count() == counts["orders"]

    # Rounds go on behind snapshots that are expired, and none comes twice.
    expire = expire.replace("/srv", str(tmp_path / "iceberg")).replace("days=7", "days=-1")
    assert "days=-1" in expire
    exec(expire, names)
    cluster.upload(cluster.partitions["orders", 0].batch([b"later"]))
    cluster.checkpoint()
    export("iceberg")
    exec(expire, names)
    assert len(names["table"].refresh().scan().to_pandas()) == counts["orders"] + 1
    assert len(names["table"].snapshots()) == 1
    assert (names["datetime"], names["timedelta"]) == (datetime, timedelta)


def test_the_program_of_the_page_of_audits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The audits themselves take a minute, and others run them: here are the names, and the files."""
    asked: list[tuple[Any, ...]] = []

    def played(url: str, options: dict[str, str], name: str, *, spark: object) -> AuditRun:
        asked.append((url, options, name, spark))
        return AuditRun(url, name, [], Figures([], [], []), 1.0)

    monkeypatch.setattr(strandline.audit, "run_audits", played)
    monkeypatch.setattr(strandline.spark, "session", lambda name, *, short_jobs: (name, short_jobs))
    monkeypatch.chdir(tmp_path)
    (program,) = blocks(AUDITS, "python")
    exec(program, {})
    assert asked == [("/srv/strandline/objects", {}, "harbour", ("audit", True))]
    assert json.loads((tmp_path / "audit.json").read_text())["finding"] is False
    assert "No finding in 0 audits" in (tmp_path / "audit.html").read_text()
