"""One round of cleaning of one local log, step by step: its keys are mapped, then what they supersede goes.

A step is one job of the compactor and, for a filtered stretch, one change of the log. So other work comes
between the steps, and each step leaves a log that is correct: what superseded a record is in the log as long
as the record is. Only with the last step the log counts as clean up to the round's bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from strandline.node.compaction.compaction_measures import CompactionMeasures
from strandline.node.compaction.compactor import Compactor, FilterJob, JobFailed, MapJob, Why
from strandline.node.compaction.log_problems import Work
from strandline.node.compaction.manifest import NONE, Manifest, Segment
from strandline.node.compaction.pace import Pace
from strandline.node.compaction.replica_log import ReplicaLog


class RoundLimits(NamedTuple):
    """Sizes in bytes."""

    map_bytes: int
    segment_bytes: int
    block_bytes: int


class CleaningRound:
    """A round under way; `step` until `ended`. Nothing else may change the log meanwhile but a reset."""

    def __init__(
        self,
        number: int,
        replica_log: ReplicaLog,
        compactor: Compactor,
        measures: CompactionMeasures,
        limits: RoundLimits,
        newest_ms: int | None,
        now_ms: int,
        pace: Pace,
    ) -> None:
        """`number` is another one for each round; `newest_ms` as in MapJob, `now_ms` as in FilterJob. The log
        is open and in step."""
        assert replica_log.log is not None, "a round is for a log"
        self.replica_log = replica_log
        self.ended = False
        self.failed = False
        """Whether it broke off, and says nothing of the log."""
        self.futile = False
        """Whether it ended without a change: the next one would be the same."""
        self.young_ms: int | None = None
        """The newest timestamp of the batch that was too young, if that is where the round ended."""
        self.problem: str | None = None
        """The cause that an operator has to remove for rounds to come further; None if there is none."""
        machine = replica_log.replica.machine
        removals = machine.removals
        self._cleanable_end = machine.cleanable_end
        self._ripe = removals.ripe_tombstones, removals.ripe_markers
        self._removals = removals
        self._number = number
        self._log = replica_log.log
        self._compactor = compactor
        self._measures = measures
        self._limits = limits
        self._newest_ms = newest_ms
        self._now_ms = now_ms
        self._pace = pace
        manifest = self._log.manifest
        self._clean_end = manifest.clean_end
        dirty = [one for one in manifest.segments if one.base_offset >= manifest.clean_end]
        while dirty and not dirty[-1].records:
            dirty.pop()
        self._to_map = dirty
        self._first_mapped = dirty[0].number if dirty else NONE
        self._records = sum(one.records for one in dirty)
        self._keys = 0
        self._bound: int | None = None if dirty else manifest.clean_end
        self._groups: list[list[Segment]] = []
        self._changed = False

    async def step(self) -> None:
        """Do the next piece of work."""
        if not self._stands():
            self.break_off()
        elif self._bound is None:
            await self._map()
        elif self._groups:
            await self._filter(self._bound)
        else:
            # The log has no records that are not clean, so there is nothing to do until it has.
            self.ended = self.futile = True

    def _stands(self) -> bool:
        """Whether the log is still the one that the round began with, and has what it needs.

        A snapshot that was installed meanwhile brought another object: what it says may be far ahead.
        """
        owner = self.replica_log
        return owner.log is self._log and owner.in_step() and owner.replica.machine.removals is self._removals

    async def _map(self) -> None:
        segment = self._to_map.pop(0)
        job = MapJob(
            self.replica_log.place,
            self._number,
            segment,
            segment.number == self._first_mapped,
            not self._to_map,
            self._newest_ms,
            self._cleanable_end,
            self._limits.map_bytes,
            self._records,
            self._pace.job_rests,
        )
        mapped = await self._compactor.map(job)
        if isinstance(mapped, JobFailed):
            self._fail(mapped)
            return
        self._keys, self.young_ms, self.problem = mapped.keys, mapped.young_ms, mapped.problem
        if mapped.bound is not None:
            self._plan(mapped.bound)

    def _plan(self, bound: int) -> None:
        self._bound = bound
        self._groups = groups(self._log.manifest, bound, self._limits.segment_bytes)
        if not self._keys:
            # No record is superseded: only where something is ripe does anything go.
            clean_end = self._clean_end
            self._groups = [
                one for one in self._groups if one[0].base_offset >= clean_end or self._has_ripe(one)
            ]
        if not self._groups:
            self.ended = self.futile = True

    def _has_ripe(self, group: Sequence[Segment]) -> bool:
        tombstones, markers = self._ripe
        return any(
            NONE < one.lowest_tombstone < tombstones or NONE < one.lowest_marker < markers for one in group
        )

    async def _filter(self, bound: int) -> None:
        group, log = self._groups.pop(0), self._log
        numbers = (log.next_number(), log.next_number())
        job = FilterJob(
            self.replica_log.place,
            self._number,
            group,
            numbers,
            bound,
            *self._ripe,
            self._limits.block_bytes,
            self._now_ms,
            self._pace.job_rests,
        )
        made = await self._compactor.filter(job)
        if isinstance(made, JobFailed):
            self._fail(made)
            await self.replica_log.discard(log, numbers)
            return
        self._measures.cleaned_read_bytes += made.read_bytes
        self._measures.cleaned_written_bytes += made.written_bytes
        if not self._stands():
            self.break_off()
            await self.replica_log.discard(log, numbers)
            return
        segments = list(log.manifest.segments)
        at = segments.index(group[0])
        segments[at : at + len(group)] = made.segments
        clean_end = log.manifest.clean_end if self._groups else max(bound, self._clean_end)
        if not await self.replica_log.replace(segments, clean_end):
            self.ended = self.failed = True
            return
        self._measures.removed_records += made.removed_records
        if not self._groups:
            self._measures.rounds += 1
            self.ended = True

    def break_off(self) -> None:
        """Give the round up; the log stays as its last change left it."""
        self._measures.abandoned += 1
        self.ended = self.failed = True

    def _fail(self, failed: JobFailed) -> None:
        if failed.why is Why.BUSY:
            self.break_off()
            return
        self._measures.failed += 1
        self.ended = self.failed = True
        if failed.why is Why.DAMAGED:
            self.replica_log.damaged(failed.reason)
            return
        self.replica_log.problems.failed(Work.CLEAN, f"the local log cannot be cleaned: {failed.reason}")


def groups(manifest: Manifest, bound: int, most_bytes: int) -> list[list[Segment]]:
    """The segments that begin below a bound, in runs that become one segment each: small ones are joined.

    Without that each round would leave a small file more. No run goes beyond `clean_end`, which has to stay a
    segment's end until the round is over.
    """
    found: list[list[Segment]] = []
    size = 0
    for one in manifest.segments:
        if one.base_offset >= bound:
            break
        if not found or size + one.size > most_bytes or one.base_offset == manifest.clean_end:
            found.append([])
            size = 0
        found[-1].append(one)
        size += one.size
    return found
