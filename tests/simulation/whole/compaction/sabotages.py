"""Rules of compaction taken out again, one at a time: the simulation must find every one.

What it takes is told in docs/simulation.md. Nothing here is ever imported by the product.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from unittest.mock import patch

from strandline.node.compaction import removal_leader, segment_files
from strandline.node.compaction.cleaning_round import CleaningRound
from strandline.node.compaction.local_log import MANIFEST, LocalLog
from strandline.node.compaction.removal_minimum import Ends, removal_minimum
from strandline.node.compaction.replica_log import ReplicaLog
from strandline.node.compaction.segment_files import PART
from strandline.statemachine.partition.partition_commands import AdvanceRemoval
from strandline.statemachine.partition.removal import Removals
from tests.simulation.sabotage import Sabotage, by_name


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


def _at_once(mtro: int, mxro: int, retention: int) -> AdvanceRemoval:
    del retention
    return AdvanceRemoval(mtro, mxro, 0)


def _clean_to_the_end(self: Removals, clean: int, settled: int) -> None:
    del clean
    self.level_one_clean = max(self.level_one_clean, settled)
    self.level_one_settled = max(self.level_one_settled, settled)


_FOUND_WITH: Mapping[str, tuple[int, ...]] = {
    "answered": (4,),
    "hearsay": (0,),
    "manifest-unsynced": (0,),
    "all-is-ripe": (0,),
    "ripe-at-once": (0,),
    "called-cleaner": (5,),
}
_HOLES = (
    Sabotage(
        "answered", "the minimum is that of the members that have reported",
        lambda: (patch.object(removal_leader, "removal_minimum", _of_those_who_answered),),
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
        lambda: (patch.object(removal_leader, "AdvanceRemoval", _at_once),),
    ),
    Sabotage(
        "called-cleaner", "level one is called clean to the end of what is published",
        lambda: (patch.object(Removals, "published", _clean_to_the_end),),
    ),
)  # fmt: skip
SABOTAGES = by_name(_HOLES, _FOUND_WITH)
