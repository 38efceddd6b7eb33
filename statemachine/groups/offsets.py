"""The offsets of a group, committed or pending in transactions: plain state, with the rules of its keys.

An offset belongs to a topic id, not a name: a topic that is deleted and created again has none. A
transaction's offsets are pending until its marker comes. Each then replaces a committed offset only if that
was committed before it: the order is that of the commits in the log, not of the markers (Kafka's
OffsetMetadataManager).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final, NamedTuple

NO_EXPIRY = -1
"""The offset has no time of its own to go at: the retention holds."""
OFFSET_BYTES: Final = 64
"""Bytes that an offset counts besides its metadata."""
NAME_BYTES: Final = 64
"""Bytes that a topic of a group counts besides its name."""


class CommittedOffset(NamedTuple):
    """One partition's offset. Times are milliseconds, the state machine's."""

    offset: int
    leader_epoch: int
    metadata: str
    time: int
    """When it was committed."""
    expires_at: int
    log_index: int
    """Of the entry that brought it; the later one wins."""


Key = tuple[bytes, int]
"""Topic id and partition."""


class Totals:
    """Totals of all groups of a coordinator. Derived from their state: no part of a snapshot."""

    __slots__ = ("bytes", "offsets", "topics")

    def __init__(self) -> None:
        self.offsets = 0
        """Committed and pending."""
        self.bytes = 0
        """Of ids, names and metadata, with OFFSET_BYTES for each offset and NAME_BYTES for each name."""
        self.topics: Counter[bytes] = Counter()
        """Number of groups that have offsets for a topic, by topic id."""


class Offsets:
    """A group's offsets by topic id and partition, committed ones, and pending ones by producer id."""

    __slots__ = ("_totals", "committed", "names", "pending")

    def __init__(self, totals: Totals | None = None) -> None:
        """Count the offsets and names of this object in `totals`."""
        self._totals = totals or Totals()
        self.names: dict[bytes, str] = {}
        """Name of every topic that has a committed or pending offset."""
        self.committed: dict[bytes, dict[int, CommittedOffset]] = {}
        self.pending: dict[int, dict[Key, CommittedOffset]] = {}

    def copy(self) -> Offsets:
        """A copy that replaces this object, which must not change any more: the two are counted once."""
        made = Offsets(self._totals)
        made.names = dict(self.names)
        made.committed = {topic_id: dict(partitions) for topic_id, partitions in self.committed.items()}
        made.pending = {producer_id: dict(offsets) for producer_id, offsets in self.pending.items()}
        return made

    def uncount(self) -> None:
        """Subtract all offsets and names of this object from the totals: it is deleted."""
        for offset in self.each():
            self._count(-1, offset)
        for topic_id, name in self.names.items():
            self._count_name(-1, topic_id, name)

    @property
    def is_empty(self) -> bool:
        return not self.committed and not self.pending

    def each(self) -> Iterator[CommittedOffset]:
        """All of them, committed and pending."""
        for partitions in self.committed.values():
            yield from partitions.values()
        for pending in self.pending.values():
            yield from pending.values()

    def __len__(self) -> int:
        """Number of committed offsets."""
        return sum(len(partitions) for partitions in self.committed.values())

    def get(self, topic_id: bytes, partition: int) -> CommittedOffset | None:
        return self.committed.get(topic_id, {}).get(partition)

    def is_pending(self, topic_id: bytes, partition: int) -> bool:
        """Whether a transaction is open that has an offset for it."""
        key = (topic_id, partition)
        return any(key in offsets for offsets in self.pending.values())

    def commit(self, topic_id: bytes, topic: str, partition: int, committed: CommittedOffset) -> None:
        self._name(topic_id, topic)
        self._commit(topic_id, partition, committed)

    def add_pending(
        self, producer_id: int, topic_id: bytes, topic: str, partition: int, offset: CommittedOffset
    ) -> None:
        self._name(topic_id, topic)
        pending = self.pending.setdefault(producer_id, {})
        self._replaced(pending.get((topic_id, partition)), offset)
        pending[topic_id, partition] = offset

    def _name(self, topic_id: bytes, topic: str) -> None:
        if topic_id not in self.names:
            self.names[topic_id] = topic
            self._count_name(1, topic_id, topic)

    def _commit(self, topic_id: bytes, partition: int, offset: CommittedOffset) -> None:
        partitions = self.committed.setdefault(topic_id, {})
        self._replaced(partitions.get(partition), offset)
        partitions[partition] = offset

    def _replaced(self, former: CommittedOffset | None, offset: CommittedOffset) -> None:
        if former is not None:
            self._count(-1, former)
        self._count(1, offset)

    def _count(self, sign: int, offset: CommittedOffset) -> None:
        self._totals.offsets += sign
        self._totals.bytes += sign * size_of_offset(offset.metadata)

    def _count_name(self, sign: int, topic_id: bytes, topic: str) -> None:
        totals = self._totals
        totals.bytes += sign * size_of_name(topic)
        totals.topics[topic_id] += sign
        if not totals.topics[topic_id]:
            del totals.topics[topic_id]

    def end(self, producer_id: int, *, commit: bool) -> int:
        """End a producer's pending offsets; returns the number that became committed."""
        ended = self.pending.pop(producer_id, {})
        taken = 0
        for (topic_id, partition), offset in ended.items():
            self._count(-1, offset)
            present = self.get(topic_id, partition)
            if commit and (present is None or present.log_index < offset.log_index):
                self._commit(topic_id, partition, offset)
                taken += 1
        self._forget_names()
        return taken

    def delete(self, topic_id: bytes, partitions: Collection[int]) -> int:
        """Forget these, committed and pending; returns for how many there was something."""
        there = {partition: None for partition in partitions if self._drop_committed(topic_id, partition)}
        for producer_id, offsets in list(self.pending.items()):
            for partition in partitions:
                gone = offsets.pop((topic_id, partition), None)
                if gone is not None:
                    self._count(-1, gone)
                    there[partition] = None
            if not offsets:
                del self.pending[producer_id]
        if there:
            self._forget_names()
        return len(there)

    def forget_topic(self, topic_id: bytes) -> int:
        """Forget all of a topic; returns for how many partitions there was something."""
        partitions = dict.fromkeys(self.committed.get(topic_id, {}))
        for offsets in self.pending.values():
            partitions.update((key[1], None) for key in offsets if key[0] == topic_id)
        return self.delete(topic_id, partitions)

    def expire(self, now: int, retention: int, empty_since: int) -> int:
        """Forget the expired offsets that no transaction is open for; returns their number."""
        expired = list(self._expired(now, retention, empty_since))
        for topic_id, partition in expired:
            self._drop_committed(topic_id, partition)
        self._forget_names()
        return len(expired)

    def expires(self, now: int, retention: int, empty_since: int) -> bool:
        """Whether `expire` would forget any."""
        return next(self._expired(now, retention, empty_since), None) is not None

    def _expired(self, now: int, retention: int, empty_since: int) -> Iterator[Key]:
        for topic_id, partitions in self.committed.items():
            for partition, offset in partitions.items():
                ends = offset.expires_at
                if ends == NO_EXPIRY:
                    ends = max(offset.time, empty_since) + retention
                if ends <= now and not self.is_pending(topic_id, partition):
                    yield topic_id, partition

    def _drop_committed(self, topic_id: bytes, partition: int) -> bool:
        partitions = self.committed.get(topic_id)
        gone = None if partitions is None else partitions.pop(partition, None)
        if partitions is None or gone is None:
            return False
        self._count(-1, gone)
        if not partitions:
            del self.committed[topic_id]
        return True

    def _forget_names(self) -> None:
        """Forget the names of topics that nothing is left for."""
        if len(self.names) == len(self.committed) and not self.pending:
            return
        used = self._topics()
        for topic_id in [topic_id for topic_id in self.names if topic_id not in used]:
            self._count_name(-1, topic_id, self.names.pop(topic_id))

    def _topics(self) -> dict[bytes, None]:
        used = dict.fromkeys(self.committed)
        for offsets in self.pending.values():
            used.update((topic_id, None) for topic_id, _ in offsets)
        return used

    def fields(self) -> list[Any]:
        """Plain values for a snapshot."""
        return [
            list(self.names.items()),
            [(topic_id, list(partitions.items())) for topic_id, partitions in self.committed.items()],
            [
                (producer_id, [(*key, offset) for key, offset in offsets.items()])
                for producer_id, offsets in self.pending.items()
            ],
        ]

    @classmethod
    def loaded(cls, fields: Iterable[Any], totals: Totals | None = None) -> Offsets:
        """The object that `fields` was taken from; raises ValueError if the fields contradict each other.

        Each array may be an iterator: they are gone through once, in their order.
        """
        names, committed, pending = fields
        loaded = cls(totals)
        loaded.names = dict(names)
        loaded.committed = {
            topic_id: {partition: CommittedOffset(*offset) for partition, offset in partitions}
            for topic_id, partitions in committed
        }
        loaded.pending = {
            producer_id: {
                (topic_id, partition): CommittedOffset(*offset) for topic_id, partition, offset in offsets
            }
            for producer_id, offsets in pending
        }
        empty = [one for one in (*loaded.committed.values(), *loaded.pending.values()) if not one]
        if empty or loaded._topics() != dict.fromkeys(loaded.names):
            raise ValueError("topics without offsets, or offsets without a topic")
        for offset in loaded.each():
            loaded._count(1, offset)
        for topic_id, name in loaded.names.items():
            loaded._count_name(1, topic_id, name)
        return loaded


def size_of_offset(metadata: str) -> int:
    """Bytes that an offset with this metadata counts in `Totals.bytes`."""
    return OFFSET_BYTES + len(metadata.encode())


def size_of_name(topic: str) -> int:
    """Bytes that a topic of a group counts in `Totals.bytes` besides its offsets."""
    return NAME_BYTES + len(topic.encode())
