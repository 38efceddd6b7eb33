"""Rules of compaction that set pieces take out. Nothing here is ever imported by the product."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from strandline.node.compaction import ingest, publisher, removal_leader, segment_cleaning, segment_files
from strandline.node.compaction.cleaning_round import CleaningRound
from strandline.node.compaction.compaction_upkeep import CompactionUpkeep
from strandline.node.compaction.context import Replica
from strandline.node.compaction.local_log import Change, LocalLog
from strandline.node.compaction.log_folders import MANIFEST
from strandline.node.compaction.log_problems import Work
from strandline.node.compaction.log_upkeep import LogUpkeep
from strandline.node.compaction.manifest import Manifest, Segment
from strandline.node.compaction.publisher import CompactionPublisher
from strandline.node.compaction.removal_minimum import Ends, removal_minimum
from strandline.node.compaction.replica_log import ReplicaLog
from strandline.node.compaction.reports import Report, Reports
from strandline.node.compaction.segment_files import PART
from strandline.node.partition.partition import Partition
from strandline.node.raft.disk import Disk
from strandline.snapshot.object_frame import Buffer
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import AdvanceRemoval, ReplaceLevelOne
from tests.simulation.sabotage import Broken

NO_BOUND = 1 << 40


def _of_those_who_answered(members: Iterable[int], known: Mapping[int, Ends], level_one: Ends) -> Ends | None:
    return removal_minimum([node for node in members if node in known], known, level_one)


def answered() -> Broken:
    """The minimum is that of the members that have reported."""
    return patch.object(removal_leader, "removal_minimum", _of_those_who_answered)


def in_step() -> Broken:
    """Every open log counts as one in step."""
    return patch.object(ReplicaLog, "in_step", lambda self: self.log is not None and self._due is None)


def not_clean() -> Broken:
    """A log that is in step is read, also while it is less clean than what all copies are clean to."""
    return patch.object(
        ReplicaLog,
        "readable",
        lambda self: self.log.view if self.log is not None and self.in_step() else None,
    )


def _by_hearsay(self: ReplicaLog) -> bool:
    if self.log is not None and self.log.manifest.segments:
        floors, manifest = self._floors(), self.log.manifest
        self.log.view.manifest = manifest._replace(floor=floors.tombstones, floor_markers=floors.markers)
    return _in_step(self)


_in_step = ReplicaLog.in_step


def _without_floors(self: ReplicaLog) -> bool:
    if self.log is None or self._due is not None:
        return False
    removals = self.replica.machine.removals
    end = max(self.log.manifest.log_end, self.replica.machine.start_offset)
    return max(removals.ripe_tombstones, removals.ripe_markers) <= end


def no_floors() -> Broken:
    """Floors do not count for being in step."""
    return patch.object(ReplicaLog, "in_step", _without_floors)


def _not_while_filled(self: ReplicaLog, machine: PartitionStateMachine) -> Ends | None:
    found = _ends(self, machine)
    if found is None or self.log is None or self.log.manifest.clean_end >= machine.removals.mtro:
        return found
    return Ends(NO_BOUND, NO_BOUND)


_ends = ReplicaLog.ends


def filled_first() -> Broken:
    """A copy that is being filled does not hold removal back."""
    return patch.object(ReplicaLog, "ends", _not_while_filled)


async def _no_floors_yet(self: ReplicaLog) -> bool:
    return True


async def _with_floors(self: ReplicaLog, segments: Sequence[Segment], clean_end: int) -> bool:
    if self.log is not None and not self.log.manifest.segments:
        await _raise_floors(self)
    return await _replace(self, segments, clean_end)


def _in_step_while_empty(self: ReplicaLog) -> bool:
    empty = self.log is not None and self._due is None and not self.log.manifest.segments
    return empty or _in_step(self)


_raise_floors, _replace = ReplicaLog.raise_floors, ReplicaLog.replace


def late_floor() -> tuple[Broken, ...]:
    """An empty log has no floors; it gets those of the moment at which it gets its first segment."""
    return (
        patch.object(ReplicaLog, "raise_floors", _no_floors_yet),
        patch.object(ReplicaLog, "replace", _with_floors),
        patch.object(ReplicaLog, "in_step", _in_step_while_empty),
    )


def _planned(self: CompactionUpkeep, work: Work) -> Iterator[LogUpkeep]:
    return (one for one in _idle(self, work) if _in_step(one.log))


_idle = CompactionUpkeep._idle


def planned_only() -> tuple[Broken, ...]:
    """Whether a log is in step is looked at as an ingest or a round is planned, and at no other time."""
    return (in_step(), patch.object(CompactionUpkeep, "_idle", _planned))


def hearsay_floor() -> Broken:
    """A log that has records takes MTRO and MXRO for its floors, when it hears of them."""
    return patch.object(ReplicaLog, "in_step", _by_hearsay)


def _is_due(self: CompactionPublisher, replica: Replica, *args: Any) -> bool:
    removals = replica.machine.removals
    clean, removals.level_one_clean = removals.level_one_clean, removals.mtro
    try:
        return _publication_is_due(self, replica, *args)
    finally:
        removals.level_one_clean = clean


_publication_is_due = CompactionPublisher._is_due


def _says_it_is_clean(*args: Any) -> ReplaceLevelOne:
    return replace(_command(*args), publisher_clean_end=NO_BOUND)


_command = publisher._command


def less_clean() -> tuple[Broken, ...]:
    """A leader whose log is less clean than level one publishes it, and no state refuses that."""
    return (
        patch.object(CompactionPublisher, "_is_due", _is_due),
        patch.object(publisher, "_command", _says_it_is_clean),
    )


def _at_its_time(self: CleaningRound, *args: Any, **named: Any) -> None:
    _round(self, *args, **named)
    self._ripe = self._removals.mtro, self._ripe[1]


_round = CleaningRound.__init__


def own_time() -> Broken:
    """A tombstone that is old by its own time goes as soon as all copies are clean past it."""
    return patch.object(CleaningRound, "__init__", _at_its_time)


async def _in_any_term(self: Partition, command: AdvanceRemoval, term: int) -> Any:
    window = self.fence.window
    return await _advance_removal(self, command, term if window is None else window.term)


_advance_removal = Partition._advance_removal


def no_term() -> Broken:
    """A leader's entry has no term: it counts in whatever term it comes to the log."""
    return patch.object(Partition, "_advance_removal", _in_any_term)


def _known_in_any_term(self: Reports, group: int, term: int, members: Iterable[int]) -> dict[int, Ends]:
    members = list(members)
    told = {node: self._received.get(node, {}).get(group) for node in members}
    spoken = {node: one.ends for node, one in told.items() if one is not None and one.ends is not None}
    return {**spoken, **_known(self, group, term, members)}


_known = Reports.known


def any_term() -> Broken:
    """A report counts in any term, whatever leader it was told to."""
    return patch.object(Reports, "known", _known_in_any_term)


def _unsynced_manifest(self: LocalLog, data: bytes) -> None:
    path = self._path(MANIFEST)
    segment_files.write_new(self._disk, path + PART, [data])
    self._disk.rename(path + PART, path)


def unsynced() -> Broken:
    """A manifest counts, and is reported, before its folder is synced."""
    return patch.object(LocalLog, "_replace_manifest", _unsynced_manifest)


def _unlinks_first(self: LocalLog, manifest: Manifest) -> Change:
    self._remove(
        {one.segment.number for one in self.view.segments} - {one.number for one in manifest.segments}
    )
    return _change(self, manifest)


_change = LocalLog._change


def unlinks_first() -> Broken:
    """The files of segments go before the manifest that names them no more is there."""
    return patch.object(LocalLog, "_change", _unlinks_first)


def _write_unsynced(disk: Disk, folder: str, number: int, maker: str, parts: Sequence[Buffer]) -> None:
    file = disk.open(f"{folder}/{segment_files.made_name(number, maker)}", create=True)
    file.pwrite(b"".join(parts), 0)
    file.close()


def unsynced_segment() -> tuple[Broken, ...]:
    """A manifest names segments whose bytes are not synced."""
    return (
        patch.object(ingest, "write_made", _write_unsynced),
        patch.object(segment_cleaning, "write_made", _write_unsynced),
    )


def _take_the_greatest(self: Reports, heard: dict[int, Report], number: int, rows: list[list[int]]) -> None:
    before = dict(heard)
    _take(self, heard, number, rows)
    for group, now in heard.items():
        known = before.get(group)
        if known is not None and known.term == now.term and known.ends is not None:
            heard[group] = now._replace(ends=known.ends if now.ends is None else max(known.ends, now.ends))


_take = Reports._take


def greatest() -> Broken:
    """Of what a replica has said in a term the greatest counts, not the newest."""
    return patch.object(Reports, "_take", _take_the_greatest)


def greatest_of_a_reset() -> Broken:
    """Of what a replica has said the greatest counts, but where another reset index tells of a loss."""
    said: dict[tuple[str, int], Ends] = {}

    def ends(self: ReplicaLog, machine: PartitionStateMachine) -> Ends | None:
        found = _ends(self, machine)
        if found is None or self.log is None:
            return found
        key = (self.log.maker.split("-")[0], self.log.manifest.reset_index)
        said[key] = max(found, said.get(key, found))
        return said[key]

    return patch.object(ReplicaLog, "ends", ends)
