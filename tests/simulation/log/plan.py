"""What a seed decides before anything runs: how large the cluster is, how small its limits, which faults.

Limits are tiny on purpose. What takes a broker a day (a full segment, a snapshot that overtakes a follower)
happens here several times in ten virtual seconds.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from strandline.node.raft.config import RaftConfig
from strandline.node.raft.mesh.mesh import MeshConfig
from strandline.node.raft.wal.write_ahead_log import WalConfig

DRILLS = (
    "calm commits",
    "idle groups",
    "returning node",
    "transfer under load",
    "leader cut off",
    "no leader",
    "late answers",
    "lost folder",
)
"""What is done before the faults begin, one for each seed in turn; see drills.py."""

FAULTS = (
    "weather", "reset", "partition", "one-way cut", "isolated leader", "kill", "power cut", "blackout",
    "crash in disk operation", "slow disk", "stalled disk", "full disk", "failed fdatasync",
    "snapshot bit flip", "log bit flip", "pause", "clock jump", "clock drift", "transfer",
    "membership", "forced snapshot", "quiet period",
)  # fmt: skip
WIPED = "wiped folder"
"""A fault that is drawn by itself: with it a run has a node that comes back with nothing."""


ENDURANCE = ("full disk", "full majority", "stopped replica")
"""What lasts for minutes."""

ENDURES_EVERY = 12
"""One seed in so many has such a fault."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The fixed part of one seed's run. Times are virtual seconds."""

    voters: tuple[int, ...]
    spares: tuple[int, ...]
    groups: tuple[int, ...]
    clients: int
    think_seconds: float
    registers: int
    """Registers of a group in use at a time."""

    register_seconds: float
    """How long they are used before fresh ones take their place: it bounds a register's history."""

    burst: int
    """Commands a client gives at once, at most."""

    drill: str
    endurance: tuple[str, float] | None
    """What lasts for long at the end of the run, and for how many seconds; see endurance.py."""

    faults: tuple[str, ...]
    fault_seconds: float
    fault_interval: float
    backlog_bytes: int
    """What may wait for a disk before new work is refused; settings do not allow so little."""

    raft: RaftConfig
    wal: WalConfig
    mesh: MeshConfig

    @property
    def nodes(self) -> tuple[int, ...]:
        return self.voters + self.spares


def plan_of(seed: int) -> Plan:
    """The plan of a seed; a function of the seed alone."""
    rng = random.Random(f"{seed} plan")
    drill = DRILLS[seed % len(DRILLS)]
    size = {"late answers": 5, "lost folder": 3}.get(drill) or rng.choice((3, 3, 3, 3, 3, 4))
    spares = rng.choice((0, 1, 1, 2)) if size < 5 else rng.choice((0, 1))
    groups = rng.choice((1, 1, 1, 2, 2, 3, 4))
    faults = [kind for kind in FAULTS if rng.random() < 0.4]
    if spares and "membership" not in faults and rng.random() < 0.5:
        faults.append("membership")
    if random.Random(f"{seed} {WIPED}").random() < 0.3:
        faults += [WIPED, WIPED]
    return Plan(
        voters=tuple(range(1, size + 1)),
        spares=tuple(range(size + 1, size + spares + 1)),
        groups=tuple(range(1, groups + 1)),
        clients=rng.choice((2, 3, 4)),
        think_seconds=rng.choice((0.1, 0.2, 0.4)),
        registers=rng.choice((1, 2, 3)),
        register_seconds=rng.choice((1.0, 2.0)),
        burst=rng.choice((1, 1, 1, 1, 3, 10)),
        drill=drill,
        endurance=endurance_of(seed),
        faults=tuple(faults) or ("kill",),
        fault_seconds=rng.uniform(3.0, 5.0),
        fault_interval=rng.choice((0.1, 0.2, 0.4)),
        # A follower drops what its disk is behind with, and is sent it again: no calm then.
        backlog_bytes=1 << 20 if drill == "calm commits" else rng.choice((1 << 10, 1 << 20)),
        raft=RaftConfig(
            max_entry_bytes=1 << 16,
            max_append_bytes=rng.choice((64, 512, 1 << 16)),
            max_inflight_messages=rng.choice((1, 4, 256)),
            max_pending_commands=rng.choice((4, 65_536)),
            max_apply_per_turn=rng.choice((1, 3, 1024)),
            snapshot_entries=rng.choice((6, 15, 40, 20_000)),
            snapshot_bytes=rng.choice((600, 1 << 20)),
            trailing_entries=rng.choice((0, 3, 20)),
            snapshot_chunk_bytes=rng.choice((48, 200, 4096)),
            snapshot_window=rng.choice((1, 2, 4)),
            max_wal_segments=rng.choice((1, 2, 4)),
            stuck_seconds=1.0,
        ),
        wal=WalConfig(
            segment_bytes=512 * rng.choice((4, 8, 16, 64)),
            max_buffered_bytes=1 << 22,
            full_retry_seconds=0.2,
        ),
        mesh=MeshConfig(
            connect_seconds=1.0,
            handshake_seconds=1.0,
            duplicate_probe_seconds=0.4,
            backoff_min_seconds=0.02,
            backoff_max_seconds=0.3,
            # Pings would end the connection on which late answers are late.
            ping_seconds=5.0 if drill == "late answers" else 0.3,
            max_unanswered_pings=3,
            linger_seconds=0.2,
        ),
    )


def endurance_of(seed: int) -> tuple[str, float] | None:
    """The long fault of a seed, if it has one, and how long it lasts."""
    rng = random.Random(f"{seed} endurance")
    if rng.random() >= 1 / ENDURES_EVERY:
        return None
    return rng.choice(ENDURANCE), rng.choice((30.0, 30.0, 60.0, 60.0, 120.0, 300.0))
