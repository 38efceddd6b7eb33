"""Fetch sessions (KIP-227): a consumer names its partitions once, and from then on those that have changed.

What a session saves is in both frames: a request names the partitions whose offset the client has moved, and
an answer has those with records, an error, or other offsets than the client was told last. A session belongs
to a connection and ends with it. A client whose session is not there any more is told so, and names all its
partitions again: a session is never more than a shorter way to say the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

MAX_SESSIONS: Final = 1000
"""Sessions of one node, Kafka's `max.incremental.fetch.session.cache.slots`."""
MAX_PARTITIONS: Final = 100_000
"""Partitions of all of them together; each takes some 400 bytes."""
IDLE_SECONDS: Final = 120.0
"""A session that was not used for so long may be ended for a new one, as in Kafka."""
INITIAL: Final = 0
"""Epoch of a request that names all its partitions and asks for a session."""
FINAL: Final = -1
"""Epoch of a request that names all its partitions and wants no session."""
_LAST_EPOCH: Final = 2**31 - 1


class TopicName(NamedTuple):
    """A topic as a request names it: by name, or from version 13 on by id; the other one is None."""

    topic: str | None
    topic_id: UUID | None


class Offsets(NamedTuple):
    """The offsets of a partition in an answer."""

    high_watermark: int
    last_stable_offset: int
    start_offset: int


class _Kept:
    __slots__ = ("asked", "told")

    def __init__(self, asked: Any) -> None:
        self.asked = asked
        self.told: Offsets | None = None
        """The client was told these last; None if it was told none, or an error."""


class FetchSession:
    """One connection's partitions, in the order in which they are read."""

    def __init__(self, number: int, now: float) -> None:
        self.number = number
        """The client names the session by it."""
        self.epoch = 1
        """Of the request that is next."""
        self.used = now
        self.by_id = False
        """Whether its topics are named by id."""
        self._kept: dict[tuple[TopicName, int], _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, ask: Any) -> None:
        """Take over what a request names and what it forgets."""
        for name, asked in named(ask):
            self.by_id = name.topic is None
            kept = self._kept.get((name, asked.partition))
            if kept is None:
                self._kept[name, asked.partition] = _Kept(asked)
            else:
                kept.asked = asked
        for topic in ask.forgotten_topics_data:
            name = _name(topic)
            for number in topic.partitions:
                self._kept.pop((name, number), None)

    def wanted(self) -> list[tuple[TopicName, Any]]:
        """All its partitions, as `named` gives those of a request."""
        return [(name, kept.asked) for (name, _), kept in self._kept.items()]

    def is_news(self, name: TopicName, number: int, offsets: Offsets | None, size: int) -> bool:
        """Whether an answer has to have this partition, with `size` bytes of records; it counts as told then.

        What has given records goes behind all others: a request of a session says nothing of their order, and
        what is always first would leave no room for the rest.
        """
        kept = self._kept.get((name, number))
        if kept is None:
            return True  # forgotten by a request that came before this answer
        if size:
            self._kept[name, number] = self._kept.pop((name, number))
        news = size > 0 or offsets is None or offsets != kept.told
        kept.told = offsets
        return news


class FetchSessions:
    """Those of one node, by the number of the connection; the one that was used last comes last."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` tells the time in seconds."""
        self.partitions = 0
        """Of all sessions together."""
        self._now = now
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._made = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, connection: int, ask: Any) -> FetchSession | ErrorCode | None:
        """The session that a request of a connection goes on with or begins; None if it has none.

        An error if it wants to go on with one that is not there (FETCH_SESSION_ID_NOT_FOUND), or with another
        request than the next (INVALID_FETCH_SESSION_EPOCH), or names topics in another way than the session's
        first request did (FETCH_SESSION_TOPIC_ID_ERROR).
        """
        epoch = getattr(ask, "session_epoch", FINAL)
        session = self._sessions.get(connection)
        if epoch in (INITIAL, FINAL):
            if session is not None and (epoch == INITIAL or ask.session_id == session.number):
                self._end(connection)
            return self._new(connection, ask) if epoch == INITIAL else None
        if session is None or session.number != ask.session_id:
            return ErrorCode.fetch_session_id_not_found
        if session.epoch != epoch:
            return ErrorCode.invalid_fetch_session_epoch
        if any((name.topic is None) != session.by_id for name, _ in named(ask)):
            self._end(connection)
            return ErrorCode.fetch_session_topic_id_error
        session.epoch = 1 if epoch == _LAST_EPOCH else epoch + 1
        session.used = self._now()
        self._sessions.move_to_end(connection)
        self.partitions -= len(session)
        session.take(ask)
        self.partitions += len(session)
        if self.partitions > MAX_PARTITIONS:
            self._end(connection)
            return ErrorCode.fetch_session_id_not_found
        return session

    def _new(self, connection: int, ask: Any) -> FetchSession | None:
        now = self._now()
        session = FetchSession(self._made + 1, now)
        session.take(ask)
        while self._sessions and not self._has_room(len(session)):
            oldest, least = next(iter(self._sessions.items()))
            if now - least.used < IDLE_SECONDS:
                break
            self._end(oldest)
        if not len(session) or not self._has_room(len(session)):
            return None
        self._made = session.number % _LAST_EPOCH
        self._sessions[connection] = session
        self.partitions += len(session)
        return session

    def _has_room(self, partitions: int) -> bool:
        return len(self._sessions) < MAX_SESSIONS and self.partitions + partitions <= MAX_PARTITIONS

    def _end(self, connection: int) -> None:
        self.partitions -= len(self._sessions.pop(connection))


def named(ask: Any) -> Iterator[tuple[TopicName, Any]]:
    """The partitions that a request names, each with its topic's name."""
    for topic in ask.topics:
        name = _name(topic)
        for asked in topic.partitions:
            yield name, asked


def _name(topic: Any) -> TopicName:
    return TopicName(getattr(topic, "topic", None), getattr(topic, "topic_id", None))
