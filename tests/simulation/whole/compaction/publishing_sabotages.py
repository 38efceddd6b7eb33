"""Rules of filling, cleaning and publishing taken out again: what sabotages.py opens, by name.

Nothing here is ever imported by the product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final
from unittest.mock import patch

from strandline.node.compaction import ingest, publisher, publishing, segment_cleaning
from strandline.node.compaction.filter import kept
from strandline.node.compaction.local_log import View
from strandline.node.compaction.publisher import CompactionPublisher
from strandline.node.compaction.replica_log import ReplicaLog
from strandline.node.compaction.rewriting import Rewritten, settled
from strandline.snapshot.level_one_format import body_bytes
from strandline.statemachine.partition.level_one import LevelOneExtent
from strandline.statemachine.partition.partition_commands import ReplaceLevelOne
from tests.simulation.sabotage import Sabotage

CONTROL: Final = 0x20
_ATTRIBUTES: Final = 22


def _without_markers(data: bytes, aborted: Any) -> Iterator[Rewritten]:
    return (one for one in settled(data, aborted) if not one.data[_ATTRIBUTES] & CONTROL)


def _keyless_stay(chunk: Any, keys: Any, ripe: Any) -> Any:
    stays = kept(chunk, keys, ripe)
    stays[chunk.key.null & ~chunk.marker] = True
    return stays


def _was_compared(self: CompactionPublisher, of: Any, view: View, one: LevelOneExtent) -> bool:
    return one.unique in of.compared


async def _has_the_size(job: Any, content: Any, *_: Any) -> bool:
    return bool(content.bytes == body_bytes(content.source))


def _clean_to_its_end(
    of: Any, old: Sequence[LevelOneExtent], new: Sequence[LevelOneExtent], end: int
) -> ReplaceLevelOne:
    names = [(one.term, one.unique) for one in old]
    return ReplaceLevelOne(names, new, of.manifest.clean_end, end, end)


def _goes_on_by_now(self: CompactionPublisher, replica: Any, of: Any, view: View, now: float) -> bool:
    due = _is_due(self, replica, of, view, now)
    if of.publication is not None:
        of.publication.manifest = view.manifest
    return due


_is_due = CompactionPublisher._is_due


def _front_stays(self: ReplicaLog, manifest: Any) -> bool:
    return False


OF_PUBLISHING: Final = (
    Sabotage(
        "markers-dropped", "a log is filled without markers",
        lambda: (patch.object(ingest, "settled", _without_markers),),
    ),
    Sabotage(
        "keyless-stay", "cleaning leaves records without keys",
        lambda: (patch.object(segment_cleaning, "kept", _keyless_stay),),
    ),
    Sabotage(
        "compared-once", "an object that was compared with the log counts as the same for good",
        lambda: (patch.object(CompactionPublisher, "_has_it", _was_compared),),
    ),
    Sabotage(
        "same-by-size", "an object of the size of what the log has counts as the same",
        lambda: (patch.object(publishing, "_same", _has_the_size),),
    ),
    Sabotage(
        "said-cleaner", "a publication says that level one is clean to its end",
        lambda: (patch.object(publisher, "_command", _clean_to_its_end),),
    ),
    Sabotage(
        "clean-as-now", "a publication says what the log is clean to by now, not when it began",
        lambda: (patch.object(CompactionPublisher, "_is_due", _goes_on_by_now),),
    ),
    Sabotage(
        "front-stays", "a log does not follow the start offset",
        lambda: (patch.object(ReplicaLog, "_start_has_moved", _front_stays),),
    ),
)  # fmt: skip
