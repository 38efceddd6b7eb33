"""The plan of set pieces: nothing goes wrong by itself, and what is written comes to level one at once."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from strandline.node.config.node_config import CompactionSection
from tests.simulation.whole.plan import Plan, anything

A: Final = 1
B: Final = 2
C: Final = 3
ALL: Final = (A, B, C)
RETENTION: Final = 1.0
"""`delete.retention.ms` in seconds."""
NEVER: Final = 1e9


def plan_of(*, snapshots: tuple[int, int] = (20_000, 20), **compaction: int) -> Plan:
    """The plan. `snapshots`: entries from one of a group's to the next, and entries that are kept behind one;
    `compaction`: other limits of local logs.
    """
    plan = anything(Random("schedules"), "schedules")
    limits = CompactionSection(map_bytes=1 << 16, segment_bytes=8000, ingest_bytes=1, ingest_seconds=0.1)
    return replace(
        plan,
        nodes=ALL,
        faults=(),
        epoch_seconds=2.0,
        tick_seconds=0.25,
        store_delay=(0.001, 0.003),
        batching=replace(
            plan.batching, linger_seconds=0.0, max_uploads=8, puts_per_second=None, target_bytes=100_000,
            max_object_bytes=200_000, max_staged_bytes=1_000_000, max_staged_batches=65_536,
        ),
        raft=replace(
            plan.raft, max_append_bytes=1 << 16, max_inflight_messages=256, max_pending_commands=65_536,
            max_apply_per_turn=1024, snapshot_entries=snapshots[0], snapshot_bytes=1 << 20,
            trailing_entries=snapshots[1],
            snapshot_chunk_bytes=4096, snapshot_window=4, max_wal_segments=4,
        ),
        wal=replace(plan.wal, segment_bytes=64 * 1024),
        level_one=replace(
            plan.level_one, target_bytes=8000, job_bytes=30_000, block_bytes=300, reconcile_seconds=0.05,
            merge_count=64, sweep_seconds=NEVER,
        ),
        look_seconds=0.1,
        tell_seconds=0.5,
        retention_seconds=NEVER,
        compaction=replace(limits, **compaction),
        topic_configs=(
            ("cleanup.policy", "compact"),
            ("delete.retention.ms", str(int(1000 * RETENTION))),
            ("min.cleanable.dirty.ratio", "0"),
        ),
    )  # fmt: skip
