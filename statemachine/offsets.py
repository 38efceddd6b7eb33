"""The offsets of a group, and the transactions they are pending in: plain state, with the rules of its keys.

An offset belongs to a topic id, not a name: a topic deleted and created anew has none. What a transaction has
committed is pending until its marker comes, and takes the place of a committed offset only if that was
committed before it: the order is that of the commits in the log, not of the markers (Kafka's
OffsetMetadataManager). A transaction's number says whether a message of it comes too late.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

NO_EXPIRY = -1
"""The offset has no time of its own to go at: the retention holds."""
NOTHING_OPEN = 0
"""Number of the open transaction where none is; numbers begin at 1."""


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


class Offsets:
    """A group's offsets by topic id and partition, committed ones, and pending ones by producer id."""

    __slots__ = ("committed", "names", "pending")

    def __init__(self) -> None:
        self.names: dict[bytes, str] = {}
        """The name of every topic that something is here for."""
        self.committed: dict[bytes, dict[int, CommittedOffset]] = {}
        self.pending: dict[int, dict[Key, CommittedOffset]] = {}

    @property
    def is_empty(self) -> bool:
        return not self.committed and not self.pending

    def __len__(self) -> int:
        """How many are committed."""
        return sum(len(partitions) for partitions in self.committed.values())

    def get(self, topic_id: bytes, partition: int) -> CommittedOffset | None:
        return self.committed.get(topic_id, {}).get(partition)

    def is_pending(self, topic_id: bytes, partition: int) -> bool:
        """Whether a transaction is open that has an offset for it."""
        key = (topic_id, partition)
        return any(key in offsets for offsets in self.pending.values())

    def commit(self, topic_id: bytes, topic: str, partition: int, committed: CommittedOffset) -> None:
        self.names[topic_id] = topic
        self.committed.setdefault(topic_id, {})[partition] = committed

    def add_pending(
        self, producer_id: int, topic_id: bytes, topic: str, partition: int, offset: CommittedOffset
    ) -> None:
        self.names[topic_id] = topic
        self.pending.setdefault(producer_id, {})[topic_id, partition] = offset

    def end(self, producer_id: int, *, commit: bool) -> int:
        """End what is pending of a producer; returns how many became committed."""
        ended = self.pending.pop(producer_id, {})
        taken = 0
        for (topic_id, partition), offset in ended.items():
            present = self.get(topic_id, partition)
            if commit and (present is None or present.log_index < offset.log_index):
                self.committed.setdefault(topic_id, {})[partition] = offset
                taken += 1
        self._forget_names()
        return taken

    def delete(self, topic_id: bytes, partitions: Collection[int]) -> int:
        """Forget these, committed and pending; returns for how many there was something."""
        there = {partition: None for partition in partitions if self._drop_committed(topic_id, partition)}
        for producer_id, offsets in list(self.pending.items()):
            for partition in partitions:
                if offsets.pop((topic_id, partition), None) is not None:
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
        """Forget those whose time is over and that no transaction is open for; returns how many."""
        expired = []
        for topic_id, partitions in self.committed.items():
            for partition, offset in partitions.items():
                ends = offset.expires_at
                if ends == NO_EXPIRY:
                    ends = max(offset.time, empty_since) + retention
                if ends <= now and not self.is_pending(topic_id, partition):
                    expired.append((topic_id, partition))
        for topic_id, partition in expired:
            self._drop_committed(topic_id, partition)
        self._forget_names()
        return len(expired)

    def _drop_committed(self, topic_id: bytes, partition: int) -> bool:
        partitions = self.committed.get(topic_id)
        if partitions is None or partitions.pop(partition, None) is None:
            return False
        if not partitions:
            del self.committed[topic_id]
        return True

    def _forget_names(self) -> None:
        """Forget the names of topics that nothing is left for."""
        if len(self.names) == len(self.committed) and not self.pending:
            return
        used = self._topics()
        self.names = {topic_id: name for topic_id, name in self.names.items() if topic_id in used}

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
    def loaded(cls, fields: list[Any]) -> Offsets:
        """What `fields` gave; raises ValueError when its parts do not fit together."""
        names, committed, pending = fields
        loaded = cls()
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
        return loaded


class TransactionalProducer:
    """What a groups' coordinator knows of a producer id: how far its transactions are."""

    __slots__ = ("coordinator_term", "ended", "epoch", "groups", "last_time", "open")

    def __init__(self) -> None:
        self.epoch = -1
        self.ended = NOTHING_OPEN
        """The highest number whose marker came: a message of it, or of one before, comes too late."""
        self.open = NOTHING_OPEN
        self.groups: dict[str, None] = {}
        """Groups that the open transaction has offsets of, in the order they came."""
        self.coordinator_term = -1
        """Of the coordinator that sent the last marker; -1: none came."""
        self.last_time = 0
        """When it last did something here, in ms of the state machine."""

    def fields(self) -> list[Any]:
        """Plain values for a snapshot."""
        return [
            self.epoch,
            self.ended,
            self.open,
            list(self.groups),
            self.coordinator_term,
            self.last_time,
        ]

    @classmethod
    def loaded(cls, fields: list[Any]) -> TransactionalProducer:
        """What `fields` gave."""
        loaded = cls()
        loaded.epoch, loaded.ended, loaded.open, groups, loaded.coordinator_term, loaded.last_time = fields
        loaded.groups = dict.fromkeys(groups)
        return loaded


class TransactionalProducers:
    """All producers that had transactions on offsets here, by id."""

    __slots__ = ("_producers",)

    def __init__(self) -> None:
        self._producers: dict[int, TransactionalProducer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[tuple[int, TransactionalProducer]]:
        return iter(self._producers.items())

    def get(self, producer_id: int) -> TransactionalProducer | None:
        return self._producers.get(producer_id)

    def touched(self, producer_id: int, epoch: int, time: int) -> TransactionalProducer:
        """The producer, known from now on, under this epoch if it is higher, and active at this time."""
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = TransactionalProducer()
        producer.epoch = max(producer.epoch, epoch)
        producer.last_time = time
        return producer

    def newest_since(self, count: int) -> int | None:
        """Since when, in ms, no more than the newest `count` did something; None when there are no more."""
        if len(self._producers) <= count:
            return None
        return sorted([producer.last_time for producer in self._producers.values()])[-count]

    def expire(self, before: int) -> int:
        """Forget those that have nothing open and did nothing since a time in ms; returns how many."""
        kept = {
            producer_id: producer
            for producer_id, producer in self._producers.items()
            if producer.open != NOTHING_OPEN or producer.last_time >= before
        }
        expired = len(self._producers) - len(kept)
        self._producers = kept
        return expired

    def fields(self) -> list[Any]:
        """Plain values for a snapshot."""
        return [(producer_id, *producer.fields()) for producer_id, producer in self._producers.items()]

    @classmethod
    def loaded(cls, fields: list[Any]) -> TransactionalProducers:
        """What `fields` gave."""
        loaded = cls()
        loaded._producers = {
            producer_id: TransactionalProducer.loaded(producer) for producer_id, *producer in fields
        }
        return loaded
