"""Plans what a local log is filled with next, from one version of the partition's state."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from strandline.node.compaction.manifest import Manifest, Segment
from strandline.statemachine.partition.aborted_transactions import AbortedTransactions
from strandline.statemachine.partition.level_one import LevelOneExtent
from strandline.statemachine.partition.partition_state import PartitionState

_ABORTED_ROW: Final = struct.Struct("<qqq")
"""A row of `extent_rows.ABORTED_ROWS`, for a process that has no numpy."""
MAX_SOURCES: Final = 256
"""Level-one objects of one ingest: each costs a get of its index."""


JOINED_PART: Final = 4
"""A last segment of more than this part of `compaction.ingest_bytes` stays as it is unless as much is new:
a log that gets a little at a time would be written over and over."""


class WaitingOffsets(NamedTuple):
    """Offsets that level one has and the local log has not, and about how many bytes."""

    first_offset: int
    end_offset: int
    bytes: int
    sources: Sequence[LevelOneExtent]


def waiting(manifest: Manifest, machine: PartitionState, most_bytes: int) -> WaitingOffsets | None:
    """The next ingest, of objects of about this many bytes in all; None if there is nothing.

    It ends at the last stable offset: what was aborted below is known.
    """
    first = manifest.log_end
    end = min(machine.last_stable_offset, machine.last_reconciled_offset + 1)
    if end <= first:
        return None
    sources: list[LevelOneExtent] = []
    size = 0.0
    for one in machine.level_one.between(first, end):
        if size >= most_bytes or len(sources) == MAX_SOURCES:
            break
        sources.append(one)
        there = min(end, one.end_offset) - max(first, one.base_offset)
        size += one.size * there / (one.end_offset - one.base_offset)
    if not sources:
        return None
    return WaitingOffsets(first, min(end, sources[-1].end_offset), int(size), sources)


def joined(last: Segment, manifest: Manifest, waiting_bytes: int, ingest_bytes: int) -> bool:
    """Whether the log's last segment is written again in front of what is new: it is small, and not clean."""
    small = max(ingest_bytes // JOINED_PART, min(waiting_bytes, ingest_bytes))
    return last.size < small and last.base_offset >= manifest.clean_end


def packed_rows(aborted: AbortedTransactions, first: int, end: int) -> bytes:
    """The rows of the transactions with offsets in `[first, end)`, for `IngestJob.aborted`."""
    return b"".join(_ABORTED_ROW.pack(*row) for row in aborted.between(first, end))
