"""Three real nodes that reconcile, merge, delete records and collect, while a job reads and audits look.

First collecting is paused, so that both levels have every record; then everything that may go does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.sql import SparkSession

from strandline.cluster.admin_client import first_answer
from strandline.snapshot.spark.audits import AuditRun, Verdict, run_audits
from strandline.snapshot.spark.audits.collecting import Grace
from strandline.snapshot.spark.fetch import read_windows
from strandline.snapshot.spark.options import parse
from strandline.snapshot.spark.plan import Window, plan
from strandline.snapshot.spark.source import SCHEMA, arrow_schema
from strandline.snapshot.storage import open_storage
from strandline.statemachine.object_names import parse_object_name
from tests.cluster.real_cluster import RealCluster, running_cluster

# Whoever comes first waits for the nodes, for level one, and for Spark.
pytestmark = pytest.mark.timeout(300)

SETTINGS = (
    "cluster.epoch_seconds=0.3",
    "level_one.reconcile_seconds=1",
    "level_one.merge_count=2",
    "level_one.block_bytes=4096",
    "collector.grace_seconds=0.5",
    "collector.sweep_seconds=0.5",
    "collector.advance_lag_epochs=2",
)
TOPIC, PARTITIONS = "flow", 2
COUNT = 400
WAIT_SECONDS = 90.0

Found = dict[tuple[int, int], tuple[bytes | None, bytes, Any]]
"""(partition, offset) to key, value and headers."""


NO_OBJECTS = 1 << 60
"""In place of an epoch: there are no objects, as batches that are in the log alone are lifted from there."""


class Flow:
    """The cluster of this module, and what was written to it."""

    def __init__(self, cluster: RealCluster) -> None:
        self.cluster = cluster
        self.written: Found = {}
        self._client = AdminClient({"bootstrap.servers": cluster.bootstrap})
        self._client.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(30)

    @property
    def storage(self) -> str:
        return self.cluster.description.storage

    def write(self, count: int = COUNT) -> None:
        """Some records, in many small batches and objects."""

        def delivered(record: tuple[bytes | None, bytes, Any]) -> Callable[[Any, Any], None]:
            def callback(error: Any, message: Any) -> None:
                assert error is None, error
                self.written[message.partition(), message.offset()] = record

            return callback

        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "enable.idempotence": True})
        before = len(self.written)
        for number in range(count):
            key = None if number % 3 else f"key {number}".encode()
            value = f"value {before + number} ".encode() * 5
            headers: list[tuple[str, str | bytes | None]] | None = None
            if number % 2:
                headers = [("number", str(number).encode()), ("empty", None)]
            producer.produce(
                TOPIC,
                value,
                key=key,
                partition=number % PARTITIONS,
                headers=headers,
                on_delivery=delivered((key, value, headers)),
            )
            if number % 40 == 39:
                assert producer.flush(30) == 0
        assert producer.flush(30) == 0

    def delete_records(self, partition: int, below: int) -> None:
        asked = [TopicPartition(TOPIC, partition, below)]
        for done in self._client.delete_records(asked, request_timeout=20).values():
            done.result()
        self.written = {
            place: record
            for place, record in self.written.items()
            if place[0] != partition or place[1] >= below
        }

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        return first_answer(self.cluster.admin, method, path, body or {}, timeout=70)

    def checkpoint(self, lease_seconds: float = 600) -> None:
        taken = self.ask("POST", "/api/checkpoints", {"lease_seconds": lease_seconds, "timeout_seconds": 60})
        assert taken["complete"], taken

    def leading(self) -> list[dict[str, Any]]:
        """The rows of the leaders of this topic, one for each partition."""
        rows = [
            row
            for address in self.cluster.admin
            for row in first_answer([address], "GET", "/api/partitions?limit=100", timeout=10)["partitions"]
            if row["topic"] == TOPIC and row["leads"]
        ]
        return sorted(rows, key=lambda row: int(row["partition"]))

    def reconciled(self) -> bool:
        """Whether level one has everything."""
        rows = self.leading()
        return len(rows) == PARTITIONS and all(
            row["last_reconciled_offset"] + 1 == row["high_watermark"] for row in rows
        )

    def oldest_epoch(self) -> int:
        """Of the level-zero objects that are left."""
        root = Path(self.storage)
        names = [path.relative_to(root).as_posix() for path in root.glob("l0/*/*/*") if path.is_file()]
        return min((parse_object_name(name).epoch for name in names), default=NO_OBJECTS)

    def audit(self, spark: SparkSession, grace: Grace) -> AuditRun:
        return run_audits(self.storage, {}, self.cluster.description.cluster, spark=spark, grace=grace)


def until(good: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not good():
        assert time.monotonic() < deadline, f"{what}: not within {WAIT_SECONDS:g} s"
        time.sleep(0.2)


WAYS = {
    "objects": ("inline.max_batch_bytes=0",),
    "inline": ("inline.seconds=60",),
    "stored": ("inline.seconds=0.4", "inline.max_batch_bytes=1500"),
}
"""How batches get into the partitions: in objects; in the log, and from there into level one; in either, by
their size, and from the log into objects first."""


@pytest.fixture(scope="module", params=list(WAYS.values()), ids=list(WAYS))
def flow(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Flow]:
    settings = (*SETTINGS, *request.param)
    with running_cluster(tmp_path_factory.mktemp("levels") / "cluster", settings=settings) as cluster:
        flow = Flow(cluster)
        yield flow


def read(storage: str, tasks: list[tuple[Window, ...]]) -> Found:
    found: Found = {}
    for windows in tasks:
        for batch in read_windows(open_storage(storage), windows, arrow_schema(SCHEMA)):
            for row in batch.to_pylist():
                headers = [(one["key"], one["value"]) for one in row["headers"] or ()] or None
                place = (row["partition"], row["offset"])
                assert place not in found
                found[place] = (row["key"], row["value"], headers)
    return found


def planned(flow: Flow) -> list[tuple[Window, ...]]:
    options = parse({"url": flow.storage, "topic": TOPIC, "min_partitions": "6"})
    return plan(open_storage(flow.storage), options, 2)


def assert_green(run: AuditRun) -> dict[str, dict[str, int]]:
    found = {one.name: one.evidence[:3] for one in run.results if one.verdict is Verdict.FINDING}
    assert not found
    return {one.name: one.counts for one in run.results}


def test_both_levels_hold_the_same_while_collecting_is_paused(flow: Flow, spark: SparkSession) -> None:
    flow.ask("POST", "/api/gc/pause")
    for _ in range(2):
        flow.write()
        until(flow.reconciled, "everything is reconciled")
    flow.checkpoint(lease_seconds=5)
    assert read(flow.storage, planned(flow)) == flow.written
    counts = assert_green(flow.audit(spark, Grace()))
    levels = counts["level_one_holds_level_zero"]
    assert levels["records compared"] == len(flow.written) == 2 * COUNT
    assert levels["records of which level zero is gone"] == 0
    # How many of them lie above M is a matter of time: the partitions are idle, and M follows the epoch.
    assert counts["nothing_deleted_above_m"]["collected"] == 0


def test_a_read_goes_on_while_the_cluster_collects(flow: Flow) -> None:
    flow.ask("POST", "/api/gc/pause")
    flow.write()
    until(flow.reconciled, "everything is reconciled")
    flow.write()
    flow.checkpoint()
    expected, tasks = dict(flow.written), planned(flow)
    assert len(tasks) > 2
    found = read(flow.storage, tasks[:1])
    # The checkpoint has the first records in level one. Their level-zero objects are there, and go now.
    before = flow.oldest_epoch()
    flow.ask("POST", "/api/gc/resume")
    flow.write()
    flow.delete_records(0, 300)
    until(flow.reconciled, "everything is reconciled")
    if before != NO_OBJECTS:
        until(lambda: flow.oldest_epoch() > before, "something is collected")
    found |= read(flow.storage, tasks[1:])
    assert found == expected


def test_audits_of_a_cluster_that_collects(flow: Flow, spark: SparkSession) -> None:
    if not flow.written:
        flow.write()
    flow.ask("POST", "/api/gc/resume")
    flow.delete_records(1, 100)
    until(flow.reconciled, "everything is reconciled")
    flow.checkpoint()
    assert read(flow.storage, planned(flow)) == flow.written
    counts = assert_green(flow.audit(spark, Grace(ms=60_000)))
    assert counts["references_exist_and_crc"]["level-one objects"] > 0
    assert counts["offsets_contiguous"]["records"] >= len(flow.written)
    assert counts["collectable_epochs_monotone"]["rounds"] >= 1
    assert counts["nothing_collectable_left"]["level-one objects"] > 0
