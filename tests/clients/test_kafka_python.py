"""kafka-python: pure Python, with yet another implementation of the protocol."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

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

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas with importlib's old functions
    import kafka  # type: ignore[import-untyped]
    from kafka.admin import (  # type: ignore[import-untyped]
        ConfigResource,
        ConfigResourceType,
        KafkaAdminClient,
        NewPartitions,
        NewTopic,
    )
    from kafka.errors import UnknownTopicOrPartitionError  # type: ignore[import-untyped]


@pytest.fixture(scope="module")
def admin(cluster: RealCluster) -> Iterator[Any]:
    made = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    yield made
    made.close()


def produce(cluster: RealCluster, topic: str, **settings: Any) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap.split(","), linger_ms=10, **settings)
    try:
        sent = [
            producer.send(topic, one.value, one.key, list(one.headers), one.partition)
            for one in records(topic)
        ]
        offsets = [one.get(10).offset for one in sent]
        assert offsets == [number // PARTITIONS for number in range(len(sent))]
    finally:
        producer.close(10)


@pytest.mark.parametrize("codec", CODECS)
def test_every_compression_idempotent(cluster: RealCluster, admin: Any, codec: str) -> None:
    topic = f"py-{codec}"
    admin.create_topics([NewTopic(topic, PARTITIONS, 3)])
    produce(cluster, topic, compression_type=None if codec == "none" else codec, enable_idempotence=True)
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=cluster.bootstrap.split(","), group_id=None, enable_auto_commit=False
    )
    try:
        partitions = [kafka.TopicPartition(topic, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        got: dict[tuple[int, int], tuple[bytes | None, bytes]] = {}
        wanted = expected(records(topic))
        deadline = time.monotonic() + READ_SECONDS
        while len(got) < len(wanted) and time.monotonic() < deadline:
            for found in consumer.poll(200).values():
                got |= {(one.partition, one.offset): (one.key, one.value) for one in found}
        assert got == wanted
        assert sum(consumer.end_offsets(partitions).values()) == len(wanted)
        assert consumer.offsets_for_times({partitions[0]: 1})[partitions[0]].offset == 0
    finally:
        consumer.close()
    check_topic(cluster.bootstrap, topic, records(topic))
    assert codecs(cluster.bootstrap, topic) == {codec}
    assert idempotent(cluster.bootstrap, topic)


def test_not_idempotent(cluster: RealCluster, admin: Any) -> None:
    admin.create_topics([NewTopic("py-plain", PARTITIONS, 3)])
    produce(cluster, "py-plain", acks=1, enable_idempotence=False)
    check_topic(cluster.bootstrap, "py-plain", records("py-plain"))
    assert not idempotent(cluster.bootstrap, "py-plain")


def test_administration(admin: Any) -> None:
    (made,) = admin.create_topics([NewTopic("py", 2, 3)])["topics"]
    assert (made["error_code"], made["num_partitions"], made["replication_factor"]) == (0, 2, 3)
    assert "py" in admin.list_topics()
    admin.create_partitions({"py": NewPartitions(4)})
    (told,) = admin.describe_topics(["py"])
    assert len(told["partitions"]) == 4
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, "py", configs={"retention.ms": "9"})])
    configs = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, "py")])
    assert configs["topic"]["py"]["retention.ms"]["value"] == "9"
    assert len(admin.describe_cluster()["brokers"]) == 3
    (gone,) = admin.delete_topics(["py"])["topics"]
    assert gone["error_code"] == 0
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics(["py"])
