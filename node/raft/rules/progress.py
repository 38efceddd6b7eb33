"""A leader's view of one follower: how far its log is proven to match, and the messages in flight to it.

The three phases are etcd's: probing for the point where the logs part, replicating in a pipeline, and
sending a snapshot. `next` never moves back on success; PySyncObj moved it to the acknowledged entry and so
sent everything twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum

NEVER = float("-inf")
NOTHING = -1


class Phase(Enum):
    """Phase of a follower's replication."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """One follower, in one term of one leader. Indices are the log's, times the leader's own clock."""

    __slots__ = (
        "_inflight",
        "acked_sent_at",
        "inflight_bytes",
        "match",
        "next",
        "phase",
        "probe_pause",
        "probe_sent_at",
        "quiesced_since",
        "sent_at",
        "settled",
    )

    def __init__(self, next_index: int) -> None:
        self.match = 0
        """Highest index known to be durable on the follower and equal to the leader's."""
        self.next = next_index
        self.phase = Phase.PROBE
        self.acked_sent_at = NEVER
        """Send time of the newest message that the follower answered in this term; a lease starts from it."""
        self.sent_at = NEVER
        self.probe_sent_at = NEVER
        self.probe_pause = 0.0
        """Seconds until the next probe; grows with each that is not answered, 0 after an answer."""
        self.quiesced_since: float | None = None
        """Time since which the shared heartbeat of the pair covers this group; None if it does not."""
        self.settled = NOTHING
        """Index of the last entry when the follower was last told that all is committed."""
        self._inflight: deque[tuple[int, int]] = deque()
        self.inflight_bytes = 0

    def may_send(self, max_messages: int, max_bytes: int) -> bool:
        """Whether another message with entries may leave now."""
        return len(self._inflight) < max_messages and self.inflight_bytes < max_bytes

    def sent(self, last: int, size: int) -> None:
        """Record that a message with entries up to `last` is in flight."""
        self._inflight.append((last, size))
        self.inflight_bytes += size
        self.next = last + 1

    def answered(self, sent_at: float) -> None:
        """The follower answered a message that was sent at that time."""
        self.acked_sent_at = max(self.acked_sent_at, sent_at)

    def accepted(self, index: int) -> bool:
        """The follower proved to match up to `index`; whether that was news."""
        while self._inflight and self._inflight[0][0] <= index:
            self.inflight_bytes -= self._inflight.popleft()[1]
        self.next = max(self.next, index + 1)
        if index <= self.match:
            return False
        self.match = index
        return True

    def rejected(self, previous: int, hint: int) -> bool:
        """The follower has no matching entry at `previous`; whether the answer was not a stale one."""
        if self.phase is Phase.REPLICATE:
            if previous <= self.match:
                return False
            self.probe(self.match + 1)
            return True
        if self.phase is Phase.SNAPSHOT or previous != self.next - 1:
            return False
        self.next = max(min(previous, hint + 1), self.match + 1)
        self.probe_sent_at = NEVER
        return True

    def probe(self, next_index: int) -> None:
        """Start over from the proven match, after a reconnect or the loss of a message."""
        self.phase = Phase.PROBE
        self.next = next_index
        self.probe_sent_at = NEVER
        self.probe_pause = 0.0
        self._inflight.clear()
        self.inflight_bytes = 0

    def replicate(self) -> None:
        """The logs are known to match up to `match`: from here on messages follow each other."""
        self.phase = Phase.REPLICATE

    def snapshot(self) -> None:
        """The follower needs entries that are no longer in the log."""
        self.probe(self.match + 1)
        self.phase = Phase.SNAPSHOT


def majority_of(values: Iterable[float]) -> float:
    """The largest value that a majority of the given ones reaches: of 5, 3, 9 it is 5."""
    ordered = sorted(values, reverse=True)
    return ordered[len(ordered) // 2]
