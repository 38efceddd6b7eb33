"""Everything that a topic's readers of committed records get."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition

READ_SECONDS: Final = 60.0


class Record(NamedTuple):
    """One committed record; `value` is None for a tombstone."""

    partition: int
    offset: int
    key: str | None
    value: str | None


def read_until(
    bootstrap: str,
    topic: str,
    partitions: int,
    enough: Callable[[list[Record]], bool],
    seconds: float = READ_SECONDS,
) -> list[Record]:
    """What was committed from the beginning to the end, as soon as that is enough, or at the latest then."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False,
            "isolation.level": "read_committed", "enable.partition.eof": True, "log_level": 0,
        }
    )  # fmt: skip
    found: list[Record] = []
    ended: set[int] = set()
    deadline = time.monotonic() + seconds
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        while time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is None:
                continue
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    ended.add(partition)
                    if len(ended) == partitions and enough(found):
                        break
                continue
            assert offset is not None
            ended.discard(partition)
            found.append(Record(partition, offset, _text(message.key()), _text(message.value())))
    finally:
        consumer.close()
    return found


def _text(data: bytes | str | None) -> str | None:
    return data.decode() if isinstance(data, bytes) else data
