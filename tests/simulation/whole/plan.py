"""What a seed decides before anything runs: the cluster, its clients, its limits, and which faults it meets.

Limits are tiny and cluster epochs short on purpose: windows slide, segments fill, caches overflow and
snapshots overtake replicas all the time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Literal

from strandline.node.config.node_config import (
    CacheSection,
    CollectorSection,
    CompactionSection,
    GroupsSection,
    InlineSection,
    LevelOneSection,
)
from strandline.node.level_zero.batcher_config import BatcherConfig
from strandline.node.objectstore.retries import RetryPolicy
from strandline.node.raft.config import RaftConfig
from strandline.node.raft.mesh.config import MeshConfig
from strandline.node.raft.wal.write_ahead_log import WalConfig
from tests.simulation.whole.compaction.load import TableLoad
from tests.simulation.whole.transactions.load import Load
from tests.simulation.whole.upheaval import Upheaval, drawn

FAULTS = (
    "weather", "slow mesh", "reset", "partition", "pair cut", "one-way cut", "isolated leader",
    "slow client link", "client reset", "kill", "power cut", "blackout", "crash in disk operation",
    "restart", "pause", "slow disk", "full disk", "failing store", "slow store", "stalled store",
    "store out of reach", "late puts", "lagging lists", "slow reads", "bad gossip",
    "deaf replica", "crash at a store's answer", "crash at a command", "clock jump", "clock drift",
    "transfer", "checkpoint", "fence held", "epoch advanced",
)  # fmt: skip

WIPED = "wiped folder"
"""A fault that is drawn by itself; see wiped_folders.py and lost_cluster.py."""

ADMIN = ("create", "grow", "delete", "recreate", "delete_records")


@dataclass(frozen=True, slots=True)
class Plan:
    """The fixed part of one seed's run. Times are virtual seconds."""

    theme: str
    nodes: tuple[int, ...]
    topics: tuple[int, ...]
    """Partitions of each topic there is from the beginning."""
    idempotent: int
    plain: int
    """Producers without an id."""
    consumers: int
    think_seconds: float
    """Between two batches of a producer for one partition."""
    lanes: int
    """Partitions a producer writes to at a time."""
    epoch_seconds: float
    tick_seconds: float
    """How often the controller's leader looks whether the epoch is due; a node's own is a quarter second."""
    admin: tuple[str, ...]
    admin_interval: float
    seconds_to_answer: float
    """What producers ask of the broker; they themselves wait for half as long again."""
    hasty_consumers: bool
    """Consumers look for leaders all the time."""
    faults: tuple[str, ...]
    fault_seconds: float
    fault_interval: float
    store_delay: tuple[float, float]
    batching: BatcherConfig
    cache: CacheSection
    retries: RetryPolicy
    raft: RaftConfig
    wal: WalConfig
    mesh: MeshConfig
    level_one: LevelOneSection
    collector: CollectorSection
    look_seconds: float
    """How often a node looks what is to be done in level one, and whose epochs lag."""
    tell_seconds: float
    """How often nodes tell each other what is collectable."""
    retention_seconds: float
    """Between two looks for what retention lets go."""
    shrinking: float
    """Share of topics that have a retention by time or size."""
    retention_ms: tuple[int, ...]
    retention_bytes: tuple[int, ...]
    checkpoints_kept: int
    late_seconds: float
    """The longest time after which a put that failed may still land."""
    load: Load | None = None
    """What transactional clients do; None: there are none."""
    coordinators: int = 16
    """Partitions of each internal topic."""
    groups: GroupsSection = field(default_factory=GroupsSection)
    compaction: CompactionSection = field(default_factory=CompactionSection)
    table: TableLoad | None = None
    """How compacted topics are used; None: there are none."""
    topic_configs: tuple[tuple[str, str], ...] = ()
    """Of every topic that is created; empty: what `shrinking` says."""
    lost_folders: Literal["none", "one", "all", "restored"] = "none"
    """Whether single folders are wiped among the other faults, or all of them when these are over; or all of
    them under load, and the cluster is restored."""
    fewest: int = 3
    """Replicas that a partition which is moved has at least."""
    inline: InlineSection = field(default_factory=lambda: InlineSection(max_batch_bytes=0))
    tails: float = 0.0
    """`publish.seconds`; 0: no tails."""
    hedging: bool = False
    """Whether requests to the store are sent twice where their answers are late."""
    acls: bool = False
    """Whether access is controlled, by entries that change all the time."""
    joining: tuple[int, ...] = ()
    """Of the nodes, those that join when the cluster runs; one of all nodes is removed then."""
    upheaval: Upheaval | None = None
    """What meets nodes that join and leave; None: nothing but the other faults."""
    leader_claims: bool = False
    """Whether the storage is made the cluster's as nodes do it, by the controller's leader alone. Else every
    founder puts the same word, which moves no seed from before that rule; in one storage it is the same."""
    epochs_rest: bool = False
    """Whether the cluster epoch rises only while a node needs that, and not all the time."""
    full_disks: tuple[str, float] | None = None
    """Whether the disks of "one" node or a "majority" are full after all else, and for how many seconds."""


def anything(rng: random.Random, theme: str) -> Plan:
    """The plan before its theme shapes it."""
    chance = rng.choice
    size = chance((3, 3, 3, 3, 3, 5))
    faults = [kind for kind in FAULTS if rng.random() < 0.35]
    epoch_seconds = chance((0.05, 0.1, 0.3, 2.0))
    return Plan(
        theme=theme,
        seconds_to_answer=chance((0.2, 0.8, 0.8, 3.0)),
        hasty_consumers=False,
        nodes=tuple(range(1, size + 1)),
        topics=tuple(chance((1, 1, 2, 2, 3, 4)) for _ in range(chance((1, 2, 2, 3)))),
        idempotent=chance((2, 2, 3, 4)),
        plain=chance((1, 1, 2)),
        consumers=chance((1, 1, 2)),
        think_seconds=chance((0.1, 0.2, 0.4)),
        lanes=chance((1, 2, 2)),
        epoch_seconds=epoch_seconds,
        tick_seconds=min(0.25, epoch_seconds),
        admin=tuple(kind for kind in ADMIN if rng.random() < 0.4),
        admin_interval=chance((0.5, 1.5)),
        faults=tuple(faults) or ("kill",),
        fault_seconds=rng.uniform(5.0, 7.0),
        fault_interval=chance((0.3, 0.6, 1.0)),
        store_delay=chance(((0.001, 0.02), (0.005, 0.05), (0.01, 0.2))),
        batching=BatcherConfig(
            target_bytes=chance((400, 2000, 100_000)),
            max_object_bytes=chance((100_000, 200_000)),
            linger_seconds=chance((0.0, 0.01, 0.05)),
            max_uploads=chance((1, 4, 4, 8)),
            puts_per_second=chance((None, None, None, 40.0)),
            max_staged_bytes=chance((200_000, 1_000_000)),
            max_staged_batches=chance((3, 20, 65_536)),
        ),
        cache=CacheSection(
            written_bytes=chance((0, 2000, 1 << 20)),
            fetched_bytes=chance((0, 2000, 1 << 20)),
            level_one_bytes=chance((2000, 20_000, 1 << 20)),
        ),
        retries=RetryPolicy(
            attempts=chance((1, 2, 3)),
            attempt_seconds=chance((0.3, 0.6)),
            total_seconds=chance((0.6, 1.0)),
            first_delay_seconds=0.02,
            max_delay_seconds=0.1,
        ),
        raft=RaftConfig(
            max_entry_bytes=1 << 18,
            max_append_bytes=chance((512, 1 << 16)),
            max_inflight_messages=chance((2, 256)),
            max_pending_commands=chance((6, 65_536)),
            max_apply_per_turn=chance((1, 3, 1024)),
            snapshot_entries=chance((8, 25, 100, 20_000)),
            snapshot_bytes=chance((2000, 1 << 20)),
            trailing_entries=chance((0, 3, 20)),
            snapshot_chunk_bytes=chance((200, 4096)),
            snapshot_window=chance((1, 4)),
            max_wal_segments=chance((2, 4)),
        ),
        wal=WalConfig(
            segment_bytes=1024 * chance((8, 16, 64)), max_buffered_bytes=9 << 20, full_retry_seconds=0.2
        ),
        mesh=MeshConfig(
            connect_seconds=1.0,
            handshake_seconds=1.0,
            duplicate_probe_seconds=0.4,
            backoff_min_seconds=0.02,
            backoff_max_seconds=0.3,
            ping_seconds=0.3,
            max_unanswered_pings=3,
            linger_seconds=0.2,
        ),
        level_one=LevelOneSection(
            target_bytes=chance((500, 2000, 8000)),
            job_bytes=chance((8000, 30_000)),
            block_bytes=chance((200, 500)),
            reconcile_seconds=chance((0.4, 0.8, 1.5)),
            merge_count=chance((2, 3, 4)),
            sweep_seconds=chance((0.7, 1.5)),
        ),
        collector=CollectorSection(
            grace_seconds=0.0,
            sweep_seconds=chance((0.1, 0.2, 0.5)),
            deletes_per_second=chance((50, 1000)),
            advance_lag_epochs=chance((2, 3)),
        ),
        look_seconds=chance((0.1, 0.2, 0.4)),
        tell_seconds=chance((0.05, 0.2, 0.5)),
        retention_seconds=chance((0.4, 1.0)),
        shrinking=chance((0.0, 0.0, 0.3)),
        retention_ms=chance(((1000,), (1500, 4000))),
        retention_bytes=chance(((1000,), (600, 5000))),
        checkpoints_kept=chance((1, 2, 3)),
        late_seconds=chance((1.0, 3.0)),
    )


TAILS_SHARE = 0.15
"""Of the seeds, those in which nodes publish tails, and a reader follows them."""


def with_tails(plan: Plan, rng: random.Random) -> Plan:
    """The plan with tails, for some seeds."""
    if rng.random() >= TAILS_SHARE or plan.lost_folders == "all":
        return plan
    return replace(plan, tails=rng.choice((0.4, 1.0, 2.0)))


INLINE_SHARE = 0.3
"""Of the seeds, those in which small batches go into the log itself."""


def with_inline(plan: Plan, rng: random.Random) -> Plan:
    """The plan with inline batches, for some seeds. Limits are passed and free again all the time."""
    if rng.random() >= INLINE_SHARE:
        return plan
    chance = rng.choice
    return replace(
        plan,
        inline=InlineSection(
            seconds=chance((0.4, 1.0, 3.0)),
            max_batch_bytes=chance((200, 100_000, 100_000)),
            partition_bytes_per_second=1024 * chance((3, 10, 1000)),
            bytes_per_second=1024 * chance((10, 30, 1000)),
            partition_bytes=chance((500, 2000, 1 << 20)),
            bytes=chance((1000, 8000, 1 << 20)),
        ),
    )


FAR_FAULTS = ("slow tail", "throttled store")
"""Of a store that is a bucket far away, and of no other."""
FAR_FROM = 2_000
"""The first seed with such a store: those before it, which tests name, mean what they meant."""


def with_far_store(plan: Plan, seed: int) -> Plan:
    """The plan with a store that behaves as S3 does, for one seed of four of each theme."""
    if seed < FAR_FROM or seed // 8 % 4 != 3:
        return plan
    batching = replace(plan.batching, max_uploads=32, puts_per_second=None)
    return replace(plan, hedging=True, batching=batching, faults=(*plan.faults, *FAR_FAULTS))


LEADER_CLAIMS_FROM = 4_000
"""The first seed in which the controller's leader alone claims the storage; as for a far store."""
EPOCHS_REST_FROM = 5_000
"""The first seed in which the cluster epoch rests while nothing is in level zero; as for a far store."""
MOVING_SHARE = 1 / 6
"""Of the seeds, those in which partitions move between nodes."""


def with_moves(plan: Plan, rng: random.Random) -> Plan:
    """The plan with partitions that move, for some seeds.

    A folder is replaced only where a partition has three replicas, so none has fewer where folders get lost.
    """
    if rng.random() >= MOVING_SHARE or plan.lost_folders == "all":
        return plan
    fewest = 3 if plan.lost_folders != "none" else rng.choice((1, 2, 3))
    return replace(plan, admin=(*plan.admin, "move", "move"), fewest=fewest)


def with_acls(plan: Plan, seed: int) -> Plan:
    """The plan with entries of access control that change, for one seed of eight of each theme.

    Those before FAR_FROM mean what they meant, as for a store that is far away.
    """
    wanted = seed >= FAR_FROM and seed // 8 % 8 == 5 and plan.lost_folders != "all"
    return replace(plan, acls=True) if wanted else plan


UPHEAVAL_MORE_SECONDS = 8.0
"""For so much longer they have faults, as where folders are wiped."""
GROWING_FROM = FAR_FROM
"""The first seed in which nodes join and leave, as for a store that is far away."""


def with_growth(plan: Plan, seed: int) -> Plan:
    """The plan with one or two nodes that join and one that is removed, for one seed of eight."""
    if seed < GROWING_FROM or seed // 8 % 8 != 2 or plan.lost_folders != "none" or plan.full_disks:
        return plan
    rng = random.Random(f"growth {seed}")
    nodes = tuple(range(1, len(plan.nodes) + rng.choice((1, 2, 2)) + 1))
    joining = tuple(sorted(rng.sample(nodes, len(nodes) - len(plan.nodes))))
    return replace(plan, nodes=nodes, joining=joining)


def with_upheaval(plan: Plan, seed: int) -> Plan:
    """The plan with nodes that join and leave while folders are wiped and replicas move, for one of eight.

    No other kind has these seeds, and what is drawn here is drawn nowhere else.
    """
    if seed < GROWING_FROM or seed // 8 % 8 != 4 or plan.lost_folders == "all" or plan.full_disks:
        return plan
    rng = random.Random(f"upheaval {seed}")
    nodes = tuple(range(1, len(plan.nodes) + rng.choice((1, 2, 2)) + 1))
    joining = tuple(sorted(rng.sample(nodes, len(nodes) - len(plan.nodes))))
    wiped = plan.lost_folders == "one" or rng.random() < 0.6
    longer = UPHEAVAL_MORE_SECONDS if plan.lost_folders == "none" else 0.0
    upheaval = drawn(rng)
    moves = () if "move" in plan.admin else ("move", "move")
    return replace(
        plan,
        nodes=nodes,
        joining=joining,
        admin=(*plan.admin, *moves),
        fewest=3,
        lost_folders="one" if wiped else "none",
        fault_seconds=plan.fault_seconds + longer,
        upheaval=upheaval,
    )


RESTORED_GRACE_SECONDS = 12.0
"""`collector.grace_seconds` there: what a tail point names stays for so long."""


def with_restore(plan: Plan, seed: int) -> Plan:
    """The plan with a cluster that is restored from its bucket, for one of eight. No other kind has these
    seeds, and what is drawn here is drawn nowhere else."""
    if seed < GROWING_FROM or seed // 8 % 8 != 6 or plan.full_disks:
        return plan
    return restored(plan, random.Random(f"restore {seed}"), least_fault_seconds=2.0)


def restored(plan: Plan, rng: random.Random, *, least_fault_seconds: float) -> Plan:
    """The plan with a cluster that publishes tails, loses all its folders and is restored."""
    return replace(
        plan,
        tails=plan.tails or rng.choice((0.4, 0.8, 1.5)),
        collector=replace(plan.collector, grace_seconds=RESTORED_GRACE_SECONDS),
        lost_folders="restored",
        full_disks=None,
        fault_seconds=rng.uniform(least_fault_seconds, 6.0),
    )
