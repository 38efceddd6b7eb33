"""Clients read what has been lifted into level one, from anywhere, by offset and by time."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka  # type: ignore[import-untyped]
import confluent_kafka
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.clients.records import PARTITIONS, Written, check_topic, records
from tests.cluster.real_cluster import RealCluster, running_cluster
from tests.peers.kafka_jars import NoKafka
from tests.peers.kafka_tools import TOOLS, KafkaTools

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas with importlib's old functions
    import kafka  # type: ignore[import-untyped]

SETTINGS = (
    "level_one.block_bytes=2KiB",
    "level_one.target_bytes=16KiB",
    "level_one.job_bytes=64KiB",
    "level_one.reconcile_seconds=2",
)
WRITTEN = records("lifted", 900)
STAMP = 1_700_000_000_000
"""Time of the first record; each of a partition is 1 ms after the one before."""


@pytest.fixture(scope="module")
def lifting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """One node that lifts at once, and a topic of it that is lifted."""
    with running_cluster(tmp_path_factory.mktemp("lifting"), 1, SETTINGS) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        admin.create_topics([NewTopic("lifted", PARTITIONS, 1, config={"retention.ms": "-1"})])[
            "lifted"
        ].result(60)
        for first in range(0, len(WRITTEN), 450):
            produce(running, WRITTEN[first : first + 450], first)
            lifted(running.folder)
        yield running
        assert "Traceback" not in running.logs()


def produce(cluster: RealCluster, written: list[Written], first: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "batch.num.messages": 7})
    for number, record in enumerate(written, first):
        assert record.partition is not None
        stamp = STAMP + number // PARTITIONS
        producer.produce(
            "lifted",
            record.value,
            record.key,
            record.partition,
            timestamp=stamp,
            headers=list(record.headers),
        )
    assert producer.flush(30) == 0


def lifted(folder: Path) -> None:
    """Wait until level one grows no more: everything is there."""
    seen, deadline = -1, time.monotonic() + 30
    while time.monotonic() < deadline:
        time.sleep(2.5)
        size = sum(file.stat().st_size for file in folder.glob("objects/l1/*/*/*"))
        if size == seen and size > 0:
            return
        seen = size
    raise AssertionError("nothing is lifted, or lifting does not end")


def test_librdkafka_reads_all_of_it(lifting: RealCluster) -> None:
    check_topic(lifting.bootstrap, "lifted", WRITTEN)


def test_kafka_python_reads_from_anywhere(lifting: RealCluster) -> None:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=lifting.bootstrap.split(","),
        consumer_timeout_ms=3000,
        max_partition_fetch_bytes=900,
    )
    part = kafka.TopicPartition("lifted", 1)
    consumer.assign([part])
    values = [record.value for record in WRITTEN if record.partition == 1]
    for offset in (0, 1, 150, 299):
        consumer.seek(part, offset)
        assert [next(consumer).value for _ in values[offset : offset + 20]] == values[offset : offset + 20]
    consumer.close()


def test_aiokafka_finds_times(lifting: RealCluster) -> None:
    async def test() -> None:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=lifting.bootstrap)
        await consumer.start()
        try:
            part = aiokafka.TopicPartition("lifted", 2)
            for after in (-10, 0, 7, 155, 299):
                found = await consumer.offsets_for_times({part: STAMP + after})
                assert (found[part].offset, found[part].timestamp) == (max(after, 0), STAMP + max(after, 0))
            assert await consumer.offsets_for_times({part: STAMP + 300}) == {part: None}
        finally:
            await consumer.stop()

    asyncio.run(test())


def test_kafkas_own_tool_tells_what_is_lifted(lifting: RealCluster) -> None:
    try:
        tools = KafkaTools(lifting.bootstrap)
    except NoKafka as error:
        pytest.skip(str(error))

    def offsets(when: str) -> list[str]:
        done = tools.run(tools.tool(f"{TOOLS}.GetOffsetShell", "--topic", "lifted", "--time", when))
        assert (done.code, done.err) == (0, ""), done
        return done.lines

    assert offsets("latest-tiered") == [f"lifted:{number}:299" for number in range(PARTITIONS)]
    assert offsets("earliest-local") == [f"lifted:{number}:300" for number in range(PARTITIONS)]
    assert offsets("max-timestamp") == [f"lifted:{number}:299" for number in range(PARTITIONS)]


def test_records_deleted_within_an_object_are_gone(lifting: RealCluster) -> None:
    admin = AdminClient({"bootstrap.servers": lifting.bootstrap})
    (done,) = admin.delete_records([TopicPartition("lifted", 0, 123)]).values()
    assert done.result(60).low_watermark == 123
    settings: dict[str, Any] = {"group.id": "none", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": lifting.bootstrap, **settings})
    consumer.assign([TopicPartition("lifted", 0, 5)])
    message = consumer.poll(20)
    assert message is not None
    assert (message.error(), message.offset()) == (None, 123)
    assert message.value() == WRITTEN[123 * PARTITIONS].value
    consumer.close()
