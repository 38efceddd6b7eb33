"""The number of uploads that may be under way, found by what the store makes of them.

A store that is far away answers many uploads in the time of one, and one that is overloaded answers more of
them later. So the window opens while it is in the way and answers are as quick as they usually are for
objects of their size: by one for each answer at first, later by one for each window's worth of answers (TCP's
slow start and additive increase, RFC 5681). It stays where answers take twice as long as usual, and closes a
little where they take three times as long (Vegas's rule). An attempt that fails halves it, once for all that
were under way then. docs/level-zero.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from strandline.node.objectstore.store import StoreError

FIRST: Final = 4
"""Uploads at the beginning. Slow answers alone never close the window below this: the store may be slow for
all, and that is none of this node's doing."""
BUSY: Final = 2.0
CROWDED: Final = 3.0
"""Time of an answer, in times of the usual: from the first on the window does not open, from the second on it
closes. A bucket's answers scatter by half of their time, so the mean of a round is compared."""
CROWDED_PART: Final = 0.9
LEAST_ROUND: Final = 4
"""Answers in a round at least."""
QUICKER: Final = 0.25
SLOWER: Final = 0.02
"""Share by which the usual time follows an answer that was quicker, or slower: it lies near the quickest. A
slower one counts so much only while the window is small: else the reason may be our own uploads."""
FORGOTTEN_SECONDS: Final = 120.0
"""Time in which a larger window's slow answers become the usual ones all the same."""
LEAST_CLASS: Final = 16
"""Objects up to 64 KiB are one class of size; above it each doubling is one."""


class UploadWindow:
    """One batcher's window: at most `most` uploads, of `most_bytes` in all. `now` is the loop's clock."""

    def __init__(self, most: int, most_bytes: int, now: Callable[[], float]) -> None:
        if most < 1 or most_bytes < 1:
            raise ValueError(f"a window of {most} uploads and {most_bytes} bytes lets nothing through")
        self.most = most
        self.size = float(min(FIRST, most))
        """Uploads that may be under way; the part behind the point counts when it is whole."""
        self.opened = 0
        """Times that it was opened by one."""
        self.closed_by_failures = 0
        self.closed_by_slowness = 0
        self._most_bytes = most_bytes
        self._now = now
        self._usual: dict[int, tuple[float, float]] = {}
        """Seconds of an answer, and when the last one came, by class of size: as many as sizes have bits."""
        self._steep_until = float(most)
        self._in_the_way = False
        self._closed_at = float("-inf")
        self._round = 0.0
        self._answers = 0

    def has_room(self, uploads: int, uploading_bytes: int, size: int) -> bool:
        """Whether one more upload of so many bytes may begin; with none under way one always may."""
        return not uploads or (uploads < int(self.size) and uploading_bytes + size <= self._most_bytes)

    def in_the_way(self, uploads: int) -> None:
        """An upload was due, and with so many under way there was no room: only then does the window open."""
        self._in_the_way |= uploads >= int(self.size)

    def heard(self, size: int, began: float, error: StoreError | None) -> None:
        """An attempt to put so many bytes, begun at `began` by the loop's clock, was answered or failed."""
        if error is not None:
            # What was under way together failed for one reason, and that is answered once.
            if error.retriable and began >= self._closed_at:
                self.closed_by_failures += 1
                self._close(self.size / 2, least=1)
            return
        slowness = self._slowness(size, self._now() - began)
        self._round += slowness
        self._answers += 1
        if self.size < self._steep_until and self._in_the_way and slowness < BUSY:
            self._open()
        if self._answers >= max(int(self.size), LEAST_ROUND):
            self._end_round()

    def _end_round(self) -> None:
        slowness, self._round, self._answers = self._round / self._answers, 0.0, 0
        if slowness >= CROWDED:
            if self.size > FIRST:
                self.closed_by_slowness += 1
                self._close(self.size * CROWDED_PART, least=FIRST)
        elif slowness >= BUSY:
            self._steep_until = min(self._steep_until, self.size)
        elif self._in_the_way:
            self._open()

    def _open(self) -> None:
        self._in_the_way = False
        if self.size < self.most:
            self.opened += 1
            self.size = min(self.size + 1, float(self.most))

    def _close(self, size: float, *, least: int) -> None:
        self.size = min(max(size, least), self.size)
        self._steep_until = self.size
        self._closed_at = self._now()
        self._round, self._answers, self._in_the_way = 0.0, 0, False

    def _slowness(self, size: int, seconds: float) -> float:
        """The time of an answer in times of the usual for its size, which follows it."""
        kind, now = max(size.bit_length(), LEAST_CLASS), self._now()
        usual, at = self._usual.get(kind, (seconds, now))
        if seconds < usual:
            share = QUICKER
        else:
            share = max((now - at) / FORGOTTEN_SECONDS, SLOWER if self.size <= FIRST else 0.0)
        self._usual[kind] = usual + min(share, 1.0) * (seconds - usual), now
        return seconds / usual if usual else 1.0
