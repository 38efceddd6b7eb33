"""A version's two Kafka clients, with their settings by librdkafka's names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer

from strandline.cluster.kafka_client import client_config
from strandline.cluster.view_worker import limits, outputs
from strandline.cluster.view_worker.fetched import Place
from strandline.cluster.view_worker.node_link import TopicPlace
from strandline.cluster.view_worker.surroundings import Surroundings

CONNECT_SECONDS: Final = 2.0
"""For each of the two before a pause, which is only quicker by it."""


def consumer_settings(way: Mapping[str, str], group: str) -> dict[str, Any]:
    """Of the consumer of a version's group, which reads no records but what the group has committed.

    `way` is the node's address, and the login there.
    """
    return client_config(
        way["bootstrap.servers"],
        **way,
        client_id=group,
        group_id=group,
        enable_auto_commit=False,
        enable_auto_offset_store=False,
        isolation_level="read_committed",
    )


def producer_settings(way: Mapping[str, str], group: str, batch_bytes: int) -> dict[str, Any]:
    """Of the transactional producer, whose batches have `batch_bytes` at most."""
    return client_config(
        way["bootstrap.servers"],
        **way,
        client_id=group,
        transactional_id=group,
        transaction_timeout_ms=60_000,
        linger_ms=1,
        message_max_bytes=limits.MOST_MESSAGE_BYTES,
        batch_size=batch_bytes,
        partitioner="murmur2_random",
    )


def made(
    around: Surroundings, way: Mapping[str, str], group: str, written: Iterable[TopicPlace]
) -> tuple[Consumer, Producer]:
    """Make both clients of a version, which writes these topics."""
    settings = producer_settings(way, group, limits.batch_bytes(written))
    return around.consumer(consumer_settings(way, group)), around.producer(settings)


def connect(consumer: Consumer, producer: Producer, places: Iterable[Place]) -> None:
    """Have the consumer find its group, and the producer a node: both would first connect when they are used.

    Where that fails they do so then.
    """
    places = list(places)
    with suppress(KafkaException):
        outputs.committed(consumer, places, CONNECT_SECONDS)
    for topic, _ in places[:1]:
        with suppress(KafkaException):
            producer.list_topics(topic, CONNECT_SECONDS)
