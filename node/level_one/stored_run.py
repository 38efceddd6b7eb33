"""Results of level-one reads: final batches, in long pieces, and single ones found by time."""

from __future__ import annotations

from typing import NamedTuple

from strandline.node.objectstore.object_file import FileRange
from strandline.node.objectstore.store import Buffer


class StoredRun(NamedTuple):
    """Batches that follow on one another, in one piece and final: stamped when they came to level one."""

    base_offset: int
    """Of its first batch."""
    end_offset: int
    """Offset after the last record of its last batch."""
    data: Buffer | FileRange
    """A range of a file only where the reader said that it can send one."""


class TimedBatch(NamedTuple):
    """A batch that was looked up by time."""

    base_offset: int
    end_offset: int
    leader_epoch: int
    max_timestamp: int
    """Unix milliseconds: what its header promises."""
    data: Buffer
    """One batch; its base offset may not be stamped."""
