"""The plan of a seed whose topics are compacted. Numbered by themselves, as those with transactions are."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from strandline.node.config.node_config import CompactionSection
from tests.simulation.whole.plan import WIPED, Plan, anything

THEME: Final = "compaction"
RETENTION_MS: Final = (400, 1000, 2000)
STEPS: Final = ("held down", "lost log", "rotten log", "crash in a round")
"""Faults that are aimed at local logs; faults.py has them."""
WIPED_SHARE: Final = 1 / 6
WIPED_MORE_SECONDS: Final = 8.0
_OTHERS: Final = (
    "kill", "power cut", "pause", "isolated leader", "transfer", "transfer", "slow store", "slow mesh",
    "pair cut", "one-way cut", "client reset", "reset", "weather", "slow disk", "full disk", "failing store",
    "deaf replica", "restart", "blackout", "checkpoint", "crash at a store's answer", "crash at a command",
    "crash in disk operation", "stalled store", "late puts", "clock drift",
)  # fmt: skip


def compaction_plan(seed: int) -> Plan:
    """A function of the seed alone."""
    rng = random.Random(f"{seed} compaction plan")
    plan = anything(rng, THEME)
    chance = rng.choice
    plan = replace(
        plan,
        nodes=(1, 2, 3),
        topics=(chance((1, 1, 2)),),
        idempotent=2,
        plain=chance((0, 1)),
        consumers=2,
        think_seconds=chance((0.05, 0.15)),
        lanes=1,
        admin=(),
        faults=(*STEPS, *STEPS, *rng.sample(_OTHERS, 6)),
        fault_seconds=rng.uniform(6.0, 9.0),
        fault_interval=chance((0.3, 0.6, 1.0)),
        store_delay=chance(((0.001, 0.01), (0.005, 0.05))),
        shrinking=0.0,
        level_one=replace(
            plan.level_one,
            target_bytes=chance((1000, 4000)),
            reconcile_seconds=chance((0.2, 0.4)),
            merge_count=chance((2, 3, 4)),
        ),
        look_seconds=0.1,
        retention_seconds=0.4,
        compaction=CompactionSection(
            map_bytes=chance((1 << 10, 1 << 16)),
            segment_bytes=chance((600, 2000, 8000)),
            ingest_bytes=chance((300, 1500)),
            ingest_seconds=chance((0.1, 0.3)),
        ),
        topic_configs=(
            ("cleanup.policy", "compact"),
            ("delete.retention.ms", str(chance(RETENTION_MS))),
            ("min.cleanable.dirty.ratio", chance(("0", "0", "0.5"))),
            *chance(((), (("max.compaction.lag.ms", "500"),))),
        ),
    )
    if random.Random(f"{seed} {WIPED} with compaction").random() < WIPED_SHARE:
        plan = replace(plan, lost_folders="one", fault_seconds=plan.fault_seconds + WIPED_MORE_SECONDS)
    return plan
