"""Subscriptions in JoinGroup and assignments in SyncGroup, as consumers of the classic protocol write them.

Kafka's ConsumerProtocolSubscription and ConsumerProtocolAssignment, versions 0 to 3. A later version is read
as far as version 3 goes, as Kafka reads it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")

CONSUMERS: Final = "consumer"
"""Protocol type of groups whose members consume topics: their metadata says which."""
LAST_VERSION: Final = 3
_SAYS_OWNED: Final = 1
_SAYS_GENERATION: Final = 2
_SAYS_RACK: Final = 3

Partitions = tuple[tuple[str, tuple[int, ...]], ...]
"""Numbers of partitions by topic's name, as they were written."""


class Subscription(NamedTuple):
    """A consumer's subscription, which it sends when it joins."""

    topics: tuple[str, ...]
    owned: Partitions
    """Partitions that the consumer owns while it joins; empty before version 1, and under the eager protocol,
    whose members revoke all partitions before they join."""
    rack_id: str | None


class Given(NamedTuple):
    """Assignment of one member by the leader of a classic group."""

    partitions: Partitions
    user_data: bytes
    """Data that a custom assignor sends to its members; b"" for none."""


def read_subscription(metadata: bytes) -> Subscription | None:
    """A consumer's subscription; None when these bytes are none."""
    try:
        reader = _Reader(metadata)
        version = reader.version()
        topics = reader.several(reader.text)
        reader.data()
        owned = reader.partitions() if version >= _SAYS_OWNED else ()
        if version >= _SAYS_GENERATION:
            reader.number(4)
        rack_id = reader.text_or_none() if version >= _SAYS_RACK else None
    except ValueError:
        return None
    return Subscription(topics, owned, rack_id)


def subscribed_topics(metadata: bytes) -> tuple[str, ...] | None:
    """The topics of a consumer's subscription, whatever follows them; None when these bytes are none."""
    try:
        reader = _Reader(metadata)
        reader.version()
        return reader.several(reader.text)
    except ValueError:
        return None


def read_assignment(assignment: bytes) -> Given | None:
    """A member's assignment; None if these bytes are no assignment.

    Empty bytes give an empty assignment: the member has not been assigned yet.
    """
    if not assignment:
        return Given((), b"")
    try:
        reader = _Reader(assignment)
        reader.version()
        return Given(reader.partitions(), reader.data())
    except ValueError:
        return None


def write_assignment(partitions: Mapping[str, Sequence[int]], metadata: bytes) -> bytes:
    """An assignment, in the version of the subscription that the member joined with (`metadata`)."""
    version = min(max(int.from_bytes(metadata[:2], "big", signed=True), 0), LAST_VERSION)
    parts = [struct.pack(">hi", version, len(partitions))]
    for topic, numbers in partitions.items():
        name = topic.encode()
        parts.append(struct.pack(f">h{len(name)}si{len(numbers)}i", len(name), name, len(numbers), *numbers))
    parts.append(struct.pack(">i", -1))
    return b"".join(parts)


class _Reader:
    """Reads Kafka's plain (not flexible) types one after the other; each raises ValueError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def version(self) -> int:
        found = self.number(2)
        if found < 0:
            raise ValueError("a version below 0")
        return found

    def number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big", signed=True)

    def text(self) -> str:
        found = self.text_or_none()
        if found is None:
            raise ValueError("a name is missing")
        return found

    def text_or_none(self) -> str | None:
        size = self.number(2)
        return None if size < 0 else self._take(size).decode()  # UnicodeDecodeError is a ValueError

    def data(self) -> bytes:
        size = self.number(4)
        return b"" if size < 0 else self._take(size)

    def several(self, one: Callable[[], T]) -> tuple[T, ...]:
        count = self.number(4)
        if not 0 <= count <= len(self._data) - self._position:
            raise ValueError(f"an array of {count}")
        return tuple(one() for _ in range(count))

    def partitions(self) -> Partitions:
        return self.several(lambda: (self.text(), self.several(self._partition)))

    def _partition(self) -> int:
        found = self.number(4)
        if found < 0:
            raise ValueError(f"partition {found}")
        return found

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise ValueError("it ends too soon")
        found = self._data[self._position : end]
        self._position = end
        return found
