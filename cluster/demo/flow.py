"""Flights that flow in, and a reader of a view that sees how soon each is in it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

from strandline.cluster.demo.flights import Flight
from strandline.cluster.failure import CommandFailed
from strandline.cluster.kafka_client import client_config

_SLICE_SECONDS: Final = 0.02
_FLUSH_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.02


def numbered(number: int, flight: Flight) -> bytes:
    """A flight's value with its number."""
    return json.dumps({"number": number, **json.loads(flight.value)}, separators=(",", ":")).encode()


class Flow:
    """Writes flights at a rate, from the first on, until it is told to stop or there are no more."""

    def __init__(self, bootstrap: str, topic: str, flights: Sequence[Flight], rate: float) -> None:
        self._producer = Producer(client_config(bootstrap, enable_idempotence=True, acks="all", linger_ms=5))
        self._topic = topic
        self._flights = flights
        self._rate = rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.handed: dict[int, float] = {}
        """By a flight's number, when it was handed to the producer (seconds of the performance counter)."""
        self.sent = 0

    def at_once(self, count: int) -> None:
        """Write the first flights as fast as they go, and wait until they are there; raises CommandFailed."""
        for _ in range(min(count, len(self._flights))):
            self._next()
        self._flush()

    def start(self) -> None:
        """Go on at the rate, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Write no more, and wait until all are there; raises CommandFailed."""
        self._stop.set()
        self._thread.join()
        self._flush()

    def _run(self) -> None:
        began, first = time.perf_counter(), self.sent
        while self.sent < len(self._flights) and not self._stop.wait(_SLICE_SECONDS):
            due = first + int((time.perf_counter() - began) * self._rate)
            while self.sent < min(due, len(self._flights)):
                self._next()
            self._producer.poll(0)

    def _next(self) -> None:
        flight = self._flights[self.sent]
        self.handed[self.sent] = time.perf_counter()
        while True:
            try:
                self._producer.produce(self._topic, numbered(self.sent, flight), flight.key)
                break
            except BufferError:
                self._producer.poll(_SLICE_SECONDS)
        self.sent += 1

    def _flush(self) -> None:
        if self._producer.flush(_FLUSH_SECONDS):
            raise CommandFailed(f"flights are not there after {_FLUSH_SECONDS:g} s", "see the nodes' logs")


class Seen(NamedTuple):
    """A change of the view, and the age of the newest flight that is in it, in seconds."""

    moment: float
    age: float


class Watcher:
    """Reads a view as any Kafka client does, in a thread of its own, and keeps its table."""

    def __init__(self, bootstrap: str, topic: str, flow: Flow) -> None:
        self._flow = flow
        self._consumer = Consumer(
            client_config(
                bootstrap,
                group_id="demo-watcher",
                enable_auto_commit=False,
                isolation_level="read_committed",
                fetch_wait_max_ms=10,
            )
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.table: dict[bytes, dict[str, Any]] = {}
        self.seen: list[Seen] = []
        self._thread.start()

    def counted(self) -> int:
        """The flights that are in the view."""
        return sum(row["flights"] for row in [*self.table.values()])

    def close(self) -> None:
        """Read no more."""
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(1000, _POLL_SECONDS):
                key, value = message.key(), message.value()
                if message.error() is not None or key is None or value is None:
                    continue
                row, now = json.loads(value), time.perf_counter()
                if row["last"] != self.table.get(key, {}).get("last"):
                    self.seen.append(Seen(now, now - self._flow.handed[row["last"]]))
                self.table[key] = row
