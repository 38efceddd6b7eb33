"""The clients of `scripts/rolling-upgrade`, and what must be true of what they wrote."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

RECORDS: Final = "records"
TRANSACTIONS: Final = "transactions"
PARTITIONS: Final = 3
SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 0.002
"""Between two records."""


@dataclass
class Written:
    """What was acknowledged, and when."""

    records: set[str] = field(default_factory=set)
    committed: set[str] = field(default_factory=set)
    acknowledged_at: list[float] = field(default_factory=list)
    """Seconds of the monotonic clock, of single records."""
    failed: list[str] = field(default_factory=list)

    def longest_gap(self) -> float:
        """Seconds between two acknowledgements of single records."""
        times = sorted(self.acknowledged_at)
        return max((later - one for one, later in pairwise(times)), default=0.0)


@dataclass(frozen=True)
class Faults:
    """Counts of what is wrong; of records, but `torn` of transactions."""

    lost: int
    doubled: int
    disordered: int
    torn: int


class Load:
    """One idempotent and one transactional producer, from entry to exit of the block."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._ending = threading.Event()
        self.written = Written()
        self._threads = [
            threading.Thread(target=self._run, args=(work,)) for work in (self._records, self._transactions)
        ]

    def __enter__(self) -> Load:
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        topics = [NewTopic(RECORDS, PARTITIONS, 3), NewTopic(TRANSACTIONS, 2, 3)]
        for made in admin.create_topics(topics).values():
            made.result(SECONDS)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _run(self, work: Any) -> None:
        try:
            work()
        except Exception as error:  # of a thread: the run tells it and fails
            self.written.failed.append(f"{work.__name__}: {error}")

    def _records(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "log_level": 0}
        )

        def told(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                self.written.failed.append(str(error))
                return
            self.written.records.add(message.value().decode())
            self.written.acknowledged_at.append(time.monotonic())

        number = 0
        while not self._ending.wait(PAUSE_SECONDS):
            producer.produce(RECORDS, str(number), partition=number % PARTITIONS, on_delivery=told)
            producer.poll(0)
            number += 1
        if left := producer.flush(SECONDS):
            self.written.failed.append(f"{left} records without an answer after {SECONDS:.0f} s")

    def _transactions(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "transactional.id": "upgraded", "log_level": 0}
        )
        producer.init_transactions(SECONDS)
        number = 0
        while not self._ending.is_set():
            producer.begin_transaction()
            for partition in (0, 1):
                producer.produce(TRANSACTIONS, str(number), partition=partition)
            try:
                producer.commit_transaction(SECONDS)
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                producer.abort_transaction(SECONDS)
            else:
                self.written.committed.add(str(number))
            number += 1


def faults(bootstrap: str, written: Written) -> Faults:
    """Read everything and compare. Raises KafkaException, TimeoutError."""
    read = [values(bootstrap, RECORDS, partition) for partition in range(PARTITIONS)]
    pair = [values(bootstrap, TRANSACTIONS, partition) for partition in (0, 1)]
    return judge(written, read, pair)


def judge(written: Written, read: list[list[str]], pair: list[list[str]]) -> Faults:
    """`read` has the values of each partition of `RECORDS` in their order, `pair` those of `TRANSACTIONS`."""
    single = Counter(value for values in read for value in values)
    first, second = map(Counter, pair)
    return Faults(
        lost=len(written.records - set(single)) + len(written.committed - set(first)),
        doubled=sum(count - 1 for counts in (single, first, second) for count in counts.values()),
        disordered=sum(int(later) < int(one) for values in read for one, later in pairwise(values)),
        torn=len(set(first) ^ set(second)),
    )


def values(bootstrap: str, topic: str, partition: int) -> list[str]:
    """All committed values of a partition in their order. Raises KafkaException, TimeoutError."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "judge", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[str] = []
    try:
        while (message := consumer.poll(SECONDS)) is not None:
            error = message.error()
            if error is None:
                found.append((message.value() or b"").decode())
            elif error.code() == KafkaError._PARTITION_EOF:
                return found
            else:
                raise KafkaException(error)
        raise TimeoutError(f"{topic} {partition}: its end was not there within {SECONDS:.0f} s")
    finally:
        consumer.close()
