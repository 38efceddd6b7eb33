"""`min.insync.replicas` with a real client and three real nodes, one of which is killed."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.cluster.real_cluster import RealCluster, real_cluster

__all__ = ["real_cluster"]


def produced(cluster: RealCluster, topic: str, acks: str) -> str:
    """How one record that is sent once was answered."""
    told: list[str] = []

    def heard(error: KafkaError | None, message: Message) -> None:
        told.append("ok" if error is None else error.name())

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": acks, "retries": 0})
    producer.produce(topic, b"value", on_delivery=heard)
    assert producer.flush(60) == 0
    return told[0]


def until(wanted: str, what: Callable[[], str]) -> None:
    """Leaders move when a node dies or comes back: in between a record may meet anything."""
    deadline = time.monotonic() + 40
    while (got := what()) != wanted:
        assert time.monotonic() < deadline, f"{got}, not {wanted}"
        time.sleep(0.2)


def test_three_replicas_in_sync_are_wanted_and_one_is_killed(real_cluster: RealCluster) -> None:
    admin = AdminClient({"bootstrap.servers": real_cluster.bootstrap})
    with pytest.raises(KafkaException, match="replication factor is 3"):
        admin.create_topics([NewTopic("four", 1, 3, config={"min.insync.replicas": "4"})])["four"].result(60)
    topics = {"two": "2", "three": "3"}
    made = [NewTopic(name, 1, 3, config={"min.insync.replicas": wanted}) for name, wanted in topics.items()]
    for future in admin.create_topics(made).values():
        future.result(60)
    assert {produced(real_cluster, topic, "all") for topic in topics} == {"ok"}
    real_cluster.kill(3)
    until("NOT_ENOUGH_REPLICAS", lambda: produced(real_cluster, "three", "all"))
    until("ok", lambda: produced(real_cluster, "two", "all"))
    until("ok", lambda: produced(real_cluster, "three", "1"))
    real_cluster.start(3)
    until("ok", lambda: produced(real_cluster, "three", "all"))
