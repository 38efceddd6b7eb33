"""Records deleted by every client that can: they are gone for all readers, the others stay."""

from __future__ import annotations

import asyncio
import json
import warnings
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.cluster.real_cluster import RealCluster
from tests.peers.kafka_tools import TOOLS, KafkaTools

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas with importlib's old functions
    from aiokafka import TopicPartition as AioPartition  # type: ignore[import-untyped]
    from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete  # type: ignore[import-untyped]
    from kafka import TopicPartition as PythonPartition  # type: ignore[import-untyped]
    from kafka.admin import KafkaAdminClient  # type: ignore[import-untyped]

COUNT = 20


def filled(cluster: RealCluster, topic: str, **configs: str) -> None:
    """Two partitions with COUNT records each."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    made = NewTopic(topic, 2, 3, config={name.replace("_", "."): text for name, text in configs.items()})
    admin.create_topics([made])[topic].result(60)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(COUNT):
        for partition in range(2):
            producer.produce(topic, f"{number}".encode(), partition=partition)
    assert producer.flush(30) == 0


def left(cluster: RealCluster, topic: str) -> list[tuple[int, int, str]]:
    """First offset, end and first value of each partition, as a consumer from the beginning sees them."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "none",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    found = []
    for partition in range(2):
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=60)
        first = ""
        if low < high:
            # From before the start, so that the client is sent back to it.
            consumer.assign([TopicPartition(topic, partition, 0)])
            message = consumer.poll(20)
            assert message is not None
            assert (message.error(), message.offset()) == (None, low)
            first = (message.value() or b"").decode()
        found.append((low, high, first))
    consumer.close()
    return found


def test_by_librdkafka(cluster: RealCluster) -> None:
    filled(cluster, "deleted-rd")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    asked = [TopicPartition("deleted-rd", 0, 7), TopicPartition("deleted-rd", 1, confluent_kafka.OFFSET_END)]
    done = admin.delete_records(asked, request_timeout=60)
    assert sorted((one.partition, future.result(60).low_watermark) for one, future in done.items()) == [
        (0, 7),
        (1, COUNT),
    ]
    assert left(cluster, "deleted-rd") == [(7, COUNT, "7"), (COUNT, COUNT, "")]
    (refused,) = admin.delete_records([TopicPartition("deleted-rd", 0, COUNT + 1)]).values()
    with pytest.raises(KafkaException) as caught:
        refused.result(60)
    assert caught.value.args[0].name() == "OFFSET_OUT_OF_RANGE"


def test_of_a_compacted_topic_are_kept(cluster: RealCluster) -> None:
    filled(cluster, "deleted-not", cleanup_policy="compact")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (refused,) = admin.delete_records([TopicPartition("deleted-not", 0, 1)]).values()
    with pytest.raises(KafkaException) as caught:
        refused.result(60)
    assert caught.value.args[0].name() == "POLICY_VIOLATION"


def test_by_kafka_python(cluster: RealCluster) -> None:
    filled(cluster, "deleted-py")
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    try:
        admin.delete_records({PythonPartition("deleted-py", 0): 5, PythonPartition("deleted-py", 1): 9})
    finally:
        admin.close()
    assert left(cluster, "deleted-py") == [(5, COUNT, "5"), (9, COUNT, "9")]


def test_by_aiokafka(cluster: RealCluster) -> None:
    filled(cluster, "deleted-aio")

    async def test() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
        await admin.start()
        try:
            first, second = AioPartition("deleted-aio", 0), AioPartition("deleted-aio", 1)
            wanted = {first: RecordsToDelete(before_offset=3), second: RecordsToDelete(before_offset=-1)}
            assert await admin.delete_records(wanted) == {first: 3, second: COUNT}
        finally:
            await admin.close()

    asyncio.run(test())
    assert left(cluster, "deleted-aio") == [(3, COUNT, "3"), (COUNT, COUNT, "")]


def test_by_kafkas_own_tool(cluster: RealCluster, tools: KafkaTools, tmp_path: Path) -> None:
    filled(cluster, "deleted-java")
    file = tmp_path / "offsets.json"
    asked = [
        {"topic": "deleted-java", "partition": 0, "offset": 4},
        {"topic": "deleted-java", "partition": 1, "offset": 99},
    ]
    file.write_text(json.dumps({"partitions": asked, "version": 1}))
    done = tools.run(tools.tool(f"{TOOLS}.DeleteRecordsCommand", "--offset-json-file", str(file)))
    assert done.code == 0, done
    assert "partition: deleted-java-0\tlow_watermark: 4" in done.out
    assert (
        "partition: deleted-java-1\terror: org.apache.kafka.common.errors.OffsetOutOfRangeException"
        in done.out
    )
    assert left(cluster, "deleted-java") == [(4, COUNT, "4"), (0, COUNT, "0")]
