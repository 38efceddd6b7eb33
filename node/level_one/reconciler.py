"""Lifts the batches of the partitions led here out of level zero, and merges the small objects this leaves.

Level zero is for a quick acknowledgement: many partitions to an object, and none of it can be deleted while
one of them needs it. A record stays there about `reconcile_seconds`, or less where there is much. One job at
a time, with a bound on its memory; then the node has as long without one, unless it is behind.

A crash or a lost leadership at any step costs the work and nothing else: batches count as lifted when the
command that names the new object is applied, and objects that are never named are swept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from strandline.node.level_one.builder import BuildFailed, Output
from strandline.node.level_one.context import LevelOneContext, Replica, configs_of, label, leads_in
from strandline.node.level_one.level_one_measures import UpkeepMeasures
from strandline.node.level_one.merger import Merger
from strandline.node.level_one.naming import Fate, Namer
from strandline.node.level_one.pending_objects import PendingObjects
from strandline.node.level_one.plan import (
    MAX_JOB_EXTENTS,
    Candidate,
    FirstSeen,
    Share,
    choose,
    cut,
    grain,
    page,
)
from strandline.node.level_one.retry_backoff import RetryBackoff
from strandline.node.runtime.rounds import next_round
from strandline.node.runtime.slices import look_seconds, slices_of
from strandline.statemachine.partition.extent import Extent
from strandline.statemachine.partition.level_one import LevelOneExtent
from strandline.statemachine.partition.partition_commands import AdvanceReconciled

LOOK_SECONDS: Final = 1.0
MAX_PAUSE_SECONDS: Final = 5.0
"""Longest rest after a job; a job that took less is followed by as long a rest as it took."""
BEHIND: Final = 2.0
"""Times `reconcile_seconds`: a batch that waits for longer says that there is no time for rests."""
PAGE_EXTENTS: Final = 512
"""Extents that are read in one turn of the loop."""
FIRST_RETRY_SECONDS: Final = 2.0
MOST_RETRY_SECONDS: Final = 30.0
"""Longest pause while the store fails, which may end at any time."""
MOST_LASTING_RETRY_SECONDS: Final = 300.0
"""Longest pause while bytes are damaged or lost, which an operator has to repair."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ReconcileProgress:
    """State of one replica here."""

    seen: FirstSeen
    backoff: RetryBackoff

    def age(self, replica: Replica, now: float) -> float:
        """Seconds since the oldest batch that is in level zero only was seen."""
        return self.seen.age(replica.machine.extents.first_offset, now)


@dataclass(frozen=True, slots=True)
class _Work:
    """A partition's part of a job under way."""

    replica: Replica
    term: int
    first_offset: int
    outputs: Sequence[Output]


class Reconciler:
    """One per node; `run` is its task."""

    def __init__(
        self,
        context: LevelOneContext,
        pending: PendingObjects,
        namer: Namer,
        merger: Merger,
        measures: UpkeepMeasures,
    ) -> None:
        self._context = context
        self._pending = pending
        self._namer = namer
        self._merger = merger
        self._measures = measures
        self._progress: dict[int, ReconcileProgress] = {}
        self._filled: list[tuple[int, Replica, ReconcileProgress]] = []
        """Replicas with batches in level zero at the last look."""
        self._looked_at = -1
        """The replicas' changes before that look."""

    def lifting(self, replica: Replica) -> ReconcileProgress | None:
        """State of a replica since its first look."""
        return self._progress.get(replica.group.id)

    def error(self, group: int) -> str | None:
        """Error of a partition's last lifting, if it failed."""
        progress = self._progress.get(group)
        return None if progress is None else progress.backoff.error

    async def run(self) -> None:
        """Look every second, and work, for as long as the node lives."""
        loop = self._context.loop
        worked = False
        while True:
            partitions = 0 if worked else len(self._context.partitions)
            await next_round(look_seconds(LOOK_SECONDS, partitions))
            began = loop.time()
            try:
                worked = await self.step()
            except Exception as error:
                message = "level one: a job failed in a way that was not foreseen"
                loop.call_exception_handler({"message": message, "exception": error})
                worked = True
            if worked:
                took = loop.time() - began
                self._measures.job_seconds.add(took)
                if not self._behind():
                    await asyncio.sleep(min(took, MAX_PAUSE_SECONDS))

    async def step(self) -> bool:
        """Do one job if one is due, and then a merge if time allows; returns whether there was any work."""
        await self.look()
        now = self._context.loop.time()
        candidates = [
            Candidate(group, self._waiting(replica, progress), progress.age(replica, now))
            for group, replica, progress in self._led()
            if replica.machine.extents.bytes and progress.backoff.retry_at <= now
        ]
        shares = choose(candidates, self._context.config.level_one)
        if shares:
            await self._reconcile(shares)
        await asyncio.sleep(0)
        merged = not self._behind() and await self._merger.step()
        return bool(shares) or merged

    async def look(self) -> None:
        """Note new batches in level zero, on every replica here: the next leader then knows their age."""
        changes = self._context.partitions.changes
        if changes != self._looked_at:
            await self._look_at_all()
            self._looked_at = changes
        if len(self._pending):
            led = {replica.group.id: replica for replica in self._context.partitions if replica.leads}
            self._pending.prune(lambda group, term: group in led and leads_in(led[group], term))

    async def _look_at_all(self) -> None:
        now, period = self._context.loop.time(), self._context.config.level_one.reconcile_seconds
        known, liftings, filled = (
            self._progress,
            dict[int, ReconcileProgress](),
            list[tuple[int, Replica, ReconcileProgress]](),
        )
        async for slice_ in slices_of(self._context.partitions):
            for replica in slice_:
                group = replica.group.id
                progress = known.get(group)
                if progress is None:
                    progress = ReconcileProgress(FirstSeen(period), RetryBackoff(FIRST_RETRY_SECONDS))
                liftings[group] = progress
                extents = replica.machine.extents
                progress.seen.note(extents.first_offset, extents.end_offset, now)
                if extents.bytes:
                    filled.append((group, replica, progress))
        self._progress, self._filled = liftings, filled

    def _led(self) -> list[tuple[int, Replica, ReconcileProgress]]:
        """Those led here that had something in level zero at the last look."""
        return [each for each in self._filled if each[1].leads]

    def _behind(self) -> bool:
        """Whether batches wait so long that resting would let level zero grow."""
        now, limit = self._context.loop.time(), BEHIND * self._context.config.level_one.reconcile_seconds
        return any(
            progress.age(replica, now) > limit and progress.backoff.error is None
            for _, replica, progress in self._led()
        )

    def _waiting(self, replica: Replica, progress: ReconcileProgress) -> int:
        """Bytes to lift. Where attempts failed, half as much each time: so the batches before one that cannot
        be read are lifted without it, and in the end little is read in vain."""
        size, failures = replica.machine.extents.bytes, progress.backoff.failures
        most = max(self._context.config.level_one.target_bytes >> (failures - 1), 1) if failures else size
        return min(size, most)

    # Lifting.

    async def _reconcile(self, shares: Sequence[Share]) -> None:
        self._measures.jobs += 1
        works = await self._works(shares)
        outputs = [output for work in works for output in work.outputs]
        if not outputs:
            return
        try:
            results = iter(await self._context.level_one_builder.build(outputs))
        except BaseException:
            for output in outputs:
                self._pending.settle(output.unique)
            raise
        built = [(work, [next(results) for _ in work.outputs]) for work in works]
        notes = await asyncio.gather(*(self._name(work, made) for work, made in built))
        failing = [note for note in notes if note is not None]
        if failing:
            message = "batches stay in level zero for now: %s%s"
            log.warning(message, failing[0], f"; {len(failing) - 1} more partitions" if failing[1:] else "")

    async def _works(self, shares: Sequence[Share]) -> list[_Work]:
        """The work of a job; a partition whose state changed while it was read is left for the next job."""
        by_group = {group: replica for group, replica, _ in self._led()}
        works: list[_Work] = []
        room = MAX_JOB_EXTENTS
        for group, size in shares:
            replica = by_group[group]
            term, first = replica.leader_epoch, replica.machine.extents.first_offset
            extents = await self._extents(replica, first, size, room)
            configs = configs_of(self._context, replica)
            if not extents or configs is None or not leads_in(replica, term):
                continue
            room -= len(extents)
            lots = cut(extents, grain(configs, self._context.config.level_one).bytes)
            outputs = [
                Output(replica.topic_id, replica.number, term, self._pending.new(group, term), lot)
                for lot in lots
            ]
            works.append(_Work(replica, term, first, outputs))
        return works

    async def _extents(self, replica: Replica, first: int, size: int, room: int) -> list[Extent]:
        """The oldest extents, up to `size` bytes, a page a turn; as far as they are still there."""
        found: list[Extent] = []
        at = first
        while size > 0 and len(found) < room:
            extents = page(replica.machine.extents, at, size, min(PAGE_EXTENTS, room - len(found)))
            if not extents or (found and extents[0].length > size):
                break
            found += extents
            size -= sum(extent.length for extent in extents)
            at = extents[-1].end_offset
            await asyncio.sleep(0)
        return found

    async def _name(self, work: _Work, made: Sequence[LevelOneExtent | BuildFailed]) -> str | None:
        """Have the partition name what was built, up to the first object that was not; what is to be said."""
        objects: list[LevelOneExtent] = []
        failed: BuildFailed | None = None
        for one in made:
            if isinstance(one, BuildFailed):
                failed = one
                self._measures.failed_builds += 1
                break
            objects.append(one)
        for output in work.outputs[len(objects) :]:
            # Nothing will ever name these: where there is an object, it is an orphan from now on.
            self._pending.settle(output.unique)
        replica, first = work.replica, work.first_offset
        if objects:
            command = AdvanceReconciled(first, objects)
            if await self._namer.name(replica, work.term, command, objects) is not Fate.NAMED:
                return None
            first = objects[-1].end_offset
            self._measures.reconciled_objects += len(objects)
            self._measures.reconciled_bytes += sum(one.size for one in objects)
        progress = self._progress.get(replica.group.id)
        if progress is None:
            return None
        if failed is None:
            progress.backoff.over()
        elif leads_in(replica, work.term) and replica.machine.extents.first_offset == first:
            # Otherwise retention took away what could not be read, and there is no trouble.
            return self._note(replica, progress, first, failed)
        return None

    def _note(
        self, replica: Replica, progress: ReconcileProgress, first: int, failed: BuildFailed
    ) -> str | None:
        """Schedule a retry and log the error: at once if an operator has to act, else return the message."""
        most = MOST_RETRY_SECONDS if failed.retriable else MOST_LASTING_RETRY_SECONDS
        before = progress.backoff.failed(self._context.loop.time(), failed.reason, most)
        if failed.retriable:
            return f"{label(replica)}: {failed.reason}" if before is None else None
        if before != failed.reason:
            message = (
                "%s: batches from offset %d on cannot be lifted out of level zero: %s; those behind them "
                "wait until the object is there again, or the start offset lies beyond it"
            )
            log.error(message, label(replica), first, failed.reason)
        return None
