"""M(p): the highest epoch that a partition no longer needs and will never accept again (docs/epoch-gc.md)."""

from __future__ import annotations


def max_collectable_epoch(previous_applied: int, *oldest_named: int | None) -> int:
    """M(p) of a partition that refuses epochs below `previous_applied` and whose extents and leased
    checkpoints name epochs from `oldest_named` on (None: name none)."""
    return min([previous_applied, *(epoch for epoch in oldest_named if epoch is not None)]) - 1
