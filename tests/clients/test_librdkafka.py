"""librdkafka, through confluent-kafka: what most clients outside of Java are made of."""

from __future__ import annotations

import time
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
    OffsetSpec,
)

from tests.clients.librdkafka_futures import done, refused
from tests.clients.records import (
    CODECS,
    PARTITIONS,
    Written,
    check_topic,
    codecs,
    idempotent,
    read_by_librdkafka,
    records,
)
from tests.cluster.real_cluster import RealCluster


def create(cluster: RealCluster, *topics: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    done(admin.create_topics([NewTopic(topic, PARTITIONS, 3, config=config) for topic in topics]))


def produce(cluster: RealCluster, topic: str, written: list[Written], **settings: Any) -> list[Any]:
    """Write, and the errors there were."""
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 10} | settings)
    failed: list[Any] = []
    for record in written:
        producer.produce(
            topic,
            record.value,
            record.key,
            -1 if record.partition is None else record.partition,
            lambda error, _: failed.append(error) if error else None,
            headers=list(record.headers),
        )
    assert producer.flush(60) == 0
    return failed


def test_every_compression_idempotent(cluster: RealCluster) -> None:
    topics = [f"rd-{codec}" for codec in CODECS]
    create(cluster, *topics)
    for topic, codec in zip(topics, CODECS, strict=True):
        settings = {"compression.type": codec, "enable.idempotence": True}
        assert produce(cluster, topic, records(topic), **settings) == []
    for topic, codec in zip(topics, CODECS, strict=True):
        check_topic(cluster.bootstrap, topic, records(topic))
        assert codecs(cluster.bootstrap, topic) == {codec}
        assert idempotent(cluster.bootstrap, topic)


@pytest.mark.parametrize("acks", ["1", "0"])
def test_not_idempotent(cluster: RealCluster, acks: str) -> None:
    topic = f"rd-acks-{acks}"
    create(cluster, topic)
    assert produce(cluster, topic, records(topic), acks=acks) == []
    check_topic(cluster.bootstrap, topic, records(topic))
    assert not idempotent(cluster.bootstrap, topic)


def test_keys_choose_partitions(cluster: RealCluster) -> None:
    create(cluster, "rd-keys")
    written = [Written(None, b"key-%d" % (number % 7), b"%d" % number) for number in range(210)]
    assert produce(cluster, "rd-keys", written) == []
    got = read_by_librdkafka(cluster.bootstrap, "rd-keys", len(written))
    places: dict[Any, set[int]] = {}
    for (partition, _), message in got.items():
        places.setdefault(message.key(), set()).add(partition)
    assert len(places) == 7
    assert all(len(partitions) == 1 for partitions in places.values())
    # Within a key, order is kept.
    for key in places:
        values = [int(got[place].value() or b"") for place in sorted(got) if got[place].key() == key]
        assert values == sorted(values)


def test_offsets_times_epochs_and_a_long_poll(cluster: RealCluster) -> None:
    create(cluster, "rd-offsets")
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap})
    now = int(time.time() * 1000) - 100_000
    for number in range(10):
        producer.produce("rd-offsets", b"%d" % number, partition=0, timestamp=now + 1000 * number)
        producer.flush(60)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 30_000,
        }
    )
    first = TopicPartition("rd-offsets", 0)
    assert consumer.get_watermark_offsets(first, 60) == (0, 10)
    times = [TopicPartition("rd-offsets", 0, now + 4500), TopicPartition("rd-offsets", 1, now)]
    assert [found.offset for found in consumer.offsets_for_times(times, 60)] == [
        5,
        confluent_kafka.OFFSET_END,
    ]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    newest = admin.list_offsets({first: OffsetSpec.max_timestamp()})  # type: ignore[no-untyped-call]
    assert [found.offset for found in done(newest)] == [9]
    consumer.assign([TopicPartition("rd-offsets", 0, 9)])
    message = consumer.poll(60)
    assert message is not None
    assert (message.offset(), message.timestamp()) == (9, (confluent_kafka.TIMESTAMP_CREATE_TIME, now + 9000))
    assert (message.leader_epoch() or 0) > 0
    # It waits at the end for up to thirty seconds, and what comes wakes it.
    assert consumer.poll(0.3) is None
    producer.produce("rd-offsets", b"later", partition=0)
    producer.flush(60)
    written = time.monotonic()
    later = consumer.poll(20)
    assert later is not None
    assert later.value() == b"later"
    assert time.monotonic() - written < 10
    consumer.close()


def test_the_broker_s_times(cluster: RealCluster) -> None:
    create(cluster, "rd-append", **{"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    assert produce(cluster, "rd-append", records("append", 30), **{"compression.type": "lz4"}) == []
    got = read_by_librdkafka(cluster.bootstrap, "rd-append", 30)
    kinds = {message.timestamp()[0] for message in got.values()}
    assert kinds == {confluent_kafka.TIMESTAMP_LOG_APPEND_TIME}
    assert all(before - 1000 <= message.timestamp()[1] <= before + 60_000 for message in got.values())


def test_topics(cluster: RealCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    topic = NewTopic("rd", 3, 3, config={"retention.ms": "60000"})
    assert done(admin.create_topics([topic], validate_only=True)) == [None]
    assert "rd" not in admin.list_topics(timeout=60).topics
    assert done(admin.create_topics([topic])) == [None]
    led = admin.list_topics("rd", 5).topics["rd"].partitions.values()
    assert [(one.error, one.leader in one.replicas, len(one.isrs)) for one in led] == [(None, True, 3)] * 3
    described = done(admin.describe_topics(confluent_kafka.TopicCollection(["rd"])))[0]
    assert (described.name, len(described.partitions), described.is_internal) == ("rd", 3, False)
    assert refused(admin.create_topics([topic])) == "TOPIC_ALREADY_EXISTS"
    assert refused(admin.create_topics([NewTopic("wide", 1, 9)])) == "INVALID_REPLICATION_FACTOR"
    assert refused(admin.create_topics([NewTopic("odd", 1, config={"no.such": "1"})])) == "INVALID_CONFIG"
    assert done(admin.create_partitions([NewPartitions("rd", 5)])) == [None]
    assert refused(admin.create_partitions([NewPartitions("rd", 4)])) == "INVALID_PARTITIONS"
    assert len(admin.list_topics("rd", 5).topics["rd"].partitions) == 5
    assert done(admin.delete_topics(["rd"])) == [None]
    assert refused(admin.delete_topics(["rd"])) == "UNKNOWN_TOPIC_OR_PART"


def test_configs(cluster: RealCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    create(cluster, "rd-configs", **{"retention.ms": "60000"})
    wanted = ConfigResource("topic", "rd-configs")
    (configs,) = done(admin.describe_configs([wanted]))
    assert (configs["retention.ms"].value, configs["retention.ms"].source) == ("60000", 1)
    synonyms = [one.name for one in configs["retention.ms"].synonyms.values()]
    assert synonyms == ["retention.ms", "log.retention.hours"]
    appended = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND)
    changed = ConfigResource("topic", "rd-configs", incremental_configs=[appended])
    assert done(admin.incremental_alter_configs([changed])) == [None]
    (configs,) = done(admin.describe_configs([wanted]))
    assert (configs["cleanup.policy"].value, configs["retention.ms"].value) == ("delete,compact", "60000")
    whole = ConfigResource("topic", "rd-configs", set_config={"segment.bytes": "2000000"})
    with pytest.warns(DeprecationWarning, match="alter_configs has been deprecated"):
        assert done(admin.alter_configs([whole])) == [None]
    (configs,) = done(admin.describe_configs([wanted]))
    assert (configs["segment.bytes"].value, configs["retention.ms"].value) == ("2000000", "604800000")
    (node,) = done(admin.describe_configs([ConfigResource("broker", "2")]))
    assert node["broker.id"].value == "2"
    broker = ConfigResource("broker", "1", incremental_configs=[appended])
    assert refused(admin.incremental_alter_configs([broker])) == "INVALID_REQUEST"


def test_the_cluster_and_its_leaders(cluster: RealCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    seen = admin.describe_cluster(request_timeout=60).result(60)
    assert [node.id for node in seen.nodes] == [1, 2, 3]
    assert seen.controller.id in (1, 2, 3)
    assert seen.cluster_id == cluster.description.cluster
    create(cluster, "rd-moved")
    partitions = [TopicPartition("rd-moved", number) for number in range(PARTITIONS)]
    elected = admin.elect_leaders(ElectionType.PREFERRED, partitions).result(60)
    codes = {None if error is None else error.name() for error in elected.values()}
    assert codes <= {None, "ELECTION_NOT_NEEDED"}
    told = admin.list_topics("rd-moved", 5).topics["rd-moved"].partitions.values()
    assert [one.leader for one in told] == [one.replicas[0] for one in told]


def test_a_topic_is_made_by_using_it(cluster: RealCluster) -> None:
    assert produce(cluster, "rd-used", [Written(None, None, b"x")], **{"enable.idempotence": True}) == []
    got = read_by_librdkafka(cluster.bootstrap, "rd-used", 1, partitions=1)
    assert [message.value() for message in got.values()] == [b"x"]
