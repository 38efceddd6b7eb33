"""One local log as the upkeep sees it: the work that is due for it, and how urgent that is."""

from __future__ import annotations

from typing import Final

from strandline.node.compaction.due import Tally, overdue, round_is_due, tally
from strandline.node.compaction.ingest_plan import WaitingOffsets, waiting
from strandline.node.compaction.manifest import Manifest
from strandline.node.compaction.replica_log import ReplicaLog
from strandline.node.level_one.plan import FirstSeen
from strandline.statemachine.controller.settings import Configs
from strandline.statemachine.controller.topic_config import MIN_COMPACTION_LAG_MS

WAITING_SECONDS: Final = 60.0
"""A round that has been due for so long counts as much as a log without a clean byte, or as being overdue. So
a log waits at most for those that were due before it or within twice as long after: however busy the others
are, its turn comes."""


class LogUpkeep:
    """A log of this node, and what is known of its work."""

    def __init__(self, replica_log: ReplicaLog, configs: Configs, ingest_seconds: float) -> None:
        self.log = replica_log
        self.configs = configs
        self.seen = FirstSeen(ingest_seconds)
        self.waiting: WaitingOffsets | None = None
        """The next ingest, as of the last look."""
        self._counted: tuple[Manifest, Tally] | None = None
        self._due_since: float | None = None
        """Since when a round has been due, in seconds of the loop's clock; None while none is."""
        self._begun: tuple[tuple[int, int, int], Configs] | None = None
        """By what the last round went: ripe offsets with the end of what might be cleaned, and settings."""
        self._futile: tuple[Manifest, tuple[int, int, int], Configs, int | None] | None = None
        """The log, the ripe offsets and the topic's settings for which a round did nothing; and until when,
        Unix milliseconds."""

    @property
    def ripe(self) -> tuple[int, int]:
        """Offsets below which tombstones, and markers, may go."""
        removals = self.log.replica.machine.removals
        return removals.ripe_tombstones, removals.ripe_markers

    def _lets_go(self, manifest: Manifest) -> tuple[int, int, int]:
        """The ripe offsets, and the end of what may be cleaned of this log, by the state as it is now."""
        return (*self.ripe, min(self.log.replica.machine.cleanable_end, manifest.log_end))

    def note(self, now: float, now_ms: int, segment_bytes: int) -> None:
        """Note what there is to ingest and whether a round is due, and since when.

        `now` in seconds of the loop's clock, `now_ms` in Unix milliseconds.
        """
        self.waiting = None
        if self.log.log is None:
            self._due_since = None
            return
        manifest, machine = self.log.log.manifest, self.log.replica.machine
        if self.log.may_be_filled():
            self.waiting = waiting(manifest, machine, segment_bytes)
        end = manifest.log_end if self.waiting is None else self.waiting.end_offset
        self.seen.note(manifest.log_end, end, now)
        if self._dirtiness(now_ms) is None:
            self._due_since = None
        elif self._due_since is None:
            self._due_since = now

    def tally(self, manifest: Manifest) -> Tally:
        """Of the log as it is; counted once for each change."""
        if self._counted is None or self._counted[0] is not manifest:
            self._counted = (manifest, tally(manifest))
        return self._counted[1]

    def note_begun(self, manifest: Manifest) -> None:
        """A round of the log begins: what changes while it is under way, it does not know of."""
        self._begun = (self._lets_go(manifest), self.configs)

    def note_ended(self) -> None:
        """The log had its turn, whatever came of it: the wait for another round begins."""
        self._due_since = None

    def note_futile(self, manifest: Manifest, young_ms: int | None) -> None:
        """The round did nothing, and the next would not either, until this or the state has changed."""
        assert self._begun is not None, "it has begun"
        let_go, configs = self._begun
        until = None if young_ms is None else young_ms + MIN_COMPACTION_LAG_MS.of(configs)
        self._futile = (manifest, let_go, configs, until)

    def urgency(self, now: float, now_ms: int) -> float | None:
        """The urgency of a round, from 0 on; None if none is due.

        It is the dirty ratio, 1 more if a round is overdue, and 1 more for every WAITING_SECONDS that it has
        been due. `now` in seconds of the loop's clock, `now_ms` in Unix milliseconds.
        """
        dirtiness = self._dirtiness(now_ms)
        if dirtiness is None or self._due_since is None:
            return dirtiness
        return dirtiness + (now - self._due_since) / WAITING_SECONDS

    def _dirtiness(self, now_ms: int) -> float | None:
        if self.log.log is None:
            return None
        manifest, replica = self.log.log.manifest, self.log.replica
        told = self.tally(manifest)
        # A leader whose log is less clean than level one cannot publish.
        behind = replica.leads and manifest.clean_end < replica.machine.removals.level_one_clean
        if not behind and not round_is_due(told, self.configs, self.ripe, now_ms):
            return None
        if self._futile is not None:
            before, let_go, configs, until = self._futile
            same = before is manifest and let_go == self._lets_go(manifest) and configs == self.configs
            if same and (until is None or now_ms <= until):
                return None
        return told.dirty_ratio + (behind or overdue(told, self.configs, now_ms))
