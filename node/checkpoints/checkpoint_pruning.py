"""Removal of checkpoints without a lease, so that neither the states nor the store grow without bound.

A partition's state lists the checkpoints it retains; one without a lease leaves the list by count, by a
command. The objects go afterwards, by listing: if a node dies between the two, or in the middle of deleting,
the next checkpoint finds the objects that are left. The states of the controller and of coordinators
have no such list, because nothing lies outside of them. They keep their newest by count, and those that a
restore point names: without the controller's document a point is worth nothing. A point is put after the
documents that it names, so what has become dispensable goes only when no such point can still be on its way.
A point whose document is gone all the same is deleted: it would pass for the newest, and restore nothing.

The command comes before the checkpoint, and the deletion after the checkpoint is published. So the newest
document that a reader finds has the list of retained checkpoints, and nothing that it names is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from strandline.node.checkpoints.context import CheckpointContext, Replica
from strandline.node.checkpoints.restore_points import RestorePoints
from strandline.node.checkpoints.rounds import CALL_SECONDS
from strandline.node.objectstore.store import MAX_DELETE, ObjectNotFound, StoreError
from strandline.node.raft.outcome import Applied
from strandline.node.rpc import CallFailed
from strandline.snapshot.names import SnapshotName, group_prefix, parse_name, snapshot_name
from strandline.snapshot.restore_point import RestorePoint, RestorePointDamaged
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from strandline.statemachine.partition.partition_commands import ReleaseCheckpoints

METHOD: Final = "checkpoint.remove"
MAX_NAMES: Final = 10_000
"""Names of a group that are looked at after one checkpoint, oldest first; the others wait."""
SETTLING_SECONDS: Final = 900.0
"""Time after which no node puts a point of a checkpoint that was under way: see POINT_SECONDS."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Stored:
    """Stored objects of one checkpoint."""

    names: list[str] = field(default_factory=list)
    documents: int = 0


class CheckpointPruning:
    """One per node; also deletes, at others' calls, for the groups that are led here."""

    def __init__(self, context: CheckpointContext, points: RestorePoints) -> None:
        self._context = context
        self._points = points
        self._dispensable: dict[int, dict[int, float]] = {}
        """By group that is kept by count: its checkpoints that may go, each with the time since when."""
        context.calls.serve(METHOD, self._serve)

    @property
    def keep(self) -> int:
        """Number of checkpoints without a lease that each group keeps."""
        return self._context.config.checkpoints.keep

    async def release(self, replica: Replica) -> None:
        """At the leader, before a checkpoint: have those without a lease leave the state's list, by count.

        What becomes of it does not matter to the checkpoint: the next one does it again.
        """
        if len(replica.machine.checkpoints.retained) > self.keep:
            await replica.execute(ReleaseCheckpoints(self.keep))

    async def remove(self, node: int, group: int, index: int) -> None:
        """Have a group's leader delete the checkpoints below its published one at `index`, unless retained.

        Tried once: the next checkpoint deletes those that are left.
        """
        try:
            await self._context.calls.call(node, METHOD, [group, index], CALL_SECONDS)
        except CallFailed as failed:
            log.info("group %d: old checkpoints are kept until the next checkpoint: %s", group, failed.reason)

    async def _serve(self, peer: int, payload: Any) -> int:
        """Delete for a group that is led here; the number of objects."""
        match payload:
            case [int(group), int(index)] if index > 0:
                try:
                    if group == CONTROLLER_GROUP or self._context.coordinators.by_group(group) is not None:
                        return await self._by_count(group, index)
                    return await self._of_partition(group, index)
                except (StoreError, RestorePointDamaged) as error:
                    # What a point names that cannot be read is not known, so nothing may go.
                    log.warning(
                        "group %d: old checkpoints are kept until the next checkpoint: %s", group, error
                    )
                    raise CallFailed(str(error), unknown=True) from error
            case _:
                raise CallFailed("that is not a group and index", unknown=False)

    async def _of_partition(self, group: int, index: int) -> int:
        replica = self._context.partitions.by_group(group)
        if replica is None or not await replica.confirm():
            raise CallFailed("it does not lead the group", unknown=False)
        # An index that was applied leaves this list once and never comes back. So one that is not in it here
        # is in no later state's either, if this node loses its leadership before the deletion has ended.
        retained = {checkpoint.log_index for checkpoint in replica.machine.checkpoints.retained}
        if index not in retained:
            return 0
        return await self._delete(group, await self._names_below(group, index), retained)

    async def _by_count(self, group: int, index: int) -> int:
        replica = self._context.host.groups.get(group)
        if replica is None or not isinstance(await replica.barrier(), Applied):
            raise CallFailed("it does not lead the group", unknown=False)
        if index > replica.applied:
            return 0
        # Before the listings, which may take as long as they like: a point that they lack may come meanwhile.
        # What they find was begun earlier, as each of its indexes is below that of a published checkpoint.
        now = self._context.loop.time()
        points = await self._points.kept()
        names = await self._names_below(group, index)
        named = await self._named(group, points, names)
        # What has a log and no document is no checkpoint. The published one is the newest that is kept.
        readable = [older for older in sorted(names) if names[older].documents]
        oldest = [*readable, index][-self.keep :][0]
        # A point that names one of these may be on its way: no listing has seen it yet.
        before = self._dispensable.get(group, {})
        since = {older: before.get(older, now) for older in names if older < oldest and older not in named}
        self._dispensable[group] = since
        kept = {older for older in names if older not in since or now < since[older] + SETTLING_SECONDS}
        return await self._delete(group, names, kept)

    async def _named(
        self, group: int, points: Sequence[RestorePoint], names: Mapping[int, _Stored]
    ) -> set[int]:
        """Indexes of a group that points name. A point whose document of the group is gone is deleted."""
        indexes = set()
        for point in points:
            for state in point.groups:
                if state.group != group:
                    continue
                indexes.add(state.log_index)
                document = snapshot_name(point.cluster, *state)
                stored = names.get(state.log_index)
                if stored is not None and document in stored.names:
                    continue
                try:
                    await self._context.store.size(document)  # the listing is bounded, and may be late
                except ObjectNotFound:
                    await self._points.forget(point, document)
        return indexes

    async def _names_below(self, group: int, index: int) -> dict[int, _Stored]:
        """Stored objects of a group's oldest checkpoints before `index`, by their indexes."""
        prefix = group_prefix(self._context.config.cluster.id, group)
        found: dict[int, _Stored] = {}
        for name in await self._context.store.list(prefix, "", MAX_NAMES):
            try:
                parsed = parse_name(name)
            except ValueError:
                continue  # no checkpoint, and not this module's to delete
            if parsed.log_index >= index:
                break
            stored = found.setdefault(parsed.log_index, _Stored())
            stored.names.append(name)
            stored.documents += isinstance(parsed, SnapshotName)
        return found

    async def _delete(self, group: int, stored: Mapping[int, _Stored], retained: Collection[int]) -> int:
        names = [name for index in sorted(stored) if index not in retained for name in stored[index].names]
        # The oldest first: if this breaks off, the rest is a run without a gap, but for its oldest.
        for start in range(0, len(names), MAX_DELETE):
            await self._context.store.delete_many(names[start : start + MAX_DELETE])
        if names:
            log.info("group %d: deleted %d objects of old checkpoints", group, len(names))
        return len(names)
