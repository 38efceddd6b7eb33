"""Three real nodes that reconcile, merge, delete records and collect, while a job reads and audits look.

First collecting is paused, so that both levels have every record; then everything that may go does. A cluster
for each way of batches into a partition goes through that. One pass of the audits then looks at what all of
them have left, as a pass costs more than a cluster; the last cluster goes on collecting under it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.sql import SparkSession

from strandline.cluster.admin_client import first_answer
from strandline.snapshot.spark.audits import AuditRun, ClusterStorage, Verdict, audit_storages
from strandline.snapshot.spark.audits.collecting import Grace
from strandline.snapshot.spark.fetch import read_windows
from strandline.snapshot.spark.options import parse
from strandline.snapshot.spark.pieces import Window
from strandline.snapshot.spark.plan import plan
from strandline.snapshot.spark.source import SCHEMA, arrow_schema
from strandline.snapshot.storage import open_storage
from strandline.statemachine.object_names import parse_object_name
from tests.cluster.real_cluster import RealCluster, running_cluster

SETTINGS = (
    "cluster.epoch_seconds=0.3",
    "level_one.reconcile_seconds=1",
    "level_one.merge_count=2",
    "level_one.block_bytes=4096",
    "collector.grace_seconds=0.5",
    "collector.sweep_seconds=0.5",
    "collector.advance_lag_epochs=2",
)
WAYS = {
    "objects": (*SETTINGS, "inline.max_batch_bytes=0"),
    "inline": (*SETTINGS, "inline.seconds=60"),
    "stored": (*SETTINGS, "inline.seconds=0.4", "inline.max_batch_bytes=1500"),
}
"""How batches get into the partitions: in objects; in the log, and from there into level one; in either, by
their size, and from the log into objects first."""
TOPIC, PARTITIONS = "flow", 2
COUNT = 400
WAIT_SECONDS = 90.0

Found = dict[tuple[int, int], tuple[bytes | None, bytes, Any]]
"""(partition, offset) to key, value and headers."""


NO_OBJECTS = 1 << 60
"""In place of an epoch: there are no objects, as batches that are in the log alone are lifted from there."""


class Reading(NamedTuple):
    """What a job found, and what it had to find."""

    found: Found
    written: Found


class Seen(NamedTuple):
    """What one way of batches into a partition showed, step by step."""

    while_paused: Reading
    while_collecting: Reading
    """A job that was planned before collecting began and ended after it."""
    afterwards: Reading
    audits_while_paused: AuditRun
    audits_while_collecting: AuditRun


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
            for row in first_answer([address], "GET", "/api/partitions?limit=100", timeout=60)["partitions"]
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

    def read(self) -> Reading:
        return Reading(read(self.storage, planned(self)), dict(self.written))

    def to_audit(self) -> ClusterStorage:
        """The storage, whatever becomes of it."""
        return ClusterStorage(open_storage(self.storage), self.cluster.description.cluster)

    def copy_to_audit(self, folder: Path) -> ClusterStorage:
        """The storage as it is now, in `folder`: first the documents, as audits read them, then all else."""
        source = Path(self.storage)
        for first in (True, False):
            for path in sorted(source.rglob("*")):
                name = path.relative_to(source)
                if path.is_file() and (name.parts[0] == "snapshots") == first:
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    with contextlib.suppress(FileNotFoundError):  # nodes delete what they have merged
                        (folder / name).hardlink_to(path)
        return ClusterStorage(open_storage(str(folder)), self.cluster.description.cluster)


def until(good: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not good():
        assert time.monotonic() < deadline, f"{what}: not within {WAIT_SECONDS:g} s"
        time.sleep(0.2)


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


def read_while_paused(flow: Flow) -> Reading:
    flow.ask("POST", "/api/gc/pause")
    for _ in range(2):
        flow.write()
        until(flow.reconciled, "everything is reconciled")
    flow.checkpoint(lease_seconds=5)
    return flow.read()


def read_while_collecting(flow: Flow) -> Reading:
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
    return Reading(found | read(flow.storage, tasks[1:]), expected)


def read_afterwards(flow: Flow) -> Reading:
    flow.delete_records(1, 100)
    until(flow.reconciled, "everything is reconciled")
    flow.checkpoint()
    return flow.read()


@pytest.fixture(scope="module")
def seen(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    readings: list[tuple[Reading, Reading, Reading]] = []
    storages: list[ClusterStorage] = []
    with contextlib.ExitStack() as running:
        for way, settings in WAYS.items():
            running.close()  # the one before
            folder = tmp_path_factory.mktemp(way)
            flow = Flow(running.enter_context(running_cluster(folder / "cluster", settings=settings)))
            paused = read_while_paused(flow)
            storages += [flow.copy_to_audit(folder / "paused"), flow.to_audit()]
            readings.append((paused, read_while_collecting(flow), read_afterwards(flow)))
        runs = audit_storages(spark, storages, Grace(ms=60_000))
    audits = zip(runs[::2], runs[1::2], strict=True)
    return {way: Seen(*read, *audited) for way, read, audited in zip(WAYS, readings, audits, strict=True)}


every_way = pytest.mark.parametrize("way", WAYS)


def assert_green(run: AuditRun) -> dict[str, dict[str, int]]:
    found = {one.name: one.evidence[:3] for one in run.results if one.verdict is Verdict.FINDING}
    assert not found
    return {one.name: one.counts for one in run.results}


@every_way
def test_both_levels_hold_the_same_while_collecting_is_paused(seen: dict[str, Seen], way: str) -> None:
    found, written = seen[way].while_paused
    assert found == written
    counts = assert_green(seen[way].audits_while_paused)
    levels = counts["level_one_holds_level_zero"]
    assert levels["records compared"] == len(written) == 2 * COUNT
    assert levels["records of which level zero is gone"] == 0
    # How many of them lie above M is a matter of time: the partitions are idle, and M follows the epoch.
    assert counts["nothing_deleted_above_m"]["collected"] == 0


@every_way
def test_a_read_goes_on_while_the_cluster_collects(seen: dict[str, Seen], way: str) -> None:
    found, written = seen[way].while_collecting
    assert found == written
    assert len(written) == 4 * COUNT


@every_way
def test_audits_of_a_cluster_that_collects(seen: dict[str, Seen], way: str) -> None:
    found, written = seen[way].afterwards
    assert found == written
    counts = assert_green(seen[way].audits_while_collecting)
    assert counts["references_exist_and_crc"]["level-one objects"] > 0
    assert counts["offsets_contiguous"]["records"] >= len(written)
    assert counts["collectable_epochs_monotone"]["rounds"] >= 1
    assert counts["nothing_collectable_left"]["level-one objects"] > 0
