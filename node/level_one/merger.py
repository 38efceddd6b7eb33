"""Merges small neighbouring level-one objects of the partitions led here: one run at a time.

Which run is decided by `merging.py`. The objects in whose place the merged one comes stay for as long as a
leased checkpoint may name them, like everything that is removed.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from strandline.node.level_one.builder import BuildFailed, Merge
from strandline.node.level_one.context import LevelOneContext, Replica, configs_of, label, leads_in
from strandline.node.level_one.level_one_measures import UpkeepMeasures
from strandline.node.level_one.merging import next_merge
from strandline.node.level_one.naming import Fate, Namer
from strandline.node.level_one.pending_objects import PendingObjects
from strandline.node.level_one.plan import grain
from strandline.node.level_one.retry_backoff import RetryBackoff
from strandline.node.runtime.slices import slices_of
from strandline.statemachine.partition.level_one import LevelOneExtent
from strandline.statemachine.partition.partition_commands import ReplaceLevelOne

MAX_LOOKED: Final = 4_096
"""Objects of a partition that are looked through, the newest; those before were when they were new."""
FIRST_RETRY_SECONDS: Final = 5.0
MOST_RETRY_SECONDS: Final = 300.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Merging:
    """State of one partition that is led here."""

    backoff: RetryBackoff
    nothing_in: tuple[int, int, int, int] | None = None
    """Term, number of objects, their end offset and where they are clean when there was nothing to merge."""


class Merger:
    """One per node; the reconciler calls it between its jobs."""

    def __init__(
        self, context: LevelOneContext, pending: PendingObjects, namer: Namer, measures: UpkeepMeasures
    ) -> None:
        self._context = context
        self._pending = pending
        self._namer = namer
        self._measures = measures
        self._mergings: dict[int, _Merging] = {}
        self._none_at = -1
        """The replicas' changes at which none that is led here had enough objects."""
        self._last = 0
        """Group of the last merge: the others come first."""
        self.held: set[int] = set()
        """Groups whose objects a publication is replacing: a merge would only make one of both vain."""

    def error(self, group: int) -> str | None:
        """Error of a partition's last merge, if it failed."""
        merging = self._mergings.get(group)
        return merging.backoff.error if merging is not None else None

    async def step(self) -> bool:
        """Merge one run, of any partition that is led here; whether there was one."""
        known, self._mergings = self._mergings, {}
        least, changes = self._context.config.level_one.merge_count, self._context.partitions.changes
        if changes == self._none_at:
            return False
        # Few have so many: those that have not cost nothing else.
        led = [
            replica
            async for slice_ in slices_of(self._context.partitions)
            for replica in slice_
            if replica.leads and len(replica.machine.level_one) >= least
        ]
        self._none_at = -1 if led else changes
        for replica in led:
            group = replica.group.id
            fresh = _Merging(RetryBackoff(FIRST_RETRY_SECONDS))
            self._mergings[group] = known.get(group, fresh)
        for replica in sorted(led, key=lambda one: (one.group.id <= self._last, one.group.id)):
            merging = self._mergings[replica.group.id]
            ready = merging.backoff.retry_at <= self._context.loop.time() and replica.leads
            if ready and replica.group.id not in self.held:
                run = self._run(replica, merging)
                if run:
                    self._last = replica.group.id
                    await self._merge(replica, merging, run)
                    return True
        return False

    def _run(self, replica: Replica, merging: _Merging) -> Sequence[LevelOneExtent]:
        """Objects of a partition to merge; computed only if its objects changed since the last time."""
        level_one = replica.machine.level_one
        clean = replica.machine.removals.level_one_clean
        state = (replica.leader_epoch, len(level_one), level_one.end_offset, clean)
        config = self._context.config.level_one
        configs = configs_of(self._context, replica)
        if state == merging.nothing_in or len(level_one) < config.merge_count or configs is None:
            return ()
        newest = list(islice(level_one, max(len(level_one) - MAX_LOOKED, 0), None))
        # What is compacted is not to be written again with what is not, and then once more.
        first = bisect_right(newest, clean, key=lambda one: one.end_offset)
        for part in (newest[:first], newest[first:]):
            if run := next_merge(part, config.merge_count, grain(configs, config)):
                return run
        merging.nothing_in = state
        return ()

    async def _merge(self, replica: Replica, merging: _Merging, run: Sequence[LevelOneExtent]) -> None:
        term = replica.leader_epoch
        unique = self._pending.new(replica.group.id, term)
        merge = Merge(replica.topic_id, replica.number, term, unique, run)
        try:
            made = await self._context.level_one_builder.merge(merge)
        except BaseException:
            self._pending.settle(unique)
            raise
        if isinstance(made, BuildFailed):
            self._pending.settle(unique)
            self._measures.failed_builds += 1
            # Retention or another leader may have taken the sources away meanwhile; that is no trouble.
            if leads_in(replica, term) and all(one.unique in replica.machine.level_one for one in run):
                self._note(replica, merging, made)
            return
        old = [(one.term, one.unique) for one in run]
        fate = await self._namer.name(replica, term, ReplaceLevelOne(old, [made]), [made])
        merging.backoff.over()
        if fate is Fate.NAMED:
            self._measures.merges += 1
            self._measures.merged_objects += len(run)
            self._measures.merged_bytes += made.size

    def _note(self, replica: Replica, merging: _Merging, failed: BuildFailed) -> None:
        before = merging.backoff.failed(self._context.loop.time(), failed.reason, MOST_RETRY_SECONDS)
        if before is None:
            level = logging.WARNING if failed.retriable else logging.ERROR
            log.log(level, "%s: small objects stay unmerged for now: %s", label(replica), failed.reason)
