"""Storage that is asked again where it does not answer: a stream that has begun waits for it.

Spark ends a query with the first error of its source. It shall need no start by hand after a minute in which
a folder was not mounted, or a bucket not reached.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from strandline.snapshot.storage import NoAnswer, Storage

PATIENCE_SECONDS: Final = 600.0
"""Longest time without an answer before the error is raised, as of an export that follows."""
FIRST_WAIT_SECONDS: Final = 1.0
LONGEST_WAIT_SECONDS: Final = 10.0

Answer = TypeVar("Answer")
_log = logging.getLogger(__name__)


class PatientStorage(Storage):
    """Another storage, asked again while it does not answer. Several threads may ask at once."""

    ends_with_parent = True
    """Whether the process is one of Spark's, for whose answer no other waits once Spark has ended."""

    def __init__(self, storage: Storage, patience: float = PATIENCE_SECONDS) -> None:
        self.url, self.options, self.window_bytes = storage.url, storage.options, storage.window_bytes
        self.patience = patience
        """Seconds until an error is raised; with 0 the first one is."""
        self._storage = storage
        self._lock = threading.Lock()
        self._silent_since: float | None = None
        """Time of the first call without an answer since the last one with one; it was told then."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._storage, self.patience)

    def folders(self, prefix: str) -> list[str]:
        return self._patiently(lambda: self._storage.folders(prefix))

    def get(self, key: str) -> bytes:
        return self._patiently(lambda: self._storage.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._patiently(lambda: self._storage.get_range(key, start, length))

    def read_into(self, key: str, start: int, room: memoryview) -> None:
        self._patiently(lambda: self._storage.read_into(key, start, room))

    def list(self, prefix: str) -> list[str]:
        return self._patiently(lambda: self._storage.list(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        return self._patiently(lambda: self._storage.sizes(prefix))

    def versions(self, prefix: str) -> dict[str, str]:
        return self._patiently(lambda: self._storage.versions(prefix))

    def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        wait, parent = FIRST_WAIT_SECONDS, os.getppid()
        while True:
            try:
                answer = ask()
            except NoAnswer as error:
                left = self._left(error)
                if left <= 0 or (self.ends_with_parent and os.getppid() != parent):
                    raise
                time.sleep(min(wait, left))
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)
            else:
                if self._silent_since is not None:
                    self._answered()
                return answer

    def _left(self, error: NoAnswer) -> float:
        """Seconds that are left of the patience, for all calls together."""
        now = time.monotonic()
        with self._lock:
            news = self._silent_since is None
            since = self._silent_since = now if self._silent_since is None else self._silent_since
        if news and self.patience > 0:
            _log.warning("%s; it is asked again, for up to %g s", error, self.patience)
        return since + self.patience - now

    def _answered(self) -> None:
        with self._lock:
            news, self._silent_since = self._silent_since is not None, None
        if news:
            _log.warning("%s answers again", self.url)
