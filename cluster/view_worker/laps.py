"""Times that a version's process tells: the parts of its start and of a pause, and its rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

RATE_SECONDS: Final = 2.0
"""Over which a rate is told, at least."""


class Laps:
    """Parts of a time, in seconds, in their order."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.began = self._last = monotonic()
        self.parts: dict[str, float] = {}

    def end(self, part: str) -> None:
        """A part ends, and the next one begins."""
        now = self._monotonic()
        self.parts[part] = round(now - self._last, 3)
        self._last = now

    @property
    def seconds(self) -> float:
        """From the beginning to the end of the last part."""
        return round(self._last - self.began, 3)


class Rate:
    """Records a second."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._since, self._then = monotonic(), 0
        self._rate = 0

    def of(self, taken: int) -> int:
        """The rate, by the records that were taken by now; the one before, or 0, where it is too early."""
        now = self._monotonic()
        if now - self._since >= RATE_SECONDS:
            self._rate = round((taken - self._then) / (now - self._since))
            self._since, self._then = now, taken
        return self._rate
