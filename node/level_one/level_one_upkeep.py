"""Level one on one node: reconciling, merging, retention and sweeping, as one thing to start, stop and see.

Three tasks that know of each other only what the partitions' states say, but for the names of objects whose
fate is open. Each goes on whatever fails.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import Any

from strandline.node.level_one.context import LevelOneContext, Replica
from strandline.node.level_one.level_one_measures import UpkeepMeasures
from strandline.node.level_one.merger import Merger
from strandline.node.level_one.naming import Namer
from strandline.node.level_one.pending_objects import PendingObjects
from strandline.node.level_one.reconciler import Reconciler
from strandline.node.level_one.sweeper import Sweeper
from strandline.node.level_one.topic_retention import TopicRetention


@dataclass(frozen=True, slots=True)
class PartitionUpkeep:
    """A partition that is led here; sizes are bytes, times seconds."""

    group: int
    topic: str
    partition: int
    term: int
    last_reconciled_offset: int
    unreconciled_records: int
    unreconciled_bytes: int
    unreconciled_seconds: float
    """Since the oldest batch that is in level zero only was first seen here; 0 when there is none."""
    level_one_objects: int
    level_one_bytes: int
    removed_objects: int
    """No longer named, and kept until no leased checkpoint may name them and they are deleted."""
    removed_bytes: int
    errors: tuple[str, ...]
    """Errors of the last attempts, one for each kind of work that failed."""


@dataclass(frozen=True, slots=True)
class UpkeepStatus:
    """A node's current work for level one."""

    partitions: tuple[PartitionUpkeep, ...]
    undecided_objects: int
    """Under way, or of a command whose outcome is not known."""
    retention_by_time: bool
    """False while the nodes' clocks disagree: then retention.ms removes nothing."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


class LevelOneUpkeep:
    """One per node. Everything belongs on the context's loop."""

    def __init__(self, context: LevelOneContext) -> None:
        self.measures = UpkeepMeasures()
        self._context = context
        self.pending = PendingObjects(context.rng)
        self.namer = Namer(self.pending, self.measures)
        self.merger = Merger(context, self.pending, self.namer, self.measures)
        self.reconciler = Reconciler(context, self.pending, self.namer, self.merger, self.measures)
        self.retention = TopicRetention(context, self.measures)
        self.sweeper = Sweeper(context, self.pending, self.measures)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin; partitions may come and go from now on."""
        create = self._context.loop.create_task
        self._tasks = [create(part.run()) for part in (self.reconciler, self.retention, self.sweeper)]

    async def close(self) -> None:
        """End the work in progress. The next leaders sweep the objects that were being made."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def status(self) -> UpkeepStatus:
        """The current status; its cost grows with the partitions that are led here."""
        return UpkeepStatus(
            tuple(self.partition(replica) for replica in self._context.partitions if replica.leads),
            len(self.pending),
            self.retention.by_time,
        )

    def partition(self, replica: Replica) -> PartitionUpkeep:
        """The same of one partition."""
        machine, group = replica.machine, replica.group.id
        extents = machine.extents
        progress = self.reconciler.lifting(replica)
        sweeping = self.sweeper.sweeping(replica)
        errors = [self.merger.error(group)]
        if progress is not None:
            errors.insert(0, progress.backoff.error)
        if sweeping is not None:
            errors += [sweeping.removal.error, sweeping.sweep.error]
        return PartitionUpkeep(
            group,
            replica.topic,
            replica.number,
            replica.leader_epoch,
            machine.last_reconciled_offset,
            extents.end_offset - extents.first_offset,
            extents.bytes,
            0.0 if progress is None else progress.age(replica, self._context.loop.time()),
            len(machine.level_one),
            machine.level_one.bytes,
            len(machine.removed),
            sum(one.size for one in machine.removed),
            tuple(error for error in errors if error is not None),
        )
