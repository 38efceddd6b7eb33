"""Keeps what each connection fetches, within bounds, until the connection ends; and fetch sessions (KIP-227).

Nothing depends on what is kept: what is not is asked for and looked at as if for the first time. With a
session a client relies on it, and names only what has changed. A client whose session is not there any more
is told so, and names all its partitions again.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.handler import Request

MAX_OF_CONNECTION: Final = 10_000
"""Partitions that are kept of one connection: ten of those take all room."""
MAX_PARTITIONS: Final = 100_000
"""Partitions that are kept on a node; each takes about a kilobyte."""
IDLE_SECONDS: Final = 120.0
"""Time after which an unused one may go for another, Kafka's `min.incremental.fetch.session.eviction.ms`."""
INITIAL: Final = 0
"""Epoch of a request that names all its partitions and asks for a session."""
FINAL: Final = -1
"""Epoch of a request that names all its partitions and wants no session."""
_LAST_EPOCH: Final = 2**31 - 1
_BY_ID: Final = 13
"""The version from which on requests name topics by their ids."""


class Kept:
    """One connection's last fetch; a subclass has its partitions. It serves one fetch at a time."""

    def __init__(self, connection: int) -> None:
        self.connection = connection
        """The connection's number."""
        self.busy = False
        """Whether a fetch is under way."""
        self.names_fit = True
        """Whether all names are such that a topic can have them."""
        self.counted = 0
        """Partitions that count towards the node's bound."""
        self.used = 0.0
        """Time of the loop at which its last fetch ended."""
        self.session = 0
        """The number by which the client names it and goes on with it; 0 if it does not."""
        self.epoch = 0
        """The session's, of the request that is next."""
        self.by_id = False
        """Whether its topics are named by id."""
        self.principal = ""
        """The client that began the session."""

    def __len__(self) -> int:
        """Its partitions."""
        raise NotImplementedError

    def finish(self) -> None:
        """A fetch is over."""
        raise NotImplementedError

    def close(self) -> None:
        """It is kept no more; a fetch that is under way goes on, and `close` follows its end."""
        raise NotImplementedError


class KeptFetches:
    """Those of one node, by the number of the connection; what was used last comes last."""

    def __init__(self, now: Callable[[], float], rng: random.Random) -> None:
        """`now` is the loop's time; `rng` gives the numbers of sessions."""
        self.partitions = 0
        """Of all of them together."""
        self._now = now
        self._rng = rng
        self._of: OrderedDict[int, Kept] = OrderedDict()
        self._sessions: dict[int, Kept] = {}

    def __len__(self) -> int:
        return len(self._of)

    @property
    def sessions(self) -> int:
        """Those with which clients go on."""
        return len(self._sessions)

    def begin(self, request: Request) -> Kept | ErrorCode | None:
        """The connection's last fetch; None if none is kept, or another fetch uses it.

        An error if the request goes on with a session that is not there (FETCH_SESSION_ID_NOT_FOUND), or is
        not its next (INVALID_FETCH_SESSION_EPOCH), or names topics in another way than those before it
        (FETCH_SESSION_TOPIC_ID_ERROR). One that names everything ends the session that it has or names.
        """
        ask = request.payload
        epoch, session = getattr(ask, "session_epoch", FINAL), getattr(ask, "session_id", 0)
        kept = self._of.get(request.connection)
        if epoch in (INITIAL, FINAL):
            former = self._sessions.get(session)
            if former is not None and former.principal == request.session.principal:
                self._end_session(former)
            if kept is None or kept.busy:
                return None
            self._end_session(kept)
            return kept
        if kept is None or kept.busy or not kept.session or kept.session != session:
            return ErrorCode.fetch_session_id_not_found
        if kept.epoch != epoch:
            return ErrorCode.invalid_fetch_session_epoch
        if kept.by_id != (request.header.api_version >= _BY_ID):
            return ErrorCode.fetch_session_topic_id_error
        kept.epoch = 1 if epoch == _LAST_EPOCH else epoch + 1
        return kept

    def keep(self, kept: Kept, request: Request) -> bool:
        """Whether there is room for what it has now, with a session where one was asked for; without room,
        nothing of it stays after this fetch, and its session has ended."""
        before = self._of.get(kept.connection)
        if before is not None and before is not kept:
            return False
        self._forget(kept.connection)
        size = len(kept)
        if not 0 < size <= MAX_OF_CONNECTION or not kept.names_fit or not self._make_room(size):
            self._end_session(kept)
            return False
        kept.counted = size
        self.partitions += size
        self._of[kept.connection] = kept
        if getattr(request.payload, "session_epoch", FINAL) == INITIAL:
            self._begin_session(kept, request)
        return True

    def _begin_session(self, kept: Kept, request: Request) -> None:
        number = self._rng.randint(1, _LAST_EPOCH)
        while number in self._sessions:
            number = self._rng.randint(1, _LAST_EPOCH)
        kept.session, kept.epoch = number, 1
        kept.by_id = request.header.api_version >= _BY_ID
        kept.principal = request.session.principal
        self._sessions[number] = kept

    def _end_session(self, kept: Kept) -> None:
        self._sessions.pop(kept.session, None)
        kept.session = 0

    def end(self, kept: Kept) -> None:
        """A fetch is over, or was cancelled."""
        kept.finish()
        if self._of.get(kept.connection) is kept:
            kept.used = self._now()
            self._of.move_to_end(kept.connection)
        else:
            kept.close()

    def lost(self, connection: int) -> None:
        """The connection is gone."""
        kept = self._forget(connection)
        if kept is not None:
            self._end_session(kept)
            kept.close()

    def _forget(self, connection: int) -> Kept | None:
        kept = self._of.pop(connection, None)
        if kept is not None:
            self.partitions -= kept.counted
        return kept

    def _make_room(self, size: int) -> bool:
        """Give up what is idle, the longest unused first, if that makes room for as many partitions."""
        missing = self.partitions + size - MAX_PARTITIONS
        idle = []
        for connection, kept in self._of.items():
            if missing <= 0:
                break
            if kept.busy:
                continue
            if self._now() - kept.used < IDLE_SECONDS:
                return False
            idle.append(connection)
            missing -= kept.counted
        if missing > 0:
            return False
        for connection in idle:
            self.lost(connection)
        return True
