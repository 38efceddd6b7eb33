"""Sizes and times of the write-ahead log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from strandline.node.raft.wal.format import MAX_SEGMENT_BYTES, SECTOR

_SMALLEST_SEGMENT: Final = 4 * SECTOR
_LARGEST_BUFFER: Final = MAX_SEGMENT_BYTES // 2


@dataclass(frozen=True, slots=True)
class WalConfig:
    """Sizes in bytes, times in seconds."""

    segment_bytes: int = 64 << 20
    max_buffered_bytes: int = 64 << 20
    full_retry_seconds: float = 1.0

    def __post_init__(self) -> None:
        if not _SMALLEST_SEGMENT <= self.segment_bytes <= MAX_SEGMENT_BYTES or self.segment_bytes % SECTOR:
            raise ValueError(
                f"segment_bytes is {self.segment_bytes}: give a multiple of {SECTOR} "
                f"from {_SMALLEST_SEGMENT} to {MAX_SEGMENT_BYTES}"
            )
        if not 0 < self.max_buffered_bytes <= _LARGEST_BUFFER:
            raise ValueError(f"max_buffered_bytes is {self.max_buffered_bytes}: give 1 to {_LARGEST_BUFFER}")
        if self.full_retry_seconds <= 0:
            raise ValueError(f"full_retry_seconds is {self.full_retry_seconds}: give more than 0")
