"""What producers were told, and what was read back: kept small, and compared below no offset that is gone.

Retention, DeleteRecords and the deletion of a topic take records away on purpose. What is acknowledged and
lies at or above a partition's first offset must be there, once, where it was said to be, as it was sent.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.programs.soak.records import parsed, size_of

NO_PLACE: Final = -1
"""Acknowledged, and not said where: the batch's own answer was lost, one behind it was acknowledged."""
RUN: Final = 8
"""So many records one after the other go to the same partition, so that there are batches."""
MAX_FINDINGS: Final = 20


def packed(partition: int, offset: int) -> int:
    """A place as one number; 0 is none."""
    return offset << 8 | partition + 1


def unpacked(place: int) -> tuple[int, int]:
    """Partition and offset."""
    return (place & 0xFF) - 1, place >> 8


@dataclass(eq=False)
class Stream:
    """The records of one producer for one topic, in the life that topic has had since it was last created."""

    number: int
    """No two streams of a run have the same."""
    topic: str
    partitions: int
    places: array[int] = field(default_factory=lambda: array("q"))
    """Of each sequence: 0 (not acknowledged), NO_PLACE, or where it is."""
    made_at: array[float] = field(default_factory=lambda: array("d"))
    """Wall clock, seconds."""
    acknowledged: int = 0
    bytes: int = 0
    """Of the values acknowledged."""

    def partition_of(self, sequence: int) -> int:
        return sequence // RUN % self.partitions

    def sent(self) -> None:
        """One more record was handed over."""
        self.places.append(0)
        self.made_at.append(time.time())

    def delivered(self, sequence: int, partition: int, offset: int | None) -> None:
        self.places[sequence] = NO_PLACE if offset is None or offset < 0 else packed(partition, offset)
        self.acknowledged += 1
        self.bytes += size_of(self.number, sequence)


@dataclass
class Kept:
    """One partition as it was read from its first offset to its high watermark."""

    low: int
    """Its first offset, asked for after the last record had come."""
    high: int
    records: int = 0
    bytes: int = 0
    """Of the values at or above `low`."""


@dataclass
class TopicRead:
    """A topic read back. `places` has, by stream, where each sequence was found; 0: nowhere."""

    topic: str
    streams: Mapping[int, Stream]
    """Those that wrote to it in its present life."""
    partitions: dict[int, Kept] = field(default_factory=dict)
    places: dict[int, array[int]] = field(default_factory=dict)
    newest: dict[tuple[int, int], int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    doubled: int = 0

    def take(self, partition: int, offset: int, value: bytes | str | None) -> int:
        """Check one record against who says to have sent it; the bytes of its value."""
        where = f"{self.topic}-{partition}, offset {offset}"
        try:
            number, sequence = parsed(value)
        except ValueError as problem:
            self.note(f"{where}: {problem}")
            return len(value or b"")
        stream = self.streams.get(number)
        if stream is None or sequence >= len(stream.places):
            self.note(f"{where}: record {sequence} of stream {number} was never sent there")
            return len(value or b"")
        before = self.newest.get((number, partition), -1)
        if sequence <= before:
            self.note(f"{where}: record {sequence} of stream {number} comes after {before}")
        self.newest[number, partition] = max(before, sequence)
        places = self.places.setdefault(number, array("q", bytes(8 * len(stream.places))))
        if sequence >= len(places):  # a stream that still sends
            places.extend([0] * (len(stream.places) - len(places)))
        if places[sequence]:
            self.doubled += 1
        else:
            places[sequence] = packed(partition, offset)
        return size_of(number, sequence)

    @property
    def records(self) -> int:
        """Read at or above the first offsets."""
        return sum(kept.records for kept in self.partitions.values())

    def retained(self, partition: int, low: int) -> tuple[int, int]:
        """Records that were read of a partition at or above an offset, and the bytes of their values."""
        records = size = 0
        for number, places in self.places.items():
            for sequence, place in enumerate(places):
                if place and unpacked(place)[0] == partition and unpacked(place)[1] >= low:
                    records += 1
                    size += size_of(number, sequence)
        return records, size

    def note(self, text: str) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(text)


@dataclass
class Compared:
    """What was acknowledged and is retained, beside what was read."""

    expected: int = 0
    lost: int = 0
    moved: int = 0
    doubled: int = 0
    read: int = 0
    findings: list[str] = field(default_factory=list)

    def add(self, other: Compared) -> None:
        self.expected += other.expected
        self.lost += other.lost
        self.moved += other.moved
        self.doubled += other.doubled
        self.read += other.read
        self.findings += other.findings[: MAX_FINDINGS - len(self.findings)]


def compare(read: TopicRead) -> Compared:
    """Every record that was acknowledged and lies at or above its partition's first offset."""
    found = Compared(doubled=read.doubled, findings=list(read.findings))
    found.read = read.records
    nowhere: array[int] = array("q")
    for stream in read.streams.values():
        there = read.places.get(stream.number, nowhere)
        known: dict[int, int] = {}
        for sequence, told in enumerate(stream.places):
            if not told:
                continue
            partition, offset = _told(stream, sequence, told, known)
            if offset < read.partitions[partition].low:
                continue
            found.expected += 1
            place = there[sequence] if sequence < len(there) else 0
            if not place:
                found.lost += 1
            elif told not in (NO_PLACE, place):
                found.moved += 1
            else:
                continue
            if len(found.findings) < MAX_FINDINGS:
                at = "lost" if not place else "at {}/{}".format(*unpacked(place))
                found.findings.append(
                    f"{read.topic}: record {sequence} of stream {stream.number}, acknowledged at "
                    f"{partition}/{offset}, is {at}"
                )
    return found


def _told(stream: Stream, sequence: int, told: int, known: dict[int, int]) -> tuple[int, int]:
    """Where a record was said to be; one without a place lies behind the last of its stream and partition
    that has one, which `known` keeps."""
    if told == NO_PLACE:
        partition = stream.partition_of(sequence)
        return partition, known.get(partition, -1)
    partition, offset = unpacked(told)
    known[partition] = offset
    return partition, offset


def newest_below(streams: Iterable[Stream], partition: int, offset: int) -> float | None:
    """When the newest record below an offset was made, of those that have a place; None: there is none."""
    made = [
        stream.made_at[sequence]
        for stream in streams
        for sequence, told in enumerate(stream.places)
        if told > 0 and unpacked(told)[0] == partition and unpacked(told)[1] < offset
    ]
    return max(made, default=None)


def oldest_from(streams: Iterable[Stream], partition: int, offset: int) -> float | None:
    """When the oldest record at or above an offset was made; None: there is none."""
    made = [
        stream.made_at[sequence]
        for stream in streams
        for sequence, told in enumerate(stream.places)
        if told > 0 and unpacked(told)[0] == partition and unpacked(told)[1] >= offset
    ]
    return min(made, default=None)
