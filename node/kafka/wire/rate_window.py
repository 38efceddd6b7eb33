"""Counters of a client's use: a rate over a sliding window, and a bucket of tokens, as Kafka counts them."""

from __future__ import annotations

from collections import deque
from typing import Protocol


class WindowSettings(Protocol):
    """The parts of a window, and their length in seconds."""

    @property
    def windows(self) -> int: ...

    @property
    def window_seconds(self) -> float: ...


class RateWindow:
    """Units a second over the last parts of a window: Kafka's Rate over a SampledStat.

    A client that begins has the whole window but its present part behind it, empty: so what it may use at
    once is its quota times the window. Times are seconds of one clock.
    """

    __slots__ = ("_parts", "_settings", "_total")

    def __init__(self, settings: WindowSettings) -> None:
        self._settings = settings
        self._parts: deque[tuple[float, float]] = deque()
        """Beginning and units of each part, the newest last."""
        self._total = 0.0

    def record(self, now: float, units: float) -> None:
        """Count what was used."""
        self._slide(now)
        parts = self._parts
        if parts and now - parts[-1][0] < self._settings.window_seconds:
            began, before = parts.pop()
            parts.append((began, before + units))
        else:
            parts.append((now, units))
        self._total += units

    def excess(self, now: float, limit: float) -> float:
        """Seconds by which the window is too short for its units; 0 or less below the limit.

        Kafka's QuotaUtils.throttleTime: the difference, as a share of the limit, times the window. A client
        that waits so long may still be above its limit, and is then told to wait again.
        """
        self._slide(now)
        span = self._span(now)
        return (self._total / span - limit) / limit * span

    def room(self, now: float, limit: float) -> float:
        """Units that may be used now without excess; 0 or less where there is none."""
        self._slide(now)
        return limit * self._span(now) - self._total

    def _slide(self, now: float) -> None:
        parts, length = self._parts, self._settings.windows * self._settings.window_seconds
        while parts and now - parts[0][0] >= length:
            self._total -= parts.popleft()[1]
        if not parts:
            self._total = 0.0  # not what is left of rounding

    def _span(self, now: float) -> float:
        """Seconds that count: at least all parts but one, and what is over of the present one."""
        size, least = self._settings.window_seconds, self._settings.windows - 1
        elapsed = now - self._parts[0][0] if self._parts else 0.0
        full = int(elapsed / size)
        return max(elapsed + max(least - full, 0) * size, 0.001)


class TokenBucket:
    """Tokens that come at the rate of the limit, as many at most as a window has (KIP-599).

    A change takes its tokens once there are any, so the bucket may owe some: then the next change waits.
    """

    __slots__ = ("_settings", "_since", "_used")

    def __init__(self, settings: WindowSettings) -> None:
        self._settings = settings
        self._used = 0.0
        """Tokens that have not come back."""
        self._since = 0.0

    def record(self, now: float, tokens: float, limit: float) -> None:
        """Take tokens, or give some back: the bucket never has more than its most."""
        self._refill(now, limit)
        self._used = max(self._used + tokens, 0.0)

    def excess(self, now: float, limit: float) -> float:
        """Seconds until the bucket owes nothing; 0 or less where it does not."""
        self._refill(now, limit)
        return (self._used - self._most(limit)) / limit

    def _refill(self, now: float, limit: float) -> None:
        self._used = max(self._used - (now - self._since) * limit, 0.0)
        self._since = now

    def _most(self, limit: float) -> float:
        return self._settings.windows * self._settings.window_seconds * limit
