"""The two ends of the chain: flights into the source at a steady pace, and what was made of them back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from strandline.cluster.demo.flights import Flight
from strandline.cluster.kafka_client import client_config
from tests.programs.exactly_once.compare import Made
from tests.programs.exactly_once.task import FROM_HEADER, GROUP, PARTITIONS, ROW_HEADER, SOURCE, TARGET

_REQUEST_SECONDS: Final = 30.0
_FLUSH_SECONDS: Final = 60.0
_BATCH: Final = 10_000
_REPLICAS: Final = 3


def make_topics(bootstrap: str) -> None:
    """Source and target, which must not be there yet. Raises KafkaException."""
    admin = AdminClient(client_config(bootstrap))
    wanted = [NewTopic(topic, PARTITIONS, _REPLICAS) for topic in (SOURCE, TARGET)]
    for made in admin.create_topics(wanted).values():
        made.result(_REQUEST_SECONDS)


class Load(threading.Thread):
    """Writes the flights within `seconds`, idempotent, each with its row number."""

    def __init__(self, bootstrap: str, flights: Sequence[Flight], seconds: float) -> None:
        super().__init__(daemon=True)
        self._flights = flights
        self._rate = len(flights) / seconds
        self._producer = Producer(client_config(bootstrap, enable_idempotence=True, acks="all", linger_ms=5))
        self.written = 0
        """Records that were acknowledged."""
        self.errors: list[str] = []

    def run(self) -> None:
        began = time.monotonic()
        for row, flight in enumerate(self._flights):
            while (early := began + row / self._rate - time.monotonic()) > 0:
                self._producer.poll(min(early, 0.05))
            header: list[tuple[str, Any]] = [(ROW_HEADER, str(row).encode())]
            self._producer.produce(
                SOURCE, flight.value, flight.key, on_delivery=self._delivered, headers=header
            )
        self._producer.flush(_FLUSH_SECONDS)

    def _delivered(self, error: Any, _: Any) -> None:
        if error is None:
            self.written += 1
        else:
            self.errors.append(str(error))


class Progress:
    """How much of the source the group is done with."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient(client_config(bootstrap))

    def committed(self) -> int:
        """The sum of the group's offsets; what it was before, or less, when the group does not answer."""
        try:
            asked = [ConsumerGroupTopicPartitions(GROUP)]
            found = self._admin.list_consumer_group_offsets(asked)[GROUP].result(_REQUEST_SECONDS)
        except KafkaException:
            return 0
        return sum(max(0, one.offset) for one in found.topic_partitions)


def read_target(bootstrap: str, seconds: float) -> Iterator[Made]:
    """What a reader of committed records finds, up to the last stable offsets. Raises TimeoutError."""
    consumer = Consumer(
        client_config(
            bootstrap,
            group_id="verdict",
            enable_auto_commit=False,
            enable_partition_eof=True,
            auto_offset_reset="error",
            isolation_level="read_committed",
        )
    )
    try:
        consumer.assign([TopicPartition(TARGET, number, 0) for number in range(PARTITIONS)])
        left = set(range(PARTITIONS))
        deadline = time.monotonic() + seconds
        while left:
            if time.monotonic() > deadline:
                raise TimeoutError(f"partitions {sorted(left)} were not read to their ends in {seconds:g} s")
            for message in consumer.consume(_BATCH, 0.5):
                partition, offset, error = message.partition(), message.offset(), message.error()
                assert partition is not None
                if error is not None:
                    if error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    left.discard(partition)
                    continue
                assert offset is not None
                headers = dict(message.headers() or [])
                yield Made(
                    partition,
                    offset,
                    int(headers.get(ROW_HEADER) or b"-1"),
                    int(headers.get(FROM_HEADER) or b"-1"),
                    bytes(message.value() or b""),
                )
    finally:
        consumer.close()
