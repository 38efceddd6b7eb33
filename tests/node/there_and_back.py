"""Records that librdkafka writes and reads back, by settings that say how it connects."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, Producer

from tests.node.one_node import SECONDS


def there_and_back(settings: Mapping[str, Any], topic: str, values: Sequence[bytes]) -> list[bytes]:
    """The values as a group reads them, after all were acknowledged; as many as came in time."""
    producer = Producer(dict(settings))
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(SECONDS) == 0
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    read: list[bytes] = []
    deadline = time.monotonic() + SECONDS
    while len(read) < len(values) and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            read.append(message.value() or b"")
    consumer.close()
    return read
