"""A client that changes rows all the time, and one that reads a view."""

from __future__ import annotations

import json
import random
import threading
import time
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from strandline.cluster.failure import CommandFailed
from strandline.cluster.kafka_client import client_config

FLUSH_SECONDS: Final = 120.0
READ_SECONDS: Final = 40.0


class Sales:
    """Changes rows until it is told to stop; knows the tables as they are in the end."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        self.sales: dict[str, dict[str, Any]] = {}
        self.shops: dict[str, dict[str, Any]] = {}
        self.count = 0
        self.refused: list[str] = []
        """Records that were not written, and why."""
        self._chance = random.Random(seed)
        self._producer = Producer(client_config(bootstrap, enable_idempotence=True, acks="all", linger_ms=5))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, once all is there; raises CommandFailed."""
        self._stop.set()
        self._thread.join()
        if self._producer.flush(FLUSH_SECONDS):
            raise CommandFailed("records are not acknowledged", "see the nodes' logs")

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self.refused.append(str(error))

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            for _ in range(5):
                self._one()
            self._producer.poll(0)

    def _one(self) -> None:
        chance, self.count = self._chance, self.count + 1
        if chance.random() < 0.05:
            self._put("shops", self.shops, f"s{chance.randrange(12)}", {"city": f"city{chance.randrange(4)}"})
            return
        row = {"shop": f"s{chance.randrange(12)}", "amount": chance.randrange(1000)}
        self._put("sales", self.sales, f"k{chance.randrange(3000)}", None if chance.random() < 0.3 else row)

    def _put(self, topic: str, table: dict[str, Any], key: str, row: dict[str, Any] | None) -> None:
        while True:
            try:
                value = None if row is None else json.dumps(row)
                self._producer.produce(topic, value, key, on_delivery=self._delivered)
                break
            except BufferError:
                self._producer.poll(0.1)
        if row is None:
            table.pop(key, None)
        else:
            table[key] = row


def read(bootstrap: str, topic: str, partitions: int = 1) -> tuple[dict[bytes, Any], int]:
    """A view's topic from its beginning to its end: its table, and the changes that were told twice."""
    settings = {"group_id": "views-kills", "enable_partition_eof": True, "isolation_level": "read_committed"}
    consumer = Consumer(client_config(bootstrap, enable_auto_commit=False, **settings))
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    table: dict[bytes, Any] = {}
    twice, end = 0, time.monotonic() + READ_SECONDS
    while time.monotonic() < end:
        message = consumer.poll(1.0)
        error = None if message is None else message.error()
        if message is None or (error is not None and error.retriable()):
            continue
        if error is not None:
            partitions -= 1  # the end
            if not partitions:
                break
            continue
        key, value = bytes(message.key() or b""), message.value()
        row = None if value is None else json.loads(value)
        # Cleaning never takes what lies between two records of a key and leaves the first of them.
        twice += key in table and table[key] == row
        table[key] = row
    consumer.close()
    return {key: row for key, row in table.items() if row is not None}, twice
