"""Counters of a node's work for level one: of its builder and of its upkeep. The metrics read them."""

from __future__ import annotations

from dataclasses import dataclass, field

from strandline.node.level_zero.measures import SECONDS, Histogram


@dataclass(slots=True)
class BuilderMeasures:
    """A builder's counters since it was made."""

    objects: int = 0
    """Stored, those of merges included."""
    merges: int = 0
    failed: int = 0
    batches: int = 0
    """Lifted out of level zero; a merge counts none."""
    gets: int = 0
    puts: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    """Bytes of completed objects that were stored."""
    cpu_seconds: float = 0.0
    """Of the worker process; 0 where there is none."""
    starts: int = 0
    """Of a worker process."""


@dataclass(slots=True)
class UpkeepMeasures:
    """The upkeep's counters since it was made."""

    jobs: int = 0
    """Passes over level zero, each for one or more partitions."""
    reconciled_objects: int = 0
    """Level-one objects that a partition came to name, lifted out of level zero."""
    reconciled_bytes: int = 0
    """Of those objects."""
    merges: int = 0
    merged_objects: int = 0
    """Objects that were replaced."""
    merged_bytes: int = 0
    """Of the objects in their place: what merging wrote again."""
    failed_builds: int = 0
    """Objects that were not built, and no later one of their partition either."""
    refused: int = 0
    """Results that came too late: the state had gone on, or the leadership had ended."""
    undecided: int = 0
    """Results of which it was not known at once whether they count."""
    retention_moves: int = 0
    """Start offsets moved by retention."""
    retention_records: int = 0
    """Offsets that those moves passed."""
    removed_deleted: int = 0
    """Objects deleted that a partition had named once."""
    removed_bytes: int = 0
    orphans_deleted: int = 0
    """Objects deleted that no partition ever named."""
    sweeps: int = 0
    """Partitions whose prefix was listed to its end."""
    lists: int = 0
    foreign_names: int = 0
    """Names met below a partition's prefix that are no level-one object's; they are left alone."""
    store_errors: int = 0
    """Listings and deletions that failed."""
    job_seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    """Of passes and merges."""
