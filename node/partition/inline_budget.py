"""Decides which batches go into the log itself: small ones, as long as a budget lasts.

An inline batch costs one sync where an object costs a put and then a sync. But every replica keeps its bytes
in its log and its state until they are stored in the bucket. So two things are limited, for each partition
and for the node: the bytes a second, and the bytes that are not stored yet. A limit that was passed stays in
force until half of it is free again. Otherwise a load at the limit would change between the two ways with
each batch, and a batch behind one that goes to an object waits for that in any case. docs/write-path.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from strandline.node.config.node_config import InlineSection

LEAST_CHARGE: Final = 1024
"""Bytes that a batch counts at least in a rate: its work in the log and when it is stored costs as much."""


class Switch(StrEnum):
    """The way that a partition's small batches take from now on, or the limit that is the reason."""

    INLINE = "inline"
    """All limits are free again."""
    PARTITION_RATE = "partition_rate"
    NODE_RATE = "node_rate"
    PARTITION_BYTES = "partition_bytes"
    """Too much of the partition lies in the logs alone: the store is slow, or away."""
    NODE_BYTES = "node_bytes"


class RateLimit:
    """Bytes a second, a second's worth in a burst. Once it is passed, it ends when the rate has been below a
    half for long enough that the burst has drained."""

    __slots__ = ("_at", "_level", "_rate", "passes")

    def __init__(self, bytes_per_second: int) -> None:
        self.passes = True
        self._rate = float(bytes_per_second)
        self._level = 0.0
        self._at = float("-inf")

    def charge(self, size: int, now: float) -> bool:
        """Count a small batch, whichever way it goes; returns whether the limit lets it go inline."""
        drain = self._rate if self.passes else self._rate / 2
        level = max(self._level - (now - self._at) * drain, 0.0)
        self._at = now
        self.passes = level + size <= self._rate and (self.passes or level == 0.0)
        self._level = min(level + size, self._rate)
        return self.passes


class BytesLimit:
    """Bytes in the logs alone. Once it is passed, it ends when half of it is free."""

    __slots__ = ("_most", "passes")

    def __init__(self, most: int) -> None:
        self.passes = True
        self._most = most

    def allows(self, size: int) -> bool:
        """Whether so many bytes may be there, the batch in question included."""
        self.passes = size <= (self._most if self.passes else self._most // 2)
        return self.passes


class InlineMeasures:
    """Counts since the start."""

    def __init__(self) -> None:
        self.batches = 0
        self.bytes = 0
        """Produced batches that went into the log."""
        self.to_objects = 0
        """Batches that are small enough and went to an object, because of a limit."""
        self.switches: Counter[Switch] = Counter()
        self.stored_batches = 0
        self.stored_bytes = 0
        """Inline batches, markers included, that were stored in objects."""
        self.failed_stores = 0
        """Attempts to store that failed at least in part; they are repeated."""
        self.snapshots = 0
        """Snapshots taken to let go of the bytes in logs."""


class InlineBudget:
    """One node's budget. `now` is the loop's clock; `on_half` is called when half of a limit in bytes is
    used."""

    def __init__(self, config: InlineSection, now: Callable[[], float]) -> None:
        self.config = config
        self.measures = InlineMeasures()
        self.on_half: Callable[[], None] = lambda: None
        self.kept = 0
        """Bytes in the logs alone of the partitions led here: of the last look, and what came since."""
        self.now = now
        self.rate = RateLimit(config.bytes_per_second)
        self.limit = BytesLimit(config.bytes)


class PartitionBudget:
    """One partition's part of a node's budget."""

    __slots__ = ("_limit", "_node", "_rate", "inline")

    def __init__(self, node: InlineBudget) -> None:
        self.inline = True
        """Whether small batches go into the log at present."""
        self._node = node
        self._rate = RateLimit(node.config.partition_bytes_per_second)
        self._limit = BytesLimit(node.config.partition_bytes)

    def takes(self, size: int, kept: int) -> bool:
        """Whether a batch of so many bytes goes inline, with `kept` bytes of its partition in the logs alone,
        those on their way there included. It is counted."""
        node = self._node
        config, measures = node.config, node.measures
        if size > config.max_batch_bytes:
            return False
        now, charge = node.now(), max(size, LEAST_CHARGE)
        # Each of them is asked, whatever the others say: they count what comes.
        by_rate, by_node_rate = self._rate.charge(charge, now), node.rate.charge(charge, now)
        by_bytes, by_node_bytes = self._limit.allows(kept + size), node.limit.allows(node.kept + size)
        if by_rate and by_node_rate and by_bytes and by_node_bytes:
            self._goes(Switch.INLINE)
            node.kept += size
            measures.batches += 1
            measures.bytes += size
            if kept + size > config.partition_bytes // 2 or node.kept > config.bytes // 2:
                node.on_half()
            return True
        if not by_bytes:
            self._goes(Switch.PARTITION_BYTES)
        elif not by_node_bytes:
            self._goes(Switch.NODE_BYTES)
        else:
            self._goes(Switch.NODE_RATE if by_rate else Switch.PARTITION_RATE)
        measures.to_objects += 1
        return False

    def _goes(self, way: Switch) -> None:
        if self.inline is not (way is Switch.INLINE):
            self.inline = way is Switch.INLINE
            self._node.measures.switches[way] += 1
