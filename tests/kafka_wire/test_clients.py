"""Real clients against the protocol package, with a toy log behind it."""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import aiokafka  # type: ignore[import-untyped]
import confluent_kafka
import pytest
import uvloop
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from strandline.node.kafka.wire.record_batch import read_header
from strandline.node.kafka.wire.server import KafkaServer
from strandline.node.kafka.wire.server_config import Problem, ServerConfig
from tests.kafka_toy_broker import ToyBroker

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas with importlib's old functions
    import kafka  # type: ignore[import-untyped]
    from kafka.admin import KafkaAdminClient  # type: ignore[import-untyped]
    from kafka.admin import NewTopic as PythonNewTopic

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
COUNT = 500


class Toy:
    """The toy broker on a loop of its own thread."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.broker: ToyBroker
        self.server: KafkaServer
        self._ready: Future[None] = Future()
        self._stop: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()))

    def start(self) -> None:
        self._thread.start()
        self._ready.result(10)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def codecs(self, topic: str) -> set[str]:
        partitions = self.broker.topics[topic].partitions
        return {read_header(data).compression.name.lower() for part in partitions for _, data in part.batches}

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.broker = ToyBroker(self._loop)
        config = ServerConfig()
        self.server = KafkaServer(
            self.broker, loop=self._loop, config=config, on_problem=self.problems.append
        )
        await self.server.start("127.0.0.1", 0)
        self.broker.address = ("127.0.0.1", self.server.port)
        self._ready.set_result(None)
        await self._stop.wait()
        await self.server.stop(0.1)


@contextmanager
def running() -> Iterator[Toy]:
    served = Toy()
    served.start()
    try:
        yield served
    finally:
        served.stop()


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
    assert [producer.flush(10) for producer in producers] == [0] * len(CODECS)
    assert failed == []
    consumer = confluent_kafka.Consumer({**settings, "group.id": "none", "enable.auto.commit": False})
    partitions = [confluent_kafka.TopicPartition(codec, index, 0) for codec in CODECS for index in range(3)]
    consumer.assign(partitions)
    got: dict[tuple[object, ...], object] = {}
    deadline = time.monotonic() + 10
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
        made.result(5)
    assert len(admin.list_topics("made", 5).topics["made"].partitions) == 2
    for grown in admin.create_partitions([NewPartitions("made", 4)]).values():
        grown.result(5)
    assert len(admin.list_topics("made", 5).topics["made"].partitions) == 4
    resource = ConfigResource(ConfigResource.Type.TOPIC, "made")
    for described in admin.describe_configs([resource]).values():
        assert described.result(5)["cleanup.policy"].value == "delete"
    change = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ConfigResource.Type.TOPIC, "made", incremental_configs=[change])
    for altered in admin.incremental_alter_configs([changed]).values():
        altered.result(5)
    assert admin.describe_cluster(request_timeout=5).result(5).cluster_id == "toy"
    for deleted in admin.delete_topics(["made"]).values():
        deleted.result(5)
    assert "made" not in admin.list_topics(timeout=5).topics


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
        deadline = time.monotonic() + 10
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
    producer.flush(10)
    assert [one.get(5).offset for one in sent] == [number // 3 for number in range(COUNT)]
    producer.close()
    consumer = kafka.KafkaConsumer(bootstrap_servers=toy.address, group_id=None, enable_auto_commit=False)
    partitions = [kafka.TopicPartition(topic, index) for index in range(3)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    got: dict[tuple[int, int], bytes] = {}
    deadline = time.monotonic() + 10
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
