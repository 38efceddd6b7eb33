"""Counters of a node's compaction, read by the metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from strandline.node.level_zero.measures import SECONDS, Histogram


class Reset(Enum):
    """Cause of a local log's reset: it is made of level one once more."""

    NEW = "new"
    """There was none."""
    DAMAGED = "damaged"
    """Its files are not what was written."""
    BEHIND = "behind"
    """It may lack tombstones, or markers, that were removed elsewhere."""


@dataclass(slots=True)
class CompactionMeasures:
    """Counters of one node since it was made."""

    ingests: int = 0
    """Segments that were filled from level one."""
    ingested_bytes: int = 0
    """Of level one that was read for them."""
    ingest_written_bytes: int = 0
    rounds: int = 0
    """Rounds of cleaning that came to their bound."""
    cleaned_read_bytes: int = 0
    """Of segments that rounds filtered."""
    cleaned_written_bytes: int = 0
    removed_records: int = 0
    publications: int = 0
    """Publications that came to their end, and changed level one."""
    published_objects: int = 0
    """Level-one objects that were replaced by what a local log has left."""
    published_bytes: int = 0
    """Of the objects in their place."""
    kept_objects: int = 0
    """Level-one objects that had what the log had, and stayed."""
    local_reads: int = 0
    """Reads of clients that went to a local log."""
    local_read_bytes: int = 0
    """Of batches that these reads gave."""
    bad_reads: int = 0
    """Reads that met a damaged file; the log is reset, and level one has the answer."""
    abandoned: int = 0
    """Jobs whose result was not used: the log was reset, or the state replaced by a snapshot's."""
    failed: int = 0
    """Jobs that failed."""
    resets: dict[Reset, int] = field(default_factory=lambda: dict.fromkeys(Reset, 0))
    step_seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    """Of ingests, and of the steps of rounds."""
