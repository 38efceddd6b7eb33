"""What a kept cluster holds: written by the build that makes one, looked for by every later build."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import confluent_kafka
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
PLAIN: Final = "plain"
TABLE: Final = "table"
MOVES: Final = "moves"
BULK: Final = "bulk"
"""So much in its log that its replicas take snapshots."""
BULK_RECORDS: Final = 1_200
GROUP: Final = "readers"
COMMITS: Final = 21_000
"""So many that the group's coordinators take snapshots."""
COMMITTED: Final = 7
"""Offset of the group in the first partition of `PLAIN`."""
USER: Final = "alice"
QUOTA: Final = 1_048_576
SECONDS: Final = 60.0
COMPACTING: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1000",
    "segment.ms": "1000",
}
Records = list[tuple[bytes | None, bytes | None]]


def create(bootstrap: str) -> None:
    """Create the topics. Raises KafkaException."""
    topics = [
        NewTopic(PLAIN, 1, 3, config={"retention.ms": "-1"}),
        NewTopic(TABLE, 1, 3, config=COMPACTING),
        NewTopic(MOVES, 1, 3, config={"retention.ms": "-1"}),
        NewTopic(BULK, 1, 3, config={"retention.ms": "-1"}),
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics(topics).values():
        made.result(SECONDS)


def small(part: int) -> Records:
    """Records of `PLAIN` that fit into the log; four with each codec."""
    return [(b"key-%d" % number, b"%d-%d " % (part, number) * 8) for number in range(4 * len(CODECS))]


def large(part: int) -> Records:
    """Records of `PLAIN` that need an object of level zero."""
    return [(None, b"%d-%d" % (part, number) + bytes(40_000)) for number in range(5)]


def write(bootstrap: str, part: int) -> None:
    """Write the first or second part (0 or 1) of all topics, and wait for all acknowledgements.

    The second one leaves a transaction open. Raises KafkaException.
    """
    for at, codec in enumerate(CODECS):
        _produce(bootstrap, PLAIN, small(part)[4 * at : 4 * at + 4], {"compression.type": codec})
    _produce(bootstrap, PLAIN, large(part), {})
    rows: Records = [(b"row-%d" % number, b"%d" % (part + number)) for number in range(10)]
    _produce(bootstrap, TABLE, [*rows, (b"row-3", None)], {})
    transact(bootstrap, part)


def bulk() -> Records:
    """Records of `BULK`, which fit into the log."""
    return [(b"%d" % number, bytes(30_000)) for number in range(BULK_RECORDS)]


def write_bulk(bootstrap: str) -> None:
    """Write them, one to a batch. Raises TimeoutError."""
    _produce(bootstrap, BULK, bulk(), {"batch.num.messages": 1})


def commit(bootstrap: str, commits: int = COMMITS) -> None:
    """Commit the group's offset, many times. Raises KafkaException."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    for number in range(commits):
        consumer.commit(offsets=[TopicPartition(PLAIN, 0, number % 5)], asynchronous=True)
        if number % 100 == 0:
            consumer.poll(0)
            consumer.commit(offsets=[TopicPartition(PLAIN, 0, number % 5)], asynchronous=False)
    consumer.commit(offsets=[TopicPartition(PLAIN, 0, COMMITTED)], asynchronous=False)
    consumer.close()


def committed(bootstrap: str) -> int:
    """The group's offset as it is now."""
    asked = ConsumerGroupTopicPartitions(GROUP, [TopicPartition(PLAIN, 0)])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    told = admin.list_consumer_group_offsets([asked])
    (found,) = told[GROUP].result(SECONDS).topic_partitions
    return int(found.offset)


def table() -> dict[bytes, bytes]:
    """Key and latest value of each row that was not deleted."""
    return {b"row-%d" % number: b"%d" % (1 + number) for number in range(10) if number != 3}


def read(bootstrap: str, topic: str, *, committed_only: bool = True) -> Records:
    """All records from the first offset to the end, of a topic with one partition.

    Raises KafkaException, TimeoutError.
    """
    return [(message.key(), message.value()) for message in _messages(bootstrap, topic, committed_only)]


def transact(bootstrap: str, part: int) -> None:
    """Commit one transaction and abort another one; in the second part also leave one open.

    Raises KafkaException.
    """
    ends = ("commit", "abort", "open") if part else ("commit", "abort")
    for end in ends:
        producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": end, "transaction.timeout.ms": 60_000}
        )
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        for number in range(3):
            producer.produce(MOVES, f"{end}-{part}-{number}".encode(), partition=0)
        producer.flush(SECONDS)
        if end == "commit":
            producer.send_offsets_to_transaction(
                [TopicPartition(MOVES, 0, 3 + part)], _metadata(bootstrap), SECONDS
            )
            producer.commit_transaction(SECONDS)
        elif end == "abort":
            producer.abort_transaction(SECONDS)


def _produce(bootstrap: str, topic: str, records: Records, settings: dict[str, Any]) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 50, **settings}
    )
    failed: list[Any] = []

    def told(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error)

    for key, value in records:
        producer.produce(topic, value, key, partition=0, on_delivery=told)
    left = producer.flush(SECONDS)
    if left or failed:
        raise TimeoutError(f"{left} records without an answer, {failed[:1]}")


def _metadata(bootstrap: str) -> Any:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "movers"})
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()


def _messages(bootstrap: str, topic: str, committed_only: bool) -> Iterator[confluent_kafka.Message]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed_only else "read_uncommitted",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        while (message := consumer.poll(SECONDS)) is not None:
            if (error := message.error()) is None:
                yield message
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                return
            else:
                raise KafkaException(error)
        raise TimeoutError(f"topic {topic}: no end of it within {SECONDS} s")
    finally:
        consumer.close()
