"""The local log of one replica on this node: opened, reset where it cannot be relied on, changed, removed.

A log lags behind the state, never the other way round in what matters: whatever tombstone the state lets
others remove, this log must have, or must never have had what the tombstone deleted. Where that does not
hold, the log is reset; docs/compaction.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from strandline.node.compaction.compaction_measures import CompactionMeasures, Reset
from strandline.node.compaction.compactor import LogPlace
from strandline.node.compaction.context import CompactionContext, Replica
from strandline.node.compaction.local_log import (
    Change,
    Floors,
    LocalLog,
    LocalLogUnknown,
    View,
    has_segments,
    open_log,
    reset_log,
)
from strandline.node.compaction.log_folders import log_folder, remove_log
from strandline.node.compaction.log_problems import LogProblems, Work
from strandline.node.compaction.manifest import LogIdentity, Manifest, Segment
from strandline.node.compaction.removal_minimum import Ends
from strandline.node.compaction.segment_files import LocalLogDamaged, disk_reason
from strandline.statemachine.partition.partition import PartitionStateMachine

T = TypeVar("T")

log = logging.getLogger(__name__)


class ReplicaLog:
    """One replica's log. Belongs to the node's loop; its operations come one at a time."""

    def __init__(
        self,
        context: CompactionContext,
        replica: Replica,
        measures: CompactionMeasures,
        makers: Iterator[int],
    ) -> None:
        """`makers` gives a number each time a log is opened, the same to no other log of this process."""
        self.replica = replica
        self.log: LocalLog | None = None
        """None while it is not open: before the first look, during a reset, while the disk fails."""
        self.problems = LogProblems(str(self), context.loop)
        self.resets = 0
        """Times that the log was rebuilt because it was damaged or behind; not that there was none."""
        self.reset_for: str | None = None
        """The cause of the last of them, or of the one that is due, in words; None before any."""
        self.reset_at: float | None = None
        """When that cause was found, in seconds of the loop's clock."""
        self.identity = LogIdentity(context.config.cluster.id, replica.topic_id, replica.number)
        self.folder = log_folder(context.config.node.data, replica.topic_id, replica.number)
        self._context = context
        self._measures = measures
        self._makers = makers
        self._watchers: list[Callable[[], None]] = []
        self._due: Reset | None = None

    def __str__(self) -> str:
        return f"{self.replica.topic}-{self.replica.number}"

    # What others ask.

    def ends(self, machine: PartitionStateMachine) -> Ends | None:
        """The ends that this replica may report, by the durable manifest; None while it knows nothing."""
        if self.log is None or self._due is not None:
            return None
        manifest, start = self.log.manifest, machine.start_offset
        mcco = max(manifest.clean_end, manifest.floor, start)
        return Ends(mcco, max(manifest.log_end, manifest.floor_markers, mcco))

    def readable(self) -> View | None:
        """The log's present view if it may be read; to be held and released by the reader, in this turn.

        Nothing is read before the log is clean to MTRO, be it in step or not: it may have a value whose
        tombstone all other copies are clean past. A reader would have less than `delete.retention.ms` to meet
        that tombstone. A member that was left out, and is let in with its old files, has such a log.
        """
        machine = self.replica.machine
        ends = self.ends(machine)
        if self.log is None or ends is None or ends.mcco < machine.removals.mtro or not self.in_step():
            return None
        return self.log.view

    def in_step(self) -> bool:
        """Whether the open log has every tombstone and marker that it needs, by the state as it is now.

        `local_log_is_in_step`: what the log has still to read may lack those below the ripe offsets. Below
        its floor there was nothing that they deleted, and below the start offset nothing is read.
        """
        if self.log is None or self._due is not None:
            return False
        manifest, machine = self.log.manifest, self.replica.machine
        removals, end = machine.removals, max(self.log.manifest.log_end, machine.start_offset)
        return removals.ripe_tombstones <= max(end, manifest.floor) and removals.ripe_markers <= max(
            end, manifest.floor_markers
        )

    def may_be_filled(self) -> bool:
        """Whether the state is not older than the floors of the log, which is open.

        A process that was killed begins with the state of its last snapshot. What that names may have a value
        that was deleted below the floors: then the log would not learn of the deletion any more.
        """
        return self.log is not None and self.replica.group.applied >= self.log.manifest.reset_index

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back after each durable change, a reset included."""
        self._watchers.append(callback)

    def damaged(self, reason: str) -> None:
        """Have the log reset: a reader or a job met bytes that are not what was written. `reason` has the
        file's name."""
        self._must_reset(Reset.DAMAGED, reason)

    @property
    def place(self) -> LogPlace:
        """The place of the log, which is open, for a compactor."""
        assert self.log is not None, "there is no log"
        return LogPlace(self.identity, self.folder, self.log.maker)

    # What the upkeep does.

    @property
    def wants_care(self) -> bool:
        """Whether `care` would do anything now."""
        if self.problems.waits(Work.KEEP):
            return False
        return self.log is None or not self.in_step() or self._start_has_moved(self.log.manifest)

    async def care(self) -> None:
        """Open the log, reset it, or drop what lies below the start offset: whatever is due."""
        if self.log is None and self._due is None:
            await self._open()
        if self.log is not None and not self.in_step() and self._due is None:
            removals, manifest = self.replica.machine.removals, self.log.manifest
            if not manifest.segments:
                # Of a new replica, which got its state meanwhile: nothing was read yet that it could lack.
                await self.raise_floors()
                return
            self._must_reset(
                Reset.BEHIND,
                f"it ends at {manifest.log_end}, and tombstones below {removals.ripe_tombstones}, markers "
                f"below {removals.ripe_markers} may be gone elsewhere",
            )
        if self._due is not None:
            await self._reset(self._due)
        elif self.log is not None and self._start_has_moved(self.log.manifest):
            await self._trim(self.log)

    async def replace(self, segments: Sequence[Segment], clean_end: int) -> bool:
        """Change the log durably; False if it could not be, which is noted."""
        assert self.log is not None, "there is no log"
        return await self._change(self.log, lambda it: it.replace(segments, clean_end))

    async def discard(self, it: LocalLog, numbers: Sequence[int]) -> None:
        """Remove the files that a job made, or began to make, in vain."""
        await self._off(it.discard_made, numbers)

    async def raise_floors(self) -> bool:
        """Let an empty log begin with the floors of the state as it is now; False if it could not."""
        assert self.log is not None, "there is no log"
        start = max(self.log.manifest.log_end, self.replica.machine.start_offset)
        floors, index = self._floors(), self.replica.group.applied
        if (self.log.manifest.floor, self.log.manifest.floor_markers) == floors:
            return True
        return await self._change(self.log, lambda it: it.empty(start, floors, index))

    def close(self) -> None:
        """Close the files, once the readers are through."""
        open_log, self.log = self.log, None
        if open_log is not None:
            open_log.close()

    async def remove(self) -> None:
        """Remove the log with its files. Raises OSError."""
        self.close()
        await self._off(remove_log, self._context.disk, self.folder)

    # How.

    def _floors(self) -> Floors:
        removals = self.replica.machine.removals
        return Floors(removals.mtro, removals.mxro)

    def _start_has_moved(self, manifest: Manifest) -> bool:
        start = self.replica.machine.start_offset
        return manifest.log_end < start or any(one.end_offset <= start for one in manifest.segments[:1])

    def _must_reset(self, why: Reset, reason: str) -> None:
        if self._due is None:
            self._due = why
            if why is not Reset.NEW:
                self.reset_for, self.reset_at = reason, self._context.loop.time()
                log.error("the local log of %s is rebuilt: %s", self, reason)

    async def _open(self) -> None:
        disk = self._context.disk
        try:
            try:
                self.log = await self._off(open_log, disk, self.folder, self.identity, self._maker())
            except LocalLogDamaged as error:
                there = await self._off(has_segments, disk, self.folder)
                self._must_reset(Reset.DAMAGED if there else Reset.NEW, str(error))
        except OSError as error:
            self._disk_failed("cannot be opened", error)
        if self.log is not None:
            self.problems.worked(Work.KEEP)
            self._changed()

    async def _reset(self, why: Reset) -> None:
        self.close()
        machine = self.replica.machine
        index, start, floors = self.replica.group.applied, machine.start_offset, self._floors()

        def reset() -> LocalLog:
            return reset_log(
                self._context.disk,
                self.folder,
                self.identity,
                reset_index=index,
                start_offset=start,
                floors=floors,
                maker=self._maker(),
            )

        try:
            self.log = await self._off(reset)
        except OSError as error:
            self._disk_failed("cannot be made", error)
            return
        self._due = None
        self.resets += why is not Reset.NEW
        self._measures.resets[why] += 1
        self.problems.over()
        self._changed()

    async def _trim(self, it: LocalLog) -> None:
        """Drop the segments below the start offset; an empty log begins there."""
        start, manifest = self.replica.machine.start_offset, it.manifest
        if manifest.log_end <= start:
            floors, index = self._floors(), self.replica.group.applied
            await self._change(it, lambda it: it.empty(start, floors, index))
            return
        left = [one for one in manifest.segments if one.end_offset > start]
        await self._change(it, lambda it: it.replace(left, max(manifest.clean_end, left[0].base_offset)))

    async def _change(self, it: LocalLog, make: Callable[[LocalLog], Change]) -> bool:
        try:
            change = await self._off(make, it)
        except LocalLogDamaged as error:
            self.damaged(str(error))
            return False
        except LocalLogUnknown as error:
            self.problems.failed(Work.KEEP, f"the local log has to be opened again: {error}")
            self.close()
            return False
        except OSError as error:
            self._disk_failed("cannot be changed", error)
            return False
        it.take(change)
        if self.log is not it:
            return False  # the replica has left this node meanwhile, or its topic is not compacted any more
        self.problems.worked(Work.KEEP)
        self._changed()
        if change.gone:
            await self._off(it.remove, change)
        return True

    def _disk_failed(self, what: str, error: OSError) -> None:
        self.problems.failed(Work.KEEP, f"the local log {what}: {disk_reason(error, self.folder)}")

    def _changed(self) -> None:
        for callback in [*self._watchers]:
            callback()

    def _maker(self) -> str:
        return f"{self._context.boot_id:x}-{next(self._makers)}"

    def _off(self, work: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Do what blocks in a thread."""
        return self._context.loop.run_in_executor(self._context.log_executor, work, *args)
