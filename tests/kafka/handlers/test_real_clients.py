"""Real clients produce and read through the real requests; one of them with fetch sessions."""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import aiokafka  # type: ignore[import-untyped]
import confluent_kafka
import pytest
import uvloop

from strandline.node.controller.leaders import Leader
from strandline.node.kafka.handlers.handler import BrokerHandler
from strandline.node.kafka.wire.apis import ApiKey
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.server import KafkaServer, ListenAddress
from strandline.node.kafka.wire.server_config import ConnectionProblem, ServerConfig
from strandline.statemachine.controller.controller_commands import RegisterNode
from tests.kafka.handlers.fake_cluster import TERM
from tests.kafka.handlers.fake_node import FakeNode

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas with importlib's old functions
    import kafka  # type: ignore[import-untyped]

COUNT = 300
CLIENTS = ("librdkafka", "aiokafka", "kafka-python")


class Served:
    """Node 1 on a loop of its own thread, with a topic of two partitions for each client."""

    def __init__(self) -> None:
        self.problems: list[ConnectionProblem] = []
        self.sessions: set[tuple[str | None, int, int, int]] = set()
        """(client id, version, session id, session epoch) of every fetch."""
        self.server: KafkaServer
        self.node: FakeNode
        self._ready: Future[None] = Future()
        self._stop: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()))

    def start(self) -> None:
        self._thread.start()
        self._ready.result(60)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def handle(self, request: Request) -> Any:
        if request.header.api_key == ApiKey.FETCH and request.header.api_version >= 7:
            ask = request.payload
            header = request.header
            self.sessions.add((header.client_id, header.api_version, ask.session_id, ask.session_epoch))
        return await self._handler.handle(request)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        node = FakeNode()
        self._handler = BrokerHandler(node.context)
        self.server = KafkaServer(
            self,
            loop=self._loop,
            config=ServerConfig(),
            on_problem=self.problems.append,
            on_lost=node.fetches.lost,
        )
        self.node = node
        await self.server.start([ListenAddress("127.0.0.1", 0)])
        for number, present in node.cluster.leader.nodes.items():
            replaces, port = present.boot_id, self.server.port
            node.cluster.apply(
                RegisterNode(number, 99, replaces, "127.0.0.1", port, "n", 7000, 8080, 1, 1, 0, 500 + number)
            )
        node.now_ms = int(time.time() * 1000)
        for name in CLIENTS:
            topic = node.topic(name, 2)
            for partition in topic.partitions:
                node.leaders.others[partition.group] = Leader(1, TERM)
        self._ready.set_result(None)
        await self._stop.wait()
        await self.server.stop(0.1)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    made = Served()
    made.start()
    try:
        yield made
    finally:
        made.stop()
    assert made.problems == []
    assert made.server.request_bytes == 0
    assert made.node.fetches.partitions == 0
    assert not any(one.watchers for one in made.node.partitions.replicas.values())


def values() -> list[bytes]:
    return [b"%d" % number * 10 for number in range(COUNT)]


def expected() -> dict[tuple[int, int], bytes]:
    return {(number % 2, number // 2): value for number, value in enumerate(values())}


def test_librdkafka(served: Served) -> None:
    settings = {"bootstrap.servers": served.address, "client.id": "librdkafka"}
    producer = confluent_kafka.Producer({**settings, "enable.idempotence": True, "linger.ms": 5})
    failed: list[object] = []
    for number, value in enumerate(values()):
        producer.produce(
            "librdkafka",
            value,
            partition=number % 2,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(60) == 0
    assert failed == []
    waits = {"group.id": "none", "enable.auto.commit": False, "fetch.wait.max.ms": 30_000}
    consumer = confluent_kafka.Consumer({**settings, **waits})
    consumer.assign([confluent_kafka.TopicPartition("librdkafka", number, 0) for number in range(2)])
    got: dict[tuple[object, object], object] = {}
    deadline = time.monotonic() + 40
    while len(got) < COUNT and time.monotonic() < deadline:
        for message in consumer.consume(COUNT, 0.2):
            assert message.error() is None
            got[message.partition(), message.offset()] = message.value()
    assert got == expected()
    # Records that come later wake the long poll that waits for them.
    started = time.monotonic()
    producer.produce("librdkafka", b"later", partition=1)
    assert producer.flush(60) == 0
    later = consumer.poll(20)
    assert time.monotonic() - started < 10
    assert later is not None
    assert (later.value(), later.offset()) == (b"later", COUNT // 2)
    consumer.close()
    check_sessions(served, "librdkafka")


def test_aiokafka(served: Served) -> None:
    async def run() -> None:
        settings = {"bootstrap_servers": served.address, "client_id": "aiokafka"}
        producer = aiokafka.AIOKafkaProducer(**settings, enable_idempotence=True)
        await producer.start()
        sent = [await producer.send("aiokafka", value, partition=n % 2) for n, value in enumerate(values())]
        assert [(await one).offset for one in sent] == [number // 2 for number in range(COUNT)]
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(**settings, group_id=None)
        await consumer.start()
        partitions = [aiokafka.TopicPartition("aiokafka", number) for number in range(2)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        got: dict[tuple[int, int], bytes] = {}
        deadline = time.monotonic() + 40
        while len(got) < COUNT and time.monotonic() < deadline:
            for partition, messages in (await consumer.getmany(timeout_ms=200)).items():
                got |= {(partition.partition, message.offset): message.value for message in messages}
        ends = await consumer.end_offsets(partitions)
        await consumer.stop()
        assert got == expected()
        assert [*ends.values()] == [COUNT // 2] * 2

    asyncio.run(run())
    check_sessions(served, "aiokafka")


def test_kafka_python(served: Served) -> None:
    settings = {"bootstrap_servers": served.address, "client_id": "kafka-python"}
    producer = kafka.KafkaProducer(**settings)
    sent = [producer.send("kafka-python", value, partition=n % 2) for n, value in enumerate(values())]
    assert [one.get(10).offset for one in sent] == [number // 2 for number in range(COUNT)]
    producer.close()
    consumer = kafka.KafkaConsumer(**settings, group_id=None, consumer_timeout_ms=10_000)
    partitions = [kafka.TopicPartition("kafka-python", number) for number in range(2)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    got = {}
    for message in consumer:
        got[message.partition, message.offset] = message.value
        if len(got) == COUNT:
            break
    assert not consumer.poll(700)
    producer = kafka.KafkaProducer(**settings)
    producer.send("kafka-python", b"later", partition=1).get(10)
    producer.close()
    assert [one.value for some in consumer.poll(10_000).values() for one in some] == [b"later"]
    consumer.close()
    assert got == expected()
    asked = {found[2:] for found in served.sessions if found[0] == "kafka-python"}
    (number,) = {session for session, _ in asked} - {0}
    epochs = sorted(epoch for session, epoch in asked if session == number)
    assert epochs == [*range(1, len(epochs) + 1)]
    assert (0, 0) in asked, "it has begun with a whole request"


def check_sessions(served: Served, client: str) -> None:
    """The client knows no sessions: all its requests are whole."""
    asked = {found[1:] for found in served.sessions if found[0] == client}
    assert all((session, epoch) in ((0, -1), (0, 0)) for _, session, epoch in asked), asked
