"""The plan of a seed whose topics are compacted. Numbered by themselves, as those with transactions are."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from strandline.node.config.node_config import CompactionSection
from strandline.statemachine.transactions.transaction_commands import LAST_EPOCH
from tests.simulation.whole.compaction.load import TableLoad
from tests.simulation.whole.plan import WIPED, Plan, anything, with_inline
from tests.simulation.whole.transactions.load import Load
from tests.simulation.whole.transactions.plan import STEPS as TRANSACTION_STEPS

THEME: Final = "compaction"
RETENTION_MS: Final = (400, 1000, 2000)
STEPS: Final = ("held down", "lost log", "rotten log", "crash in a round")
"""Faults that are aimed at local logs; faults.py has them."""
MAP_BYTES: Final = 512
MANY_KEYS: Final = 40
KEYLESS: Final = 0.15
WIPED_SHARE: Final = 1 / 5
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
        table=TableLoad(),
        topic_configs=(
            ("cleanup.policy", "compact"),
            ("delete.retention.ms", str(chance(RETENTION_MS))),
            ("min.cleanable.dirty.ratio", chance(("0", "0", "0.5"))),
            *chance(((), (("max.compaction.lag.ms", "500"),))),
        ),
    )
    if random.Random(f"{seed} {WIPED} with compaction").random() < WIPED_SHARE:
        plan = _with_wiped_folders(plan, random.Random(f"{seed} {WIPED} of compaction"))
    for name, (share, shape) in KINDS.items():
        if random.Random(f"{seed} {name} with compaction").random() < share:
            plan = shape(plan, random.Random(f"{seed} {name} of compaction"))
    return with_inline(plan, random.Random(f"{seed} small batches of tables"))


def kinds_of(seed: int) -> set[str]:
    """The kinds that this seed has."""
    return {
        name
        for name, (share, _) in KINDS.items()
        if random.Random(f"{seed} {name} with compaction").random() < share
    }


def _with_wiped_folders(plan: Plan, rng: random.Random) -> Plan:
    """Half of them with the local logs of the folder before: deletions go while that is left out, and few
    keys are written again until it is back."""
    plan = replace(plan, lost_folders="one", fault_seconds=plan.fault_seconds + WIPED_MORE_SECONDS)
    if rng.random() < 0.5:
        return plan
    soon = ("delete.retention.ms", str(RETENTION_MS[0])), ("min.cleanable.dirty.ratio", "0")
    return _tables(_configured(plan, soon), old_files=True, keys=MANY_KEYS)


def _with_transactions(plan: Plan, rng: random.Random) -> Plan:
    """Half of the batches or more are in transactions, some of which stay open for long."""
    chance = rng.choice
    load = Load(
        writers=chance((1, 2, 2)),
        workers=0,
        protocol="classic",
        static=False,
        followers=0,
        timeouts=chance(((0.5,), (1.0, 3.0), (3.0, 6.0))),
        aborts=chance((0.2, 0.5)),
        dawdle=chance((0.05, 0.15, 0.3)),
        patience=chance((0.2, 1.0, 3.0)),
        answer_seconds=chance((0.5, 1.0, 2.5)),
        last_epoch=LAST_EPOCH,
        session=1.0,
    )
    steps = rng.sample(TRANSACTION_STEPS, 3)
    return replace(
        plan,
        idempotent=chance((0, 1)),
        load=load,
        coordinators=1,
        seconds_to_answer=chance((0.3, 0.8)),
        faults=(*plan.faults, *steps, *steps),
    )


def _with_full_maps(plan: Plan, rng: random.Random) -> Plan:
    """A round's map has room for 15 keys."""
    del rng
    plan = replace(plan, compaction=replace(plan.compaction, map_bytes=MAP_BYTES))
    return _tables(plan, keys=MANY_KEYS)


def _with_retentions(plan: Plan, rng: random.Random) -> Plan:
    """`delete.retention.ms` changes."""
    del rng
    return replace(_tables(plan, retentions=RETENTION_MS), admin=(*plan.admin, "retention"))


def _with_expiry(plan: Plan, rng: random.Random) -> Plan:
    """The front of the log expires, and is deleted on request."""
    plan = _configured(plan, (("cleanup.policy", "compact,delete"), _expiry(rng)))
    return replace(_tables(plan, policies=("compact,delete",)), admin=(*plan.admin, "delete_records"))


def _with_policies(plan: Plan, rng: random.Random) -> Plan:
    """Topics are compacted, and then are not, to and fro; records without keys come in meanwhile."""
    plan = _configured(plan, (_expiry(rng),))
    plan = _tables(plan, policies=("compact", "delete", "compact,delete"), keyless=KEYLESS)
    return replace(plan, plain=1, admin=(*plan.admin, "policy", "policy", "delete_records"))


def _with_recreated_topics(plan: Plan, rng: random.Random) -> Plan:
    """Topics go, and others come under their names."""
    del rng
    return replace(plan, topics=(plan.topics[0], 1), admin=(*plan.admin, "recreate"))


def _with_moving_partitions(plan: Plan, rng: random.Random) -> Plan:
    """Partitions move among four nodes, some of which may be away: replicas begin empty, leave, come back.

    A folder is replaced only where a partition has three replicas, so none has fewer where folders get lost.
    """
    fewest = 3 if plan.lost_folders != "none" else rng.choice((1, 2, 3))
    return replace(plan, nodes=(1, 2, 3, 4), admin=(*plan.admin, "move", "move"), fewest=fewest)


def _expiry(rng: random.Random) -> tuple[str, str]:
    return "retention.ms", str(rng.choice((1500, 4000)))


def _configured(plan: Plan, configs: tuple[tuple[str, str], ...]) -> Plan:
    return replace(plan, topic_configs=tuple((dict(plan.topic_configs) | dict(configs)).items()))


def _tables(plan: Plan, **changes: Any) -> Plan:
    assert plan.table is not None
    return replace(plan, table=replace(plan.table, **changes))


KINDS: Final[Mapping[str, tuple[float, Callable[[Plan, random.Random], Plan]]]] = MappingProxyType(
    {
        "transactions": (1 / 2, _with_transactions),
        "full maps": (1 / 4, _with_full_maps),
        "retentions": (1 / 4, _with_retentions),
        "expiry": (1 / 5, _with_expiry),
        "policies": (1 / 4, _with_policies),
        "recreated topics": (1 / 6, _with_recreated_topics),
        "moving partitions": (1 / 4, _with_moving_partitions),
    }
)
"""What a seed may have, and the share of seeds that do. Each is drawn by itself, which leaves the others as
they are; where two say something of one setting, the later one counts."""
