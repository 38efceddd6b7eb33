"""What went wrong with one partition's upkeep, and when it is tried again.

A partition whose object is damaged, or a store that is away, fails at every attempt. It must neither be tried
all the time nor fill the log, and whoever looks at the node must see it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Trouble:
    """Failures in a row of one kind of work; times in seconds of the loop's clock."""

    first_delay: float
    error: str | None = None
    """Why the last attempt failed; None after one that did not."""
    failures: int = 0
    """Attempts in a row that failed."""
    retry_at: float = 0.0
    _delay: float = 0.0

    def failed(self, now: float, error: str, most_delay: float) -> str | None:
        """Wait twice as long as the last time, up to a limit; the error before, None for the first."""
        before, self.error = self.error, error
        self.failures += 1
        self._delay = min(max(2 * self._delay, self.first_delay), most_delay)
        self.retry_at = now + self._delay
        return before

    def over(self) -> None:
        """An attempt worked."""
        self.error = None
        self.failures = 0
        self.retry_at = self._delay = 0.0
