"""A Kafka cluster as views' processes see it: logs with transactions, groups' offsets, compaction, retention.

Topics, their names and partitions are the controller's; a log belongs to a topic's id, and what names a topic
means the one that has the name when the request comes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from zlib import crc32

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_state import Topic

Place = tuple[str, int]


@dataclass(slots=True)
class Transaction:
    """A transaction of a producer, and what takes effect with it."""

    owner: str
    epoch: int
    outcome: str = "open"
    places: dict[tuple[bytes, int], int] = field(default_factory=dict)
    """Partitions with the first offset that it has there."""
    group: str = ""
    offsets: list[tuple[str, int, int, str]] = field(default_factory=list)
    records: list[tuple[bytes, bytes, bytes | None]] = field(default_factory=list)
    """Topic, key and value of what was written."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record; a marker has no value and `marker`."""

    offset: int
    key: bytes | None
    value: bytes | None
    transaction: Transaction | None
    marker: bool = False

    @property
    def committed(self) -> bool:
        return not self.marker and (self.transaction is None or self.transaction.outcome == "committed")


class PartitionLog:
    """One partition: `history` is all that was ever written, `present` what cleaning has left."""

    def __init__(self) -> None:
        self.history: list[Entry] = []
        self.present: dict[int, Entry] = {}
        self.start = 0
        self.open: list[tuple[int, Transaction]] = []
        self.holds: dict[str, int] = {}
        self.cleaned = 0
        """What lies below may have been cleaned away."""

    @property
    def end(self) -> int:
        return len(self.history)

    @property
    def stable(self) -> int:
        """The last stable offset."""
        return min([first for first, one in self.open if one.outcome == "open"], default=self.end)

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        transaction: Transaction | None = None,
        *,
        marker: bool = False,
    ) -> int:
        entry = Entry(self.end, key, value, transaction, marker)
        self.history.append(entry)
        self.present[entry.offset] = entry
        return entry.offset

    def hold(self, reader: str, offset: int | None) -> int | None:
        """Hold records from an offset on; gives the lowest one that can be held if that is above it."""
        if offset is None:
            offset = max(self.holds.get(reader, self.stable), self.cleaned)
        if offset < self.cleaned and self.holds.get(reader) != offset:
            return self.cleaned
        self.holds[reader] = offset
        return None

    def compact(self, to: int | None = None) -> int:
        """Keep of each key what is newest below the lowest hold, no tombstone there; the number removed."""
        bound = min([self.stable, *self.holds.values()] + ([] if to is None else [to]))
        newest = {
            one.key: one.offset for one in self.present.values() if one.offset < bound and one.committed
        }
        gone = [
            one.offset
            for one in self.present.values()
            if one.offset < bound
            and (not one.committed or newest[one.key] != one.offset or one.value is None)
        ]
        for offset in gone:
            del self.present[offset]
        self.cleaned = max(self.cleaned, bound)
        return len(gone)

    def trim(self, start: int) -> None:
        """Delete what lies below an offset."""
        self.start = max(self.start, min(start, self.stable))
        for offset in [one for one in self.present if one < self.start]:
            del self.present[offset]

    def readable(self, first: int, committed_only: bool) -> Iterator[Entry]:
        bound = self.stable if committed_only else self.end
        for offset in range(first, bound):
            one = self.present.get(offset)
            if one is not None and not one.marker and (one.committed or not committed_only):
                yield one


class Kafka:
    """The cluster. `committed` hears of each transaction of a views' process as it takes effect."""

    def __init__(self, controller: Controller, now: Callable[[], float]) -> None:
        self.controller = controller
        self._now = now
        self._former: dict[str, tuple[bytes, float]] = {}
        """Topics by names that they had, which brokers still know for a while."""
        self.logs: dict[tuple[bytes, int], PartitionLog] = defaultdict(PartitionLog)
        self.offsets: dict[str, dict[Place, tuple[int, str]]] = defaultdict(dict)
        self.epochs: dict[str, int] = defaultdict(int)
        self.open: dict[str, Transaction] = {}
        self.committed: Callable[[Transaction], None] = lambda _: None

    def forget_late(self, names: Mapping[str, bytes], until: float) -> None:
        """Brokers know names, as they were before a change, until some time."""
        for name, topic_id in names.items():
            if self.controller.topic(name) is None:
                self._former[name] = topic_id, until

    def _topic(self, name: str) -> Topic | None:
        former, until = self._former.get(name, (b"", 0.0))
        return self.controller.topic(name) or (
            self.controller.topic_by_id(former) if self._now() < until else None
        )

    def log(self, name: str, partition: int) -> PartitionLog:
        """The log of the partition that has this name now; raises KafkaException."""
        topic = self._topic(name)
        if topic is None or partition >= len(topic.partitions):
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, f"{name}-{partition}"))
        return self.logs[topic.topic_id, partition]

    def begin(self, owner: str) -> int:
        """A producer begins: the one before is shut out, and its transaction ends."""
        if owner in self.open:
            self.end(self.open[owner], commit=False)
        self.epochs[owner] += 1
        return self.epochs[owner]

    def write(
        self,
        owner: str,
        epoch: int,
        records: list[tuple[str, bytes, bytes | None]],
        group: str = "",
        offsets: list[TopicPartition] | None = None,
    ) -> None:
        """Add records, and offsets of a group, to the producer's open transaction."""
        self._check(owner, epoch)
        one = self.open.setdefault(owner, Transaction(owner, epoch))
        for name, key, value in records:
            topic = self._topic(name)
            if topic is None:
                raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, name))
            place = topic.topic_id, crc32(key) % len(topic.partitions)
            log = self.logs[place]
            if place not in one.places:
                one.places[place] = log.end
                log.open.append((log.end, one))
            log.append(key, value, one)
            one.records.append((topic.topic_id, key, value))
        one.group = group
        one.offsets += [
            (each.topic, each.partition, each.offset, each.metadata or "") for each in offsets or ()
        ]

    def commit(self, owner: str, epoch: int) -> None:
        self._check(owner, epoch)
        one = self.open.get(owner)
        if one is None or one.epoch != epoch:
            raise KafkaException(KafkaError(KafkaError.INVALID_TXN_STATE, "no transaction is open"))
        self.end(one, commit=True)

    def _check(self, owner: str, epoch: int) -> None:
        if epoch != self.epochs[owner]:
            raise KafkaException(KafkaError(KafkaError._FENCED, "another producer has begun", True))

    def end(self, one: Transaction, *, commit: bool) -> None:
        """Commit or abort a transaction."""
        one.outcome = "committed" if commit else "aborted"
        if self.open.get(one.owner) is one:
            del self.open[one.owner]
        for place in one.places:
            log = self.logs[place]
            log.append(None, None, one, marker=True)
            log.open = [each for each in log.open if each[1] is not one]
        if commit and one.group:
            for topic, partition, offset, metadata in one.offsets:
                self.offsets[one.group][topic, partition] = offset, metadata
            self.committed(one)

    def sell(self, name: str, partition: int, rows: list[tuple[bytes | None, bytes | None]]) -> None:
        log = self.log(name, partition)
        for key, value in rows:
            log.append(key, value)

    def sell_in_transaction(
        self, name: str, rows: Mapping[int, list[tuple[bytes | None, bytes | None]]]
    ) -> Transaction:
        """Write records in a transaction that is open still."""
        one = Transaction("a client", 0)
        for partition, records in rows.items():
            topic = self._topic(name)
            assert topic is not None
            log = self.logs[topic.topic_id, partition]
            one.places[topic.topic_id, partition] = log.end
            log.open.append((log.end, one))
            for key, value in records:
                log.append(key, value, one)
        return one
