"""Paces compaction: it rests within its jobs and after its steps, so that requests have the processor.

Produce requests wait beside a worker that computes: the worker is nice, and still shares a core's caches and
its two threads with the nodes. Cleaning is seldom in a hurry, so it begins with a fortieth of a processor.
Its share doubles with every twenty seconds in which it always had something to do, up to half of one.
"""

from __future__ import annotations

from typing import Final

from strandline.node.compaction.compactor import CompactorMeasures

LEAST_SHARE: Final = 1 / 40
"""Of one processor."""
MOST_SHARE: Final = 1 / 2
DOUBLED_AFTER_SECONDS: Final = 20.0
"""Without a step that found nothing to do. A table that grows faster than it is cleaned has half a processor
after 86 seconds."""
MAX_REST_SECONDS: Final = 5.0
"""Longest rest after a step."""


class Pace:
    """One per node. All times are seconds of the loop's clock."""

    def __init__(self, measures: CompactorMeasures) -> None:
        self._measures = measures
        self._spent = self._processor()
        self._busy = 0.0
        """Seconds in which there was always something to do."""
        self._busy_until: float | None = None
        """The end of those, if they go on; None after a rest."""
        self._share = LEAST_SHARE

    @property
    def job_rests(self) -> float:
        """Seconds that the next job rests for each second of the processor, within itself."""
        return 1 / self._share - 1

    def idle(self) -> None:
        """A step found nothing to do."""
        self._busy, self._busy_until = 0.0, None
        self._share = LEAST_SHARE

    def stalled(self) -> None:
        """All that there is to do waits for the object store: the share stays what it is."""
        self._busy_until = None

    def rest(self, began: float, ended: float) -> float:
        """Seconds to rest after a step that did something."""
        spent, self._spent = self._processor() - self._spent, self._processor()
        self._busy += ended - (began if self._busy_until is None else self._busy_until)
        self._busy_until = ended
        took = ended - began
        doublings = self._busy / DOUBLED_AFTER_SECONDS
        self._share = min(MOST_SHARE, LEAST_SHARE * 2.0 ** min(doublings, 10.0))
        # No processor time: there is no worker, and the time is the node's own.
        rest = max(0.0, spent / self._share - took) if spent > 0 else took
        return min(rest, MAX_REST_SECONDS)

    def _processor(self) -> float:
        return sum(self._measures.cpu_seconds.values())
