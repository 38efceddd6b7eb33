"""Attention: the part of the passing time in which this node's loop runs; silence counts only while it runs.

A loop that is blocked hears no leader. If silence were measured by the clock alone, an overloaded node would
find all its leaders silent after each long callback, depose them, and be busier still with the elections. So
silence is measured in attention: each tick that ran adds at most one tick's worth. Promises to other nodes
(votes, leases) are measured by the clock, because those nodes cannot know whether this loop ran.
"""

from __future__ import annotations

from collections import deque
from typing import Final

SLACK_SECONDS: Final = 0.01
"""A tick so late is an ordinary one: timers are coarse, and callbacks take a few milliseconds."""
REMEMBERED: Final = 64
"""Late ticks kept: several election timeouts' worth."""


class Attention:
    """Seconds of attention, from the ticks of one loop. All times are the host's, which never go back."""

    def __init__(self, now: float, tick_seconds: float) -> None:
        self._allowed = tick_seconds + SLACK_SECONDS
        self._last = now
        self._lost = 0.0
        self._late: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)
        """(when a late tick came, how much was lost before it in all)."""

    def ticked(self, now: float) -> float:
        """A tick runs; how many seconds were lost since the one before."""
        late = max(now - self._last - self._allowed, 0.0)
        if late:
            self._late.append((now, self._lost))
            self._lost += late
        self._last = now
        return late

    def clock(self, now: float) -> float:
        """A clock that stops while the loop is blocked; deadlines for messages from others are set on it."""
        return now - self._lost - max(now - self._last - self._allowed, 0.0)

    def since(self, moment: float, now: float) -> float:
        """For how long something was listened for since `moment`."""
        lost_before = self._lost
        for when, lost in reversed(self._late):
            if when <= moment:
                break
            lost_before = lost
        return self.clock(now) - (moment - lost_before)
