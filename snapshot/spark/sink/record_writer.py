"""Records of one task to the leaders of their partitions, in one transaction that is left open.

A partition has one batch under way at most, and a leader one request with batches of many partitions. So
what is sent again keeps its order, and a broker knows it by its sequence number. While requests are under way
the next batches are made.
"""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import numpy as np
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from strandline.snapshot.compression import Compression
from strandline.snapshot.connection import PRODUCE, RETRIABLE, ConnectionLost
from strandline.snapshot.spark.sink.brokers import Address, Brokers
from strandline.snapshot.spark.sink.columns import Rows, by_name
from strandline.snapshot.spark.sink.errors import Fenced, SinkError
from strandline.snapshot.spark.sink.record_batch import record_batch
from strandline.snapshot.spark.sink.transactions import FENCED, Producer, add_partitions

BATCH_BYTES: Final = 512 * 1024
"""A batch is closed when it has as many; the cluster's bound is 1 MiB unless a topic has another."""
_RECORD_BYTES: Final = 12
"""Of a record besides key, value and headers, at most in a batch of this size."""
REQUEST_BYTES: Final = 8 * 1024 * 1024
_WAITING_BYTES: Final = 32 * 1024 * 1024
"""Closed batches that wait or are under way; a task that has more makes no new ones."""
_OPEN_BYTES: Final = 32 * 1024 * 1024
"""Records in batches that are not full, over all partitions; beyond it all are closed."""
_SEQUENCES: Final = 1 << 31
_ALL_REPLICAS: Final = -1
_BROKER_SECONDS: Final = 20.0
"""Longest that a broker may take for a request; ANSWER_SECONDS is longer."""

Place = tuple[str, int]


@dataclass
class _Lane:
    """A partition's records on their way."""

    tails: list[bytes] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    open_bytes: int = 0
    closed: deque[bytes] = field(default_factory=deque)
    sequence: int = 0


@dataclass(frozen=True)
class _Request:
    address: Address
    places: tuple[Place, ...]


class RecordWriter:
    """Writes the rows that it is given, until `finish`. Raises SinkError, Unanswered, Fenced.

    `records` and `digest` say what was given: the digest does not depend on the order of the rows.
    """

    def __init__(self, brokers: Brokers, producer: Producer, compression: Compression) -> None:
        self._brokers = brokers
        self._producer = producer
        self._compression = compression
        self._lanes: dict[Place, _Lane] = {}
        self._added: set[Place] = set()
        self._under_way: dict[Address, _Request] = {}
        self._open_bytes = self._waiting_bytes = 0
        self._progress = brokers.deadline()
        self.records = self.digest = 0

    def write(self, rows: Rows) -> None:
        """Take rows, and send what is full."""
        now = time.time_ns() // 1_000_000
        times = (
            [now] * len(rows.tails) if rows.times is None else [now if t is None else t for t in rows.times]
        )
        sizes = np.fromiter(map(len, rows.tails), np.int64, len(rows.tails)) + _RECORD_BYTES
        for topic, chosen in by_name(rows.topics):
            assert topic is not None, "refused before"
            self.digest += crc32c(topic.encode()) * len(chosen)
            places = rows.partitions[chosen]
            for partition in np.unique(places).tolist():
                self._take(topic, partition, chosen[places == partition], sizes, times, rows.tails)
        self.records += len(rows.tails)
        self.digest += sum(map(crc32c, rows.tails)) << 32
        self.digest += sum(map(zlib.crc32, rows.tails))
        if rows.times is not None:
            self.digest += sum(one for one in rows.times if one is not None)
        if self._open_bytes > _OPEN_BYTES:
            self._close_all()
        self._send(most=_WAITING_BYTES)

    def _take(
        self, topic: str, partition: int, chosen: Any, sizes: Any, times: list[int], found: list[bytes]
    ) -> None:
        """Take the chosen rows for one partition; what is full is closed."""
        lane = self._lanes.setdefault((topic, partition), _Lane())
        ends = np.cumsum(sizes[chosen])
        start = taken = 0
        while start < len(chosen):
            room = BATCH_BYTES - lane.open_bytes
            end = start + 1 + int(np.searchsorted(ends[start:], taken + room))
            some = chosen[start:end].tolist()
            lane.tails += [found[number] for number in some]
            lane.timestamps += [times[number] for number in some]
            grown = int(ends[start + len(some) - 1]) - taken
            lane.open_bytes += grown
            self._open_bytes += grown
            taken += grown
            start = end
            if lane.open_bytes >= BATCH_BYTES:
                self._close(lane)
                self._send(most=_WAITING_BYTES)

    def finish(self) -> None:
        """Return when every record is acknowledged."""
        self._close_all()
        self._send(most=0)
        self.digest &= (1 << 63) - 1

    def _close_all(self) -> None:
        for lane in self._lanes.values():
            if lane.tails:
                self._close(lane)

    def _close(self, lane: _Lane) -> None:
        batch = record_batch(lane.tails, lane.timestamps, self._producer, lane.sequence, self._compression)
        lane.sequence = (lane.sequence + len(lane.tails)) % _SEQUENCES
        lane.closed.append(batch)
        self._waiting_bytes += len(batch)
        self._open_bytes -= lane.open_bytes
        lane.tails, lane.timestamps, lane.open_bytes = [], [], 0

    # Sending.

    def _send(self, most: int) -> None:
        """Send what is closed and take the answers that are there, until at most so many bytes wait."""
        while True:
            self._start_requests()
            waits = self._waiting_bytes > most
            for address in [*self._under_way]:
                self._take_answer(address, wait=waits)
                waits = self._waiting_bytes > most
            if not waits:
                return

    def _start_requests(self) -> None:
        chosen: dict[Address, list[Place]] = {}
        sizes: dict[Address, int] = {}
        homeless: set[str] = set()
        for place, lane in self._lanes.items():
            if not lane.closed:
                continue
            address = self._brokers.leader(*place)
            if address is None:
                homeless.add(place[0])
            elif address not in self._under_way and sizes.get(address, 0) < REQUEST_BYTES:
                chosen.setdefault(address, []).append(place)
                sizes[address] = sizes.get(address, 0) + len(lane.closed[0])
        if homeless and not chosen and not self._under_way:
            self._again(f"{', '.join(sorted(homeless))} has partitions without leader", homeless)
        new = [place for places in chosen.values() for place in places if place not in self._added]
        if new:
            add_partitions(self._brokers, self._producer, new)
            self._added.update(new)
        for address, places in chosen.items():
            self._start(address, places)

    def _start(self, address: Address, places: list[Place]) -> None:
        types = PRODUCE.request
        by_topic: dict[str, list[Any]] = {}
        for topic, partition in places:
            data = types.PartitionProduceData(
                index=partition, records=self._lanes[topic, partition].closed[0]
            )
            by_topic.setdefault(topic, []).append(data)
        request = types.ProduceRequest(
            transactional_id=self._producer.transactional_id,
            acks=_ALL_REPLICAS,
            timeout=timedelta(seconds=_BROKER_SECONDS),
            topic_data=tuple(
                types.TopicProduceData(name=topic, partition_data=tuple(data))
                for topic, data in by_topic.items()
            ),
        )
        try:
            self._brokers.connection(address, records=True).send(PRODUCE, request)
        except ConnectionLost as error:
            self._lost(address, places, error)
        else:
            self._under_way[address] = _Request(address, tuple(places))

    def _take_answer(self, address: Address, *, wait: bool) -> None:
        request = self._under_way[address]
        try:
            connection = self._brokers.connection(address, records=True)
            if not wait and not connection.answered():
                return
            answer = connection.receive()
        except ConnectionLost as error:
            del self._under_way[address]
            self._lost(address, request.places, error)
            return
        del self._under_way[address]
        told = {
            (topic.name, one.index): one for topic in answer.responses for one in topic.partition_responses
        }
        again: dict[str, str] = {}
        for place in request.places:
            one = told.get(place)
            code = ErrorCode.unknown_server_error if one is None else one.error_code
            if code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
                self._waiting_bytes -= len(self._lanes[place].closed.popleft())
                self._progress.renew()
            elif code in FENCED:
                raise Fenced(f"{self._producer.transactional_id}: {code.name}")
            elif code in RETRIABLE:
                again[place[0]] = f"{place[0]}-{place[1]}: {code.name}"
            else:
                raise _refused(place, code, None if one is None else one.error_message)
        if again:
            self._again("; ".join(again.values()), again)

    def _lost(self, address: Address, places: Iterable[Place], error: ConnectionLost) -> None:
        self._brokers.drop(address, records=True)
        self._again(str(error), {topic for topic, _ in places})

    def _again(self, reason: str, topics: Iterable[str]) -> None:
        """Look for leaders after a pause; what was not acknowledged is sent again."""
        self._progress.pause("records cannot be written", reason)
        self._brokers.refresh(topics)


def _refused(place: Place, code: ErrorCode, message: str | None) -> SinkError:
    where = f"{place[0]}-{place[1]}"
    if code is ErrorCode.message_too_large:
        return SinkError(
            f"{where}: a record is larger than the topic allows: raise max.message.bytes of the topic, "
            "or write less into a value"
        )
    return SinkError(f"{where}: the records are refused, {code.name}: {message or 'no more is said'}")
