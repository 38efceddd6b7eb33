"""Three real nodes without a checkpoint: what is acknowledged can be read from storage alone, in seconds."""

from __future__ import annotations

import gc
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from strandline.snapshot.spark.fetch import read_windows
from strandline.snapshot.spark.moved import MovedRecords
from strandline.snapshot.spark.options import SourceError, parse
from strandline.snapshot.spark.plan import plan
from strandline.snapshot.spark.source import SCHEMA, arrow_schema
from strandline.snapshot.storage import open_storage
from tests.cluster.real_cluster import RealCluster, running_cluster, wait

SETTINGS = (
    "publish.seconds=1",
    "cluster.epoch_seconds=0.3",
    "level_one.reconcile_seconds=1",
    "collector.grace_seconds=0.5",
    "collector.sweep_seconds=0.5",
)
TOPIC, PARTITIONS = "flow", 4


class Bench:
    """A cluster, what was acknowledged, and a reader that asks no node."""

    def __init__(self, cluster: RealCluster, folder: Path) -> None:
        self.cluster = cluster
        self.url = str(folder / "objects")
        self.acked: set[bytes] = set()
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})

    def write(self, count: int, size: int) -> None:
        def heard(error: object, message: object) -> None:
            assert error is None, error

        for _ in range(count):
            value = b"%08d" % len(self.acked) + b"x" * size
            self.acked.add(value)
            self._producer.produce(TOPIC, value, on_delivery=heard)
        assert self._producer.flush(30) == 0

    def end(self) -> None:
        """Let go of the producer: it would tell of nodes that end, amid other tests."""
        del self._producer
        gc.collect()

    def read(self) -> list[bytes]:
        storage = open_storage(self.url)
        options = parse({"url": self.url, "topic": TOPIC})
        schema = arrow_schema(SCHEMA)
        values: list[bytes] = []
        for windows in plan(storage, options, 1):
            for batch in read_windows(storage, windows, schema, MovedRecords(storage, compacted=False)):
                values += batch.column("value").to_pylist()
        return values

    def sees_all(self) -> bool:
        try:
            values = self.read()
        except SourceError as error:
            if "is published" not in str(error):
                raise
            return False  # by none of the leaders yet
        assert len(values) == len(set(values))
        assert set(values) <= self.acked
        return set(values) == self.acked


def test_what_is_acknowledged_is_read_without_a_node_or_a_checkpoint(tmp_path: Path) -> None:
    with running_cluster(tmp_path, settings=SETTINGS) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        made = admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC]
        made.result(60)
        bench = Bench(cluster, tmp_path)
        for size in (10, 40_000, 10):  # in the log itself, in objects, and again
            bench.write(60, size)
            wait(bench.sees_all)
        cluster.kill(2)
        bench.write(60, 10)
        wait(bench.sees_all)
        cluster.start(2)
        bench.write(60, 40_000)
        wait(bench.sees_all)
        # Batches move to level one, and what they left is collected. No checkpoint holds anything.
        ends = time.monotonic() + 4.0
        while time.monotonic() < ends:
            assert bench.sees_all()
        bench.write(60, 10)
        bench.end()
        for node in (1, 2, 3):
            cluster.stop(node)
        assert bench.sees_all()  # a clean stop leaves nothing behind
