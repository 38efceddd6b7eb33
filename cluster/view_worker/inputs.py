"""The records of a program's input topics, as far as they are decided, and up to bounds.

A cut has an offset for each partition: all records below it are taken, and none above. The end of what is
decided is told by the broker, so a cut is reached also where its last records were aborted or cleaned away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from strandline.snapshot.views.json_records import Record

Place = tuple[str, int]
Cut = dict[Place, int]

REQUEST_SECONDS: Final = 20.0


class InputGone(Exception):
    """Records that a state needs are not there any more; `str()` says where."""


class Inputs:
    """Reads partitions from a cut on."""

    def __init__(self, consumer: Consumer, begin: Mapping[Place, int | None]) -> None:
        """None begins at the first record that is there."""
        self._consumer = consumer
        self._ahead: dict[Place, deque[Message]] = {}
        self.ended: set[Place] = set()
        """Partitions that were read to their end at least once."""
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
        self, most: int, seconds: float, bounds: Mapping[Place, int] | None = None
    ) -> dict[str, list[Record]]:
        """Up to `most` records by topic, once there are some or the time is over; none at or above `bounds`.

        What was read above the bounds is kept for later. Raises KafkaException, and InputGone for records
        that retention has deleted.
        """
        taken: dict[str, list[Record]] = {}
        for place, ahead in [*self._ahead.items()]:
            while ahead and _within(place, _offset(ahead[0]), bounds):
                self._add(taken, place, ahead.popleft())
            if not ahead:
                del self._ahead[place]
                self._consumer.resume([TopicPartition(*place)])
        if taken:
            return taken
        for message in self._consumer.consume(most, seconds):
            self._sort(message, taken, bounds)
        return taken

    def _sort(
        self, message: Message, taken: dict[str, list[Record]], bounds: Mapping[Place, int] | None
    ) -> None:
        topic, number = message.topic(), message.partition()
        error = message.error()
        if error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise InputGone(f"{topic}-{number} does not have the records any more that the state needs")
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            if error.retriable() or error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                return
            raise KafkaException(error)
        assert topic is not None
        assert number is not None
        place = topic, number
        offset, bound = _offset(message), None if bounds is None else bounds.get(place)
        waiting = self._ahead.get(place)
        if error is not None:
            # The end of what is decided: nothing below it is still to come.
            self.ended.add(place)
            if not waiting:
                self._reach(place, offset if bound is None else min(offset, bound))
        elif waiting or not _within(place, offset, bounds):
            if not waiting:
                # What comes next is fetched again later, so little is kept here.
                self._ahead[place] = waiting = deque()
                self._consumer.pause([TopicPartition(*place)])
            assert waiting is not None
            waiting.append(message)
            if bound is not None:
                self._reach(place, bound)
        else:
            self._add(taken, place, message)

    def _add(self, taken: dict[str, list[Record]], place: Place, message: Message) -> None:
        offset = _offset(message)
        if offset < self.position[place]:
            return
        _, milliseconds = message.timestamp()
        key, value = message.key(), message.value()
        taken.setdefault(place[0], []).append(
            Record(place[1], offset, milliseconds, _bytes(key), _bytes(value))
        )
        self.position[place] = offset + 1

    def _reach(self, place: Place, offset: int) -> None:
        self.position[place] = max(self.position[place], offset)


def _bytes(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else str(value).encode()


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


def _within(place: Place, offset: int, bounds: Mapping[Place, int] | None) -> bool:
    return bounds is None or offset < bounds.get(place, 0)
