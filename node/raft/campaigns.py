"""Limit on the elections that a node has in progress at the same time.

When a node dies, or a whole cluster comes back, thousands of groups are without a leader at once. If all
their elections began together they would take so long that the first leaders are not heard in time, and the
elections would start over. So a partition's group stands for election only if a place is free. The others
wait in line: if each asked again and again, thousands of them would keep the node from the elections that go
on. The groups of the controller and the coordinators may always stand, because other groups wait for them.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Final

from strandline.node.raft.rank import Rank

AT_ONCE: Final = 256
"""Fewer leave the processor idle: the two sides of an election wait for each other and for their disks."""
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
        """A place is free again once its election has ended, or after `hold_seconds`: it may never end.

        A group that stands again and again has no longer a place than that while others wait.
        """
        self._hold_seconds = hold_seconds
        self._since: dict[int, float] = {}
        self._line: dict[int, float] = {}
        """Groups that wait for a place, each with its election deadline when it last asked."""
        self._hopeless: dict[int, float] = {}
        """The same, of groups without a majority that is connected. All others go first."""
        self.counts: Counter[tuple[Rank, Cause]] = Counter()
        """Elections in which a group of this node stood, each term once."""

    def admit(self, group: int, rank: Rank, now: float, *, late: bool) -> bool:
        """Whether a group may stand now; it keeps its place when it stands again.

        `late`: the loop was blocked just now.
        """
        if rank is not Rank.PARTITION:
            return True
        since = self._since
        if self.line and now - since.get(group, now) >= self._hold_seconds:
            # It has not won, and may never: others have waited meanwhile.
            del since[group]
            return False
        if group not in since:
            if not self._is_free(now, late):
                return False
            if len(since) >= _limit(late):
                del since[next(iter(since))]
            since[group] = now
        self._leave_line(group)
        return True

    def _is_free(self, now: float, late: bool) -> bool:
        """Whether there is a place, or the oldest election holds its place for too long."""
        since = self._since
        return len(since) < _limit(late) or now - next(iter(since.values())) >= self._hold_seconds

    def wait(self, group: int, deadline: float, *, hopeless: bool = False) -> None:
        """Put a group that was not admitted in line, or keep its place there; `deadline` is its new one.

        `hopeless`: no majority of its voters is connected, so it would only keep a place from the others.
        """
        line, other = (self._hopeless, self._line) if hopeless else (self._line, self._hopeless)
        other.pop(group, None)
        line[group] = deadline

    @property
    def line(self) -> int:
        """Number of groups in line; some may have heard a leader since."""
        return len(self._line) + len(self._hopeless)

    def next_in_line(self, now: float, *, late: bool) -> tuple[int, float] | None:
        """Take the first group out of the line, with the deadline that it waited with; None without a place.

        The group has to ask again, if its deadline is still the same: it has heard no leader since then.
        """
        line = self._line or self._hopeless
        if not line or not self._is_free(now, late):
            return None
        group = next(iter(line))
        return group, line.pop(group)

    def _leave_line(self, group: int) -> None:
        self._line.pop(group, None)
        self._hopeless.pop(group, None)

    def ended(self, group: int) -> None:
        """A group has a leader, or is gone."""
        self._since.pop(group, None)


def _limit(late: bool) -> int:
    return AT_ONCE_LATE if late else AT_ONCE
