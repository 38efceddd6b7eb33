"""Reading back what the load wrote: one consumer that follows all the time, and one that reads it all again.

Both check what a consumer may rely on: offsets without a gap, and each producer's records in its order.
"""

from __future__ import annotations

import itertools
import threading
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from strandline.cluster.kafka_client import client_config
from tests.programs.failover.cluster.load import NO_PLACE, Told, parsed

_BATCH = 2_000
_MAX_FINDINGS = 20
_MORE = 1_000
_PASSING = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT)
"""What a consumer is told of broken connections, and goes on."""


@dataclass
class Read:
    """What was read. `place` is the next offset of each partition."""

    place: dict[int, int]
    records: int = 0
    newest: dict[tuple[int, int], int] = field(default_factory=dict)
    """The last sequence of each (partition, producer)."""
    places: dict[int, array[int]] = field(default_factory=dict)
    """By producer: for each sequence, where it was read first, as `_packed` has it; 0: nowhere."""
    findings: list[str] = field(default_factory=list)
    doubled: int = 0

    def take(self, message: Message) -> None:
        """Check one record, and remember it."""
        error = message.error()
        if error is not None:
            if error.code() not in _PASSING:
                self.note(f"the consumer is told {error.name()}: {error.str()}")
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        if offset != self.place[partition]:
            self.note(f"partition {partition}: offset {offset} came after {self.place[partition] - 1}")
        self.place[partition] = offset + 1
        self.records += 1
        try:
            producer, sequence = parsed(message.value())
        except ValueError as problem:
            self.note(f"partition {partition}, offset {offset}: {problem}")
            return
        before = self.newest.get((partition, producer), -1)
        if sequence <= before:
            self.note(f"{partition}/{offset}: record {sequence} of producer {producer} after {before}")
        self.newest[partition, producer] = max(before, sequence)
        places = self.places.setdefault(producer, array("q"))
        if sequence >= len(places):
            places.extend(itertools.repeat(0, sequence + _MORE - len(places)))
        if places[sequence]:
            self.doubled += 1
        else:
            places[sequence] = _packed(partition, offset)

    def note(self, text: str) -> None:
        if len(self.findings) < _MAX_FINDINGS:
            self.findings.append(text)


def _packed(partition: int, offset: int) -> int:
    return offset << 16 | partition + 1


def _consumer(bootstrap: str, name: str) -> Consumer:
    # A reset would be a loss, or a lie about offsets: it must be an error.
    return Consumer(
        client_config(
            bootstrap, client_id=name, group_id=name, enable_auto_commit=False, auto_offset_reset="error"
        )
    )


class Follower:
    """A consumer in a thread of its own that reads all partitions from the beginning and stays with them."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.read = Read(dict.fromkeys(range(partitions), 0))
        self._bootstrap = bootstrap
        self._topic = topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def caught_up(self, ends: Mapping[int, int], seconds: float) -> bool:
        """Whether it has read up to these offsets, or does within this time."""
        deadline = time.monotonic() + seconds
        while any(self.read.place[partition] < end for partition, end in ends.items()):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def _run(self) -> None:
        consumer = _consumer(self._bootstrap, "follower")
        try:
            consumer.assign(
                [TopicPartition(self._topic, number, OFFSET_BEGINNING) for number in self.read.place]
            )
            while not self._stopping.is_set():
                for message in consumer.consume(_BATCH, 0.1):
                    self.read.take(message)
        except Exception as error:  # told where the run is judged, not in a thread that nobody watches
            self.read.note(f"the consumer failed: {error!r}")
        finally:
            consumer.close()


def read_all(bootstrap: str, topic: str, partitions: int, seconds: float) -> Read:
    """Every partition from its beginning to its high watermark; TimeoutError when that takes longer."""
    read = Read(dict.fromkeys(range(partitions), 0))
    consumer = _consumer(bootstrap, "reader")
    deadline = time.monotonic() + seconds
    try:
        ends = {}
        for number in range(partitions):
            watermarks = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=seconds)
            if watermarks is None:
                raise TimeoutError(f"partition {number}: its offsets are not to be had in {seconds:g} s")
            ends[number] = watermarks[1]
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in ends])
        while any(read.place[number] < end for number, end in ends.items()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"read to {read.place} of {ends} in {seconds:g} s")
            for message in consumer.consume(_BATCH, 0.5):
                read.take(message)
    except KafkaException as error:
        raise TimeoutError(f"the records cannot be read back: {error}") from error
    finally:
        consumer.close()
    return read


@dataclass(frozen=True)
class Comparison:
    """What was acknowledged beside what is there."""

    records: int
    acknowledged: int
    lost: int
    doubled: int
    findings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not (self.lost or self.doubled or self.findings)


def compare(told: Told, read: Read) -> Comparison:
    """Acknowledged: there once, where it was said to be. Sent and failed: at most once. Else: not there."""
    findings = list(read.findings)
    lost = moved = 0
    for producer, acknowledged in told.acknowledged.items():
        places = read.places.get(producer, array("q"))
        for sequence, (partition, offset) in acknowledged.items():
            place = places[sequence] if sequence < len(places) else 0
            if not place:
                lost += 1
            elif offset != NO_PLACE and place != _packed(partition, offset):
                moved += 1
            else:
                continue
            if lost + moved <= _MAX_FINDINGS:
                findings.append(
                    f"record {sequence} of producer {producer}, acknowledged at {partition}/{offset}, is "
                    + (f"at {(place & 0xFFFF) - 1}/{place >> 16}" if place else "lost")
                )
    for producer, places in read.places.items():
        strangers = len(places) - told.sent.get(producer, 0)
        if strangers > 0 and any(places[-strangers:]):
            findings.append(f"there are records of producer {producer} that were never sent")
    return Comparison(read.records, told.count, lost, read.doubled, tuple(findings))
