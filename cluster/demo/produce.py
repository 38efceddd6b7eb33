"""The writing half of the demonstration: librdkafka, idempotent, acks=all, while a leader dies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, Message, Producer

from strandline.cluster.demo.flights import Flight
from strandline.cluster.kafka_client import client_config

ROW_HEADER = "row"
_POLL_EVERY = 100
_QUEUE_FULL_WAIT_SECONDS = 0.02
FLUSH_SECONDS = 60.0
NO_PLACE = (-1, -1)


@dataclass
class Produced:
    """Acknowledgements that the producer received. Times are seconds of the performance counter."""

    sent: int = 0
    acknowledged: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Row number to (partition, offset), or NO_PLACE where only that it is there is known: the batch's own
    answer was lost with the leader, and one behind it was acknowledged."""
    errors: list[str] = field(default_factory=list)
    times: list[tuple[float, int]] = field(default_factory=list)
    """(time, partition) of each acknowledgement, in the order they came."""
    started: float = 0.0
    ended: float = 0.0

    @property
    def seconds(self) -> float:
        return self.ended - self.started

    def longest_gap(self) -> float:
        """The longest any partition waited between two acknowledgements, in seconds."""
        last: dict[int, float] = {}
        longest = 0.0
        for moment, partition in self.times:
            longest = max(longest, moment - last.get(partition, moment))
            last[partition] = moment
        return longest


def produce(
    bootstrap: str,
    topic: str,
    flights: Sequence[Flight],
    *,
    after: dict[int, Callable[[], None]],
    progress: Callable[[int], None],
) -> Produced:
    """Send every flight with its row number in a header; `after[n]` is called when n rows were handed over.

    Returns when all are acknowledged, or have failed, or FLUSH_SECONDS after the last was handed over.
    """
    result = Produced()
    producer = Producer(
        client_config(
            bootstrap,
            enable_idempotence=True,
            acks="all",
            linger_ms=5,
            compression_type="lz4",
            queue_buffering_max_messages=20_000,
        )
    )

    def delivered(row: int) -> Callable[[KafkaError | None, Message], None]:
        def callback(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                result.errors.append(f"row {row}: {error}")
                return
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            result.acknowledged[row] = NO_PLACE if offset is None else (partition, offset)
            result.times.append((time.perf_counter(), partition))

        return callback

    result.started = time.perf_counter()
    for row, flight in enumerate(flights):
        if row in after:
            after[row]()
        while True:
            try:
                producer.produce(
                    topic,
                    key=flight.key,
                    value=flight.value,
                    headers=[(ROW_HEADER, str(row).encode())],
                    on_delivery=delivered(row),
                )
                break
            except BufferError:
                producer.poll(_QUEUE_FULL_WAIT_SECONDS)
        result.sent += 1
        if row % _POLL_EVERY == 0:
            producer.poll(0)
            progress(len(result.acknowledged))
    deadline = time.perf_counter() + FLUSH_SECONDS
    while len(producer) and time.perf_counter() < deadline:
        producer.flush(0.2)
        progress(len(result.acknowledged))
    result.ended = time.perf_counter()
    return result
