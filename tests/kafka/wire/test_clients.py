"""Real clients against the protocol package, with a toy log behind it."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Iterator

import aiokafka  # type: ignore[import-untyped]
import confluent_kafka
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from tests.kafka.wire.toy_server import Toy, running

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas with importlib's old functions
    import kafka  # type: ignore[import-untyped]
    from kafka.admin import KafkaAdminClient  # type: ignore[import-untyped]
    from kafka.admin import NewTopic as PythonNewTopic

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
COUNT = 500


@pytest.fixture(scope="module")
def toy() -> Iterator[Toy]:
    with running() as served:
        yield served
        assert served.problems == []
        assert served.server.request_bytes == 0


def values(prefix: str) -> list[bytes]:
    return [f"{prefix}-{number}".encode() * 10 for number in range(COUNT)]


def test_librdkafka_produces_and_reads_with_every_compression(toy: Toy) -> None:
    settings = {"bootstrap.servers": toy.address}
    failed: list[object] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failed.append(error)

    producers = [
        confluent_kafka.Producer(
            {**settings, "enable.idempotence": True, "compression.type": codec, "linger.ms": 20}
        )
        for codec in CODECS
    ]
    expected: dict[tuple[object, ...], object] = {}
    for codec, producer in zip(CODECS, producers, strict=True):
        for number, value in enumerate(values(codec)):
            producer.produce(codec, value, partition=number % 3, on_delivery=delivered)
            expected[codec, number % 3, number // 3] = value
    assert [producer.flush(60) for producer in producers] == [0] * len(CODECS)
    assert failed == []
    consumer = confluent_kafka.Consumer({**settings, "group.id": "none", "enable.auto.commit": False})
    partitions = [confluent_kafka.TopicPartition(codec, index, 0) for codec in CODECS for index in range(3)]
    consumer.assign(partitions)
    got: dict[tuple[object, ...], object] = {}
    deadline = time.monotonic() + 30
    while len(got) < len(expected) and time.monotonic() < deadline:
        for message in consumer.consume(len(expected), 0.2):
            assert message.error() is None
            got[message.topic(), message.partition(), message.offset()] = message.value()
    assert got == expected
    ends = [consumer.get_watermark_offsets(partition, 5) for partition in partitions[:3]]
    assert ends == [(0, 167), (0, 167), (0, 166)]
    (found,) = consumer.offsets_for_times([confluent_kafka.TopicPartition("gzip", 0, 1)], 5)
    assert found.offset == 0
    consumer.close()
    assert [toy.codecs(codec) for codec in CODECS] == [{codec} for codec in CODECS]


def test_librdkafka_s_admin_calls(toy: Toy) -> None:
    admin = AdminClient({"bootstrap.servers": toy.address})
    for made in admin.create_topics([NewTopic("made", 2, 1)]).values():
        made.result(60)
    assert len(admin.list_topics("made", 5).topics["made"].partitions) == 2
    for grown in admin.create_partitions([NewPartitions("made", 4)]).values():
        grown.result(60)
    assert len(admin.list_topics("made", 5).topics["made"].partitions) == 4
    resource = ConfigResource(ConfigResource.Type.TOPIC, "made")
    for described in admin.describe_configs([resource]).values():
        assert described.result(60)["cleanup.policy"].value == "delete"
    change = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ConfigResource.Type.TOPIC, "made", incremental_configs=[change])
    for altered in admin.incremental_alter_configs([changed]).values():
        altered.result(60)
    assert admin.describe_cluster(request_timeout=60).result(60).cluster_id == "toy"
    for deleted in admin.delete_topics(["made"]).values():
        deleted.result(60)
    assert "made" not in admin.list_topics(timeout=60).topics


@pytest.mark.parametrize("codec", CODECS)
def test_aiokafka_produces_and_reads(toy: Toy, codec: str) -> None:
    topic = f"aiokafka-{codec}"

    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=toy.address,
            enable_idempotence=True,
            compression_type=None if codec == "none" else codec,
        )
        await producer.start()
        sent = [await producer.send(topic, value, partition=n % 3) for n, value in enumerate(values(codec))]
        offsets = [(await one).offset for one in sent]
        await producer.stop()
        assert offsets == [number // 3 for number in range(COUNT)]
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=toy.address, group_id=None)
        await consumer.start()
        partitions = [aiokafka.TopicPartition(topic, index) for index in range(3)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        got: dict[tuple[int, int], bytes] = {}
        deadline = time.monotonic() + 30
        while len(got) < COUNT and time.monotonic() < deadline:
            for partition, messages in (await consumer.getmany(timeout_ms=200)).items():
                got |= {(partition.partition, message.offset): message.value for message in messages}
        times = await consumer.offsets_for_times({partitions[0]: 1})
        await consumer.stop()
        assert got == {(n % 3, n // 3): value for n, value in enumerate(values(codec))}
        assert times[partitions[0]].offset == 0

    asyncio.run(run())
    assert toy.codecs(topic) == {codec}


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_kafka_python_produces_and_reads(toy: Toy, codec: str) -> None:
    topic = f"python-{codec}"
    producer = kafka.KafkaProducer(
        bootstrap_servers=toy.address, compression_type=None if codec == "none" else codec, linger_ms=20
    )
    sent = [producer.send(topic, value, partition=n % 3) for n, value in enumerate(values(codec))]
    producer.flush(60)
    assert [one.get(5).offset for one in sent] == [number // 3 for number in range(COUNT)]
    producer.close()
    consumer = kafka.KafkaConsumer(bootstrap_servers=toy.address, group_id=None, enable_auto_commit=False)
    partitions = [kafka.TopicPartition(topic, index) for index in range(3)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    got: dict[tuple[int, int], bytes] = {}
    deadline = time.monotonic() + 30
    while len(got) < COUNT and time.monotonic() < deadline:
        for partition, messages in consumer.poll(200).items():
            got |= {(partition.partition, message.offset): message.value for message in messages}
    assert consumer.end_offsets(partitions) == dict(zip(partitions, (167, 167, 166), strict=True))
    consumer.close()
    assert got == {(n % 3, n // 3): value for n, value in enumerate(values(codec))}
    assert toy.codecs(topic) == {codec}


def test_kafka_python_s_admin_calls(toy: Toy) -> None:
    admin = KafkaAdminClient(bootstrap_servers=toy.address)
    admin.create_topics([PythonNewTopic("by-python", 2, 1)])
    assert "by-python" in admin.list_topics()
    admin.delete_topics(["by-python"])
    assert "by-python" not in admin.list_topics()
    admin.close()
