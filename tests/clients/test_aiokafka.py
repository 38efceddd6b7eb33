"""aiokafka: a client in asyncio, with a protocol implementation of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import aiokafka  # type: ignore[import-untyped]
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic  # type: ignore[import-untyped]
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType  # type: ignore[import-untyped]
from aiokafka.errors import UnknownTopicOrPartitionError  # type: ignore[import-untyped]

from tests.clients.records import (
    CODECS,
    PARTITIONS,
    READ_SECONDS,
    check_topic,
    codecs,
    expected,
    idempotent,
    records,
)
from tests.cluster.real_cluster import RealCluster


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


async def create(cluster: RealCluster, *topics: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    await admin.start()
    try:
        made = await admin.create_topics([NewTopic(topic, PARTITIONS, 3) for topic in topics])
        assert [error for _, error, _ in made.topic_errors] == [0] * len(topics)
    finally:
        await admin.close()


async def produce(cluster: RealCluster, topic: str, **settings: Any) -> None:
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, linger_ms=10, **settings)
    await producer.start()
    try:
        sent = [
            await producer.send(topic, one.value, one.key, one.partition, headers=list(one.headers))
            for one in records(topic)
        ]
        offsets = [(await one).offset for one in sent]
        assert offsets == [number // PARTITIONS for number in range(len(sent))]
    finally:
        await producer.stop()


@pytest.mark.parametrize("codec", CODECS)
def test_every_compression_idempotent(cluster: RealCluster, codec: str) -> None:
    topic = f"aio-{codec}"

    async def test() -> None:
        await create(cluster, topic)
        await produce(
            cluster, topic, compression_type=None if codec == "none" else codec, enable_idempotence=True
        )
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap, group_id=None)
        await consumer.start()
        try:
            partitions = [aiokafka.TopicPartition(topic, number) for number in range(PARTITIONS)]
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            got: dict[tuple[int, int], tuple[bytes | None, bytes]] = {}
            wanted = expected(records(topic))
            deadline = time.monotonic() + READ_SECONDS
            while len(got) < len(wanted) and time.monotonic() < deadline:
                for found in (await consumer.getmany(timeout_ms=200)).values():
                    got |= {(one.partition, one.offset): (one.key, one.value) for one in found}
            assert got == wanted
            ends = await consumer.end_offsets(partitions)
            assert sum(ends.values()) == len(wanted)
            found = await consumer.offsets_for_times({partitions[0]: 1})
            assert found[partitions[0]].offset == 0
        finally:
            await consumer.stop()

    run(test())
    check_topic(cluster.bootstrap, topic, records(topic))
    assert codecs(cluster.bootstrap, topic) == {codec}
    assert idempotent(cluster.bootstrap, topic)


def test_not_idempotent(cluster: RealCluster) -> None:
    async def test() -> None:
        await create(cluster, "aio-plain")
        await produce(cluster, "aio-plain", acks=1)

    run(test())
    check_topic(cluster.bootstrap, "aio-plain", records("aio-plain"))
    assert not idempotent(cluster.bootstrap, "aio-plain")


def test_administration(cluster: RealCluster) -> None:
    async def test() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        await admin.start()
        try:
            made = await admin.create_topics([NewTopic("aio", 2, 3)])
            assert [error for _, error, _ in made.topic_errors] == [0]
            assert "aio" in await admin.list_topics()
            await admin.create_partitions({"aio": NewPartitions(4)})
            (told,) = await admin.describe_topics(["aio"])
            assert len(told["partitions"]) == 4
            resource = ConfigResource(ConfigResourceType.TOPIC, "aio", configs={"retention.ms": "9000"})
            altered = await admin.alter_configs([resource])
            assert [one[0] for answer in altered for one in answer.resources] == [0]
            (described,) = await admin.describe_configs([resource])
            (topic,) = described.resources
            assert {entry[0]: entry[1] for entry in topic[4]}["retention.ms"] == "9000"
            assert len((await admin.describe_cluster())["brokers"]) == 3
            gone = await admin.delete_topics(["aio"])
            assert [error for _, error in gone.topic_error_codes] == [0]
            again = await admin.delete_topics(["aio"])
            assert [error for _, error in again.topic_error_codes] == [UnknownTopicOrPartitionError.errno]
        finally:
            await admin.close()

    run(test())
