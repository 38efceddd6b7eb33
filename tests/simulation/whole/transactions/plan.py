"""The plan of a seed whose clients write in transactions.

These seeds are numbered by themselves, beside those of the other themes (`--transactions`): the theme of a
seed is its number modulo the count of themes, so one more among them would turn every seed that documents and
sabotages name into another run.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from strandline.node.config.node_config import GroupsSection
from strandline.statemachine.transactions.transaction_commands import LAST_EPOCH
from tests.simulation.whole.plan import (
    WIPED,
    Plan,
    anything,
    restored,
    with_inline,
    with_moves,
    with_tails,
)
from tests.simulation.whole.transactions.load import Load

THEME: Final = "transactions"
FEW_EPOCHS: Final = 5
STATIC: Final = 0.3
"""Share of seeds whose workers are static members; drawn by itself, which leaves the others as they are."""
BOTH: Final = 0.3
"""Share of seeds whose workers speak either protocol; drawn by itself, too."""
DAWDLE_OF_BOTH: Final = 0.3
"""There, a transaction is often under way when the group is converted."""
STEPS: Final = (
    "leader lost at a command", "leader lost at a call", "held client link", "frozen client", "calls again",
    "calls late", "coordinator moved",
)  # fmt: skip
"""Faults that are aimed at transactions; faults.py has them."""
WIPED_SHARE: Final = 1 / 5
"""Of the seeds, those in which folders are wiped; drawn by itself, as are full disks."""
WIPED_MORE_SECONDS: Final = 8.0
"""For so much longer they have faults: a folder is noticed, counts as dead and is replaced in that time."""
RESTORED_FROM: Final = 2000
"""The first seed in which a cluster is restored: those before are known by what they find."""
FULL_DISKS_SHARE: Final = 1 / 16
FULL_DISKS_SECONDS: Final = (60.0, 60.0, 120.0)
_OTHERS: Final = (
    "kill", "power cut", "pause", "isolated leader", "transfer", "transfer", "slow store", "slow mesh",
    "pair cut", "one-way cut", "client reset", "slow client link", "reset", "weather", "clock jump",
    "clock drift", "slow disk", "failing store", "deaf replica", "restart", "blackout", "checkpoint",
)  # fmt: skip


def transactional_plan(seed: int) -> Plan:
    """A function of the seed alone."""
    rng = random.Random(f"{seed} transactional plan")
    plan = anything(rng, THEME)
    chance = rng.choice
    session = chance((1.0, 2.0))
    writers, workers = chance((1, 2, 3)), chance((0, 2, 2, 3))
    both = workers > 0 and random.Random(f"{seed} protocols").random() < BOTH
    load = Load(
        writers=writers,
        workers=workers,
        protocol=_protocol(chance(("classic", "classic", "consumer")), both=both),
        static=random.Random(f"{seed} static members").random() < STATIC,
        followers=chance((1, 2)),
        timeouts=chance(((0.5,), (1.0, 3.0), (3.0,), (3.0, 6.0))),
        aborts=chance((0.1, 0.3)),
        dawdle=max(chance((0.0, 0.05, 0.15)), DAWDLE_OF_BOTH if both else 0.0),
        patience=chance((0.2, 1.0, 3.0)),
        answer_seconds=chance((0.5, 1.0, 2.5)),
        last_epoch=FEW_EPOCHS if seed % 4 == 3 else LAST_EPOCH,
        session=session,
    )
    steps = [kind for kind in STEPS if rng.random() < 0.5]
    plan = replace(
        plan,
        topics=(chance((1, 2, 3)), chance((1, 2, 3)), 3),
        idempotent=1 if seed % 8 == 7 else 0,
        plain=0,
        consumers=0,
        think_seconds=chance((0.05, 0.15)),
        admin=(),
        faults=(*(steps or STEPS), *(steps or STEPS), *rng.sample(_OTHERS, 6)),
        fault_seconds=rng.uniform(5.0, 7.0),
        fault_interval=chance((0.2, 0.4, 0.8)),
        store_delay=chance(((0.001, 0.01), (0.005, 0.05), (0.01, 0.2))),
        seconds_to_answer=chance((0.3, 0.8, 3.0)),
        shrinking=0.0,
        load=load,
        coordinators=chance((1, 2)),
        groups=GroupsSection(
            initial_rebalance_delay_seconds=0.1, min_session_seconds=0.5,
            consumer_session_seconds=session, consumer_heartbeat_seconds=0.3,
        ),
    )  # fmt: skip
    plan = with_inline(plan, random.Random(f"{seed} inline transactional plan"))
    plan = with_tails(plan, random.Random(f"{seed} tails with transactions"))
    plan = _with_lost_disks(plan, random.Random(f"{seed} {WIPED} with transactions"))
    plan = with_moves(plan, random.Random(f"{seed} moves with transactions"))
    return _with_restore(plan, seed)


def _with_restore(plan: Plan, seed: int) -> Plan:
    """The plan with a cluster that is restored from its bucket amid its transactions, for one of eight."""
    if seed < RESTORED_FROM or seed % 8 != 6:
        return plan
    return restored(plan, random.Random(f"restore {seed} with transactions"), least_fault_seconds=3.0)


def _with_lost_disks(plan: Plan, rng: random.Random) -> Plan:
    drawn = rng.random()
    if drawn < WIPED_SHARE:
        return replace(plan, lost_folders="one", fault_seconds=plan.fault_seconds + WIPED_MORE_SECONDS)
    if drawn < WIPED_SHARE + FULL_DISKS_SHARE:
        return replace(plan, full_disks=(rng.choice(("one", "majority")), rng.choice(FULL_DISKS_SECONDS)))
    return plan


def _protocol(drawn: str, *, both: bool) -> str:
    return "both" if both else drawn
