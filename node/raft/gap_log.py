"""Tells the operator of times in which the loop did not run, in few lines however many there are.

On a node that has too little processor or memory they come several times a second, for hours.
"""

from __future__ import annotations

import logging
from typing import Final

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 10.0


class GapLog:
    """One line at once, then one for each interval in which there were more. Times are in seconds."""

    def __init__(self) -> None:
        self._logged_at: float | None = None
        self._unlogged: list[float] = []

    def add(self, now: float, gap: float) -> None:
        """The loop did not run for this long before `now`."""
        if self._logged_at is not None and now - self._logged_at < INTERVAL_SECONDS:
            self._unlogged.append(gap)
            return
        more = ""
        if self._unlogged:
            more = (
                f" ({len(self._unlogged)} more since the last report, {sum(self._unlogged):.2f} s together,"
                f" the longest {max(self._unlogged):.2f} s)"
            )
        log.warning("the event loop did not run for %.2f s, or the clock jumped%s", gap, more)
        self._logged_at, self._unlogged = now, []
