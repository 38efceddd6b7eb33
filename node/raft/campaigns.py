"""Limit on the elections that a node has in progress at the same time.

When a node dies, or a whole cluster comes back, thousands of groups are without a leader at once. If all
their elections began together they would take so long that the first leaders are not heard in time, and the
elections would start over. So a partition's group stands for election only if a place is free. The groups of
the controller and the coordinators may always stand, because other groups wait for them.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Final

from strandline.node.raft.rank import Rank

AT_ONCE: Final = 64
AT_ONCE_LATE: Final = 8
"""The limit just after the loop was blocked: its waiting work comes first, but elections never stop."""


class Cause(StrEnum):
    """Reason for which a group stands for election."""

    FIRST = "first"
    """The group never had a leader."""
    HANDED = "handed"
    """Its leader asked for it: it hands over, or steps down."""
    SILENCE = "silence"
    """No leader was heard for a whole election timeout, or the connection to the leader broke."""


class Campaigns:
    """Groups of one node that stand for election now."""

    def __init__(self, hold_seconds: float) -> None:
        """A place is free again once its election has ended, or after `hold_seconds`: it may never end."""
        self._hold_seconds = hold_seconds
        self._since: dict[int, float] = {}
        self.counts: Counter[tuple[Rank, Cause]] = Counter()
        """Elections in which a group of this node stood, each term once."""

    def admit(self, group: int, rank: Rank, now: float, *, late: bool) -> bool:
        """Whether a group may stand now; it keeps its place when it stands again.

        `late`: the loop was blocked just now.
        """
        if rank is not Rank.PARTITION:
            return True
        since = self._since
        if group not in since and len(since) >= (AT_ONCE_LATE if late else AT_ONCE):
            oldest, began = next(iter(since.items()))
            if now - began < self._hold_seconds:
                return False
            del since[oldest]
        since.pop(group, None)
        since[group] = now
        return True

    def ended(self, group: int) -> None:
        """A group has a leader, or is gone."""
        self._since.pop(group, None)
