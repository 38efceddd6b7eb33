"""Steady writers: one idempotent producer and thread for each stream, at a bounded rate of bytes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError, Message, Producer

from strandline.cluster.kafka_client import client_config
from tests.programs.soak.ledger import Stream
from tests.programs.soak.records import value_of

_QUEUE_KIB: Final = 32 * 1024
_BEHIND_SECONDS: Final = 0.5
_JOIN_SECONDS: Final = 20.0


class Writer:
    """Writes a stream's records until told to stop, `count` of them when that is given."""

    def __init__(
        self, bootstrap: str, stream: Stream, bytes_per_second: float, count: int | None = None
    ) -> None:
        self.stream = stream
        self.problem: str | None = None
        """Why a record failed for good, or the producer cannot go on."""
        self._rate = bytes_per_second
        self._count = count
        self._stopping = threading.Event()
        self._doomed = threading.Event()
        self._dropping = threading.Event()
        self._producer = Producer(
            client_config(
                bootstrap,
                client_id=f"soak-{stream.number}",
                enable_idempotence=True,
                acks="all",
                max_in_flight_requests_per_connection=5,
                linger_ms=5,
                queue_buffering_max_kbytes=_QUEUE_KIB,
            )
            | {"error_cb": self._on_error}
        )
        self._thread = threading.Thread(target=self._run, name=f"writer-{stream.number}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Send no more; `wait` for the answers."""
        self._stopping.set()

    def wait(self, seconds: float) -> int:
        """After `stop`: how many records have no answer when this time is over."""
        self._thread.join(seconds)
        return len(self._producer)

    def doom(self) -> None:
        """Go on; from now on records may fail, for their topic is about to be deleted."""
        self._doomed.set()

    def drop(self) -> None:
        """Forget what has no answer, as of a topic that was deleted; returns when no thread of it sends."""
        self._doomed.set()
        self._dropping.set()
        self._stopping.set()
        if self._thread.ident is not None:  # its topic may have gone before it had leaders
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        try:
            self._send()
            while len(self._producer) and not self._dropping.is_set():
                self._producer.poll(0.1)
            if self._dropping.is_set():
                self._producer.purge()
                self._producer.flush(5)
        except Exception as error:  # told where the run is judged, not in a thread that nobody watches
            if not self._doomed.is_set():
                self.problem = self.problem or f"{error!r}"

    def _send(self) -> None:
        stream, producer = self.stream, self._producer
        due = time.monotonic()
        while not self._stopping.is_set():
            sequence = len(stream.places)
            if sequence == self._count:
                self._stopping.wait(0.5)
                producer.poll(0)
                continue
            value = value_of(stream.number, sequence)
            stream.sent()
            while True:
                try:
                    producer.produce(
                        stream.topic,
                        value,
                        partition=stream.partition_of(sequence),
                        on_delivery=self._callback(sequence),
                    )
                    break
                except BufferError:
                    producer.poll(0.05)
                    if self._dropping.is_set():
                        return
            due += len(value) / self._rate
            while (left := due - time.monotonic()) > 0 and not self._stopping.is_set():
                producer.poll(min(left, 0.2))
            producer.poll(0)
            due = max(due, time.monotonic() - _BEHIND_SECONDS)  # what was lost is not made up for

    def _callback(self, sequence: int) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                if not self._doomed.is_set():
                    self.problem = self.problem or f"record {sequence}: {error}"
                return
            partition = message.partition()
            assert partition is not None
            self.stream.delivered(sequence, partition, message.offset())

        return delivered

    def _on_error(self, error: KafkaError) -> None:
        """Broken connections are what this is about; only what a producer cannot survive counts."""
        if error.fatal() and not self._doomed.is_set():
            self.problem = self.problem or f"it cannot go on: {error}"
