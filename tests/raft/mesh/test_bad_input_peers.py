"""Peers that do not belong: wrong secret, cluster, version or id. They are named, and the cluster goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from strandline.node.raft.host import RaftHost
from tests.raft.small_cluster import SmallCluster
from tests.simulation.disk import SimDisk


def speak_version_3(host: RaftHost) -> None:
    connector = host.mesh._connector
    connector._identity = replace(connector._identity, versions=(3, 4))


def said(cluster: SmallCluster, node: int, reason: str) -> str:
    [line, *_] = [line for line in cluster.problems.get(node, []) if f"mesh: {reason}: " in line]
    assert line.isprintable()
    return line


@pytest.mark.parametrize(
    ("settings", "reason", "there", "here"),
    [
        (
            {"secret": b"guessed"},
            "wrong_secret",
            "its proof of the cluster secret is wrong: give every node the same secret",
            "it says this node's cluster secret is wrong: give every node the same secret",
        ),
        (
            {"cluster_id": "green", "folder": "/green"},
            "wrong_cluster_id",
            "it belongs to cluster 'green', this node to 'blue': correct cluster_id or the peer's address",
            "it belongs to cluster 'blue', this node to 'green': correct cluster_id or the peer's address",
        ),
        (
            {},
            "wrong_version",
            "it speaks mesh protocol versions 3 to 4, this node version 2: upgrade this node",
            "it speaks mesh protocol version 2, this node versions 3 to 4: upgrade that one",
        ),
    ],
)
def test_a_peer_that_does_not_belong_is_named_on_both_sides_and_harms_nobody(
    settings: dict[str, Any], reason: str, there: str, here: str
) -> None:
    with SmallCluster() as cluster:
        cluster.settings[3] = settings
        if not settings:
            cluster.prepare[3] = speak_version_3
        cluster.start()
        cluster.world.run_until(cluster.all_led, timeout=5.0)
        cluster.load()
        cluster.run(4.0)
        stranger = cluster.hosts[3]
        assert all(not stranger.mesh.connected(peer) for peer in (1, 2))
        for node in (1, 2):
            assert said(cluster, node, reason).endswith(there)
            assert cluster.hosts[node].mesh.counters[reason] > 1, "counted each time"
            assert len([line for line in cluster.problems[node] if reason in line]) == 1, "reported once"
        assert said(cluster, 3, reason).endswith(here)
        assert all(not group.is_leader and group.applied == 0 for group in stranger.groups.values())
        assert all(len(acked) > 200 for acked in cluster.acked.values())
        # Corrected, it is a member like the others.
        del cluster.settings[3]
        cluster.prepare.clear()
        cluster.stop(3)
        cluster.start(3)
        cluster.run(2.0)
        cluster.settle()
        assert cluster.fatal == {}


def copy_of(disk: SimDisk, cluster: SmallCluster) -> SimDisk:
    copy = SimDisk(cluster.world.rng("copied disk"))
    for folder in ("/data", "/data/wal", "/data/snapshots"):
        copy.mkdir(folder)
    for path, content in disk.snapshot().items():
        copy.open(path, create=True).pwrite(content, 0)
    return copy


@pytest.mark.parametrize("folder", ["empty", "copied"])
def test_the_second_of_two_nodes_with_one_id_stops_and_the_first_goes_on(folder: str) -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        cluster.load()
        cluster.run(1.0)
        twin = cluster.world.add_node(13)
        if folder == "copied":
            twin.disk = copy_of(cluster.world.nodes[3].disk, cluster)
        cluster.settings[13] = {"node_id": 3}
        terms = [cluster.group(1, group).term for group in cluster.group_ids]
        cluster.start(13)
        cluster.run(4.0)
        [line] = cluster.fatal[13]
        assert line.startswith("mesh: duplicate_node_id: node ")
        assert "another running process has this node's id: stop it, or change its node_id" in line
        assert line.isprintable()
        told = [said(cluster, node, "duplicate_node_id") for node in (1, 2) if node in cluster.problems]
        assert told
        assert all("a second process with node id 3, while the first answers" in line for line in told)
        twins = cluster.hosts.pop(13).groups.values()
        assert all(not group.is_leader and group.failure is not None for group in twins)
        assert [cluster.group(1, group).term for group in cluster.group_ids] == terms, "no election"
        assert all(cluster.hosts[node].mesh.connected(3) for node in (1, 2))
        assert list(cluster.fatal) == [13]
        cluster.settle()


def test_a_second_node_with_the_lowest_id_stays_alone_and_says_so() -> None:
    """It dials nobody, so nobody can tell it; nor does it hear or lead anybody (docs/mesh.md)."""
    with SmallCluster() as cluster:
        cluster.serve()
        cluster.load()
        cluster.run(1.0)
        cluster.world.add_node(11)
        cluster.settings[11] = {"node_id": 1}
        cluster.start(11)
        cluster.run(4.0)
        line = said(cluster, 11, "alone")
        assert line.startswith("mesh: alone: no peer is connected to this node: start the others, and check")
        assert line.endswith("and that no other process is node 1")
        assert not any(
            "alone" in str(problem) for node in (1, 2, 3) for problem in cluster.problems.get(node, [])
        )
        twin = cluster.hosts.pop(11)
        assert all(not group.is_leader and group.applied == 0 for group in twin.groups.values())
        cluster.settle()


def test_a_second_process_on_the_same_folder_is_refused_and_touches_nothing() -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        cluster.load()
        cluster.run(1.0)
        disk = cluster.world.nodes[2].disk
        cluster.world.add_node(12).disk = disk
        cluster.settings[12] = {"node_id": 2}
        # What a snapshot that is just being received or written looks like.
        for name in ("/data/snapshots/1.incoming", "/data/snapshots/2-1.snapshot.writing"):
            disk.open(name, create=True).pwrite(b"half of it", 0)
        before = {path for path in disk.snapshot() if "/snapshots/" in path}
        sim = cluster.world.nodes[12]
        cluster.start(12)
        cluster.world.run_until(lambda: 12 in cluster.refusals, timeout=1.0)
        line = str(cluster.refusals[12])
        assert line == "/data/wal is in use: stop the other process that has this data folder"
        assert before <= set(disk.snapshot()), "the first one still needs them"
        disk.on_crash = cluster.world.nodes[2].crash
        sim._loop = None
        cluster.run(2.0)
        cluster.settle()
