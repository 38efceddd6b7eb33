"""The parts of a pause, and how long each has lasted."""

from __future__ import annotations

from collections.abc import Callable


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
