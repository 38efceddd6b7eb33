"""Administration by real clients against three real nodes: what they send, and what they make of answers."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from tests.clients.librdkafka_futures import done, refused
from tests.cluster.real_cluster import RealCluster, running_cluster

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas with importlib's old functions
    from aiokafka.admin import AIOKafkaAdminClient  # type: ignore[import-untyped]
    from aiokafka.admin import NewPartitions as AioPartitions
    from aiokafka.admin import NewTopic as AioTopic
    from kafka.admin import ConfigResource as PythonResource  # type: ignore[import-untyped]
    from kafka.admin import ConfigResourceType, KafkaAdminClient
    from kafka.admin import NewPartitions as PythonPartitions
    from kafka.admin import NewTopic as PythonTopic


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    folder: Path = tmp_path_factory.mktemp("cluster")
    with running_cluster(folder) as running:
        yield running


def test_librdkafka_administers_topics(cluster: RealCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    topic = NewTopic("rd", 3, 3, config={"retention.ms": "60000"})
    assert done(admin.create_topics([topic], validate_only=True)) == [None]
    assert "rd" not in admin.list_topics(timeout=60).topics
    assert done(admin.create_topics([topic])) == [None]
    led = admin.list_topics("rd", 5).topics["rd"].partitions.values()
    assert [(one.error, one.leader in one.replicas, len(one.isrs)) for one in led] == [(None, True, 3)] * 3
    assert refused(admin.create_topics([topic])) == "TOPIC_ALREADY_EXISTS"
    assert refused(admin.create_topics([NewTopic("wide", 1, 9)])) == "INVALID_REPLICATION_FACTOR"
    assert done(admin.create_partitions([NewPartitions("rd", 5)])) == [None]
    wanted = ConfigResource("topic", "rd")
    (configs,) = done(admin.describe_configs([wanted]))
    assert (configs["retention.ms"].value, configs["retention.ms"].source) == ("60000", 1)
    assert [one.name for one in configs["retention.ms"].synonyms.values()] == [
        "retention.ms",
        "log.retention.hours",
    ]
    appended = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND)
    changed = ConfigResource("topic", "rd", incremental_configs=[appended])
    assert done(admin.incremental_alter_configs([changed])) == [None]
    assert done(admin.describe_configs([wanted]))[0]["cleanup.policy"].value == "delete,compact"
    broker = ConfigResource("broker", "1", incremental_configs=[appended])
    assert refused(admin.incremental_alter_configs([broker])) == "INVALID_REQUEST"
    assert done(admin.delete_topics(["rd"])) == [None]
    assert refused(admin.delete_topics(["rd"])) == "UNKNOWN_TOPIC_OR_PART"


def test_librdkafka_sees_the_cluster_and_moves_leaders_back(cluster: RealCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    seen = admin.describe_cluster(request_timeout=60).result(60)
    assert [node.id for node in seen.nodes] == [1, 2, 3]
    assert seen.controller.id in (1, 2, 3)
    done(admin.create_topics([NewTopic("moved", 6, 3)]))
    partitions = [TopicPartition("moved", number) for number in range(6)]
    elected = admin.elect_leaders(ElectionType.PREFERRED, partitions).result(60)
    assert {None if error is None else error.name() for error in elected.values()} <= {
        None,
        "ELECTION_NOT_NEEDED",
    }
    told = admin.list_topics("moved", 5).topics["moved"].partitions.values()
    assert [one.leader for one in told] == [one.replicas[0] for one in told]


def test_librdkafka_creates_topics_by_using_them(cluster: RealCluster) -> None:
    settings: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap}
    producer = confluent_kafka.Producer({**settings, "enable.idempotence": True})
    failed: list[object] = []
    producer.produce("used", b"x", on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(60) == 0
    assert failed == [None]


def test_kafka_python_administers_topics(cluster: RealCluster) -> None:
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    try:
        (made,) = admin.create_topics([PythonTopic("py", 2, 3)])["topics"]
        assert (made["error_code"], made["num_partitions"], made["replication_factor"]) == (0, 2, 3)
        admin.create_partitions({"py": PythonPartitions(4)})
        (told,) = admin.describe_topics(["py"])
        assert len(told["partitions"]) == 4
        admin.alter_configs([PythonResource(ConfigResourceType.TOPIC, "py", configs={"retention.ms": "9"})])
        configs = admin.describe_configs([PythonResource(ConfigResourceType.TOPIC, "py")])
        assert configs["topic"]["py"]["retention.ms"]["value"] == "9"
        assert len(admin.describe_cluster()["brokers"]) == 3
        (gone,) = admin.delete_topics(["py"])["topics"]
        assert gone["error_code"] == 0
    finally:
        admin.close()


def test_aiokafka_administers_topics(cluster: RealCluster) -> None:
    async def test() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
        await admin.start()
        try:
            made = await admin.create_topics([AioTopic("aio", 2, 3)])
            assert [error for _, error, _ in made.topic_errors] == [0]
            await admin.create_partitions({"aio": AioPartitions(4)})
            (told,) = await admin.describe_topics(["aio"])
            assert len(told["partitions"]) == 4
            assert len((await admin.describe_cluster())["brokers"]) == 3
            gone = await admin.delete_topics(["aio"])
            assert [error for _, error in gone.topic_error_codes] == [0]
        finally:
            await admin.close()

    asyncio.run(test())
