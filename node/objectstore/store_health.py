"""Health of the object store, logged at each change, and once a minute while it fails.

Every operation of a node goes through `RetryingStore`, which reports its outcome here. So a missing bucket, a
full disk or a store that is down is known from the first operation that was given up, and /health, the
metrics and the log tell the same.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from strandline.node.objectstore.store import StoreError

log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 5.0
"""Attempts that fail for this long without a success are trouble, although no operation was given up."""
QUIET_SECONDS: Final = 3.0
"""Trouble is over after a success, and this long after the last failure: some may still be on their way."""
REPEAT_SECONDS: Final = 60.0
"""Time between two lines of the log about the same trouble."""


class OperationKind(StrEnum):
    """Operations that can fail independently: each has its permission, and a full disk can be read."""

    PUT = "put"
    READ = "read"
    LIST = "list"
    DELETE = "delete"


_TEXTS: Final = {
    OperationKind.PUT: ("puts fail, and producers are refused", "takes puts"),
    OperationKind.READ: ("reads fail, and consumers wait", "can be read"),
    OperationKind.LIST: ("listings fail, and nothing is collected", "can be listed"),
    OperationKind.DELETE: ("deletions fail, and unreferenced objects stay", "deletes"),
}
_ANY_CURE: Final = "see that the store runs and that this node reaches it; the node goes on by itself"


@dataclass(slots=True)
class Trouble:
    """One kind of operation that fails. Times are the loop's, in seconds."""

    kind: OperationKind
    since: float
    """Of the first attempt that failed."""
    last_failure: float
    error: StoreError
    """Of the last attempt."""
    given_up: int = 0
    """Operations that failed for good."""
    certain: bool = False
    """Whether it has been told of."""
    answered: bool = False
    """Whether an operation has succeeded since the last failure."""
    logged_at: float = 0.0
    logged_given_up: int = 0


class StoreHealth:
    """Outcomes of a store's operations. `place` names the store to people: a URL or a folder."""

    def __init__(self, place: str, *, loop: asyncio.AbstractEventLoop) -> None:
        self.place = place
        self.given_up = dict.fromkeys(OperationKind, 0)
        """Operations that failed for good since the start."""
        self.last_answer = float("-inf")
        """The loop's time of the store's last success."""
        self._loop = loop
        self._failing: dict[OperationKind, Trouble] = {}

    def troubles(self) -> list[Trouble]:
        """The kinds that fail at present, beyond a single failure, in the order of OperationKind."""
        return [
            self._failing[kind]
            for kind in OperationKind
            if kind in self._failing and self._failing[kind].certain
        ]

    def describe(self, trouble: Trouble) -> str:
        """Half a line: the store, what fails, why, since when, and the cure."""
        seconds = self._loop.time() - trouble.since
        return (
            f"{self.place}: {_TEXTS[trouble.kind][0]}, since {seconds:.0f} s, {trouble.given_up} so far: "
            f"{trouble.error.reason} ({trouble.error.operation} {trouble.error.key}): "
            f"{trouble.error.cure or _ANY_CURE}"
        )

    def answered(self, kind: OperationKind) -> None:
        """An operation had an answer; that there is no such object is one, too."""
        self.last_answer = self._loop.time()
        trouble = self._failing.get(kind)
        if trouble is not None:
            trouble.answered = True
            if trouble.certain:
                self._look(trouble)
            else:
                del self._failing[kind]

    def failed(self, kind: OperationKind, error: StoreError, *, given_up: bool) -> None:
        """An attempt failed; `given_up` says that the operation is not tried again."""
        now = self._loop.time()
        trouble = self._failing.get(kind)
        if trouble is None:
            trouble = self._failing[kind] = Trouble(kind, now, now, error)
        trouble.last_failure, trouble.error, trouble.answered = now, error, False
        if given_up:
            trouble.given_up += 1
            self.given_up[kind] += 1
        if trouble.certain:
            self._look(trouble)
        elif given_up or now - trouble.since >= PATIENCE_SECONDS:
            trouble.certain = True
            self._note_logged(trouble)
            log.error("object storage %s", self.describe(trouble))

    def look(self) -> None:
        """Notice the end of trouble, and say now and then that it lasts; to be called every second or so."""
        for trouble in self.troubles():
            self._look(trouble)

    def _look(self, trouble: Trouble) -> None:
        now = self._loop.time()
        if trouble.answered and now - trouble.last_failure >= QUIET_SECONDS:
            del self._failing[trouble.kind]
            log.warning(
                "object storage %s: it %s again, after %.0f s in which %d operations failed",
                self.place, _TEXTS[trouble.kind][1], now - trouble.since, trouble.given_up,
            )  # fmt: skip
        elif now - trouble.logged_at >= REPEAT_SECONDS:
            more = trouble.given_up - trouble.logged_given_up
            self._note_logged(trouble)
            log.error("object storage %s; %d of them in the last minute", self.describe(trouble), more)

    def _note_logged(self, trouble: Trouble) -> None:
        trouble.logged_at, trouble.logged_given_up = self._loop.time(), trouble.given_up
