"""Creates a topic of thousands of partitions, and waits until all of them are led."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka.admin import AdminClient as KafkaAdmin
from confluent_kafka.cimpl import NewTopic

LED_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.2


def create_topic(admin: KafkaAdmin, topic: str, partitions: int, replicas: int) -> None:
    """In one request. Raises KafkaException."""
    new = NewTopic(topic, partitions, replicas)
    admin.create_topics([new], request_timeout=LED_SECONDS)[topic].result(LED_SECONDS)


def seconds_until_led(
    admin: KafkaAdmin, topic: str, partitions: int, began: float, without: int | None = None
) -> float:
    """Wait until all partitions are led, none by the node `without`; seconds since `began`.

    Raises KafkaException, and TimeoutError after LED_SECONDS.
    """
    while time.monotonic() - began < LED_SECONDS:
        leaders = [
            each.leader for each in admin.list_topics(topic, LED_SECONDS).topics[topic].partitions.values()
        ]
        if len(leaders) == partitions and min(leaders) >= 0 and without not in leaders:
            return time.monotonic() - began
        time.sleep(_POLL_SECONDS)
    raise TimeoutError(f"not all partitions are led after {LED_SECONDS:g} s")
