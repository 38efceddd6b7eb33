"""What the nodes of a run are told: everything that takes its time in production is quick here.

The same numbers say how long what is waited for may take, and how much may be stored.
"""

from __future__ import annotations

from typing import Final

EPOCH_SECONDS: Final = 1.0
TARGET_BYTES: Final = 4 << 20
RECONCILE_SECONDS: Final = 5.0
SWEEP_SECONDS: Final = 2.0
ORPHAN_SECONDS: Final = 10.0
"""Between two looks for orphans, each of which lists every partition's objects."""
GRACE_SECONDS: Final = 5.0
CHECK_SECONDS: Final = 5.0
KEPT_CHECKPOINTS: Final = 4
SETTINGS: Final = (
    f"level_one.target_bytes={TARGET_BYTES}",
    f"level_one.job_bytes={4 * TARGET_BYTES}",
    f"level_one.reconcile_seconds={RECONCILE_SECONDS}",
    f"level_one.sweep_seconds={ORPHAN_SECONDS}",
    f"collector.sweep_seconds={SWEEP_SECONDS}",
    f"collector.grace_seconds={GRACE_SECONDS}",
    f"retention.check_seconds={CHECK_SECONDS}",
    f"checkpoints.keep={KEPT_CHECKPOINTS}",
    "checkpoints.interval=0",  # it takes its own, and their leases are shorter than the run
    "topics.auto_create=false",
    "log.format=json",
)
