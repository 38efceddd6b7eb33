"""One local log as the upkeep sees it: the work that is due for it, and how urgent that is."""

from __future__ import annotations

from strandline.node.compaction.due import Tally, overdue, round_is_due, tally
from strandline.node.compaction.ingest_plan import WaitingOffsets, waiting
from strandline.node.compaction.manifest import Manifest
from strandline.node.compaction.replica_log import ReplicaLog
from strandline.node.level_one.plan import FirstSeen
from strandline.statemachine.controller.settings import Configs
from strandline.statemachine.controller.topic_config import MIN_COMPACTION_LAG_MS


class LogUpkeep:
    """A log of this node, and what is known of its work."""

    def __init__(self, replica_log: ReplicaLog, configs: Configs, ingest_seconds: float) -> None:
        self.log = replica_log
        self.configs = configs
        self.seen = FirstSeen(ingest_seconds)
        self.waiting: WaitingOffsets | None = None
        """The next ingest, as of the last look."""
        self._counted: tuple[Manifest, Tally] | None = None
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

    def note(self, now: float, segment_bytes: int) -> None:
        """Note what there is to ingest, and since when: `now` in seconds of the loop's clock."""
        self.waiting = None
        if self.log.log is None:
            return
        manifest, machine = self.log.log.manifest, self.log.replica.machine
        if self.log.may_be_filled():
            self.waiting = waiting(manifest, machine, segment_bytes)
        end = manifest.log_end if self.waiting is None else self.waiting.end_offset
        self.seen.note(manifest.log_end, end, now)

    def tally(self, manifest: Manifest) -> Tally:
        """Of the log as it is; counted once for each change."""
        if self._counted is None or self._counted[0] is not manifest:
            self._counted = (manifest, tally(manifest))
        return self._counted[1]

    def note_begun(self, manifest: Manifest) -> None:
        """A round of the log begins: what changes while it is under way, it does not know of."""
        self._begun = (self._lets_go(manifest), self.configs)

    def note_futile(self, manifest: Manifest, young_ms: int | None) -> None:
        """The round did nothing, and the next would not either, until this or the state has changed."""
        assert self._begun is not None, "it has begun"
        let_go, configs = self._begun
        until = None if young_ms is None else young_ms + MIN_COMPACTION_LAG_MS.of(configs)
        self._futile = (manifest, let_go, configs, until)

    def due(self, now_ms: int) -> bool:
        """Whether there is something to fill or clean, by the topic's settings, now or within seconds."""
        return self.waiting is not None or self.urgency(now_ms) is not None

    def urgency(self, now_ms: int) -> float | None:
        """The dirty ratio if a round is due, and 1 more if one is overdue; None if not."""
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
