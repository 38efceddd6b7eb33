"""Counters of a builder, read by the metrics."""

from __future__ import annotations

from dataclasses import dataclass


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
