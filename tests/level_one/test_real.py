"""A real node lifts what was produced with a real worker, empties level zero, and serves from level one."""

from __future__ import annotations

from pathlib import Path

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.cluster.real_cluster import running_cluster, wait

SETTINGS = (
    "cluster.epoch_seconds=0.5",
    "level_one.reconcile_seconds=1",
    "collector.grace_seconds=0",
    "collector.sweep_seconds=0.3",
    "collector.advance_lag_epochs=1",
)
RECORDS = 500


def files(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


def test_what_was_produced_moves_to_level_one_and_comes_back(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "cluster", nodes=1, settings=SETTINGS) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 1, "batch.size": 1000})
        values = [b"%d " % number * 10 for number in range(RECORDS)]
        for value in values:
            producer.produce("lifted", value, partition=0)
        assert producer.flush(20) == 0
        objects = Path(cluster.description.storage)
        wait(lambda: files(objects / "l1") and not files(objects / "l0"))
        node = psutil.Process(cluster.pids[1])
        [worker] = node.children()
        assert "strandline.node.level_one.worker" in worker.cmdline()

        consumer = Consumer(
            {"bootstrap.servers": cluster.bootstrap, "group.id": "reader", "enable.auto.commit": False}
        )
        consumer.assign([TopicPartition("lifted", 0, 0)])
        read: list[tuple[int | None, bytes | None]] = []

        def all_read() -> bool:
            read.extend((each.offset(), each.value()) for each in consumer.consume(100, 0.2))
            return len(read) >= RECORDS

        wait(all_read)
        consumer.close()
        assert read == list(enumerate(values))

        cluster.kill(1)
        wait(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)
