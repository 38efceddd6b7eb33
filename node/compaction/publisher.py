"""Publishes the compacted logs of the partitions led here: level one gets what the leader's own log has left.

It goes from the front, an object at a time, so that level one is clean up to where it has come. What it says
is bounded by where the log was clean as it began: later pieces may have less. docs/compaction.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from strandline.node.compaction.compaction_measures import CompactionMeasures
from strandline.node.compaction.compactor import JobFailed, Published, PublishJob, Why
from strandline.node.compaction.context import CompactionContext, Replica, configs_of
from strandline.node.compaction.local_log import View
from strandline.node.compaction.publication import Compared, Publication, Publishing
from strandline.node.compaction.publication_plan import (
    PublishedState,
    bytes_between,
    numbers_between,
    prospect_of,
    publishable,
    segments_between,
)
from strandline.node.compaction.replica_log import ReplicaLog
from strandline.node.level_one.context import label, leads_in
from strandline.node.level_one.merging import MAX_SOURCES
from strandline.node.level_one.naming import Fate
from strandline.node.level_one.plan import Grain, grain
from strandline.node.runtime.slices import in_slices
from strandline.statemachine.controller.topic_config import DELETE_RETENTION_MS, MIN_CLEANABLE_DIRTY_RATIO
from strandline.statemachine.partition.level_one import LevelOneExtent
from strandline.statemachine.partition.partition_commands import ReplaceLevelOne

HELD_SHARE: Final = 24
"""Level one may hold removal back for this part of `delete.retention.ms`."""
LEAST_HELD_SECONDS: Final = 1.0
MOST_HELD_SECONDS: Final = 3600.0
MOST_RETRY_SECONDS: Final = 300.0
_NOT_NAMED: Final = {
    Fate.REFUSED: "the partition had changed meanwhile, or its log took no more entries",
    Fate.OPEN: "it is not known whether the partition names the new object",
}

log = logging.getLogger(__name__)


class CompactionPublisher:
    """One per node; `step` is called between other work on its local logs."""

    def __init__(
        self,
        context: CompactionContext,
        logs: Callable[[], Mapping[int, ReplicaLog]],
        measures: CompactionMeasures,
    ) -> None:
        """`logs` gives the local logs of the compacted replicas here, by group."""
        self._measures = measures
        self._context = context
        self._logs = logs
        self._publishings: dict[int, Publishing] = {}
        self.working_on: ReplicaLog | None = None  # the log whose batches are being published
        self._last = 0
        """Group of the last piece: the others come first."""

    def error(self, group: int) -> str | None:
        """Error of a partition's last publication, if it failed."""
        publishing = self._publishings.get(group)
        return None if publishing is None else publishing.backoff.error

    async def step(self) -> bool:
        """Publish one object, of any partition that is led here; whether there was work."""
        known, self._publishings = self._publishings, {}
        led = [log.replica async for log in in_slices(self._logs().values()) if log.replica.leads]
        for replica in led:
            before = known.get(replica.group.id)
            if before is None or before.term != replica.leader_epoch:
                before = Publishing(replica.leader_epoch)
            self._publishings[replica.group.id] = before
        now, logs = self._context.loop.time(), self._logs()
        for replica in sorted(led, key=lambda one: (one.group.id <= self._last, one.group.id)):
            publishing, owner = self._publishings[replica.group.id], logs.get(replica.group.id)
            view = None if owner is None else owner.readable()
            waits = publishing.backoff.retry_at > now
            if owner is None or view is None or waits or not leads_in(replica, publishing.term):
                continue
            if self._is_due(replica, publishing, view, now):
                self._last, self.working_on = replica.group.id, owner
                try:
                    await self._piece(replica, publishing, owner, view)
                except Exception as error:
                    self._unforeseen(replica, publishing, error)
                finally:
                    self.working_on = None
                return True
            publishing.backoff.over()  # what failed was done since, or need not be any more
        return False

    def _unforeseen(self, replica: Replica, publishing: Publishing, error: Exception) -> None:
        """Try again later; cleaning, and the other partitions, must not wait for this one."""
        publishing.publication = None
        message = f"publishing {label(replica)} failed in a way that was not foreseen"
        publishing.backoff.failed(self._context.loop.time(), f"{message}: {error!r}", MOST_RETRY_SECONDS)
        self._context.loop.call_exception_handler({"message": message, "exception": error})

    # When.

    def _is_due(self, replica: Replica, publishing: Publishing, view: View, now: float) -> bool:
        """Whether a publication is under way, or one is due and begins now."""
        manifest, removals = view.manifest, replica.machine.removals
        configs = configs_of(self._context, replica.topic_id)
        if configs is None:
            return False
        if manifest.clean_end < removals.level_one_clean:
            # Level one would get back what is superseded: this log has to be cleaned first.
            publishing.publication = None
            return False
        begun = publishing.publication
        if begun is not None and manifest.clean_end >= begun.manifest.clean_end:
            return True
        publishing.publication = None  # The log was reset since it began.
        if (unreadable := self._unreadable(replica, view)) is not None:
            publishing.publication = Publication(manifest, replica.machine.start_offset, unreadable)
            return True
        if publishing.done is not None and publishing.done.holds(replica.machine, view):
            return False
        if publishing.prospect is None or not publishing.prospect.state.holds(replica.machine, view):
            publishing.prospect = prospect_of(replica.machine, view)
        _, base, end, stored, less = publishing.prospect
        clean = min(end, manifest.clean_end)
        holds = removals.mtro == removals.level_one_clean < clean
        holds |= removals.mxro == removals.level_one_settled < end
        if base == end or not holds:
            publishing.held_since = None
        elif publishing.held_since is None:
            publishing.held_since = now
        wait = DELETE_RETENTION_MS.of(configs) / 1000 / HELD_SHARE
        wait = min(max(wait, LEAST_HELD_SECONDS), MOST_HELD_SECONDS)
        held = publishing.held_since is not None and now - publishing.held_since >= wait
        if not held and (less <= 0 or less < MIN_CLEANABLE_DIRTY_RATIO.of(configs) * stored):
            return False
        publishing.publication = Publication(manifest, base)
        return True

    def _unreadable(self, replica: Replica, view: View) -> frozenset[bytes] | None:
        """The objects that other copies could not read, if this log has what one of them should hold."""
        run = publishable(replica.machine, view, replica.machine.start_offset, view.manifest.clean_end)
        return self._context.unreadable.take(replica, run)

    # One object.

    async def _piece(self, replica: Replica, publishing: Publishing, owner: ReplicaLog, view: View) -> None:
        """Replace the next objects that do not have what the log has; the last piece ends the publication."""
        term, group = publishing.term, replica.group.id
        configs, publication = configs_of(self._context, replica.topic_id), publishing.publication
        assert configs is not None, "it was due in this turn"
        assert publication is not None, "it was due in this turn"
        if publishing.maker != owner.place.maker:
            publishing.maker, publishing.compared = owner.place.maker, {}
        sources = self._next(replica, publishing, view, grain(configs, self._context.config.level_one))
        if not sources:
            await self._end(replica, publishing)
            return
        rows = [one.segment for one in segments_between(view, sources[0].base_offset, sources[-1].end_offset)]
        unique = self._context.level_one.pending.new(group, term)
        block_bytes = self._context.config.level_one.block_bytes
        job = PublishJob(
            owner.place, rows, view.manifest.log_end, sources, term, unique, block_bytes,
            sorted(publication.unreadable),
        )  # fmt: skip
        self._context.level_one.merger.held.add(group)
        try:
            try:
                result = await self._context.compactor.publish(job)
            except BaseException:
                self._context.level_one.pending.settle(unique)
                raise
            if isinstance(result, JobFailed):
                self._context.level_one.pending.settle(unique)
                self._failed(replica, publishing, result, owner, view)
            else:
                await self._name(replica, publishing, view, sources, result, unique)
        finally:
            self._context.level_one.merger.held.discard(group)

    def _next(
        self, replica: Replica, publishing: Publishing, view: View, most: Grain
    ) -> list[LevelOneExtent]:
        """The next objects to look at: as many as become one object.

        Those known to have what the log has are passed over, and those below a start offset that has moved.
        """
        publication = publishing.publication
        assert publication is not None
        publication.at = max(publication.at, replica.machine.start_offset)
        found: list[LevelOneExtent] = []
        for one in publishable(replica.machine, view, publication.at, publication.manifest.clean_end):
            if self._has_it(publishing, view, one):
                if found:
                    break
                publication.at = one.end_offset
                continue
            first = found[0] if found else one
            size = bytes_between(view, first.base_offset, one.end_offset)
            far = most.span_ms is not None and abs(one.max_timestamp - first.max_timestamp) > most.span_ms
            if found and (size > most.bytes or far or len(found) == MAX_SOURCES):
                break
            found.append(one)
        return found

    def _has_it(self, publishing: Publishing, view: View, one: LevelOneExtent) -> bool:
        """Whether an object is known to have what a log has that is clean as far as the publication says."""
        compared = publishing.compared.get(one.unique)
        assert publishing.publication is not None
        if one.unique in publishing.publication.unreadable:
            return False
        return compared is not None and (
            compared.clean_end >= publishing.publication.manifest.clean_end
            or compared.segments == numbers_between(view, one.base_offset, one.end_offset)
        )

    async def _name(
        self,
        replica: Replica,
        publishing: Publishing,
        view: View,
        sources: Sequence[LevelOneExtent],
        result: Published,
        unique: bytes,
    ) -> None:
        """Have the partition name what was made, and say how clean level one is then."""
        publication = publishing.publication
        assert publication is not None
        looked_at = sources[: result.same_before + result.replaced + result.same_behind]
        same = [*looked_at[: result.same_before], *looked_at[result.same_before + result.replaced :]]
        if result.extent is None:
            self._context.level_one.pending.settle(unique)
        else:
            old = looked_at[result.same_before : result.same_before + result.replaced]
            command = _command(publication, old, [result.extent], looked_at[-1].end_offset)
            fate = await self._context.level_one.namer.name(
                replica, publishing.term, command, [result.extent]
            )
            if fate is not Fate.NAMED:
                self._not_named(publishing, fate)
                return
            publication.changed = True
            self._measures.published_objects += len(old)
            self._measures.published_bytes += result.extent.size
            same.append(result.extent)
        self._measures.kept_objects += result.same_before + result.same_behind
        publishing.backoff.over()
        for one in same:
            numbers = numbers_between(view, one.base_offset, one.end_offset)
            publishing.compared[one.unique] = Compared(view.manifest.clean_end, numbers)
        if looked_at:
            publication.at = looked_at[-1].end_offset
        if len(looked_at) < len(sources):
            # The log ends with what it has left out; it goes on behind that before more is published.
            await self._end(replica, publishing)

    async def _end(self, replica: Replica, publishing: Publishing) -> None:
        """Say how clean level one is, if the last objects were found to be so already."""
        publication, machine = publishing.publication, replica.machine
        assert publication is not None
        publishing.publication = None
        publishing.compared = {one: of for one, of in publishing.compared.items() if one in machine.level_one}
        clean, removals = min(publication.at, publication.manifest.clean_end), machine.removals
        if clean > removals.level_one_clean or publication.at > removals.level_one_settled:
            command = _command(publication, (), (), publication.at)
            fate = await self._context.level_one.namer.name(replica, publishing.term, command, ())
            if fate is not Fate.NAMED:
                self._not_named(publishing, fate)
                return
            publication.changed = True
        self._measures.publications += publication.changed
        objects = machine.level_one
        publishing.held_since = None
        publishing.done = PublishedState(publication.manifest, len(objects), objects.end_offset)

    def _not_named(self, publishing: Publishing, fate: Fate) -> None:
        """Give the publication up: the state is another than that of the plan, or the log is full."""
        self._measures.abandoned += fate is Fate.REFUSED
        publishing.publication = None
        publishing.backoff.failed(self._context.loop.time(), _NOT_NAMED[fate], MOST_RETRY_SECONDS)

    def _failed(
        self,
        replica: Replica,
        publishing: Publishing,
        failed: JobFailed,
        owner: ReplicaLog,
        view: View,
    ) -> None:
        """Try again later; a damaged log is reset."""
        self._measures.failed += 1
        if owner.readable() is not view:  # It was reset meanwhile, and its files are gone.
            publishing.publication = None
            return
        if publishing.backoff.failed(self._context.loop.time(), failed.reason, MOST_RETRY_SECONDS) is None:
            log.warning("%s: level one is not compacted for now: %s", label(replica), failed.reason)
        if failed.why is Why.DAMAGED:
            publishing.publication = None
            owner.damaged(failed.reason)


def _command(
    publication: Publication,
    old: Sequence[LevelOneExtent],
    new: Sequence[LevelOneExtent],
    end_offset: int,
) -> ReplaceLevelOne:
    """Replace these objects, or none: up to the end offset level one has what the log has."""
    names = [(one.term, one.unique) for one in old]
    clean = min(end_offset, publication.manifest.clean_end)
    return ReplaceLevelOne(names, new, publication.manifest.clean_end, clean, end_offset)
