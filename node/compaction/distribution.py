"""When a leader sends the offsets of removal of one partition to its replicas.

Each sending is an entry of the log. So changes wait a little for others to travel with them, and entries keep
a distance that is small beside the time that tombstones wait anyway. Rows that wait in the state ripen only
with an entry, because an idle partition's time stands still.
"""

from __future__ import annotations

from typing import Final

from strandline.node.compaction.removal_minimum import Ends
from strandline.statemachine.partition.partition import FAR_AHEAD_MS
from strandline.statemachine.partition.removal import Removals

DELAY_SECONDS: Final = 5.0
"""From the first change to its sending at most: changes that come meanwhile go along."""
SPACINGS: Final = 24
"""Entries within `delete.retention.ms` at most: a tombstone waits a 24th longer for it."""
LEAST_SPACING_SECONDS: Final = 1.0
MOST_SPACING_SECONDS: Final = 3600.0
"""A partition with a retention of months tells once an hour all the same."""


def spacing_seconds(retention: int) -> float:
    """Least time between two sendings for a `delete.retention.ms`."""
    return min(max(retention / 1000 / SPACINGS, LEAST_SPACING_SECONDS), MOST_SPACING_SECONDS)


def has_ripened(removals: Removals, retention: int, now_ms: int) -> bool:
    """Whether an entry would let rows ripen, by a clock that the nodes agree on.

    Rows with a time far ahead of that clock were made by a wrong one. The entry sets the state's time back,
    and they wait from there.
    """
    if not removals.waiting:
        return False
    first = removals.waiting[0].time
    return first + retention <= now_ms or first - now_ms > FAR_AHEAD_MS


def delay_seconds(retention: int) -> float:
    """Time from the first change to its sending: no longer than the distance of two sendings."""
    return min(DELAY_SECONDS, spacing_seconds(retention))


class Distribution:
    """The timing of one partition's sendings in one term, in seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self.nothing_to_send = True
        """Whether, at the last look, all members had reported, the minimum was in force, no row was ripe."""
        self._changed_at: float | None = None
        """When the minimum was first seen above what is in force; None while it is not."""
        self._sent_at = float("-inf")
        self._not_before = float("-inf")

    def is_due(
        self, minimum: Ends | None, removals: Removals, retention: int, now: float, agreed_ms: int
    ) -> bool:
        """Whether to send now. To be asked at each look, as this is how a change is first seen.

        `minimum` is None while a member has not reported; rows that were agreed on before ripen all the same.
        """
        if minimum is None or (minimum.mcco <= removals.mtro and minimum.mxfo <= removals.mxro):
            self._changed_at = None
        elif self._changed_at is None:
            self._changed_at = now
        ripened = has_ripened(removals, retention, agreed_ms)
        self.nothing_to_send = minimum is not None and self._changed_at is None and not ripened
        if now < self._not_before:
            return False
        if ripened:
            return True
        if self._changed_at is None or now < self._changed_at + delay_seconds(retention):
            return False
        return now >= self._sent_at + spacing_seconds(retention)

    def attempted(self, now: float) -> None:
        """An entry is proposed: if it has no effect that is known, the state decides again in a while."""
        self._not_before = now + DELAY_SECONDS

    def in_force(self, now: float) -> None:
        """The entry is applied."""
        self._sent_at, self._not_before = now, now
        self._changed_at = None
