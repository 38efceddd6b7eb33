"""What writes a topology's inputs, and what reads its views."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import defaultdict
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from strandline.cluster.failure import CommandFailed
from strandline.cluster.kafka_client import client_config
from tests.programs.views_topologies.judge import Change
from tests.programs.views_topologies.tables import Place, Row, row_of

FLUSH_SECONDS: Final = 60.0
READ_SECONDS: Final = 30.0
PARTITIONS: Final = 2
"""Of each topic of views."""


class Writer:
    """Changes rows until it is told to stop; knows each record that was acknowledged by its offset."""

    def __init__(self, bootstrap: str, prefix: str, seed: int, *, skewed: bool) -> None:
        self.written: defaultdict[Place, dict[int, tuple[str, Row | None]]] = defaultdict(dict)
        self.refused: list[str] = []
        self._prefix = prefix
        self._chance = random.Random(seed)
        self._skewed = skewed
        self._rows: dict[str, dict[str, Row]] = defaultdict(dict)
        self._producer = Producer(client_config(bootstrap, enable_idempotence=True, acks="all", linger_ms=2))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def some(self, count: int) -> None:
        """Change some rows, in the caller's thread, and wait until they are there; raises CommandFailed."""
        for _ in range(count):
            self._one()
        self.flush()

    def stop(self) -> None:
        """End, once all is there; raises CommandFailed."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.flush()

    def take_all_back(self) -> None:
        """Delete each row that there is."""
        for table, rows in self._rows.items():
            for key in [*rows]:
                self._put(table, key, None)
        self.flush()

    def ends(self) -> dict[Place, int]:
        """Behind the last record of each partition."""
        return {place: max(records) + 1 for place, records in self.written.items() if records}

    def flush(self) -> None:
        """Wait until all that was written is there; raises CommandFailed."""
        if self._producer.flush(FLUSH_SECONDS) or self.refused:
            raise CommandFailed(f"records are not acknowledged: {self.refused[:1]}", "see the nodes' logs")

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            for _ in range(2):
                self._one()
            self._producer.poll(0)

    def _one(self) -> None:
        chance = self._chance
        shop = "s0" if self._skewed else f"s{chance.randrange(12)}"
        kind, gone = chance.random(), chance.random() < 0.25
        if kind < 0.1:
            row: Row = {"city": f"city{chance.randrange(4)}"}
            self._put("shops", shop, None if gone else row)
        elif kind < 0.2:
            row = {"shop": shop, "n": chance.randrange(20)}
            self._put("stock", f"i{chance.randrange(30)}", None if gone else row)
        else:
            row = {"shop": shop, "amount": chance.randrange(1000)}
            self._put("sales", f"k{chance.randrange(300)}", None if gone else row)

    def _put(self, table: str, key: str, row: Row | None) -> None:
        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self.refused.append(str(error))
            else:
                self.written[message.topic(), message.partition()][message.offset()] = key, row

        if row is None:
            self._rows[table].pop(key, None)
        else:
            self._rows[table][key] = row
        value = None if row is None else json.dumps(row)
        self._producer.produce(self._prefix + table, value, key, on_delivery=delivered)
        self._producer.poll(0)


class Reader:
    """A view's transactions from the beginning of its topic, by partition."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.told: list[list[Change]] = [[] for _ in range(PARTITIONS)]
        self.sure = [0] * PARTITIONS
        """Transactions that were read before the cutover: later another topic may have the name."""
        self._topic = topic
        self._next = [-1] * PARTITIONS
        self._at_end: set[int] = set()
        self._consumer = Consumer(
            client_config(
                bootstrap, group_id="views-topologies", enable_auto_commit=False, enable_partition_eof=True,
                isolation_level="read_committed", fetch_wait_max_ms=50,
            )
        )  # fmt: skip
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])

    def is_sure(self) -> None:
        """What was read until now is of the topic that had the name at first."""
        self.sure = [len(transactions) for transactions in self.told]

    def close(self) -> None:
        """Read no more."""
        self._consumer.close()

    def to_the_end(self) -> None:
        """Read all there is; raises TimeoutError."""
        self._at_end.clear()
        for number in range(PARTITIONS):  # an end is told only once
            self._consumer.seek(TopicPartition(self._topic, number, max(self._next[number], 0)))
        end = time.monotonic() + READ_SECONDS
        while len(self._at_end) < PARTITIONS:
            if time.monotonic() > end:
                raise TimeoutError(f"{self._topic} has no end within {READ_SECONDS:g} s")
            self.read(0.2)

    def read(self, seconds: float = 0.0) -> None:
        """Take what has come."""
        for message in self._consumer.consume(1000, seconds):
            error, number, offset = message.error(), message.partition(), message.offset()
            assert number is not None
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                self._at_end.add(number)
                continue
            if error is not None:
                if error.retriable() or error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise KafkaException(error)
            key = tuple(json.loads(bytes(message.key() or b"")))
            assert offset is not None
            transactions = self.told[number]
            # A transaction's marker has an offset: what follows without a gap is of the same transaction.
            if offset != self._next[number] or not transactions:
                transactions.append({})
            if key in transactions[-1]:
                raise ValueError(f"{self._topic}-{number} has key {key} twice in one transaction")
            value = message.value()
            transactions[-1][key] = row_of(value)
            self._next[number] = offset + 1
