"""The records of a program's input topics, as far as they are decided, and up to bounds.

A cut has an offset for each partition: all records below it are taken, and none above. The end of what is
decided is told by the broker, so a cut is reached also where its last records were aborted or cleaned away.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from strandline.snapshot.views.json_records import Record

Place = tuple[str, int]
Cut = dict[Place, int]

REQUEST_SECONDS: Final = 20.0
AT_ONCE: Final = 200
"""Messages that are asked for at a time: what was read is counted in bytes between."""


class InputGone(Exception):
    """Records that a state needs are not there any more; `str()` says where."""


class Inputs:
    """Reads partitions from a cut on."""

    def __init__(self, consumer: Consumer, begin: Mapping[Place, int | None]) -> None:
        """None begins at the first record that is there."""
        self._consumer = consumer
        self._ahead: dict[Place, deque[Record]] = {}
        """Records that wait, of partitions that are not read meanwhile."""
        self._told: dict[Place, int] = {}
        """Ends that were told, and are not reached yet: librdkafka tells each only once."""
        self.full = False
        """Whether the last `take` ended because it had as much as it was to take."""
        self.ended: set[Place] = set()
        """Partitions that were read to their end at least once."""
        self.bytes: Counter[str] = Counter()
        """Bytes of keys and values that were taken, by topic, since they were last reset."""
        self.position: Cut = {}
        for place, offset in begin.items():
            self.position[place] = self._first(place) if offset is None else offset
        consumer.assign([TopicPartition(*place, offset) for place, offset in self.position.items()])

    def _first(self, place: Place) -> int:
        low, _ = self._consumer.get_watermark_offsets(TopicPartition(*place), timeout=REQUEST_SECONDS)
        return max(low, 0)

    def at(self, cut: Mapping[Place, int]) -> bool:
        """Whether everything below a cut is taken."""
        return all(self.position.get(place, 0) >= offset for place, offset in cut.items())

    def take(
        self, most: int, size: int, seconds: float, bounds: Mapping[Place, int] | None = None
    ) -> dict[str, list[Record]]:
        """Up to `most` records, or little more than `size` bytes, by topic, once there are some.

        There are none when the time is up. None is at or above `bounds`: what was read there is kept for
        later. Raises KafkaException, and InputGone for records that retention has deleted.
        """
        taken: dict[str, list[Record]] = {}
        for place, ahead in [*self._ahead.items()]:
            while ahead and most and size > 0 and _within(place, ahead[0].offset, bounds):
                record = ahead.popleft()
                self._add(taken, place, record)
                most, size = most - 1, size - _size(record)
            if not ahead:
                del self._ahead[place]
                self._consumer.resume([TopicPartition(*place)])
        for place in [one for one in self._told if one not in self._ahead]:
            self._come_to_end(place, bounds)
        waited = bool(taken)
        while not waited and most > 0 and size > 0:
            asked = min(most, AT_ONCE)
            messages = self._consumer.consume(asked, seconds)
            for message in messages:
                size -= self._sort(message, taken, bounds)
            most, seconds = most - len(messages), 0.0
            waited = len(messages) < asked
        self.full = most <= 0 or size <= 0
        return taken

    def give_back(self, taken: Mapping[str, list[Record]]) -> None:
        """Have records be taken again: those of the last `take`, of which nothing was committed."""
        for topic, records in taken.items():
            for record in reversed(records):
                place = topic, record.partition
                self._told[place] = max(self._told.get(place, 0), self.position[place])
                if place not in self._ahead:
                    self._ahead[place] = deque()
                    self._consumer.pause([TopicPartition(*place)])
                self._ahead[place].appendleft(record)
                self.bytes[topic] -= _size(record)
                self.position[place] = record.offset

    def _sort(
        self, message: Message, taken: dict[str, list[Record]], bounds: Mapping[Place, int] | None
    ) -> int:
        """Take a record, keep it for later, or note an end; its bytes."""
        topic, number = message.topic(), message.partition()
        error = message.error()
        if error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise InputGone(f"{topic}-{number} does not have the records any more that the state needs")
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            if error.retriable() or error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                return 0
            raise KafkaException(error)
        assert topic is not None
        assert number is not None
        place = topic, number
        offset, bound = _offset(message), None if bounds is None else bounds.get(place)
        waiting = self._ahead.get(place)
        if error is not None:
            # The end of what is decided: nothing below it is still to come.
            self.ended.add(place)
            self._told[place] = offset
            if not waiting:
                self._come_to_end(place, bounds)
            return 0
        record = _record(message, number)
        if waiting or not _within(place, offset, bounds):
            if not waiting:
                # What comes next is fetched again later, so little is kept here.
                self._ahead[place] = waiting = deque()
                self._consumer.pause([TopicPartition(*place)])
            assert waiting is not None
            waiting.append(record)
            if bound is not None:
                self._reach(place, bound)
        else:
            self._add(taken, place, record)
        return _size(record)

    def _add(self, taken: dict[str, list[Record]], place: Place, record: Record) -> None:
        if record.offset >= self.position[place]:
            taken.setdefault(place[0], []).append(record)
            self.bytes[place[0]] += _size(record)
            self.position[place] = record.offset + 1

    def _come_to_end(self, place: Place, bounds: Mapping[Place, int] | None) -> None:
        """Nothing is left below the end that was told: come to it, or to the bound below it."""
        end = self._told[place]
        self._reach(place, end if bounds is None else min(end, bounds.get(place, end)))
        if self.position[place] >= end:
            del self._told[place]

    def _reach(self, place: Place, offset: int) -> None:
        self.position[place] = max(self.position[place], offset)


def _record(message: Message, number: int) -> Record:
    _, milliseconds = message.timestamp()
    return Record(number, _offset(message), milliseconds, _bytes(message.key()), _bytes(message.value()))


def _size(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"")


def _bytes(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else str(value).encode()


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


def _within(place: Place, offset: int, bounds: Mapping[Place, int] | None) -> bool:
    return bounds is None or offset < bounds.get(place, 0)
