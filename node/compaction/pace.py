"""Paces compaction: it rests within its jobs and after its steps, so that requests have the processor.

Produce requests wait beside a worker that computes: the worker is nice, and still shares a core's caches and
its two threads with the nodes. Cleaning is seldom in a hurry, so it takes a twentieth of a processor. When it
has had something to do for a minute without a pause, it takes half of one.
"""

from __future__ import annotations

from typing import Final

from strandline.node.compaction.compactor import CompactorMeasures

PROCESSOR_RESTS: Final = 19.0
"""Seconds of rest for each second of the worker's processor: a twentieth of one processor."""
IN_A_HURRY_SECONDS: Final = 60.0
"""After as long without a step that found nothing to do, compaction rests only for as long as it worked."""
MAX_REST_SECONDS: Final = 5.0
"""Longest rest after a step."""


class Pace:
    """One per node. All times are seconds of the loop's clock."""

    def __init__(self, measures: CompactorMeasures) -> None:
        self._measures = measures
        self._spent = self._processor()
        self._busy_since: float | None = None
        self.job_rests = PROCESSOR_RESTS
        """Seconds that the next job rests for each second of the processor, within itself."""

    def idle(self) -> None:
        """A step found nothing to do."""
        self._busy_since = None
        self.job_rests = PROCESSOR_RESTS

    def rest(self, began: float, ended: float) -> float:
        """Seconds to rest after a step that did something."""
        spent, self._spent = self._processor() - self._spent, self._processor()
        if self._busy_since is None:
            self._busy_since = began
        rest = took = ended - began
        if ended - self._busy_since >= IN_A_HURRY_SECONDS:
            self.job_rests = 0.0
        elif spent > 0:
            rest = max(0.0, spent * (1 + PROCESSOR_RESTS) - took)
        # Else there is no worker, and the time is the node's own.
        return min(rest, MAX_REST_SECONDS)

    def _processor(self) -> float:
        return sum(self._measures.cpu_seconds.values())
