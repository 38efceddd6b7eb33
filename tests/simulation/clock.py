"""A node's own idea of time, which its timers follow: it may be off, drift and jump."""

from __future__ import annotations

import math


class Clock:
    """A node's clock: seconds it shows as a function of true virtual seconds.

    `offset` is what it shows at true time 0; `drift` is how much faster than true time it runs (1e-4 is
    100 ppm).
    """

    __slots__ = ("_local", "_rate", "_true")

    def __init__(self, offset: float = 0.0, drift: float = 0.0) -> None:
        self._true = 0.0
        self._local = offset
        self._rate = 1.0 + drift

    def read(self, true: float) -> float:
        return self._local + (true - self._true) * self._rate

    def when(self, local: float) -> float:
        """The earliest true time at which the clock shows at least `local`."""
        true = self._true + (local - self._local) / self._rate
        # A timer that fires one rounding error early would be set again for a delay of zero, for ever.
        while self.read(true) < local:
            true = math.nextafter(true, math.inf)
        return true

    def jump(self, true: float, seconds: float) -> None:
        self._local = self.read(true) + seconds
        self._true = true

    def set_drift(self, true: float, drift: float) -> None:
        self._local = self.read(true)
        self._true = true
        self._rate = 1.0 + drift
