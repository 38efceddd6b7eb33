"""A version's two Kafka clients: librdkafka's consumer for what its group has committed, and the producer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException

from strandline.cluster.kafka_client import client_config
from strandline.cluster.view_worker import outputs
from strandline.cluster.view_worker.fetched import Place
from strandline.cluster.view_worker.producing import Producer
from strandline.cluster.view_worker.surroundings import Surroundings

CONNECT_SECONDS: Final = 2.0
"""Before a pause, which is only quicker by it."""


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


def made(around: Surroundings, way: Mapping[str, str], group: str) -> tuple[Consumer, Producer]:
    """Make both clients of a version."""
    return around.consumer(consumer_settings(way, group)), around.producer(way, group)


def connect(consumer: Consumer, producer: Producer, places: Iterable[Place]) -> None:
    """Have both find their coordinators: they would first connect when they are used.

    Where that fails they do so then.
    """
    with suppress(KafkaException):
        outputs.committed(consumer, places, CONNECT_SECONDS)
    producer.connect()
