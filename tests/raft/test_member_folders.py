"""A member of a group is a node with the data folder that it was added with, not any with the node's id."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.node.raft.config import RaftConfig
from strandline.node.raft.folder_file import FolderKey
from strandline.node.raft.host import RaftHost
from strandline.node.raft.rules.messages import AppendReply, MessageKind
from strandline.node.raft.rules.progress import NEVER, Progress
from tests.raft.harness import Replica, state_at
from tests.raft.members import change, leave
from tests.raft.small_cluster import BUSY, SmallCluster

NEW = 4
"""The machine on which node 1 runs a second time, in another data folder."""
SNAPSHOTS = replace(BUSY, snapshot_entries=20, trailing_entries=0)
LOG_ALONE = replace(BUSY, snapshot_entries=20_000, max_wal_segments=1000)


def by_its_new_machine(host: RaftHost) -> None:
    host.set_peer(1, "10.0.0.4", 9000)


def told_of_the_new_folder(cluster: SmallCluster, *machines: int) -> None:
    folder = cluster.hosts[NEW].folder.id
    for machine in machines:
        host = cluster.hosts[machine]
        cluster.world.nodes[machine].call(host.know_folders, {1: FolderKey(1, folder)})
        cluster.world.nodes[machine].call(host.store_folder, lambda error: None)
        cluster.world.nodes[machine].call(by_its_new_machine, host)
    cluster.run(2.0)


def replaced_while_it_lives(cluster: SmallCluster) -> None:
    """Machine 4 is in node 1's place, and the process before lives. Node 2 leads. Node 3 has the new members
    in its log and did not hear of the replacement: its connection to node 1 is to the process before."""
    network = cluster.world.network
    cluster.settings = {NEW: {"node_id": 1}}
    cluster.voters_of = {machine: (1, 2, 3) if machine < NEW else () for machine in cluster.voters}
    cluster.prepare[NEW] = lambda host: host.set_peer(NEW, "10.0.0.9", 9000)
    cluster.start(1, 2, 3)
    assert cluster.world.run_until(cluster.all_led, timeout=5)
    if cluster.leader() != 2:
        cluster.world.nodes[cluster.leader()].call(cluster.group(cluster.leader()).transfer, 2)
        assert cluster.world.run_until(lambda: cluster.leaders() == [2], timeout=5)
    cluster.run(1.0)
    cluster.load()
    network.cut(1, 2)
    cluster.run(3.0)
    change(cluster, 2, 1, add=False)
    cluster.start(NEW)
    cluster.run(0.5)
    told_of_the_new_folder(cluster, 2)
    change(cluster, 2, 1, add=True)
    cluster.run(2.0)
    assert cluster.group(3).voters == (1, 2, 3)
    assert cluster.hosts[3].folder.known[1].folder == cluster.hosts[1].folder.id


@pytest.mark.parametrize("raft", [LOG_ALONE, SNAPSHOTS], ids=["in the log", "in snapshots"])
@pytest.mark.parametrize("restarted", [False, True], ids=["goes on", "power cut"])
def test_a_process_that_was_replaced_elects_no_leader_with_a_node_that_did_not_hear_of_it(
    raft: RaftConfig, restarted: bool
) -> None:
    with SmallCluster(nodes=(1, 2, 3, NEW), groups=(1,), raft=raft) as cluster:
        replaced_while_it_lives(cluster)
        cluster.world.network.cut(2, 3)
        cluster.run(2.0)
        cluster.unload()
        cluster.run(1.0)
        lacked = [command for command in cluster.acked[1] if command not in cluster.machine(3).applied]
        assert lacked, "nodes 2 and the new 1 acknowledged what node 3 lacks"
        cluster.stop(2)
        if restarted:
            cluster.stop(3, "power")
            cluster.start(3)
        cluster.run(10.0)
        assert cluster.hosts[3].connected(1)
        assert not cluster.leaders()
        told_of_the_new_folder(cluster, 3)
        cluster.run(5.0)
        [leader] = cluster.leaders()
        assert not [command for command in lacked if command not in cluster.machine(leader).applied]


def test_members_keep_their_folders_through_changes_and_a_new_one_gets_that_of_its_connection() -> None:
    with SmallCluster(groups=(1,)) as cluster:
        cluster.serve()
        cluster.run(1.0)
        leader = cluster.leader()
        assert cluster.group(leader).configuration.folders == (), "a group's founders"
        node = cluster.followers()[0]
        change(cluster, leader, node, add=False)
        cluster.run(0.5)
        folders = {each: cluster.hosts[each].folder.id for each in (1, 2, 3)}
        left = {each: folder for each, folder in folders.items() if each != node}
        assert cluster.group(leader).configuration.named == left
        leave(cluster, node)
        cluster.stop(node)
        cluster.start(node)
        cluster.run(1.0)
        change(cluster, leader, node, add=True)
        cluster.run(1.0)
        for each in (1, 2, 3):
            assert cluster.group(each).configuration.named == folders


def test_folders_of_members_come_through_snapshots_restarts_and_records_that_are_carried_along() -> None:
    with SmallCluster(groups=(1, 2), raft=SNAPSHOTS) as cluster:
        cluster.serve()
        cluster.run(1.0)
        leader = cluster.leader()
        node, other = cluster.followers()
        change(cluster, leader, node, add=False)
        change(cluster, leader, node, add=True)
        folders = {each: cluster.hosts[each].folder.id for each in (1, 2, 3)}
        cluster.stop(other)
        cluster.load(size=500)
        cluster.run(2.0)
        cluster.start(other)
        cluster.run(0.5)
        assert cluster.world.run_until(lambda: cluster.group(other).snapshot_index > 0, timeout=5)
        assert cluster.group(other).configurations[0].named == folders, "a snapshot arrived"
        cluster.group_ids = (2,)
        first = cluster.hosts[other].wal.first_segment
        cluster.run(15.0)
        assert cluster.hosts[other].wal.first_segment > first + 3, (
            "the records of the first group moved along"
        )
        cluster.unload()
        cluster.group_ids = (1, 2)
        for each in (1, 2, 3):
            cluster.stop(each, "power")
        cluster.start(1, 2, 3)
        cluster.run(0.2)
        for each in (1, 2, 3):
            group = cluster.group(each)
            assert group.snapshot_index > 0
            assert group.configurations[0].named == group.configuration.named == folders


def test_what_another_folder_acknowledged_counts_for_no_member() -> None:
    """Not even once the member itself is connected: a leader that hears of it late keeps the progress."""
    with SmallCluster(groups=(1,)) as cluster:
        cluster.serve()
        cluster.run(1.0)
        leading = cluster.group(cluster.leader())
        peer, other = cluster.followers()
        leading.configuration.named[peer] = 77
        progress = leading.progress[peer] = Progress(leading.journal.last + 1)
        assert leading.host.folder_of(peer) not in (0, 77)
        last = leading.journal.last
        told = AppendReply(1, MessageKind.APPEND_REPLY, leading.term, True, last, 0, 0, 1.0)
        leading.receive(peer, told)
        assert progress.match == 0
        progress.acked_sent_at = leading.host.now()
        assert leading.lease.acked_at(peer) == NEVER
        leading.receive(other, told)
        del leading.configuration.named[peer]
        leading.receive(peer, told)
        assert progress.match == leading.journal.last


@pytest.mark.parametrize("terms", [(), (1, 1, 1, 1, 1)], ids=["no log", "a log that goes on"])
def test_folders_of_members_stay_with_a_snapshot_that_arrived(terms: tuple[int, ...]) -> None:
    replica = Replica(terms=terms)
    replica.install(replace(state_at(4), folders=((1, 71), (3, 73))))
    replica.sync()
    assert replica.group.configuration.folders == ((1, 71), (3, 73))
    replica.restart()
    assert replica.group.configuration.folders == ((1, 71), (3, 73))
    assert replica.group.counts(1)
    replica.host.folders = {1: 71, 3: 5}
    assert replica.group.counts(1)
    assert not replica.group.counts(3)
    assert replica.group.election.has_vote()
    replica.host.folders[1] = 72
    assert not replica.group.election.has_vote(), "the member was another folder of this node"
