"""Rules of compaction taken out again, one at a time: the simulation must find every one.

What it takes is told in docs/simulation.md. Nothing here is ever imported by the product.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any
from unittest.mock import patch

from strandline.node.compaction import log_filling, removal_leader, segment_files
from strandline.node.compaction.cleaning_round import CleaningRound
from strandline.node.compaction.ingest_plan import waiting
from strandline.node.compaction.local_log import LocalLog, View
from strandline.node.compaction.local_reader import LocalReader
from strandline.node.compaction.log_folders import MANIFEST
from strandline.node.compaction.log_sweep import LogSweep
from strandline.node.compaction.removal_leader import RemovalLeader
from strandline.node.compaction.removal_minimum import Ends, removal_minimum
from strandline.node.compaction.replica_log import ReplicaLog
from strandline.node.compaction.reports import Report, Reports
from strandline.node.compaction.segment_files import PART
from strandline.node.kafka.wire import record_batch
from strandline.node.level_one import topic_retention
from strandline.statemachine.partition.removal import Removals
from tests.simulation.sabotage import Sabotage, by_name, expecting
from tests.simulation.whole.compaction.found_by import FOUND_BY
from tests.simulation.whole.compaction.publishing_sabotages import OF_PUBLISHING
from tests.simulation.whole.compaction.removal_sabotages import OF_REMOVAL


def _of_those_who_answered(members: Iterable[int], known: Mapping[int, Ends], level_one: Ends) -> Ends | None:
    return removal_minimum([node for node in members if node in known], known, level_one)


def _by_hearsay(self: ReplicaLog, machine: Any) -> Ends | None:
    """As ReplicaLog.ends, but what the state says of all copies counts as this one's."""
    found = _ends(self, machine)
    if found is None:
        return None
    mcco = max(found.mcco, machine.removals.mtro, machine.removals.level_one_clean)
    return Ends(mcco, max(found.mxfo, mcco))


_ends = ReplicaLog.ends


def _unsynced_manifest(self: LocalLog, data: bytes) -> None:
    path = self._path(MANIFEST)
    segment_files.write_new(self._disk, path + PART, [data])
    self._disk.rename(path + PART, path)


def _all_is_ripe(self: CleaningRound, *args: Any, **named: Any) -> None:
    _round(self, *args, **named)
    self._ripe = (self._log.manifest.clean_end, self._log.manifest.clean_end)


_round = CleaningRound.__init__


def _take_the_greatest(self: Reports, heard: dict[int, Report], number: int, rows: list[list[int]]) -> None:
    before = dict(heard)
    _take(self, heard, number, rows)
    for group, now in heard.items():
        known = before.get(group)
        if known is not None and known.ends is not None and now.ends is not None:
            heard[group] = now._replace(ends=max(known.ends, now.ends))


_take = Reports._take


def _at_once(self: Removals, mtro: int, mxro: int, retention: int, time: int) -> bool:
    del retention
    return _advance(self, mtro, mxro, 0, time)


_advance = Removals.advance


def _clean_to_the_end(self: Removals, clean: int, settled: int) -> None:
    del clean
    self.level_one_clean = max(self.level_one_clean, settled)
    self.level_one_settled = max(self.level_one_settled, settled)


def _no_rows(*_: Any) -> bytes:
    return b""


class _AllStable:
    """A state that takes its high watermark for its last stable offset."""

    def __init__(self, machine: Any) -> None:
        self._machine = machine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, "high_watermark" if name == "last_stable_offset" else name)


def _waiting_to_the_end(manifest: Any, machine: Any, most_bytes: int) -> Any:
    return waiting(manifest, _AllStable(machine), most_bytes)  # type: ignore[arg-type]


def _clean_to_the_planned_end(self: CleaningRound, bound: int) -> None:
    _plan(self, self._to_map[-1].end_offset if self._to_map else bound)


_plan = CleaningRound._plan


def _first_retention(self: RemovalLeader, replica: Any) -> int | None:
    retention = _retention(self, replica)
    return None if retention is None else vars(self).setdefault(f"_sabotaged {replica.topic}", retention)


_retention = RemovalLeader._retention


async def _trimmed_is_clean(self: ReplicaLog, it: LocalLog) -> None:
    start, manifest = self.replica.machine.start_offset, it.manifest
    left = [one for one in manifest.segments if one.end_offset > start]
    if left:
        await self._change(it, lambda it: it.replace(left, left[-1].end_offset))
    else:
        await _trim(self, it)


_trim = ReplicaLog._trim


def _always_in_step(self: ReplicaLog) -> bool:
    return self.log is not None and self._due is None


def _expires_anyway(configs: Any) -> topic_retention.Kept:
    return _kept({**configs, "cleanup.policy": "delete"})


_kept = topic_retention.kept


async def _closed(self: ReplicaLog) -> None:
    self.close()


async def _unswept(self: LogSweep, kept: Set[tuple[bytes, int]]) -> None:
    self._at = None


def _all_have_keys(*_: Any) -> tuple[int, ...]:
    return ()


def _first_view(self: LocalReader, group: int, offset: int) -> View | None:
    view = _view(self, group, offset)
    if view is None:
        return None
    kept = vars(self)
    if (name := f"_sabotaged {group}") not in kept:
        kept[name] = view.hold()
    first: View = kept[name]
    return first if first.manifest.start_offset <= offset < first.manifest.log_end else view


_view = LocalReader._view


_FOUND_WITH: Mapping[str, tuple[int, ...]] = {
    "answered": (4,),
    "greatest": (13,),
    "hearsay": (0,),
    "manifest-unsynced": (0,),
    "all-is-ripe": (4,),
    "ripe-at-once": (0,),
    "called-cleaner": (5,),
    "aborted-kept": (3,),
    "open-settled": (3,),
    "planned-bound": (11,),
    "first-retention": (2,),
    "trimmed-is-clean": (41,),
    "compacted-expires": (1,),
    "log-stays": (1,),
    "not-swept": (34,),
    "keyless-taken": (1,),
    "old-view": (0,),
    "always-in-step": (46,),
    "own-log-forgotten": (0,),
    "learners-forgotten": (2,),
    "first-members": (6_000_008,),
    "lost-connections": (30,),
    "ripe-as-markers": (12,),
    "markers-dropped": (3,),
    "keyless-stay": (7,),
    "compared-once": (0,),
    "same-by-size": (11,),
    "said-cleaner": (0,),
    "clean-as-now": (6,),
    "front-stays": (16,),
}
_HOLES = (
    Sabotage(
        "answered", "the minimum is that of the members that have reported",
        lambda: (patch.object(removal_leader, "removal_minimum", _of_those_who_answered),),
    ),
    Sabotage(
        "greatest", "of what a replica has said over a connection the greatest counts, not the newest",
        lambda: (patch.object(Reports, "_take", _take_the_greatest),),
    ),
    Sabotage(
        "hearsay", "a replica reports what the state says of all copies",
        lambda: (patch.object(ReplicaLog, "ends", _by_hearsay),),
    ),
    Sabotage(
        "manifest-unsynced", "a manifest counts before its folder is synced",
        lambda: (patch.object(LocalLog, "_replace_manifest", _unsynced_manifest),),
    ),
    Sabotage(
        "all-is-ripe", "tombstones go with the round after the one that cleaned them",
        lambda: (patch.object(CleaningRound, "__init__", _all_is_ripe),),
    ),
    Sabotage(
        "ripe-at-once", "tombstones are ripe at once",
        lambda: (patch.object(Removals, "advance", _at_once),),
    ),
    Sabotage(
        "aborted-kept", "a local log is filled with what was aborted",
        lambda: (patch.object(log_filling, "packed_rows", _no_rows),),
    ),
    Sabotage(
        "open-settled", "a local log is filled with what is not decided yet",
        lambda: (patch.object(log_filling, "waiting", _waiting_to_the_end),),
    ),
    Sabotage(
        "planned-bound", "a round whose map was full calls the log clean up to where it was to go",
        lambda: (patch.object(CleaningRound, "_plan", _clean_to_the_planned_end),),
    ),
    Sabotage(
        "first-retention", "a leader goes by the delete.retention.ms that it saw first",
        lambda: (patch.object(RemovalLeader, "_retention", _first_retention),),
    ),
    Sabotage(
        "trimmed-is-clean", "a log whose front expired is called clean to its end",
        lambda: (patch.object(ReplicaLog, "_trim", _trimmed_is_clean),),
    ),
    Sabotage(
        "compacted-expires", "retention.ms goes for topics that are compacted only",
        lambda: (patch.object(topic_retention, "kept", _expires_anyway),),
    ),
    Sabotage(
        "log-stays", "a local log stays when its topic goes, or is not compacted any more",
        lambda: (patch.object(ReplicaLog, "remove", _closed),),
    ),
    Sabotage(
        "not-swept", "a node that starts keeps local logs of what went meanwhile",
        lambda: (patch.object(LogSweep, "run", _unswept),),
    ),
    Sabotage(
        "always-in-step", "a log is used whatever it has missed",
        lambda: (patch.object(ReplicaLog, "in_step", _always_in_step),),
    ),
    Sabotage(
        "keyless-taken", "topics that are compacted take records without keys",
        lambda: (patch.object(record_batch, "keyless_records", _all_have_keys),),
    ),
    Sabotage(
        "old-view", "readers of a local log get it as it was when it was read first",
        lambda: (patch.object(LocalReader, "_view", _first_view),),
    ),
    Sabotage(
        "called-cleaner", "level one is called clean to the end of what is published",
        lambda: (patch.object(Removals, "published", _clean_to_the_end),),
    ),
    *OF_REMOVAL,
    *OF_PUBLISHING,
)  # fmt: skip
SABOTAGES = expecting(by_name(_HOLES, _FOUND_WITH).values(), FOUND_BY)
