"""High watermark and last stable offset: how far the two kinds of consumers may read a partition."""

from __future__ import annotations


def high_watermark(next_offset: int) -> int:
    """Offset after the last record that any consumer may see.

    A replica applies committed entries only, so it is the offset that the next record will get.
    """
    return next_offset


def last_stable_offset(start_offset: int, next_offset: int, first_open: int | None) -> int:
    """LSO of a partition with these offsets whose earliest open transaction begins at `first_open` (None: has
    none)."""
    return next_offset if first_open is None else max(first_open, start_offset)
