"""The end of a compacted log by three clients: each comes to the high watermark, wherever it begins.

The newest records are superseded, or of an aborted transaction, so that what lies before the end is a hole.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer  # type: ignore[import-untyped]
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.cluster.real_cluster import RealCluster, running_cluster, wait

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas with importlib's old functions
    from kafka import KafkaConsumer  # type: ignore[import-untyped]
    from kafka import TopicPartition as PythonPartition

NODE: Final = (
    "level_one.reconcile_seconds=1",
    "compaction.ingest_seconds=1",
    "log.level=INFO",
)
TOPIC: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1000",
}
SECONDS: Final = 20.0


class Ended(NamedTuple):
    """A topic whose level one and local log are compacted; its newest records are gone but for the last."""

    name: str
    high_watermark: int
    table: Mapping[bytes, bytes]


def one_by_one(cluster: RealCluster, topic: str, records: list[tuple[bytes, bytes]], **more: str) -> Producer:
    """Each record in a batch of its own."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0} | more)
    if "transactional.id" in more:
        producer.init_transactions(20)
        producer.begin_transaction()
    for key, value in records:
        producer.produce(topic, value, key, partition=0)
        assert producer.flush(60) == 0
    return producer


def superseded(cluster: RealCluster) -> dict[bytes, bytes]:
    """The newest thirty batches are of one key."""
    records = [(b"key %d" % (number % 5), b"value %d" % number) for number in range(20)]
    records += [(b"last", b"value %d" % number) for number in range(30)]
    one_by_one(cluster, "superseded", records)
    return dict(records)


def aborted(cluster: RealCluster) -> dict[bytes, bytes]:
    """The newest thirty batches were aborted; the last one is the marker that says so."""
    records = [(b"key %d" % (number % 5), b"value %d" % number) for number in range(20)]
    one_by_one(cluster, "aborted", records)
    poison = [(b"key %d" % (number % 5), b"poison") for number in range(30)]
    one_by_one(cluster, "aborted", poison, **{"transactional.id": "aborts"}).abort_transaction(20)
    return dict(records)


def mixed(cluster: RealCluster) -> dict[bytes, bytes]:
    """Transactions that supersede one another, every other one aborted."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "mixed"})
    producer.init_transactions(20)
    table = {}
    for number in range(20):
        producer.begin_transaction()
        for key in (b"a", b"b"):
            producer.produce("mixed", b"value %d" % number, key, partition=0)
        if number % 2:
            producer.abort_transaction(20)
        else:
            producer.commit_transaction(20)
            table = {b"a": b"value %d" % number, b"b": b"value %d" % number}
    return table


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with running_cluster(tmp_path_factory.mktemp("ends"), nodes=1, settings=NODE) as running:
        yield running
        assert "Traceback" not in running.logs()


@pytest.fixture(scope="module")
def ended(cluster: RealCluster) -> list[Ended]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    writers = (superseded, aborted, mixed)
    made = admin.create_topics([NewTopic(one.__name__, 1, 1, config=TOPIC) for one in writers])
    for future in made.values():
        future.result(60)
    tables = {one.__name__: one(cluster) for one in writers}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "watermarks"})
    found = [
        Ended(name, consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=20)[1], table)
        for name, table in tables.items()
    ]
    consumer.close()

    def compacted() -> bool:
        there = {row["topic"]: row for row in rows(cluster)}
        return all(
            (row := there.get(one.name)) is not None
            and row["local"]["log_end"] == one.high_watermark
            and row["local"]["clean_end"] == one.high_watermark - 1
            and level_one(row) == (one.high_watermark - 1, one.high_watermark)
            for one in found
        )

    wait(compacted, 60.0)
    return found


def rows(cluster: RealCluster) -> list[dict[str, Any]]:
    with urllib.request.urlopen(
        f"http://{cluster.admin[0]}/api/compaction/partitions?limit=100", timeout=60
    ) as told:
        found: list[dict[str, Any]] = json.load(told)["partitions"]
    return [row for row in found if row["local"] is not None and row["leader"] is not None]


def level_one(row: dict[str, Any]) -> tuple[int, int]:
    [found] = [copy for copy in row["leader"]["copies"] if copy["node"] is None]
    return found["mcco"], found["mxfo"]


def check(one: Ended, offset: int, records: list[tuple[int, bytes, bytes]]) -> None:
    """What was read from an offset on is what is left of the table there."""
    assert all(position >= offset for position, _, _ in records)
    there = {key: value for _, key, value in records}
    if offset == 0:
        assert there == one.table
    assert there.items() <= one.table.items(), "what was superseded or aborted is gone"


ISOLATION: Final = ("read_committed", "read_uncommitted")


@pytest.mark.parametrize("isolation", ISOLATION)
def test_librdkafka(cluster: RealCluster, ended: list[Ended], isolation: str) -> None:
    """And no warning is logged, and no fetch grows until it is too large."""
    said: list[Any] = []
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": f"ends {isolation}",
        "isolation.level": isolation,
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "error_cb": said.append,
        "fetch.wait.max.ms": 50,
    }
    consumer = confluent_kafka.Consumer(settings, logger=_Said(said))
    for one in ended:
        for offset in (*range(0, one.high_watermark, 3), one.high_watermark):
            consumer.assign([TopicPartition(one.name, 0, offset)])
            records, deadline = [], time.monotonic() + SECONDS
            while True:
                assert time.monotonic() < deadline, f"{one.name}: it does not come to the end from {offset}"
                message = consumer.poll(1.0)
                if message is None:
                    continue
                if (error := message.error()) is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    break
                key, value = message.key(), message.value()
                records.append((message.offset() or 0, bytes(key or b""), bytes(value or b"")))
            [at] = consumer.position([TopicPartition(one.name, 0)])
            assert message.offset() == one.high_watermark, (at, offset)
            check(one, offset, records)
    consumer.close()
    assert said == []


class _Said:
    """A logger that keeps what it is told."""

    def __init__(self, said: list[Any]) -> None:
        self._said = said

    def log(self, level: int, text: str, *more: Any) -> None:
        self._said.append((level, text % more))


@pytest.mark.parametrize("isolation", ISOLATION)
def test_aiokafka(cluster: RealCluster, ended: list[Ended], isolation: str) -> None:
    async def run() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=cluster.bootstrap,
            isolation_level=isolation,
            enable_auto_commit=False,
            fetch_max_wait_ms=50,
        )
        await consumer.start()
        try:
            for one in ended:
                place = AioPartition(one.name, 0)
                consumer.assign([place])
                for offset in range(one.high_watermark):
                    consumer.seek(place, offset)
                    records: list[tuple[int, bytes, bytes]] = []
                    deadline = time.monotonic() + SECONDS
                    while await consumer.position(place) < one.high_watermark:
                        assert time.monotonic() < deadline, f"{one.name}: no end from {offset}"
                        for batch in (await consumer.getmany(place, timeout_ms=100)).values():
                            records += [(each.offset, each.key, each.value) for each in batch]
                    check(one, offset, records)
        finally:
            await consumer.stop()

    asyncio.run(run())


@pytest.mark.parametrize("isolation", ISOLATION)
def test_kafka_python(cluster: RealCluster, ended: list[Ended], isolation: str) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap,
        isolation_level=isolation,
        enable_auto_commit=False,
        fetch_max_wait_ms=50,
    )
    for one in ended:
        place = PythonPartition(one.name, 0)
        consumer.assign([place])
        for offset in range(one.high_watermark):
            consumer.seek(place, offset)
            records: list[tuple[int, bytes, bytes]] = []
            deadline = time.monotonic() + SECONDS
            while consumer.position(place) < one.high_watermark:
                assert time.monotonic() < deadline, f"{one.name}: it does not come to the end from {offset}"
                for batch in consumer.poll(100).values():
                    records += [(each.offset, each.key, each.value) for each in batch]
            check(one, offset, records)
    consumer.close()


def test_all_of_it_came_from_the_local_log(cluster: RealCluster, ended: list[Ended]) -> None:
    """The tests above have read more than once from each of its offsets, and level one has the same."""
    with urllib.request.urlopen(f"http://{cluster.admin[0]}/metrics", timeout=60) as told:
        samples = dict(
            line.rsplit(" ", 1) for line in told.read().decode().splitlines() if not line.startswith("#")
        )
    assert float(samples["strandline_compaction_local_reads_total"]) > sum(
        one.high_watermark for one in ended
    )
    assert float(samples["strandline_compaction_bad_reads_total"]) == 0
    assert float(samples["strandline_compaction_publications_total"]) >= len(ended)
