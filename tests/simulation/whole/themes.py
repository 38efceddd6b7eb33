"""What a seed is about: some rules are broken only where much of one kind meets."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Literal

from tests.simulation.whole.plan import (
    EPOCHS_REST_FROM,
    LEADER_CLAIMS_FROM,
    WIPED,
    Plan,
    anything,
    with_acls,
    with_far_store,
    with_growth,
    with_inline,
    with_moves,
    with_restore,
    with_tails,
    with_upheaval,
)

THEMES = (
    "anything", "windows", "handover", "retries", "topics", "checkpoints", "collector", "level one",
)  # fmt: skip
"""What a seed is about, each in turn: some rules are broken only where much of one kind meets."""

FULL_DISKS_EVERY = 32
"""One seed in so many has disks that are full for long."""


WIPED_SHARE = 1 / 8
"""Of the seeds, those in which folders are wiped one after the other."""
WIPED_MORE_SECONDS = 8.0
"""For so much longer they have faults: a folder is noticed, counts as dead and is replaced in that time."""
ALL_LOST_SHARE = 1 / 40
"""Those that end with all folders lost."""


def plan_of(seed: int) -> Plan:
    """The plan of a seed; a function of the seed alone."""
    plan = anything(random.Random(f"{seed} whole plan"), THEMES[seed % len(THEMES)])
    plan = replace(plan, full_disks=_full_disks(random.Random(f"{seed} full disks")))
    shape = _SHAPES.get(plan.theme)
    if shape is not None:
        plan = shape(plan, random.Random(f"{seed} whole theme"))
    plan = with_inline(plan, random.Random(f"{seed} inline"))
    plan = _with_lost_folders(plan, random.Random(f"{seed} {WIPED}"))
    plan = with_acls(with_far_store(plan, seed), seed)
    plan = with_tails(plan, random.Random(f"{seed} tails"))
    plan = with_upheaval(with_growth(with_moves(plan, random.Random(f"{seed} moves")), seed), seed)
    claims, rests = seed >= LEADER_CLAIMS_FROM, seed >= EPOCHS_REST_FROM
    return replace(with_restore(plan, seed), leader_claims=claims, epochs_rest=rests)


def _with_lost_folders(plan: Plan, rng: random.Random) -> Plan:
    drawn = rng.random()
    if plan.full_disks is not None or drawn >= WIPED_SHARE + ALL_LOST_SHARE:
        return plan
    lost: Literal["one", "all"] = "one" if drawn < WIPED_SHARE else "all"
    longer = WIPED_MORE_SECONDS if lost == "one" else 0.0
    return replace(plan, lost_folders=lost, fault_seconds=plan.fault_seconds + longer)


def _full_disks(rng: random.Random) -> tuple[str, float] | None:
    if rng.random() >= 1 / FULL_DISKS_EVERY:
        return None
    return rng.choice(("one", "majority")), rng.choice((30.0, 30.0, 30.0, 30.0, 60.0, 60.0, 60.0, 180.0))


def _with_faults(plan: Plan, *kinds: str) -> tuple[str, ...]:
    """Few others, and these more than once."""
    return (*kinds, *kinds, *plan.faults[:3])


def _windows(plan: Plan, rng: random.Random) -> Plan:
    """Epochs overtake uploads: windows slide under waiting batches, objects come back out of order."""
    return replace(
        plan,
        topics=(rng.choice((1, 1, 2)),),
        idempotent=3,
        plain=2,
        think_seconds=0.1,
        epoch_seconds=0.05,
        tick_seconds=0.05,
        admin=(),
        faults=_with_faults(plan, "fence held", "fence held", "epoch advanced", "transfer", "slow store"),
        fault_interval=0.15,
        store_delay=(0.005, 0.12),
        batching=replace(plan.batching, target_bytes=400, max_uploads=8, puts_per_second=None),
        retries=replace(plan.retries, attempt_seconds=0.6, total_seconds=1.0),
    )


def _handover(plan: Plan, rng: random.Random) -> Plan:
    """Leaders change all the time, and not all nodes know what the others do."""
    return replace(
        plan,
        topics=(rng.choice((1, 2)),),
        idempotent=3,
        plain=3,
        lanes=2,
        think_seconds=0.1,
        epoch_seconds=rng.choice((0.05, 0.1)),
        tick_seconds=0.05,
        faults=_with_faults(
            plan,
            "transfer",
            "transfer",
            "slow mesh",
            "pair cut",
            "one-way cut",
            "isolated leader",
            "slow disk",
        ),
        fault_interval=0.2,
        store_delay=(0.001, 0.02),
        seconds_to_answer=rng.choice((0.4, 3.0)),
        hasty_consumers=True,
    )


def _retries(plan: Plan, rng: random.Random) -> Plan:
    """Uploads fail; clients lose patience or connections while their batches are on the way."""
    return replace(
        plan,
        topics=(rng.choice((1, 2)),),
        idempotent=4,
        think_seconds=0.1,
        admin=(),
        faults=(
            *plan.faults[:2],
            "failing store",
            "failing store",
            "client reset",
            "slow client link",
            "slow disk",
        ),
        fault_interval=0.2,
        store_delay=(0.001, 0.05),
        batching=replace(plan.batching, target_bytes=400, max_uploads=8, max_staged_batches=65_536),
        retries=replace(plan.retries, attempts=1),
        seconds_to_answer=rng.choice((0.2, 0.4, 0.8)),
    )


def _topics(plan: Plan, rng: random.Random) -> Plan:
    """Topics come and go while nodes are away, and snapshots overtake them."""
    return replace(
        plan,
        topics=(1, 2),
        epoch_seconds=0.05,
        tick_seconds=0.05,
        admin=("recreate", "delete", "recreate", "grow"),
        admin_interval=0.3,
        faults=_with_faults(plan, "kill", "power cut", "restart", "pause"),
        fault_interval=0.6,
        raft=replace(plan.raft, snapshot_entries=8, trailing_entries=0),
    )


def _checkpoints(plan: Plan, rng: random.Random) -> Plan:
    return replace(
        plan,
        topics=(1,),
        think_seconds=0.1,
        faults=_with_faults(plan, "checkpoint", "checkpoint", "slow disk", "failing store", "reset"),
        fault_interval=0.2,
    )


def _collector(plan: Plan, rng: random.Random) -> Plan:
    """Puts land late, nodes know different things, and all that nobody needs is deleted at once."""
    return replace(
        plan,
        topics=(1, 1),
        think_seconds=0.1,
        epoch_seconds=0.05,
        tick_seconds=0.05,
        admin=("create", "grow", "recreate", "delete"),
        admin_interval=rng.choice((0.5, 1.5)),
        faults=_with_faults(
            plan,
            "late puts",
            "late puts",
            "lagging lists",
            "bad gossip",
            "transfer",
            "deaf replica",
            "deaf replica",
            "slow reads",
            "slow reads",
            "pair cut",
            "fence held",
        ),
        fault_interval=0.25,
        late_seconds=8.0,
        batching=replace(plan.batching, target_bytes=400, max_uploads=8, puts_per_second=None),
        cache=replace(plan.cache, written_bytes=rng.choice((0, 2000)), fetched_bytes=rng.choice((0, 2000))),
        level_one=replace(plan.level_one, reconcile_seconds=rng.choice((0.2, 0.4))),
        look_seconds=0.1,
        tell_seconds=0.05,
        collector=replace(plan.collector, sweep_seconds=0.1, advance_lag_epochs=2),
    )


def _level_one(plan: Plan, rng: random.Random) -> Plan:
    """Much is reconciled, merged and let go while leaders change and stores fail."""
    return replace(
        plan,
        topics=(1, rng.choice((1, 2))),
        idempotent=3,
        plain=2,
        think_seconds=0.05,
        epoch_seconds=0.1,
        tick_seconds=0.1,
        admin=("delete_records", "delete_records", "recreate"),
        admin_interval=0.8,
        faults=_with_faults(
            plan,
            "crash at a store's answer",
            "crash at a command",
            "transfer",
            "isolated leader",
            "failing store",
            "checkpoint",
            "slow disk",
        ),
        fault_interval=0.4,
        cache=replace(
            plan.cache, written_bytes=rng.choice((0, 2000)), level_one_bytes=rng.choice((2000, 20_000))
        ),
        level_one=replace(
            plan.level_one, target_bytes=rng.choice((1000, 8000, 40_000)), job_bytes=60_000,
            reconcile_seconds=0.2, merge_count=2, sweep_seconds=0.5,
        ),
        look_seconds=0.1,
        retention_seconds=0.3,
        shrinking=0.4,
    )  # fmt: skip


_SHAPES = {
    "windows": _windows,
    "handover": _handover,
    "retries": _retries,
    "topics": _topics,
    "checkpoints": _checkpoints,
    "collector": _collector,
    "level one": _level_one,
}
