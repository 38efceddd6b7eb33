"""The records of a program's input topics, as far as they are decided, and up to bounds.

A cut has an offset for each partition: all records below it are taken, and none above. The end of what is
decided is told by the broker, so a cut is reached also where its last records were aborted or cleaned away.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from confluent_kafka import Consumer, TopicPartition
from numpy.typing import NDArray

from strandline.cluster.view_worker.fetched import Cut, Fetched, Fetcher, Place, joined

REQUEST_SECONDS: Final = 20.0
AHEAD_BYTES: Final = 32 << 20
"""Of records that wait. Where a step has enough of them, no more come: each of many partitions has some."""


class _Taken(NamedTuple):
    """A piece as the last `take` took it, and where its partition was before."""

    piece: Fetched
    position: int
    size: int


class Inputs:
    """Reads partitions from a cut on."""

    def __init__(self, consumer: Consumer, fetcher: Fetcher, begin: Mapping[Place, int | None]) -> None:
        """None begins at the first record that is there, which `consumer` finds. Raises KafkaException."""
        self._fetcher = fetcher
        self._ahead: dict[Place, deque[Fetched]] = {}
        """Pieces that wait, of partitions that are not read meanwhile."""
        self._last: list[_Taken] = []
        self.full = False
        """Whether the last `take` ended because it had as much as it was to take."""
        self.ended: set[Place] = set()
        """Partitions that were read to their end at least once."""
        self.bytes: Counter[str] = Counter()
        """Bytes of keys and values that were taken, by topic, since they were last reset."""
        self.position: Cut = {}
        for place, offset in begin.items():
            self.position[place] = _first(consumer, place) if offset is None else offset
        fetcher.begin(self.position)

    def at(self, cut: Mapping[Place, int]) -> bool:
        """Whether everything below a cut is taken."""
        return all(self.position.get(place, 0) >= offset for place, offset in cut.items())

    def take(
        self, most: int, size: int, seconds: float, bounds: Mapping[Place, int] | None = None
    ) -> dict[str, Any]:
        """Up to `most` records, or little more than `size` bytes, by topic, once there are some.

        There are none when the time is up. None is at or above `bounds`: what was read there is kept for
        later. What lies below them is taken at once, unless nothing comes for so long. They are Arrow batches
        (RECORDS). Raises KafkaException, and InputGone for records that retention has deleted.
        """
        self._last = []
        taken: dict[str, list[Any]] = {}
        come = False
        while True:
            for place in [*self._ahead]:
                while most > 0 and size > 0 and (one := self._next(place, most, size, bounds)) is not None:
                    taken.setdefault(place[0], []).append(one.piece.records)
                    most, size = most - one.piece.records.num_rows, size - one.size
            self.full = most <= 0 or size <= 0
            enough = self.full or (bool(taken) if bounds is None else self.at(bounds))
            if come and (enough or bounds is None):
                break
            # Asked also where enough is there: what comes next is on its way while this is worked.
            if self.full and self._waiting() >= AHEAD_BYTES:
                break
            if not self._look(0.0 if enough else seconds):
                break
            come = True
        return {topic: joined(batches) for topic, batches in taken.items()}

    def _look(self, seconds: float) -> bool:
        """Have more records here, which are not taken yet; whether some came in time."""
        pieces = self._fetcher.fetch(self._ahead, seconds)
        for piece in pieces:
            self._ahead.setdefault(piece.place, deque()).append(piece)
        return bool(pieces)

    def _waiting(self) -> int:
        """Count the bytes of what waits."""
        return sum(piece.records.nbytes for ahead in self._ahead.values() for piece in ahead)

    def give_back(self) -> None:
        """Have the records of the last `take` be taken again: nothing of them was committed."""
        for piece, position, size in reversed(self._last):
            self._ahead.setdefault(piece.place, deque()).appendleft(piece)
            self.bytes[piece.place[0]] -= size
            self.position[piece.place] = position
        self._last = []

    def _next(self, place: Place, most: int, size: int, bounds: Mapping[Place, int] | None) -> _Taken | None:
        """Take what is next of a partition, as far as it may be; None where there are no records now."""
        while place in self._ahead:
            ahead, position = self._ahead[place], self.position[place]
            piece = ahead.popleft()
            bound = piece.upto if bounds is None else max(position, bounds.get(place, 0))
            first, after = _between(piece.records, position, bound)
            after = min(after, first + most)
            after = min(after, first + _fitting(piece.records, first, after, size))
            whole = after == piece.records.num_rows and piece.upto <= bound
            if not whole:
                ahead.appendleft(piece._replace(records=piece.records.slice(after)))
            elif not ahead:
                del self._ahead[place]
            if whole:
                upto = piece.upto
            elif after < piece.records.num_rows:
                upto = min(piece.records.column("offset")[after].as_py(), bound)
            else:
                upto = bound
            self.position[place] = max(position, upto)
            if whole and piece.end:
                self.ended.add(place)
            records = piece.records.slice(first, after - first)
            taken = _Taken(Fetched(place, records, upto, False), position, _sizes(records).sum().item())
            self._last.append(taken)
            self.bytes[place[0]] += taken.size
            if after > first:
                return taken
            if not whole:
                return None
        return None


def _first(consumer: Consumer, place: Place) -> int:
    low, _ = consumer.get_watermark_offsets(TopicPartition(*place), timeout=REQUEST_SECONDS)
    return max(low, 0)


def _between(records: Any, position: int, bound: int) -> tuple[int, int]:
    """The numbers of the records from a position on and below a bound."""
    offsets = records.column("offset").to_numpy()
    first, after = np.searchsorted(offsets, [position, bound]).tolist()
    return first, max(first, after)


def _fitting(records: Any, first: int, after: int, size: int) -> int:
    """Count the records that it takes to have so many bytes; all of them where that is less."""
    sizes = np.cumsum(_sizes(records.slice(first, after - first)))
    return after - first if not len(sizes) or sizes[-1] <= size else int(np.searchsorted(sizes, size)) + 1


def _sizes(records: Any) -> NDArray[np.int64]:
    """Bytes of key and value of each record."""
    return _lengths(records.column("key")) + _lengths(records.column("value"))


def _lengths(column: Any) -> NDArray[np.int64]:
    places = column.buffers()[1]
    if places is None or not len(column):
        return np.zeros(len(column), np.int64)
    edges = np.frombuffer(places, np.int32)[column.offset : column.offset + len(column) + 1]
    return np.diff(edges).astype(np.int64)
