"""Record batches to the leaders of their partitions, in transactions.

A partition has one batch under way at most, and a leader one request with batches of many partitions. So
what is sent again keeps its order, and a broker knows it by its sequence number. While requests are under way
the next batches are made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from strandline.snapshot.connection import PRODUCE, RETRIABLE, ConnectionLost
from strandline.snapshot.producing.brokers import Address, Brokers
from strandline.snapshot.producing.errors import Fenced, SinkError
from strandline.snapshot.producing.transactions import FENCED, Producer, add_partitions

REQUEST_BYTES: Final = 8 * 1024 * 1024
_SEQUENCES: Final = 1 << 31
_ALL_REPLICAS: Final = -1
_BROKER_SECONDS: Final = 20.0
"""Longest that a broker may take for a request; ANSWER_SECONDS is longer."""

Place = tuple[str, int]
"""A topic's name and the number of a partition."""


@dataclass
class _Lane:
    """A partition's batches on their way, and the number of its next record."""

    closed: deque[bytes] = field(default_factory=deque)
    sequence: int = 0


@dataclass(frozen=True)
class _Request:
    address: Address
    places: tuple[Place, ...]


class BatchSender:
    """Sends batches of one producer. Raises SinkError, Unanswered, Fenced."""

    def __init__(self, brokers: Brokers, producer: Producer) -> None:
        self._brokers = brokers
        self._producer = producer
        self._lanes: dict[Place, _Lane] = {}
        self._added: set[Place] = set()
        self._under_way: dict[Address, _Request] = {}
        self._waiting_bytes = 0
        self._progress = brokers.deadline()

    @property
    def in_transaction(self) -> bool:
        """Whether some partition is part of the transaction."""
        return bool(self._added)

    def begin(self) -> None:
        """Another transaction of the producer begins: no partition is part of it yet."""
        assert not self._waiting_bytes, "these batches would come into the next transaction"
        self._added.clear()
        self._progress.renew()

    def sequence(self, place: Place) -> int:
        """The number that the partition's next record has."""
        return self._lanes[place].sequence if place in self._lanes else 0

    def put(self, place: Place, batch: bytes, count: int) -> None:
        """Take the next batch of a partition, of `count` records; `send` sends it."""
        if not self._waiting_bytes:
            self._progress.renew()  # until now there was nothing that could go on
        lane = self._lanes.setdefault(place, _Lane())
        lane.sequence = (lane.sequence + count) % _SEQUENCES
        lane.closed.append(batch)
        self._waiting_bytes += len(batch)

    def send(self, most: int) -> None:
        """Send what there is and take the answers that are there, until at most so many bytes wait."""
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
        # Also one whose leader is another by now: two answers would be taken for those of two batches.
        asked = {place for request in self._under_way.values() for place in request.places}
        for place, lane in self._lanes.items():
            if not lane.closed or place in asked:
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
