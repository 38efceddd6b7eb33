"""Replicas that are sent a state get level also where their node's logs are too long together all the time.

Real groups in the simulated world, with the sizes of the defaults divided by a hundred and times as they are.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import cast

import pytest

from strandline.node.config.node_config import InlineSection
from strandline.node.level_zero.batcher import Batcher
from strandline.node.partition import inline_storing
from strandline.node.partition.inline_budget import InlineBudget
from strandline.node.partition.inline_storing import InlineStoring
from strandline.node.partition.partition import Partition
from strandline.node.partition.partition_table import PartitionTable
from strandline.node.raft.config import RaftConfig
from strandline.node.raft.outcome import Applied, Outcome
from strandline.node.raft.wal.write_ahead_log import WalConfig
from tests.raft.small_cluster import SmallCluster

SCALE = 100
LOG_BYTES = inline_storing.LOG_BYTES // SCALE
HELD_BYTES = inline_storing.HELD_BYTES // SCALE
USUAL = RaftConfig()
RAFT = RaftConfig(
    max_entry_bytes=1 << 16,
    max_append_bytes=USUAL.max_append_bytes // SCALE,
    max_inflight_bytes=USUAL.max_inflight_bytes // SCALE,
    snapshot_bytes=USUAL.snapshot_bytes // SCALE,
    trailing_bytes=USUAL.trailing_bytes // SCALE,
    snapshot_chunk_bytes=USUAL.snapshot_chunk_bytes // SCALE,
)
WAL = WalConfig(segment_bytes=1 << 20, max_buffered_bytes=9 << 20)
GROUPS = tuple(range(1, 13))
ENTRY_BYTES = 4000
PARTITION_BYTES_PER_SECOND = InlineSection().partition_bytes_per_second // SCALE
JOINS = 4
WAY_SECONDS = 0.15
"""To and from the node that joins: a state takes longer to get there than logs to be too long again."""
WARM_SECONDS = 20.0
ENDS_SECONDS = 60.0


def shorten_logs(cluster: SmallCluster, node: int) -> InlineStoring:
    """Begin a node's looks at its logs, in which its partitions have nothing to be stored."""
    sim, table = cluster.world.nodes[node], PartitionTable()
    for group in GROUPS:
        partition = SimpleNamespace(
            topic_id=b"t", number=group, group=cluster.group(node, group), leads=True,
            machine=SimpleNamespace(extents=SimpleNamespace(inline_bytes=0)),
            writer=SimpleNamespace(inline_bytes=1), count_changes_in=lambda count: None,
        )  # fmt: skip
        table.add(group, cast(Partition, partition))
    budget = InlineBudget(InlineSection(), sim.loop.time)
    part = InlineStoring(table, cast(Batcher, None), budget, loop=sim.loop, rng=random.Random(1))
    sim.call(part.start)
    return part


def longest_logs(cluster: SmallCluster) -> int:
    """Bytes of entries in memory of the node that has most."""
    return max(
        sum(host.groups[group].taking.log_bytes for group in GROUPS) for host in cluster.hosts.values()
    )


def join(cluster: SmallCluster, group: int, ended: dict[int, Outcome]) -> None:
    """A group's leader adds the node that joins."""
    leader = cluster.leader(group)

    def begin() -> None:
        future = cluster.group(leader, group).add_member(JOINS)
        future.add_done_callback(lambda done: ended.setdefault(group, done.result()))

    cluster.world.nodes[leader].call(begin)


@pytest.mark.parametrize(("moved", "held"), [(3, HELD_BYTES), (6, HELD_BYTES), (6, 1)])
def test_moves_end_while_logs_are_too_long_all_the_time(
    monkeypatch: pytest.MonkeyPatch, moved: int, held: int
) -> None:
    """With room for one of them it is one after the other."""
    monkeypatch.setattr(inline_storing, "LOG_BYTES", LOG_BYTES)
    monkeypatch.setattr(inline_storing, "HELD_BYTES", held)
    with SmallCluster(nodes=(1, 2, 3, JOINS), groups=GROUPS, raft=RAFT) as cluster:
        cluster.voters_of = {node: (1, 2, 3) if node != JOINS else () for node in cluster.voters}
        cluster.settings = {node: {"wal": WAL} for node in cluster.voters}
        monkeypatch.setattr(cluster, "_start_read", lambda sim, group: None)
        cluster.serve()
        parts = [shorten_logs(cluster, node) for node in cluster.voters]
        cluster.load(pause=ENTRY_BYTES / PARTITION_BYTES_PER_SECOND, size=ENTRY_BYTES)
        cluster.run(WARM_SECONDS)
        assert all(part._budget.measures.snapshots > 50 for part in parts[:3])
        for node in (1, 2, 3):
            for way in ((node, JOINS), (JOINS, node)):
                cluster.world.network.link(*way).delay = (WAY_SECONDS, WAY_SECONDS)
        ended: dict[int, Outcome] = {}
        for group in GROUPS[:moved]:
            join(cluster, group, ended)
        until, longest = cluster.world.now + ENDS_SECONDS, 0
        while len(ended) < moved and cluster.world.now < until:
            cluster.run(0.25)
            longest = max(longest, longest_logs(cluster))
        assert len(ended) == moved
        assert all(isinstance(outcome, Applied) for outcome in ended.values())
        assert longest < 2 * LOG_BYTES + held
        cluster.world.check()
