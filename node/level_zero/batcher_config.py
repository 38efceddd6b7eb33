"""The bounds of a batcher."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class BatcherConfig:
    """Bounds of a batcher; sizes in bytes, times in seconds."""

    target_bytes: int = 4 * MIB
    """Gathered batches of this size leave without waiting for an upload to return."""

    max_object_bytes: int = 32 * MIB
    """Batches in one object when puts are budgeted; one batch may be as large."""

    linger_seconds: float = 0.01
    max_uploads: int = 64
    """Most uploads in parallel, where the store bears as many: a link of 100 MB/s that is 0.1 s long is full
    of ten objects of a megabyte, or of these where they are small."""
    max_upload_bytes: int = 64 * MIB
    """Bytes in uploads, which are in memory twice; one object may be as large as it must."""
    puts_per_second: float | None = None
    """Average number of puts begun a second, a few of them in a burst; None for no limit."""

    max_staged_bytes: int = 128 * MIB
    max_staged_batches: int = 65_536
    """Batches accepted and not yet answered, gathered or in an upload."""

    def __post_init__(self) -> None:
        if not 0 < self.target_bytes <= self.max_object_bytes <= self.max_staged_bytes:
            raise ValueError(
                "target_bytes must be positive, not above max_object_bytes, nor that above max_staged_bytes"
            )
        if self.linger_seconds < 0:
            raise ValueError("linger_seconds must be 0 or more")
        if min(self.max_uploads, self.max_upload_bytes, self.max_staged_batches) < 1:
            raise ValueError("max_uploads, max_upload_bytes and max_staged_batches must be at least 1")
        if self.puts_per_second is not None and self.puts_per_second <= 0:
            raise ValueError("puts_per_second must be positive, or left out for no limit")
