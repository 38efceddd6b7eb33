"""Keeps a memory group short: its limit follows what is held in it, and pages of files have little room.

A fixed limit is either too high, so that nothing is taken back, or is met by the next process that wants a
little more, which the kernel kills.
"""

from __future__ import annotations

import threading
from typing import Final

from tests.programs.mix.memory import MemoryGroup

_LOOK_SECONDS: Final = 0.02


class Squeeze:
    """A thread that looks at the group from the start; it sets limits from `begin` to `stop`."""

    def __init__(self, group: MemoryGroup) -> None:
        self.most_held = 0
        """Bytes, as long as it looks."""
        self.lowest = 0
        self.highest = 0
        """Limits that were set, in bytes."""
        self._group = group
        self._files: int | None = None
        self._limit = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="squeeze", daemon=True)
        self._thread.start()

    def begin(self, files: int) -> None:
        """Leave so many bytes for pages of files from now on."""
        self._files = files

    def stop(self) -> None:
        """No limit any more."""
        self._ending.set()
        self._thread.join()
        self._group.limit(None)

    def _run(self) -> None:
        self._group.wait_at_limit()
        while not self._ending.wait(_LOOK_SECONDS):
            held = self._group.use().held
            self.most_held = max(self.most_held, held)
            if self._files is not None:
                self._follow(held + self._files, self._files // 4)

    def _follow(self, wanted: int, slack: int) -> None:
        if self._limit - slack <= wanted <= self._limit:
            return
        self._limit = wanted
        self._group.limit(wanted)
        self.lowest = min(wanted, self.lowest or wanted)
        self.highest = max(wanted, self.highest)
