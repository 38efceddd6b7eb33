"""A budget of puts per second, for stores that bill them: a few in a burst, and an average that is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

BURST: Final = 4
"""Puts that may be saved up."""


class PutBudget:
    """So many puts a second, or any number. `now` is the loop's clock."""

    def __init__(self, puts_per_second: float | None, most: int, now: Callable[[], float]) -> None:
        self._rate = puts_per_second
        self._burst = float(min(BURST, most))
        self._now = now
        self._tokens = self._burst
        self._at = now()

    def seconds_to_next(self) -> float:
        """Seconds until a put may begin; 0 if one may now."""
        if self._rate is None:
            return 0.0
        now = self._now()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        # A timer may fire a hair early, and a token is the sum of many roundings.
        return 0.0 if self._tokens > 1 - 1e-6 else (1 - self._tokens) / self._rate

    def spend(self) -> None:
        """A put begins."""
        if self._rate is not None:
            self._tokens -= 1
