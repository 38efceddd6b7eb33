"""The highest epoch whose objects may be deleted: M as it was a grace period ago, and its lag behind M.

M never goes down, so the grace period is not needed for safety. It leaves time to readers that hold nothing
back: those of a deposed leader, of a deleted topic, of a checkpoint without a lease.
"""

from __future__ import annotations

from collections import deque
from typing import Final

EPOCHS: Final = 1_024
"""Cluster epochs whose beginnings are remembered to tell the lag in seconds, the oldest that count."""


class Grace:
    """One process's observations of M. Times are seconds of a monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self.bound = 0
        """Epoch up to which objects may go; never goes down."""
        self._seconds = seconds
        self._risen: deque[tuple[float, int]] = deque()
        """When M rose to what; the first is the newest one that is past its grace, if any is. M rises at most
        once for each cluster epoch, so there are as many as the grace has epochs."""
        self._begun: deque[tuple[int, float]] = deque()
        """Cluster epochs and when they were first seen; the first is the newest that began by `bound + 1`."""

    def observe(self, maximum: int, cluster_epoch: int, now: float) -> int:
        """Take note of M and of the cluster epoch as they are now; gives the bound."""
        risen = self._risen
        if not risen or maximum > risen[-1][1]:
            risen.append((now, maximum))
        while len(risen) > 1 and now - risen[1][0] >= self._seconds:
            risen.popleft()
        at, epoch = risen[0]
        if now - at >= self._seconds:
            assert self.bound <= epoch <= maximum, f"from {self.bound} to {epoch}, while M is {maximum}"
            self.bound = epoch
        self._note_begin(cluster_epoch, now)
        return self.bound

    def lag_seconds(self, now: float) -> float:
        """Seconds since the oldest epoch above the bound was closed; 0 while the newest is the only one."""
        return next((max(0.0, now - at) for epoch, at in self._begun if epoch > self.bound + 1), 0.0)

    def _note_begin(self, cluster_epoch: int, now: float) -> None:
        begun = self._begun
        if not begun or cluster_epoch > begun[-1][0]:
            if len(begun) == EPOCHS:
                begun.pop()
            begun.append((cluster_epoch, now))
        while len(begun) > 1 and begun[1][0] <= self.bound + 1:
            begun.popleft()
