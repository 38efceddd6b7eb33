"""The problems of one replica's local log: which work on it fails, why, and how long it waits.

Each kind of work has a back-off of its own. A log that cannot be filled, since the store is away, is cleaned
all the same; and a round that works again says nothing about the store.
"""

from __future__ import annotations

import asyncio
import logging
import re
from enum import Enum
from typing import Final

from strandline.node.level_one.retry_backoff import RetryBackoff

FIRST_RETRY_SECONDS: Final = 2.0
MOST_RETRY_SECONDS: Final = 60.0
"""Longest pause after an error of the disk, of the store, or of bytes."""
LASTING_FAILURES: Final = 3
"""In a row: the third comes 6 s after the first."""
_NUMBERS: Final = re.compile(r"\d+")

log = logging.getLogger(__name__)


class Work(Enum):
    """Kinds of work on a local log."""

    KEEP = "keep"
    """Opening it, rebuilding it, changing which files it has. While this fails nothing else is tried."""
    FILL = "fill"
    CLEAN = "clean"


class LogProblems:
    """One per log, on the node's loop. `name` is the log's, for the node's own log."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self.stuck: str | None = None
        """The cause that an operator has to remove for rounds to come further; None if there is none."""
        self._name = name
        self._loop = loop
        self._backoffs = {work: RetryBackoff(FIRST_RETRY_SECONDS) for work in Work}
        self._overtaken: set[Work] = set()
        """Work of which the last attempt was overtaken, which says nothing is wrong."""

    @property
    def first(self) -> str | None:
        """Cause why the log is not opened, filled or cleaned; None while nothing is wrong."""
        errors = [backoff.error for backoff in self._backoffs.values()]
        return next((error for error in (*errors, self.stuck) if error is not None), None)

    @property
    def lasting(self) -> bool:
        """Whether one has lasted, or needs an operator."""
        return self.stuck is not None or any(
            backoff.failures >= LASTING_FAILURES for backoff in self._backoffs.values()
        )

    def waits(self, work: Work) -> bool:
        """Whether this work is not to be tried yet."""
        until = max(self._backoffs[work].retry_at, self._backoffs[Work.KEEP].retry_at)
        return until > self._loop.time()

    def failed(self, work: Work, reason: str) -> None:
        """Note an error; it is logged when it is another one but for its numbers.

        Each attempt has a file, an object or a duration of its own.
        """
        before = self._backoffs[work].failed(self._loop.time(), reason, MOST_RETRY_SECONDS)
        if before is None or _NUMBERS.sub("", before) != _NUMBERS.sub("", reason):
            log.warning("compaction of %s waits: %s", self._name, reason)

    def overtaken(self, work: Work) -> bool:
        """Note that a plan was overtaken by the state, so the next one is tried at once.

        False if the last attempt failed as well, or was overtaken: then it is a failure like any other.
        """
        if work in self._overtaken or self._backoffs[work].error is not None:
            return False
        self._overtaken.add(work)
        return True

    def worked(self, work: Work) -> None:
        """An attempt worked."""
        self._backoffs[work].over()
        self._overtaken.discard(work)

    def over(self) -> None:
        """The log is a new one."""
        for work in Work:
            self.worked(work)

    def note_stuck(self, problem: str | None) -> None:
        """Note how a round that came to its end did so; a problem is logged when it is a new one."""
        if problem is not None and problem != self.stuck:
            log.error("the local log of %s is not cleaned any further: %s", self._name, problem)
        self.stuck = problem
