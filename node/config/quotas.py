"""Settings of client quotas: `[quotas]`, the same on all nodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QuotasSection:
    """The sliding window over which a client's use is measured, on each node by itself."""

    windows: int = 11
    """Parts of the window: Kafka's `quota.window.num`."""
    window_seconds: float = 1.0
    """Length of a part: Kafka's `quota.window.size.seconds`."""
