"""The audit of views, on what a real node has stored: right at each restore point; forged rows are found."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgpack
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from strandline.cluster.admin_client import first_answer
from strandline.snapshot.spark.at_point import restore_points
from strandline.snapshot.spark.audits import ClusterStorage, Verdict
from strandline.snapshot.spark.audits.operator_audit import operators_equal_their_replay
from strandline.snapshot.spark.audits.result import AuditResult
from strandline.snapshot.spark.audits.view_audit import views_equal_their_sql
from strandline.snapshot.spark.audits.view_cut import PointPrograms
from strandline.snapshot.spark.topic_views import TopicViews
from strandline.snapshot.storage import open_storage
from strandline.snapshot.views import stored_state
from strandline.snapshot.views.run_file import packed, unpacked
from strandline.snapshot.views.stored_state import StoredState
from tests.cluster.command import strandline
from tests.cluster.real_cluster import RealCluster, running_cluster

PROGRAM: Final = """
CREATE TABLE sales (id STRING NOT NULL PRIMARY KEY, shop STRING, amount BIGINT, rate DOUBLE)
  OPTIONS (mode 'upsert', on_error 'skip');
CREATE TABLE shops (shop STRING NOT NULL PRIMARY KEY, city STRING) OPTIONS (mode 'upsert');
CREATE TABLE visits (shop STRING, seconds INT) OPTIONS (on_error 'skip');
CREATE VIEW totals OPTIONS (partitions 2) AS
  SELECT shop, count(*) AS n, max(amount) AS most, sum(rate) AS rate FROM sales GROUP BY shop;
CREATE VIEW cities AS SELECT c.city, count(s.id) AS n, count(DISTINCT s.amount) AS amounts
  FROM shops c LEFT JOIN sales s ON s.shop = c.shop GROUP BY c.city;
CREATE VIEW long AS SELECT v._partition, v._offset, v._timestamp, v.seconds FROM visits v
  WHERE v.seconds > 50 AND v.shop IN (SELECT shop FROM shops);
CREATE VIEW everything AS SELECT count(*) AS n, avg(rate) AS rate FROM sales;
CREATE VIEW again AS SELECT count(*) AS n, avg(rate) AS rate FROM sales;
"""
WAIT: Final = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RealCluster]:
    with running_cluster(tmp_path / "cluster", nodes=1) as running:
        compacted = {"cleanup.policy": "compact"}
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        topics = [NewTopic(name, 2, 1, config=compacted) for name in ("sales", "shops")]
        for made in admin.create_topics([*topics, NewTopic("visits", 2, 1)]).values():
            made.result(60)
        yield running


class Writer:
    """Sets and deletes rows at random."""

    def __init__(self, cluster: RealCluster) -> None:
        self.random = random.Random(3)
        self.producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

    def change(self, count: int) -> None:
        for _ in range(count):
            shop = f"s{self.random.randrange(6)}"
            rate = self.random.choice([1.5, 0.1, -0.7, None])
            sale = {"shop": shop, "amount": self.random.randrange(9), "rate": rate}
            gone = self.random.random() < 0.3
            self.put("sales", f"k{self.random.randrange(60)}", None if gone else sale)
            self.put("visits", None, {"shop": shop, "seconds": self.random.randrange(100)})
            if self.random.random() < 0.2:
                self.put("shops", shop, {"city": f"city{self.random.randrange(3)}"})
        self.producer.flush(30)

    def odd(self) -> None:
        """Write records that are no rows, of which Spark's reader makes rows."""
        for number in range(60):
            self.producer.produce(
                "sales", self.random.choice(["{", '{"shop": "s1", "amount": "2"}']), f"k{number}"
            )
            self.producer.produce("visits", '{"shop": 1, "seconds": 90}')
        self.producer.flush(30)

    def put(self, topic: str, key: str | None, value: Any) -> None:
        self.producer.produce(topic, None if value is None else json.dumps(value), key)


def checkpoint(cluster: RealCluster) -> int:
    """Take a restore point, as soon as there can be one; its number."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        told = first_answer(
            cluster.admin, "POST", "/api/checkpoints", {"timeout_seconds": WAIT}, timeout=WAIT
        )
        if told.get("restore_point") is not None:
            return int(told["restore_point"])
        time.sleep(0.2)
    raise AssertionError(told)


def expire(cluster: RealCluster, topic: str) -> None:
    """Delete all records of a topic that has two partitions, as retention does."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    ends = [TopicPartition(topic, number, -1) for number in range(2)]
    for deleted in admin.delete_records(ends).values():
        assert deleted.result(60).low_watermark > 0


def written(cluster: RealCluster) -> None:
    """Wait until the live version has written something: it began with the cut of its filling."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        running = first_answer(cluster.admin, "GET", "/api/views", None, timeout=WAIT)["running"]
        if any(one["live"] and one["status"].get("written") for one in running):
            return
        time.sleep(0.1)
    raise AssertionError(running)


def audited(spark: SparkSession, cluster: RealCluster) -> AuditResult:
    described = cluster.description
    return views_equal_their_sql(spark, ClusterStorage(open_storage(described.storage), described.cluster))


def operators_are_audited(spark: SparkSession, stored: ClusterStorage, folder: Path) -> None:
    """What is stored is right; each way to forge a state is found."""
    [point] = restore_points(stored.storage, stored.cluster)[-1:]
    result = operators_equal_their_replay(spark, stored, [point])
    assert result.verdict is Verdict.PASSED, (result.evidence, result.remarks)
    assert result.counts["operators"] > 15
    assert result.counts["states"] == 1
    assert result.counts["rows"] > 60

    programs = PointPrograms(stored.storage, point)
    [program] = programs.state.view_programs.values()
    assert program.live is not None
    at = programs.at(program, program.live)
    assert at is not None
    state = folder / at.state
    right = state.read_bytes()
    found = stored_state.read(at.state, right)

    def problems(forged: StoredState) -> dict[str, str]:
        state.write_bytes(b"".join(stored_state.written(forged)))
        told = operators_equal_their_replay(spark, stored, [point])
        assert told.verdict is Verdict.FINDING
        return {str(row["operator"]).partition(" ")[0]: str(row["problem"]) for row in told.evidence}

    # Its rows are of other records than its cut says.
    place, end = next((place, end) for place, end in found.cut.items() if place[0] == "sales" and end > 9)
    assert {"Upsert", "LinearAggregate"} <= problems(
        found._replace(cut={**found.cut, place: end // 2})
    ).keys()

    name, kept = next((one, each) for one, each in found.operators.items() if each.spines and each.spines[0])
    version, digest, *more = msgpack.unpackb(kept.value)
    forged = kept._replace(value=msgpack.packb([version, bytes([digest[0] ^ 1]) + digest[1:], *more]))
    [said] = problems(found._replace(operators={**found.operators, name: forged})).values()
    assert said.startswith("its digest is ")

    forged = kept._replace(spines=[kept.spines[0][1:], *kept.spines[1:]])
    [said] = problems(found._replace(operators={**found.operators, name: forged})).values()
    assert said == "it keeps other rows than its inputs make"

    state.write_bytes(right)
    run = folder / kept.spines[0][0]
    whole = run.read_bytes()
    other = unpacked(run.name, whole)
    more_of_it = replace(other, sums=(other.sums[0] + 1, *other.sums[1:]))
    run.write_bytes(b"".join(bytes(part) for part in packed(more_of_it)))
    [row] = operators_equal_their_replay(spark, stored, [point]).evidence
    assert row["problem"] == "it keeps other rows than its inputs make"
    run.write_bytes(whole[:-1])
    [row] = operators_equal_their_replay(spark, stored, [point]).evidence
    assert "its state cannot be read" in str(row["problem"])
    run.unlink()
    [row] = operators_equal_their_replay(spark, stored, [point]).evidence
    assert "its state lacks an object" in str(row["problem"])
    run.write_bytes(whole)
    assert operators_equal_their_replay(spark, stored, [point]).verdict is Verdict.PASSED


@pytest.mark.timeout(480)
def test_views_are_their_sql_at_each_restore_point_and_a_forged_row_is_found(
    spark: SparkSession,
    cluster: RealCluster,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = Writer(cluster)
    writer.change(100)
    writer.odd()
    file = tmp_path / "shops.sql"
    file.write_text(PROGRAM)
    applied = strandline(
        capfd, monkeypatch, "view", "apply", str(file), "--wait", "40", "--cluster", str(cluster.folder)
    )
    assert applied.status == 0, applied
    # At a point that is taken amid changes the program's cut lies somewhere below the inputs' ends.
    writer.change(100)
    checkpoint(cluster)
    written(cluster)
    writer.change(50)
    last = checkpoint(cluster)
    result = audited(spark, cluster)
    assert result.verdict is Verdict.PASSED, (result.evidence, result.remarks)
    assert result.counts["restore points"] == 2, result.remarks
    assert result.counts["views compared"] == 10
    assert result.counts["rows"] > 20

    described = cluster.description
    stored = ClusterStorage(open_storage(described.storage), described.cluster)
    operators_are_audited(spark, stored, Path(described.storage))
    topics = TopicViews(spark, {"url": described.storage, "cluster": described.cluster})
    query = "select sum(t.n) as n, max(e.n) as most from totals t cross join everything e"
    (shown,) = topics.query(query).collect()
    assert shown["n"] == shown["most"] > 0, "a view is its present rows in SQL, not all that it ever said"

    writer.put("totals", '["s1"]', {"shop": "s1", "n": 999, "most": 1, "rate": 0.5})
    writer.put("cities", '["city0"]', None)
    writer.put("everything", '["more"]', {"n": 1, "rate": None})
    writer.producer.flush(30)
    expire(cluster, "visits")
    forged = checkpoint(cluster)
    result = audited(spark, cluster)
    assert result.verdict is Verdict.FINDING
    assert {row["point"] for row in result.evidence} != {last}
    found = {(row["view"], row["key"]): str(row["problem"]) for row in result.evidence}
    assert found.keys() == {("totals", '["s1"]'), ("cities", '["city0"]'), ("everything", "[]")}
    assert " in n" in found["totals", '["s1"]']
    assert "the topic lacks" in found["cities", '["city0"]']
    (gone,) = (row for row in result.remarks if row.get("view") == "long")
    assert gone["point"] == forged
    assert "records of visits are gone" in str(gone["problem"]), "rows leave the topic, never the view"
