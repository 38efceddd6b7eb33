"""Counters of the reader of level one."""

from __future__ import annotations

from dataclasses import dataclass, field

from strandline.node.level_zero.measures import SECONDS, Histogram


@dataclass(slots=True)
class LevelOneReaderMeasures:
    """A reader's counters since it was made."""

    gets: int = 0
    bytes_read: int = 0
    """Of ranges fetched: chunks and indexes."""
    bytes_checked: int = 0
    """Of chunks of open files, which are read for their checksums only."""
    bytes_given: int = 0
    """Bytes of batches given to readers."""
    failed: int = 0
    """Gets that failed."""
    bad: int = 0
    """Number of indexes and blocks that differed from the stored bytes."""
    get_seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
