"""A consumer's pace says how far to read ahead for it.

A consumer that goes on where its last read ended will want what follows. How much of that should be on its
way is what it takes while one get lasts: its pace, times the store's latency. From a folder that is next to
nothing; from a bucket 100 ms away, for a consumer that takes 100 MB/s, it is 10 MB in parallel gets. A
consumer's pace is told by the time between an answer and its next request, in which it waits for nothing of
this node's. A consumer that has read once is not read ahead for. docs/level-zero.md.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

FORGOTTEN_SECONDS: Final = 10.0
"""A consumer that has not come back for so long has no share any more."""
MAX_READERS: Final = 4096
"""Consumers that are remembered, of each kind; then those that came first are forgotten."""
MARGIN: Final = 2.0
"""Times the usual latency: a bucket's slow answers, and the transfer itself."""
_OLD: Final = 0.75
"""Weight of what was before, at each read: a few reads make a pace."""
_LEAST_SECONDS: Final = 0.0005
"""The shortest time between an answer and the next request that is believed."""
_LATENCY_OLD: Final = 0.9


@dataclass(slots=True)
class Pace:
    """One consumer of one partition, between two of its reads."""

    window: int = 0
    """Bytes to be read ahead of it; 0 for one that has not come back yet."""
    asked_to: int = -1
    """Offset up to which was read ahead, where its reader keeps account of that."""
    asked_bytes: int = 0
    """Read ahead and not given yet, likewise."""
    answered: float = 0.0
    """Time of its last answer."""
    bytes: float = 0.0
    seconds: float = 0.0
    """Given lately, and the time that the consumer took for it."""


class ReadPaces:
    """The consumers of one reader, by place and the offset at which they go on. Belongs to one event loop."""

    def __init__(self, *, least: int, budget: Callable[[], int], now: Callable[[], float]) -> None:
        """`least` bytes are read ahead of a consumer that goes on; `budget` gives those of all together."""
        self.latency = 0.0
        """Of one get lately, in seconds."""
        self._least = least
        self._budget = budget
        self._now = now
        self._once: OrderedDict[tuple[Hashable, int], Pace] = OrderedDict()
        self._going: OrderedDict[tuple[Hashable, int], Pace] = OrderedDict()

    @property
    def readers(self) -> int:
        """Consumers that go on, and are read ahead for."""
        self._forget()
        return len(self._going)

    @property
    def window_bytes(self) -> int:
        """Bytes that may be read ahead of all of them together."""
        self._forget()
        return sum(pace.window for pace in self._going.values())

    def get_took(self, seconds: float) -> None:
        """A get was answered after this time."""
        self.latency = (
            seconds if not self.latency else _LATENCY_OLD * self.latency + (1 - _LATENCY_OLD) * seconds
        )

    def begin(self, place: Hashable, offset: int) -> Pace:
        """The consumer that reads at this offset: known if a read has ended there, otherwise a new one."""
        self._forget()
        key = (place, offset)
        pace = self._going.pop(key, None) or self._once.pop(key, None)
        if pace is None:
            return Pace()
        pace.seconds = _OLD * pace.seconds + max(self._now() - pace.answered, _LEAST_SECONDS)
        wanted = int(pace.bytes / pace.seconds * self.latency * MARGIN)
        # Doubled at most: one quick return is no pace yet.
        grown = max(min(wanted, 2 * pace.window), self._least)
        pace.window = min(grown, self._budget() // (len(self._going) + 1))
        return pace

    def end(self, place: Hashable, pace: Pace, offset: int, given: int) -> None:
        """The consumer got `given` bytes, and goes on at this offset if it does."""
        pace.answered = self._now()
        pace.bytes = _OLD * pace.bytes + given
        pace.asked_bytes = max(pace.asked_bytes - given, 0)
        key = (place, offset)
        other = self._going.get(key)
        if other is not None and other.window > pace.window:
            return  # two consumers side by side: what is read ahead of one is there for both
        kind = self._going if pace.window else self._once
        kind[key] = pace
        kind.move_to_end(key)
        if len(kind) > MAX_READERS:
            kind.popitem(last=False)

    def failed(self, place: Hashable, pace: Pace, offset: int) -> None:
        """The consumer got an error, and will ask for this offset again if it goes on."""
        if pace.window:
            self.end(place, pace, offset, 0)

    def _forget(self) -> None:
        before = self._now() - FORGOTTEN_SECONDS
        for kind in (self._going, self._once):
            while kind and next(iter(kind.values())).answered < before:
                kind.popitem(last=False)
