"""Back-off of one partition's upkeep after an error.

A partition with a damaged object, or with a store that is away, fails at every attempt. The retries must not
be constant nor fill the log, and the node's status must show the error.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RetryBackoff:
    """Failures in a row of one kind of work; times in seconds of the loop's clock."""

    first_delay: float
    error: str | None = None
    """Error of the last attempt; None after a success."""
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
