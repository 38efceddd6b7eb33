"""Readers: some follow the end, one begins anew all the time, and one reads all back when it is quiet.

The first two check while everything goes on what a consumer may rely on: what it gets is what was sent, in
the order of offsets, and where offsets are missing they are below the partition's first offset by now.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from strandline.cluster.kafka_client import client_config
from tests.programs.soak.ledger import MAX_FINDINGS, Kept, TopicRead
from tests.programs.soak.records import parsed

_BATCH: Final = 200
_ASK_SECONDS: Final = 20.0
_JOIN_SECONDS: Final = 20.0
_PASSING: Final = (
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.OFFSET_OUT_OF_RANGE,
)
"""What a consumer is told of broken connections and of records that went, and goes on."""


def _consumer(bootstrap: str, name: str) -> Consumer:
    return Consumer(
        client_config(
            bootstrap,
            client_id=name,
            group_id=name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            queued_max_messages_kbytes=16 * 1024,
        )
    )


def _bounds(consumer: Consumer, topic: str, partition: int, seconds: float) -> tuple[int, int]:
    """First offset and high watermark, asked of the leader; TimeoutError."""
    deadline = time.monotonic() + seconds
    while True:
        problem: object = "no answer"
        try:
            found = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=seconds)
        except KafkaException as error:
            found, problem = None, error
        if found is not None:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topic}-{partition}: its offsets are not to be had: {problem}")
        time.sleep(0.1)


class Reader:
    """What every reader checks. `bytes` counts values."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.records = 0
        self.bytes = 0
        self.findings: list[str] = []
        self._name = name
        self._bootstrap = bootstrap
        self._consumer = _consumer(bootstrap, name)
        self._next: dict[tuple[str, int], int] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        try:
            self._read()
        except Exception as error:  # told where the run is judged, not in a thread that nobody watches
            self._note(f"failed: {error!r}")
        finally:
            self._consumer.close()

    def _read(self) -> None:
        raise NotImplementedError

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            if error.code() not in _PASSING and not self._stopping.is_set():
                self._note(f"is told {error.name()}: {error.str()}")
            return
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        due = self._next.get((topic, partition))
        if due is not None and offset != due:
            low, _ = _bounds(self._consumer, topic, partition, _ASK_SECONDS)
            if not due < offset <= low:
                self._note(f"{topic}-{partition}: offset {offset} came for {due}; the first there is {low}")
        self._next[topic, partition] = offset + 1
        self.records += 1
        self.bytes += len(message)
        try:
            parsed(message.value())
        except ValueError as problem:
            self._note(f"{topic}-{partition}, offset {offset}: {problem}")

    def _note(self, text: str) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(f"{self._name} {text}")


class Follower(Reader):
    """Reads these partitions from their beginning and stays at their end."""

    def __init__(self, bootstrap: str, name: str, partitions: Sequence[tuple[str, int]]) -> None:
        super().__init__(bootstrap, name)
        self._partitions = partitions

    def _read(self) -> None:
        self._consumer.assign([TopicPartition(*each, OFFSET_BEGINNING) for each in self._partitions])
        while not self._stopping.is_set():
            for message in self._consumer.consume(_BATCH, 0.1):
                self._take(message)

    def place(self, topic: str, partition: int) -> int:
        """The offset after the last that it read there."""
        return self._next.get((topic, partition), 0)

    def caught_up(self, seconds: float) -> str | None:
        """None when it comes to the end of all its partitions, where nobody writes any more, in this time."""
        deadline = time.monotonic() + seconds
        # Of its own: two threads that ask one consumer block each other.
        asking = _consumer(self._bootstrap, "asking")
        try:
            for topic, partition in self._partitions:
                _, high = _bounds(asking, topic, partition, seconds)
                while (at := self._next.get((topic, partition), 0)) < high:
                    low, _ = _bounds(asking, topic, partition, seconds)
                    if low == high:
                        break
                    if time.monotonic() > deadline:
                        return f"{self._name} is at {at} of {high} in {topic}-{partition}"
                    time.sleep(0.05)
        finally:
            asking.close()
        return None


class Beginner(Reader):
    """Reads one partition after the other, drawn from the seed, from its first offset on: cold reads.

    No faster than `bytes_per_second`, and no more than `most` bytes of each.
    """

    def __init__(
        self,
        bootstrap: str,
        name: str,
        partitions: Sequence[tuple[str, int]],
        rng: random.Random,
        bytes_per_second: float,
        most: int = 24 << 20,
    ) -> None:
        super().__init__(bootstrap, name)
        self._partitions = partitions
        self._rng = rng
        self._rate = bytes_per_second
        self._most = most

    def _read(self) -> None:
        due = time.monotonic()
        while not self._stopping.is_set():
            topic, partition = self._rng.choice(self._partitions)
            began = self.bytes
            try:
                _, high = _bounds(self._consumer, topic, partition, _ASK_SECONDS)
            except TimeoutError:
                continue  # nodes are down; the run itself sees to it that they come back
            self._next.pop((topic, partition), None)
            self._consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
            idle = 0
            while (
                self.bytes - began < self._most
                and self._next.get((topic, partition), 0) < high
                and idle < 20
                and not self._stopping.is_set()
            ):
                messages = self._consumer.consume(_BATCH, 0.5)
                idle = 0 if messages else idle + 1
                for message in messages:
                    self._take(message)
            due += (self.bytes - began) / self._rate
            due = max(due, time.monotonic() - 1.0)
            self._stopping.wait(max(0.1, due - time.monotonic()))


def read_back(bootstrap: str, read: TopicRead, partitions: int, seconds: float) -> None:
    """Fill `read` with every partition from its first offset to its high watermark; TimeoutError."""
    consumer = _consumer(bootstrap, "read-back")
    deadline = time.monotonic() + seconds
    try:
        for partition in range(partitions):
            _partition(consumer, read, partition, deadline)
    finally:
        consumer.close()


def _partition(consumer: Consumer, read: TopicRead, partition: int, deadline: float) -> None:
    left = max(deadline - time.monotonic(), 1.0)
    low, high = _bounds(consumer, read.topic, partition, left)
    consumer.assign([TopicPartition(read.topic, partition, OFFSET_BEGINNING)])
    sizes: list[tuple[int, int]] = []
    due = None
    while (due or low) < high:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{read.topic}-{partition}: read to {due} of {low} to {high} in time")
        for message in consumer.consume(_BATCH, 0.5):
            error = message.error()
            if error is not None:
                if error.code() not in _PASSING:
                    read.note(f"{read.topic}-{partition}: the reader is told {error.name()}: {error.str()}")
                continue
            offset = message.offset()
            assert offset is not None
            if due is not None and offset != due:
                first, _ = _bounds(consumer, read.topic, partition, left)
                if not due < offset <= first:
                    read.note(f"{read.topic}-{partition}: offset {offset} came for {due}; {first} is first")
            due = offset + 1
            sizes.append((offset, read.take(partition, offset, message.value())))
        # All that was there when it began may be gone by now.
        low, _ = _bounds(consumer, read.topic, partition, left)
    consumer.unassign()
    here = [size for offset, size in sizes if offset >= low]
    read.partitions[partition] = Kept(low, high, len(here), sum(here))
