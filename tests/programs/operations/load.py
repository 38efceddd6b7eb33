"""The load under which a cluster is operated: numbered records of one idempotent producer, and who has them.

Which record was acknowledged when is kept for each partition: while one has no leader the others go on, so a
gap of the whole load would hide it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.programs.failover.verdict import longest_gap

TOPIC: Final = "operations"
PARTITIONS: Final = 12
PAUSE_SECONDS: Final = 0.002
"""Between two records: one every 24 ms to each partition."""


class Load:
    """One producer of librdkafka that writes numbered records until it is told to stop."""

    def __init__(self, bootstrap: str) -> None:
        self.acked: set[bytes] = set()
        self.failed = 0
        """Deliveries that librdkafka gave up."""
        self._at: list[list[float]] = [[] for _ in range(PARTITIONS)]
        self._stop = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )
        self._thread = threading.Thread(target=self._run, name="load")

    def start(self) -> None:
        """Write from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Write no more, and wait for what is under way."""
        self._stop.set()
        self._thread.join()

    def gap(self, since: float, until: float) -> float:
        """The longest time within these in which a partition acknowledged nothing, of any partition."""
        return max(longest_gap(list(times), since, until) for times in self._at)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            try:
                self._producer.produce(
                    TOPIC, value=b"%d" % number, partition=number % PARTITIONS, on_delivery=self._delivered
                )
                number += 1
            except BufferError:
                self._producer.poll(0.1)
            self._producer.poll(0)
            time.sleep(PAUSE_SECONDS)
        self._producer.flush(60)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed += 1
            return
        self._at[message.partition()].append(time.monotonic())
        self.acked.add(message.value())


def read(bootstrap: str) -> tuple[Counter[bytes], int]:
    """How often each value is there, and how many partitions could not be read to their end."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "judge", "enable.auto.commit": False})
    counts: Counter[bytes] = Counter()
    unread = 0
    for number in range(PARTITIONS):
        place = TopicPartition(TOPIC, number, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=30)
        consumer.assign([place])
        reached = 0
        while reached < end and (message := consumer.poll(30)) is not None and message.error() is None:
            counts[message.value() or b""] += 1
            reached = (message.offset() or 0) + 1
        unread += reached < end
    consumer.close()
    return counts, unread
