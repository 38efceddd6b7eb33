"""Readers of committed records: those that follow while everything moves, and the last look at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from tests.histories.history import Place, Poll, Read
from tests.programs.anomalies.recorder import Recorder

POLL_SECONDS: Final = 0.2


def consumer_of(bootstrap: str, name: str) -> Consumer:
    """One that nobody moves: partitions are assigned by hand, nothing is committed."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
    )


def read_of(message: Message) -> Read:
    """What a message without an error holds."""
    topic, partition, offset, value = message.topic(), message.partition(), message.offset(), message.value()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    assert isinstance(value, bytes)
    return Read(Place(topic, partition), offset, value.decode())


class Follower(threading.Thread):
    """Reads from the beginning and goes on at the end of the log, until `stop`."""

    def __init__(self, bootstrap: str, name: str, places: Sequence[Place], recorder: Recorder) -> None:
        super().__init__(name=name, daemon=True)
        self._recorder = recorder
        self._consumer = consumer_of(bootstrap, name)
        self._consumer.assign([TopicPartition(*place, 0) for place in places])
        self._over = threading.Event()
        self._moved = threading.Condition()
        self._last: dict[Place, int] = dict.fromkeys(places, -1)

    def reach(self, committed: Mapping[Place, Sequence[Read]], seconds: float) -> None:
        """Wait, for so long at most, until it was given the last of these records."""
        ends = {place: reads[-1].offset for place, reads in committed.items() if reads}
        with self._moved:
            self._moved.wait_for(
                lambda: all(self._last[place] >= offset for place, offset in ends.items()), seconds
            )

    def stop(self) -> None:
        self._over.set()

    def run(self) -> None:
        while not self._over.is_set():
            reads = []
            for message in self._consumer.consume(100, POLL_SECONDS):
                error = message.error()
                if error is None:
                    reads.append(read_of(message))
                elif not error.retriable() and error.code() != KafkaError._PARTITION_EOF:
                    self._recorder.troubled(f"{self.name}: {error}")
            if reads:
                self._recorder.polled(Poll(self.name, 1, time.monotonic(), reads))
                with self._moved:
                    self._last |= {read.place: read.offset for read in reads}
                    self._moved.notify_all()
        self._consumer.close()


def read_committed(bootstrap: str, places: Sequence[Place], seconds: float) -> dict[Place, list[Read]]:
    """All committed records, with nothing under way; TimeoutError when an end is not reached in time."""
    consumer = consumer_of(bootstrap, "the last look")
    consumer.assign([TopicPartition(*place, 0) for place in places])
    found: dict[Place, list[Read]] = {place: [] for place in places}
    open_places = dict.fromkeys(places)
    deadline = time.monotonic() + seconds
    try:
        while open_places:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the end of {[*open_places]} was not reached within {seconds:g} s")
            for message in consumer.consume(500, POLL_SECONDS):
                error = message.error()
                topic, partition = message.topic(), message.partition()
                if error is None:
                    read = read_of(message)
                    found[read.place].append(read)
                elif (
                    error.code() == KafkaError._PARTITION_EOF and topic is not None and partition is not None
                ):
                    open_places.pop(Place(topic, partition), None)
    finally:
        consumer.close()
    return found
