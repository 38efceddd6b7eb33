"""Disks that stay full for minutes: nothing grows meanwhile, and with the space everything comes back."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from strandline.node.raft.host import RaftHost
from strandline.node.raft.rules.messages import AppendReply, Message, MessageKind, VoteReply, decode
from strandline.node.raft.snapshots.taking import SnapshotTaking
from strandline.node.raft.wal.raft_log import RaftLog
from tests.raft.small_cluster import BUSY, WAL, SmallCluster

BUSY_GROUPS = (1, 2)
IDLE_GROUPS = tuple(range(3, 23))
GROWN = 20
"""Seconds after which all has been buffered that ever will be."""

MINUTES = 120


def held(host: RaftHost) -> tuple[int, int, int]:
    """What a node keeps in memory for a disk that takes nothing."""
    return host.wal.buffered_bytes, len(host.records.waiting), len(host.records.after_sync)


def started() -> SmallCluster:
    """A cluster under load, whose logs have more segments than they should: all groups are to move along."""
    cluster = SmallCluster(groups=BUSY_GROUPS + IDLE_GROUPS)
    cluster.serve()
    cluster.group_ids = BUSY_GROUPS
    cluster.load(size=1000)
    cluster.run(4.0)
    return cluster


def fill(cluster: SmallCluster, *nodes: int, copy_on_write: bool = True) -> None:
    """Leave no space, and go on with less load than before."""
    for node in nodes:
        cluster.world.nodes[node].disk.fill(0, overwrites_count=copy_on_write)
    cluster.unload()
    cluster.run(0.1)
    cluster.load(pause=0.1, size=2000)


def healed(cluster: SmallCluster, *nodes: int) -> None:
    """There is space again: all is served and equal within seconds, nothing acknowledged is lost."""
    for node in nodes:
        cluster.world.nodes[node].disk.empty()
    cluster.run(2.0)
    cluster.group_ids = BUSY_GROUPS + IDLE_GROUPS
    cluster.settle()
    assert (cluster.failed, cluster.fatal) == ([], {}), "no replica stopped, no node ended"


def run_with_elections(cluster: SmallCluster, seconds: int, groups: tuple[int, ...]) -> None:
    """Hand these groups over once a second: terms rise for as long as the disk is full."""
    for _ in range(seconds):
        for group in groups:
            for node in cluster.leaders(group):
                cluster.world.nodes[node].call(cluster.group(node, group).transfer)
        cluster.run(1.0)


@pytest.mark.parametrize(
    ("full", "copy_on_write"), [((3,), False), ((3,), True), ((2, 3), True), ((1, 2, 3), False)]
)
def test_minutes_without_space_cost_no_memory_and_no_replica(
    full: tuple[int, ...], copy_on_write: bool
) -> None:
    with started() as cluster:
        fill(cluster, *full, copy_on_write=copy_on_write)
        cluster.run(GROWN)
        before = {node: held(cluster.hosts[node]) for node in full}
        acked = len(cluster.acked[1])
        cluster.run(MINUTES)
        for node in full:
            host = cluster.hosts[node]
            assert host.disk_stalled()
            assert [now <= then for now, then in zip(held(host), before[node], strict=True)] == [True] * 3
            assert host.wal.buffered_bytes <= WAL.max_buffered_bytes
        if len(full) > 1:
            assert len(cluster.acked[1]) == acked, "nothing is acknowledged that two disks do not have"
        healed(cluster, *full)


def test_a_bound_on_what_terms_alone_can_cost() -> None:
    """Idle groups, whose terms rise all the time: at most one waits in each, however long it takes."""
    groups = IDLE_GROUPS[:8]
    with SmallCluster(groups=groups) as cluster:
        cluster.serve()
        cluster.run(1.0)
        disk, host = cluster.world.nodes[3].disk, cluster.hosts[3]
        disk.fill(0, overwrites_count=True)
        run_with_elections(cluster, 10, groups)
        before, terms = held(host), [cluster.group(1, group).term for group in groups]
        run_with_elections(cluster, 60, groups)
        assert all(cluster.group(1, group).term > terms[0] + 40 for group in groups), "terms did rise"
        assert [now <= then for now, then in zip(held(host), before, strict=True)] == [True] * 3
        disk.empty()
        cluster.run(2.0)
        cluster.settle()
        assert (cluster.failed, cluster.fatal) == ([], {})


def test_a_quiet_group_leaves_the_node_whose_disk_is_full() -> None:
    """It says nothing by itself, so nothing but the disk tells that its leader can take no command."""
    with SmallCluster(groups=(1, 2)) as cluster:
        cluster.serve()
        cluster.run(2.0)
        full = cluster.leader(1)
        if cluster.leader(2) != full:
            cluster.world.nodes[cluster.leader(2)].call(cluster.group(cluster.leader(2), 2).transfer, full)
            cluster.run(2.0)
        assert cluster.leaders(2) == [full]
        assert not cluster.hosts[full].ticker.active, "both are quiet"
        cluster.world.nodes[full].disk.fill(0, overwrites_count=True)
        cluster.world.nodes[full].call(cluster.propose, full, 1)
        cluster.run(4.0)
        [leader] = cluster.leaders(2)
        assert leader != full
        cluster.world.nodes[leader].call(cluster.propose, leader, 2)
        cluster.run(1.0)
        assert len(cluster.acked[2]) == 1
        cluster.world.nodes[full].disk.empty()
        cluster.run(2.0)
        cluster.settle()


def test_an_idle_group_is_not_handed_to_a_node_whose_disk_is_full() -> None:
    """Such a node answers, and lacks nothing; only its answers to the shared heartbeat tell of its disk."""
    with SmallCluster(groups=(1, 2)) as cluster:
        cluster.serve()
        cluster.run(2.0)
        leaders = cluster.leaders(1) + cluster.leaders(2)
        full = next(node for node in cluster.voters if node not in leaders)
        cluster.group_ids = (2,)
        cluster.load(size=1000)
        cluster.world.nodes[full].disk.fill(0, overwrites_count=True)
        cluster.run(6.0)
        assert cluster.hosts[full].disk_stalled()
        leader = cluster.leader(1)
        group = cluster.group(leader, 1)
        began: list[bool] = []
        cluster.world.nodes[leader].call(lambda: began.append(group.transfer(full)))
        cluster.run(0.1)
        assert began == [False]
        cluster.world.nodes[full].disk.empty()
        cluster.run(2.0)
        cluster.world.nodes[leader].call(lambda: began.append(group.transfer(full)))
        cluster.run(1.0)
        assert began == [False, True]
        assert cluster.leaders(1) == [full]


def test_no_state_is_serialized_while_the_log_cannot_be_written() -> None:
    """A snapshot that finds no space is tried again: not for a record that could not be written either."""
    with started() as cluster:
        replica = cluster.group(3, 1)
        taking = replica.taking
        taking.settings = replace(replica.settings, snapshot_entries=1)
        fill(cluster, 3)
        cluster.run(GROWN)
        assert taking.due()
        tried: list[int] = []
        take = SnapshotTaking.take

        def counted(each: SnapshotTaking) -> bool:
            if each is not taking:
                return take(each)
            tried.append(1)
            return False

        with patch.object(SnapshotTaking, "take", counted):
            cluster.run(60.0)
            assert tried == []
            cluster.world.nodes[3].disk.empty()
            cluster.run(10.0)
            assert tried
        healed(cluster, 3)


class Said:
    """Looks at all that a node sends, at the moment at which it leaves."""

    def __init__(self) -> None:
        self.early: list[str] = []
        self.seen: Counter[MessageKind] = Counter()

    def watch(self, host: RaftHost) -> None:
        send = host.send

        def watched(peer: int, message: Message) -> bool:
            self.look(host, message)
            return send(peer, message)

        host.send = watched  # type: ignore[method-assign]

    def look(self, host: RaftHost, message: Message) -> None:
        kind = MessageKind(message.kind)
        journal = host.groups[message.group].journal
        assert isinstance(journal, RaftLog)
        if message.term != journal.getCurrentTerm():
            return
        durable = journal._state_lsn <= host.wal.synced_lsn
        if isinstance(message, AppendReply) and message.accepted:
            # The host's own count of what is durable, not the journal's: that one is looked at here, too.
            waiting = [last for lsn, last in journal._in_flight if lsn > host.wal.synced_lsn]
            self.note(
                kind, message, ok=message.log_index < min(waiting, default=message.log_index + 1) and durable
            )
        elif kind in (MessageKind.VOTE, MessageKind.APPEND) or (
            isinstance(message, VoteReply) and message.granted
        ):
            self.note(kind, message, ok=durable)

    def note(self, kind: MessageKind, message: Message, *, ok: bool) -> None:
        self.seen[kind] += 1
        if not ok:
            self.early.append(f"{kind.name} {message}")


def test_nothing_leaves_that_tells_of_what_the_disk_does_not_have() -> None:
    """Elections and load on disks that are full from time to time: seen where the messages leave."""
    said = Said()
    with SmallCluster(groups=(1, 2), raft=replace(BUSY, max_wal_segments=10_000)) as cluster:
        for node in cluster.voters:
            cluster.prepare[node] = said.watch
        cluster.serve()
        cluster.load(size=500)
        for round_ in range(9):
            disk = cluster.world.nodes[1 + round_ % 3].disk
            disk.fill(0, overwrites_count=True)
            run_with_elections(cluster, 1, (1, 2))
            disk.empty()
            run_with_elections(cluster, 1, (1, 2))
        assert said.early == []
        for kind in (MessageKind.APPEND, MessageKind.APPEND_REPLY, MessageKind.VOTE, MessageKind.VOTE_REPLY):
            assert said.seen[kind] > 20, kind
        cluster.settle()


def test_what_waits_for_the_disk_gives_way_to_nothing_of_another_group_peer_or_kind() -> None:
    with SmallCluster(groups=(1, 2)) as cluster:
        cluster.serve()
        cluster.run(2.0)
        node = cluster.followers(1)[0]
        host, disk = cluster.hosts[node], cluster.world.nodes[node].disk
        peers = [peer for peer in cluster.voters if peer != node]
        said: set[tuple[int, int, int]] = set()
        send = host.send

        def watched(peer: int, message: Message) -> bool:
            said.add((peer, message.group, message.kind))
            return send(peer, message)

        disk.fill(0, overwrites_count=True)
        kinds = (MessageKind.APPEND_REPLY, MessageKind.VOTE_REPLY, MessageKind.OPENED)
        told = {(peer, group, int(kind)) for peer in peers for group in (1, 2) for kind in kinds}

        def tell() -> None:
            for group in (1, 2):
                host.groups[group].journal.record_state()
            host.send = watched  # type: ignore[method-assign]
            for peer, group, kind in sorted(told):
                rest: dict[MessageKind, list[Any]] = {
                    MessageKind.APPEND_REPLY: [False, 0, 0, 0, 0.0],
                    MessageKind.VOTE_REPLY: [False],
                    MessageKind.OPENED: [],
                }
                host.send_when_synced(peer, decode([group, kind, 0, *rest[MessageKind(kind)]]))
            assert said == set()

        cluster.world.nodes[node].call(tell)
        cluster.run(0.2)
        disk.empty()
        cluster.run(2.0)
        assert told <= said
