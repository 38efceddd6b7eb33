"""Rules of a log's ends that set pieces take out. Nothing here is ever imported by the product."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from strandline.node.compaction import publishing, rewriting, segment_cleaning
from strandline.node.compaction.chunk import HEADER, DecodedChunk
from strandline.node.compaction.cleaning_round import CleaningRound
from strandline.node.compaction.compaction_upkeep import CompactionUpkeep
from strandline.node.compaction.compactor import JobFailed, MapJob, Mapped
from strandline.node.compaction.filter import map_keys
from strandline.node.compaction.key_map import KeyMap
from strandline.node.compaction.local_log import Floors
from strandline.node.compaction.manifest import Manifest
from strandline.node.compaction.replica_log import ReplicaLog
from strandline.node.compaction.rewriting import Rewritten, rewritten
from strandline.node.compaction.segment_cleaning import SegmentCleaning
from strandline.statemachine.partition import partition as partition_state
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import PartitionOpcode
from strandline.statemachine.partition.partition_state import PartitionState
from tests.simulation.sabotage import Broken
from tests.simulation.whole.compaction.schedules.holes import NO_BOUND


def _to_the_end(self: SegmentCleaning, job: MapJob) -> Mapped | JobFailed:
    mapped = _map(self, job._replace(is_last=False))
    if isinstance(mapped, Mapped) and mapped.bound is None and job.is_last:
        return mapped._replace(bound=job.segment.end_offset)
    return mapped


_map = SegmentCleaning.map


def _of_the_last_too(self: CleaningRound, *args: Any, **named: Any) -> None:
    _round(self, *args, **named)
    last = self._log.manifest.segments[-1:]
    if self._bound is not None and last:
        self._bound, self._to_map, self._first_mapped = None, [*last], last[0].number


_round = CleaningRound.__init__


def last_batch() -> tuple[Broken, ...]:
    """A round ends with the log, not below its last batch."""
    return (
        patch.object(SegmentCleaning, "map", _to_the_end),
        patch.object(CleaningRound, "__init__", _of_the_last_too),
    )


def removed_end() -> tuple[Broken, ...]:
    """The same, and level one is published also where the log has left out its last batch."""
    return (*last_batch(), patch.object(publishing._Content, "ends_with_a_batch", True))


def _with_empty_ones(chunk: DecodedChunk, keep: NDArray[np.bool_]) -> Iterator[Rewritten]:
    left = np.add.reduceat(keep.astype(np.int64), chunk.first)
    empty = chunk.header.copy()
    empty["records"] = 0
    raw = empty.tobytes()
    found = {one.base_offset: one for one in rewritten(chunk, keep)}
    for number in np.flatnonzero((left == 0) & chunk.marker[chunk.first]).tolist():
        data = rewriting._batch(
            raw[number * HEADER.itemsize : (number + 1) * HEADER.itemsize], memoryview(b"")
        )
        base = int(chunk.base_offset[number])
        found[base] = Rewritten(data, base, base + 1, int(empty["leader_epoch"][number]), 0, 0)
    yield from (found[base] for base in sorted(found))


def empty_batch() -> Broken:
    """A marker that goes leaves its batch, without a record, as Kafka's cleaner leaves it."""
    return patch.object(segment_cleaning, "rewritten", _with_empty_ones)


def _forgetting(self: PartitionStateMachine, *args: Any) -> Any:
    result = _replace_level_one(self, *args)
    for producer, known in [*self.producers._producers.items()]:
        if known.batches and known.batches[-1].base_offset < self.removals.level_one_clean:
            del self.producers._producers[producer]
    return result


_replace_level_one = PartitionStateMachine._replace_level_one


def forgets_producers() -> Broken:
    """A producer is known for as long as level one has its last batch for certain."""
    return patch.dict(partition_state._HANDLERS, {PartitionOpcode.REPLACE_LEVEL_ONE: _forgetting})


def _as_planned(chunk: DecodedChunk, keys: KeyMap, bound: int) -> int:
    map_keys(chunk, keys, bound)
    return bound


def planned_bound() -> Broken:
    """A log counts as clean to where its round was to end, also if the map was full before."""
    return patch.object(segment_cleaning, "map_keys", _as_planned)


async def _cares_amid_rounds(self: CompactionUpkeep) -> None:
    busy, self._round = self._round, None
    try:
        await _look(self)
    finally:
        self._round = busy


_look = CompactionUpkeep.look


def blind_swap() -> Broken:
    """The front of a log may be cut while a round is under way."""
    return patch.object(CompactionUpkeep, "look", _cares_amid_rounds)


def _never_moves(self: ReplicaLog, manifest: Manifest) -> bool:
    return False


def start_ignored() -> Broken:
    """A log does not follow the start offset."""
    return patch.object(ReplicaLog, "_start_has_moved", _never_moves)


def _without_the_start(self: ReplicaLog) -> bool:
    if self.log is None or self._due is not None:
        return False
    manifest, removals = self.log.manifest, self.replica.machine.removals
    return removals.ripe_tombstones <= max(manifest.log_end, manifest.floor) and removals.ripe_markers <= max(
        manifest.log_end, manifest.floor_markers
    )


def start_not_in_step() -> Broken:
    """Whether a log is in step does not depend on the start offset."""
    return patch.object(ReplicaLog, "in_step", _without_the_start)


def _of_before(self: ReplicaLog) -> Floors:
    return Floors(0, 0)


def old_floors() -> Broken:
    """A log that is made again has the floors of the one that was made first."""
    return patch.object(ReplicaLog, "_floors", _of_before)


def no_holds() -> Broken:
    """Cleaning does not end at the lowest hold."""
    return patch.object(PartitionState, "cleanable_end", property(lambda self: self.level_one_decided_end))


def _by_holds(self: PartitionState) -> int:
    return NO_BOUND if self.holds.lowest is None else self.holds.lowest


def by_the_log_alone() -> Broken:
    """Cleaning ends at the holds that a state knows, and not at level one's end in that state."""
    return patch.object(PartitionState, "cleanable_end", property(_by_holds))
