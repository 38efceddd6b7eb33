"""Plain numbers about the work of level zero; the exporter of metrics reads them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum


class Histogram:
    """Counts of values up to each bound, and of those above the last; `counts` has one more than `bounds`."""

    __slots__ = ("bounds", "count", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.count = 0
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.count += 1
        self.sum += value


SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
BYTES = tuple(float(1024 << shift) for shift in range(16))
BATCHES = tuple(float(1 << shift) for shift in range(14))


class FlushReason(Enum):
    """Reason why an object was uploaded."""

    IDLE = "idle"
    RETURNED = "returned"
    FULL = "full"
    LINGER = "linger"
    BUDGET = "budget"
    CLOSING = "closing"


@dataclass(slots=True)
class BatcherMeasures:
    """Counts and histograms of a batcher since it was made."""

    objects_stored: int = 0
    objects_failed: int = 0
    batches_stored: int = 0
    batches_failed: int = 0
    batches_refused: int = 0
    batches_abandoned: int = 0
    """Their callers stopped waiting before the object was made."""

    bytes_stored: int = 0
    """Of whole objects."""

    left: dict[FlushReason, int] = field(default_factory=lambda: dict.fromkeys(FlushReason, 0))
    object_bytes: Histogram = field(default_factory=lambda: Histogram(BYTES))
    object_batches: Histogram = field(default_factory=lambda: Histogram(BATCHES))
    wait_seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    """From staging to leaving, for each batch."""

    upload_seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))


@dataclass(slots=True)
class ReaderMeasures:
    """A reader's counters since it was made."""

    gets: int = 0
    bytes_read: int = 0
    """Of ranges fetched, gaps between the wanted batches included."""

    batches_read: int = 0
    """Batches that came out of those ranges."""

    batches_ahead: int = 0
    """Those that were read ahead of a request."""

    joined: int = 0
    """Reads of a batch that another reader's get was already fetching."""

    failed: int = 0
    """Gets that failed."""

    bad: int = 0
    """Batches that failed verification."""

    get_seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
