"""Rests within a job of compaction, so that a request meets a few milliseconds of it at a time.

A job that computes for 100 ms and then rests for 4 s takes a fortieth of a processor too, but each request
that comes within these 100 ms shares the processor, its caches and the disk with it from end to end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

MAX_JOB_REST_SECONDS: Final = 10.0
"""Of one job in all: the node's other compaction waits for it, also a log that has to be reset. Beyond it
only a write is followed by as long a rest as it took."""
MAX_WRITE_REST_SECONDS: Final = 0.1
"""After a piece of a file that took long, because the disk is slow or its other users have much to do."""
PIECE_BYTES: Final = 1 << 17
"""Of a file that become durable at once. docs/measurements.md has what other sizes cost a produce request."""


class Breath:
    """Of the thread that does the jobs, one after the other."""

    def __init__(
        self, sleep: Callable[[float], None] | None, processor: Callable[[], float] = time.thread_time
    ) -> None:
        """`sleep` takes seconds; None in the node's own process, whose threads others wait for.

        `processor` is the thread's processor time in seconds.
        """
        self._sleep = sleep
        self._processor = processor
        self._rests = self._since = self._left = 0.0

    @contextmanager
    def job(self, rests: float) -> Iterator[None]:
        """Rest within one job: `rests` seconds for each second of the processor, and of the disk."""
        self._rests, self._left = rests, MAX_JOB_REST_SECONDS
        self._since = self._processor()
        try:
            yield
        finally:
            self._rests = 0.0

    def take(self) -> None:
        """Rest for what the job has taken of the processor since the last rest."""
        now = self._processor()
        self._rest(min((now - self._since) * self._rests, self._left))
        self._since = now

    def after_write(self, took: float) -> None:
        """Rest for the seconds that a piece of a file took: at least as long, whatever the job."""
        most = min(max(took, self._left), MAX_WRITE_REST_SECONDS)
        self._rest(min(took * max(1.0, self._rests), most))

    def _rest(self, seconds: float) -> None:
        if self._sleep is not None and seconds > 0:
            self._left -= seconds
            self._sleep(seconds)
