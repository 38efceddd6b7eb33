"""A steady load: idempotent producers that number their records, and what they are told of each.

Every producer sends bursts of a few records to one partition after the other, at a bounded rate whatever the
cluster does; time that was lost is not made up for.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from strandline.cluster.kafka_client import client_config

BURST = 5
NO_PLACE = -1
_PADDING = b"." * 60
_FLUSH_SECONDS = 60.0
_MAX_ERRORS = 20


def value_of(producer: int, sequence: int) -> bytes:
    return b"%d %d %b" % (producer, sequence, _PADDING)


def parsed(value: bytes | str | None) -> tuple[int, int]:
    """Producer and sequence of a record; ValueError when the load did not send it."""
    assert isinstance(value, bytes)
    producer, sequence, padding = value.split(b" ", 2)
    if padding != _PADDING:
        raise ValueError(f"{value[:80]!r} is no record of this load")
    return int(producer), int(sequence)


@dataclass
class Told:
    """What the producers were told. Times are seconds of the monotonic clock."""

    sent: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Records handed over, by producer: their sequences are 0 to one less."""
    acknowledged: dict[int, dict[int, tuple[int, int]]] = field(default_factory=lambda: defaultdict(dict))
    """By producer: sequence to (partition, offset). NO_PLACE where it is known only that it is there:
    a batch whose own answer was uncertain, while one behind it was acknowledged."""
    times: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Of the acknowledgements, by partition."""
    latencies: list[tuple[float, float]] = field(default_factory=list)
    """(time of the acknowledgement, seconds since the record was handed over)."""
    errors: list[str] = field(default_factory=list)
    """Records that failed for good, and producers that cannot go on."""

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    def slowest(self, since: float, until: float) -> float:
        """The longest that a record waited whose acknowledgement came in this time, in seconds."""
        return max((seconds for at, seconds in reversed(self.latencies) if since <= at <= until), default=0.0)


class Load:
    """`producers` threads with a producer each, `rate` records a second from each."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, *, producers: int = 2, rate: float, **more: Any
    ) -> None:
        """`more` configures librdkafka, with underscores for dots."""
        self.told = Told()
        self._topic = topic
        self._partitions = partitions
        self._period = BURST / rate
        self._lock = threading.Lock()
        self._sending = threading.Event()
        self._stopping = threading.Event()
        self._producers = [
            Producer(
                client_config(
                    bootstrap,
                    client_id=f"load-{number}",
                    enable_idempotence=True,
                    acks="all",
                    max_in_flight_requests_per_connection=5,
                    linger_ms=2,
                    **more,
                )
                | {"error_cb": partial(self._on_error, number)}
            )
            for number in range(producers)
        ]
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"load-{number}", daemon=True)
            for number in range(producers)
        ]

    def start(self) -> None:
        self._sending.set()
        for thread in self._threads:
            thread.start()

    def resume(self) -> None:
        self._sending.set()

    def pause(self) -> int:
        """Send no more and wait for all answers; how many did not come in time."""
        self._sending.clear()
        deadline = time.monotonic() + _FLUSH_SECONDS
        while (left := sum(map(len, self._producers))) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left

    def stop(self) -> None:
        """End the threads; what has no answer gets none."""
        self._sending.clear()
        self._stopping.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(10)
        for producer in self._producers:
            producer.purge()
            producer.flush(2)

    def _run(self, number: int) -> None:
        try:
            self._send(number)
        except Exception as error:  # told where the run is judged, not in a thread that nobody watches
            self._note(f"producer {number} failed: {error!r}")

    def _send(self, number: int) -> None:
        producer, told = self._producers[number], self.told
        due = time.monotonic()
        for burst in itertools.count():
            while not self._sending.is_set():
                if self._stopping.is_set():
                    return
                producer.poll(0.02)
                due = time.monotonic()
            partition = (burst + number) % self._partitions
            for _ in range(BURST):
                sequence = told.sent[number]
                self._produce(
                    producer, partition, value_of(number, sequence), self._callback(number, sequence)
                )
                told.sent[number] = sequence + 1
            due += self._period
            while (left := due - time.monotonic()) > 0:
                producer.poll(left)
            due = max(due, time.monotonic() - 0.1)

    def _produce(
        self,
        producer: Producer,
        partition: int,
        value: bytes,
        callback: Callable[[KafkaError | None, Message], None],
    ) -> None:
        while True:
            try:
                producer.produce(self._topic, value, partition=partition, on_delivery=callback)
            except BufferError:
                producer.poll(0.02)
            else:
                return

    def _callback(self, number: int, sequence: int) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            now = time.monotonic()
            if error is not None:
                self._note(f"producer {number}, record {sequence}: {error}")
                return
            partition, offset, latency = message.partition(), message.offset(), message.latency()
            assert partition is not None
            self.told.acknowledged[number][sequence] = (partition, NO_PLACE if offset is None else offset)
            self.told.times[partition].append(now)
            self.told.latencies.append((now, latency or 0.0))

        return delivered

    def _on_error(self, number: int, error: KafkaError) -> None:
        """Broken connections are what this is about; only what a producer cannot survive counts."""
        if error.fatal():
            self._note(f"producer {number} cannot go on: {error}")

    def _note(self, text: str) -> None:
        with self._lock:
            if len(self.told.errors) < _MAX_ERRORS:
                self.told.errors.append(text)
