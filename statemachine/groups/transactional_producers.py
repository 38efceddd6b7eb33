"""The producers whose transactions have offsets of groups, and how far each one's transactions have come.

A transaction's number shows whether a message of it comes too late.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from itertools import islice, pairwise, takewhile
from typing import Any

from strandline.statemachine.machine import Rows

NOTHING_OPEN = 0
"""Number of the open transaction where none is; numbers begin at 1."""


class TransactionalProducer:
    """A groups' coordinator's state of a producer id: the progress of its transactions."""

    __slots__ = ("age", "coordinator_term", "ended", "epoch", "groups", "last_time", "open")

    def __init__(self, age: int) -> None:
        self.age = age
        """See machine.Rows."""
        self.epoch = -1
        self.ended = NOTHING_OPEN
        """Highest number whose marker came: a message of it, or of an earlier transaction, is too late."""
        self.open = NOTHING_OPEN
        self.groups: dict[str, None] = {}
        """Groups that the open transaction has offsets of, in the order they came."""
        self.coordinator_term = -1
        """Of the coordinator that sent the last marker; -1: none came."""
        self.last_time = 0
        """Time of the producer's last command or marker here, in ms of the state machine."""

    def copy(self, age: int) -> TransactionalProducer:
        """One that can be changed while this stays as it is."""
        made = copy(self)
        made.age, made.groups = age, dict(self.groups)
        return made

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
        """The object that `fields` was taken from."""
        loaded = cls(0)
        loaded.epoch, loaded.ended, loaded.open, groups, loaded.coordinator_term, loaded.last_time = fields
        loaded.groups = dict.fromkeys(groups)
        return loaded


class TransactionalProducers:
    """All producers that had transactions on offsets here, in the order of their last commands."""

    __slots__ = ("_age", "_producers")

    def __init__(self) -> None:
        self._producers: dict[int, TransactionalProducer] = {}
        self._age = 0

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[tuple[int, TransactionalProducer]]:
        return iter(self._producers.items())

    def get(self, producer_id: int) -> TransactionalProducer | None:
        return self._producers.get(producer_id)

    def touched(self, producer_id: int, epoch: int, time: int) -> TransactionalProducer:
        """The producer, to be changed: known from now on, under this epoch if it is higher, and active at
        this time."""
        producer = self._producers.pop(producer_id, None)
        if producer is None:
            producer = TransactionalProducer(self._age)
        elif producer.age != self._age:
            producer = producer.copy(self._age)
        self._producers[producer_id] = producer
        producer.epoch = max(producer.epoch, epoch)
        producer.last_time = time
        return producer

    def newest_since(self, count: int) -> int | None:
        """Time in ms after which only the newest `count` producers were active; None if there are no more."""
        older = len(self._producers) - count
        return None if older <= 0 else next(islice(self._producers.values(), older, None)).last_time

    def expire(self, before: int) -> int:
        """Forget those that have nothing open and did nothing since a time in ms; returns how many."""
        expired = []
        for producer_id, producer in self._producers.items():
            if producer.last_time >= before:
                break
            if producer.open == NOTHING_OPEN:
                expired.append(producer_id)
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    def expires(self, before: int) -> bool:
        """Whether `expire` would forget any."""
        old = takewhile(lambda producer: producer.last_time < before, self._producers.values())
        return any(producer.open == NOTHING_OPEN for producer in old)

    def not_after(self, time: int) -> None:
        """Lower every later time of a producer to this one, because the state's time went back."""
        later = takewhile(lambda one: one[1].last_time > time, reversed(self._producers.items()))
        for producer_id, producer in list(later):
            self._producers[producer_id] = clamped = producer.copy(self._age)
            clamped.last_time = time

    def rows(self) -> Rows:
        """Plain values for a snapshot."""
        held = dict(self._producers)
        self._age += 1
        return Rows(len(held), lambda: ((producer_id, *one.fields()) for producer_id, one in held.items()))

    @classmethod
    def loaded(cls, fields: Iterable[Any]) -> TransactionalProducers:
        """The object that `fields` was taken from."""
        loaded = cls()
        loaded._producers = {
            producer_id: TransactionalProducer.loaded(producer) for producer_id, *producer in fields
        }
        for earlier, later in pairwise(loaded._producers.values()):
            if later.last_time < earlier.last_time:
                raise ValueError(f"producers are out of order: {earlier.last_time}, then {later.last_time}")
        return loaded
