"""How a run's compacted topics are used and changed: drawn with the rest of a seed's plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TableLoad:
    """Times are milliseconds."""

    keys: int = 12
    """Different keys that producers write to."""
    policies: tuple[str, ...] = ()
    """`cleanup.policy`, as an operator sets it now and then; the last one is one of these, too."""
    retentions: tuple[int, ...] = ()
    """`delete.retention.ms`, as an operator sets it now and then."""
    keyless: float = 0.0
    """Share of batches without keys, of producers without an id."""
    old_files: bool = False
    """Whether a node whose folder was wiped has its old local logs in the new one."""
