"""What the clients write and read: the same records for each, so that any of them can read any other's."""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

import confluent_kafka

from tests.clients.wire import stored

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS: Final = 3
COUNT: Final = 300
READ_SECONDS: Final = 40.0


class Written(NamedTuple):
    """One record; `partition` is the one the client was told to write to, or None when the key chooses it."""

    partition: int | None
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


Read = dict[tuple[int, int], tuple[bytes | None, bytes | None]]
"""Key and value of each record by partition and offset."""


def records(name: str, count: int = COUNT) -> list[Written]:
    """Round and round the partitions: every second record has a key, every fifth headers."""
    return [
        Written(
            number % PARTITIONS,
            b"key-%d" % number if number % 2 else None,
            f"{name}-{number}-".encode() * 8,
            (("kind", b"fifth"), ("empty", b"")) if number % 5 == 0 else (),
        )
        for number in range(count)
    ]


def expected(written: list[Written]) -> Read:
    """Where records lie that were written to an empty topic in this order."""
    ends: dict[int, int] = {}
    found: Read = {}
    for record in written:
        assert record.partition is not None
        offset = ends.get(record.partition, 0)
        ends[record.partition] = offset + 1
        found[record.partition, offset] = (record.key, record.value)
    return found


def read_by_librdkafka(
    bootstrap: str, topic: str, count: int, partitions: int = PARTITIONS, seconds: float = READ_SECONDS
) -> dict[tuple[int, int], confluent_kafka.Message]:
    """The first `count` messages of a topic, and what comes with them; fewer if they do not come in time."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False, "check.crcs": True}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)])
    got: dict[tuple[int, int], confluent_kafka.Message] = {}
    deadline = time.monotonic() + seconds
    while len(got) < count and time.monotonic() < deadline:
        for message in consumer.consume(count, 0.2):
            assert message.error() is None, message.error()
            place: Any = (message.partition(), message.offset())
            got[place] = message
    consumer.close()
    return got


def check_topic(bootstrap: str, topic: str, written: list[Written]) -> None:
    """A topic holds these records, no others, in this order; read with librdkafka, CRCs checked."""
    got = read_by_librdkafka(bootstrap, topic, len(written))
    assert {place: (message.key(), message.value()) for place, message in got.items()} == expected(written)
    with_headers = {bytes(message.value() or b""): message.headers() for message in got.values()}
    assert with_headers == {record.value: list(record.headers) or None for record in written}


def codecs(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> set[str]:
    """How the batches of a topic are compressed where they lie."""
    return {
        header.compression.name.lower()
        for number in range(partitions)
        for header in stored(bootstrap, topic, number)
    }


def idempotent(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> bool:
    """Whether all batches have a producer id. ValueError when only some of them do."""
    (found,) = {
        header.producer_id >= 0 for number in range(partitions) for header in stored(bootstrap, topic, number)
    }
    return found
