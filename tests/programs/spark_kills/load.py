"""Flights written to a topic at a steady pace, each with its number, and what of them is acknowledged."""

from __future__ import annotations

import threading
import time
import zlib
from typing import Protocol

from confluent_kafka import KafkaError, Message, Producer

from strandline import TemporaryCluster
from strandline.cluster.admin_client import first_answer
from strandline.cluster.demo import flights

TOPIC = "flights"
FLUSH_SECONDS = 60.0


class Written(Protocol):
    """What was written: so many acknowledged records, and others that may be there or not."""

    acknowledged: int
    failed: int
    checksum: int
    """The sum of the acknowledged values' CRC-32."""


class Load:
    """Values `0 {flight}`, `1 {flight}`, … until `stop`; `acknowledged` of them are in the topic.

    After the last flight comes the first one again, with another number.
    """

    def __init__(self, bootstrap: str, rate: int) -> None:
        self.flights = [flight.value for flight in flights.load()]
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._rate = rate
        self._stopped = threading.Event()
        self.acknowledged = self.failed = self.checksum = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        written, began = 0, time.monotonic()
        while not self._stopped.wait(0.05):
            wanted = int((time.monotonic() - began) * self._rate)
            for number in range(written, wanted):
                value = b"%d %s" % (number, self.flights[number % len(self.flights)])
                self._producer.produce(TOPIC, value, on_delivery=self._delivered)
            written = wanted
            self._producer.poll(0)
        self._producer.flush(FLUSH_SECONDS)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        if error is None and value is not None:
            self.acknowledged += 1
            self.checksum += zlib.crc32(value)
        else:
            self.failed += 1


def checkpoint(cluster: TemporaryCluster) -> None:
    """Take one; raises CommandFailed while too many nodes are away."""
    body = {"topics": [TOPIC], "lease_seconds": 600, "timeout_seconds": 60}
    first_answer(cluster.admin, "POST", "/api/checkpoints", body, timeout=70)
