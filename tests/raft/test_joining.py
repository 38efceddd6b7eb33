"""A node that joins a group gives no vote to a log from before that, whatever its folder has forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.node.raft.folder_file import FolderKey
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.rules.messages import AppendEntries, MessageKind, NeedSnapshot, SnapshotChunk
from strandline.node.raft.rules.progress import Progress
from tests.raft.members import change, leave
from tests.raft.small_cluster import BUSY, SmallCluster

SLOW_TO_JOIN = replace(
    BUSY, snapshot_entries=20_000, max_append_bytes=512, max_inflight_messages=2, max_wal_segments=1000
)


def moved_on_without_one(cluster: SmallCluster) -> tuple[int, int, int]:
    """The group went from nodes 1, 2, 3 to one of them and 4, 5: (its leader, the one that left, and one
    that was out of reach all the time, so that its members are 1, 2, 3)."""
    cluster.voters_of = {node: (1, 2) if node < 3 else () for node in cluster.voters}
    cluster.serve()
    cluster.run(1.0)
    leader, away = cluster.leader(), 3
    (left,) = {1, 2} - {leader}
    change(cluster, leader, away, add=True)
    cluster.load()
    cluster.run(1.0)
    cluster.world.network.isolate(away)
    for node, add in ((4, True), (5, True), (away, False), (left, False)):
        change(cluster, leader, node, add=add)
    cluster.run(2.0)
    assert cluster.group(leader).voters == tuple(sorted((leader, 4, 5)))
    assert cluster.group(away).voters == (1, 2, 3)
    leave(cluster, left)
    return leader, left, away


def wiped_and_let_in(cluster: SmallCluster, node: int) -> None:
    """The node comes with an empty folder, and every other takes it for the node, as after `node replace`."""
    cluster.stop(node)
    cluster.world.nodes[node].replace_disk()
    cluster.voters_of[node] = ()
    cluster.start(node)
    cluster.run(0.1)
    folder = cluster.hosts[node].folder
    for other in cluster.voters:
        if other != node:
            host = cluster.hosts[other]
            cluster.world.nodes[other].call(host.know_folders, {node: FolderKey(1, folder.id)})
            cluster.world.nodes[other].call(host.store_folder, lambda error: None)
    cluster.run(1.0)


@pytest.mark.parametrize("crash", [False, True], ids=["goes on", "power cut"])
def test_a_joining_node_elects_no_leader_of_members_that_are_over(crash: bool) -> None:
    with SmallCluster(nodes=(1, 2, 3, 4, 5), groups=(1,), raft=SLOW_TO_JOIN) as cluster:
        leader, left, away = moved_on_without_one(cluster)
        wiped_and_let_in(cluster, left)
        cluster.world.nodes[leader].call(cluster.group(leader).add_member, left)
        joining = cluster.group(left)
        assert cluster.world.run_until(lambda: joining.journal.last > 0, timeout=5, step=0.0005)
        network = cluster.world.network
        network.heal_all()
        network.partition((left, away), (leader, 4, 5))
        assert left not in cluster.group(leader).voters
        if crash:
            cluster.run(0.1)
            cluster.stop(left, "power")
            cluster.start(left)
        cluster.run(10.0)
        assert cluster.hosts[away].connected(left)
        assert cluster.leaders() == [leader], "nodes 1, 2, 3 are the members no more"
        network.heal_all()
        cluster.run(5.0)
        assert left in cluster.group(leader).configuration.members
        assert cluster.machine(left).applied
        assert not cluster.failed


def any_opened(group: RaftGroup) -> bool:
    """Whether a snapshot's first chunk was taken."""
    return group.receiving.opening


def test_a_joining_node_takes_nothing_while_its_leader_has_committed_nothing() -> None:
    """A leader that was just elected may not know yet what is committed, so how new a state must be."""
    with SmallCluster(groups=(1,)) as cluster:
        cluster.voters_of = {3: ()}
        cluster.serve()
        leader, joining = cluster.group(cluster.leader()), cluster.group(3)
        assert cluster.leader() != 3
        joining.receive(leader.host.node_id, AppendEntries(1, MessageKind.APPEND, 9, 0, 0, 0, b"", 1.0))
        assert joining.commit == 0
        chunk = SnapshotChunk(1, MessageKind.SNAPSHOT, 9, 5, 1, 0, 3, bytes(32), b"abc", 1.0)
        joining.receive(leader.host.node_id, chunk)
        assert not any_opened(joining)
        joining.receive(leader.host.node_id, AppendEntries(1, MessageKind.APPEND, 9, 0, 0, 7, b"", 1.0))
        assert joining.damaged_below == joining.commit == 7
        assert not joining.election.is_up_to_date(6, 9)
        assert not joining.election.is_up_to_date(100, 8)
        assert joining.election.is_up_to_date(7, 9)
        joining.receive(leader.host.node_id, chunk._replace(snapshot_index=8))
        assert any_opened(joining)


def test_a_learner_without_a_state_gets_one_of_its_leaders_own_term() -> None:
    """An older one may have members that were over when the learner was added. A voter gets any that helps:
    two that lost their states must not wait for what a third cannot commit without them."""
    with SmallCluster(groups=(1,)) as cluster:
        cluster.voters_of = {1: (1, 2), 2: (1, 2), 3: ()}
        cluster.serve()
        cluster.load()
        cluster.run(2.0)
        cluster.unload()
        leader = cluster.leader()
        assert cluster.group(3 - leader).snapshot_index > 0
        cluster.world.nodes[leader].call(cluster.group(leader).transfer)
        assert cluster.world.run_until(lambda: cluster.leaders() == [3 - leader], timeout=5)
        cluster.run(1.0)
        leading = cluster.group(3 - leader)
        assert leading.snapshot_index < leading.term_start
        need = NeedSnapshot(1, MessageKind.NEED_SNAPSHOT, leading.term, 1, 0.0)
        leading.progress[3] = Progress(1)
        leading.sending.on_need(3, leading.progress[3], need)
        assert leading.taking.wanted == {3: leading.term_start}
        leading.sending.on_need(leader, leading.progress[leader], need)
        assert leading.taking.wanted == {3: leading.term_start}
