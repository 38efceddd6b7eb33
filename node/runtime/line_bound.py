"""A bound on lines of the log that strangers cause: so many at once, and so many a second after that."""

from __future__ import annotations

from typing import Final

LINES_PER_SECOND: Final = 10.0
BURST: Final = 200


class LineBound:
    """Lines of one kind: a bucket that fills with time. Times are seconds of any clock."""

    def __init__(self, now: float) -> None:
        self._left, self._at = float(BURST), now
        self._left_out = 0

    def take(self, now: float) -> int | None:
        """The number of lines that were left out since the last one, if there is room for one more now."""
        self._left = min(BURST, self._left + (now - self._at) * LINES_PER_SECOND)
        self._at = now
        if self._left < 1:
            self._left_out += 1
            return None
        self._left -= 1
        left_out, self._left_out = self._left_out, 0
        return left_out
