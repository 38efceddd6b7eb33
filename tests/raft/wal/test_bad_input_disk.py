"""Disks that are full, fail or hang under a working cluster: it goes on, nothing acknowledged is lost."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from strandline.node.config.node_config import NodeConfig
from strandline.node.process import _disk_failure
from strandline.node.raft.disk import DiskFile, RealDisk
from tests.raft.small_cluster import WAL, SmallCluster


def fill(cluster: SmallCluster, node: int, *, copy_on_write: bool) -> None:
    cluster.world.nodes[node].disk.fill(0, overwrites_count=copy_on_write)


def buffered(cluster: SmallCluster, node: int) -> int:
    return cluster.hosts[node].wal.buffered_bytes


@pytest.mark.parametrize("copy_on_write", [True, False])
def test_a_full_disk_on_the_leader_moves_leadership_and_heals(
    copy_on_write: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        cluster.load(size=100)
        cluster.run(1.0)
        full = cluster.leader(1)
        fill(cluster, full, copy_on_write=copy_on_write)
        cluster.run(8.0)
        acked = {group: len(done) for group, done in cluster.acked.items()}
        assert full not in cluster.leaders(1) + cluster.leaders(2)
        cluster.run(3.0)
        assert all(len(cluster.acked[group]) > acked[group] + 100 for group in acked), "goes on elsewhere"
        assert buffered(cluster, full) <= WAL.max_buffered_bytes
        assert any(
            line.startswith("write-ahead log") and "No space left" in line and "the disk is full" in line
            for line in caplog.messages
        )
        assert cluster.hosts[full].disk_stalled()
        cluster.world.nodes[full].disk.empty()
        cluster.run(1.0)
        cluster.settle()
        assert (cluster.failed, cluster.fatal) == ([], {}), "the node went on by itself"


@pytest.mark.parametrize("copy_on_write", [True, False])
def test_a_full_disk_on_a_follower_holds_nobody_up(copy_on_write: bool) -> None:
    with SmallCluster(groups=(1,)) as cluster:
        cluster.serve()
        cluster.load(size=5_000)
        cluster.run(1.0)
        leader, full = cluster.leader(), cluster.followers()[0]
        fill(cluster, full, copy_on_write=copy_on_write)
        most = 0
        for _ in range(50):
            cluster.run(0.2)
            most = max(most, buffered(cluster, full))
        assert cluster.leaders() == [leader]
        assert len(cluster.acked[1]) > 900
        assert most <= WAL.max_buffered_bytes
        cluster.world.nodes[full].disk.empty()
        cluster.run(1.0)
        cluster.settle()
        assert (cluster.failed, cluster.fatal) == ([], {})


def test_an_idle_group_is_not_handed_to_a_node_whose_disk_is_full() -> None:
    """Its followers have nothing to write, so only the pairs' heartbeats tell what their disks are like."""
    busy, idle = 2, 1
    with SmallCluster(groups=(idle, busy)) as cluster:
        cluster.serve()
        cluster.run(1.0)
        leader = cluster.leader(idle)
        full = next(node for node in cluster.followers(idle) if node not in cluster.leaders(busy))
        cluster.group_ids = (busy,)
        cluster.load(size=1000)
        fill(cluster, full, copy_on_write=True)
        cluster.run(3.0)
        group = cluster.group(leader, idle)
        assert cluster.hosts[full].disk_stalled()
        assert not group.transfer(full)
        acked = len(cluster.acked[idle])
        cluster.world.nodes[leader].call(cluster.propose, leader, idle)
        cluster.run(0.05)
        assert cluster.leader(idle) == leader
        assert group.lease.holds()
        assert len(cluster.acked[idle]) == acked + 1, "commands are taken as before"
        cluster.world.nodes[full].disk.empty()
        cluster.run(2.0)
        cluster.world.nodes[leader].call(group.transfer, full)
        cluster.run(0.3)
        assert cluster.leader(idle) == full
        cluster.group_ids = (idle, busy)
        cluster.settle()


def test_full_disks_on_a_majority_stop_the_service_and_lose_nothing() -> None:
    with SmallCluster(groups=(1,)) as cluster:
        cluster.serve()
        cluster.load(size=6_000)
        cluster.run(1.0)
        leader, other = cluster.leader(), cluster.followers()[0]
        for node in (leader, other):
            fill(cluster, node, copy_on_write=True)
        cluster.run(0.1)
        before = len(cluster.acked[1])
        most = 0
        for _ in range(50):
            cluster.run(0.2)
            most = max(most, buffered(cluster, leader))
        assert len(cluster.acked[1]) == before, "nothing is acknowledged that two disks do not have"
        assert WAL.max_buffered_bytes / 3 < most <= WAL.max_buffered_bytes
        assert cluster.refused[1], "refused before memory is full"
        assert cluster.unknown
        assert cluster.failed == []
        for node in (leader, other):
            cluster.world.nodes[node].disk.empty()
        cluster.run(2.0)
        cluster.settle()


def test_a_node_that_is_stopped_while_its_disk_is_full_comes_back_with_all_that_was_synced() -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        cluster.load(size=100)
        cluster.run(1.0)
        full = cluster.leader(1)
        fill(cluster, full, copy_on_write=False)
        cluster.run(4.0)
        cluster.stop(full, "power")
        cluster.world.nodes[full].disk.empty()
        cluster.start(full)
        cluster.run(1.0)
        cluster.settle()


def test_a_disk_that_is_full_at_the_start_is_one_clear_error() -> None:
    with SmallCluster() as cluster:
        cluster.world.nodes[1].disk.fill(1_000)
        cluster.start(1)
        cluster.run(0.1)
        assert isinstance(cluster.refusals[1], OSError)
        assert "No space left on device" in str(cluster.refusals[1])
        assert "/data/wal/" in str(cluster.refusals[1])
        cluster.world.nodes[1].disk.empty()
        cluster.world.nodes[1].crash("kill")
        cluster.load()
        cluster.start()
        cluster.run(2.0)
        cluster.settle()


@pytest.mark.parametrize("operation", ["datasync", "pwrite"])
@pytest.mark.parametrize("victim", ["leader", "follower"])
def test_a_failing_disk_halts_the_node_loudly_and_the_others_go_on(victim: str, operation: str) -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        cluster.load()
        cluster.run(1.0)
        node = cluster.leader(1) if victim == "leader" else cluster.followers(1)[0]
        disk = cluster.world.nodes[node].disk
        disk.fail_next(operation, errno.EIO)
        cluster.run(0.2)
        [line] = cluster.fatal[node]
        assert line.startswith("/data/wal: ")
        assert "Input/output error" in line
        assert "mend the disk, then start this node again" in line
        assert line.isprintable()
        written = disk.operations
        halted = cluster.hosts[node]
        assert all(not group.is_leader for group in halted.groups.values())
        acked = {group: len(done) for group, done in cluster.acked.items()}
        cluster.run(3.0)
        assert disk.operations == written, "nothing is written after the failure, nothing synced again"
        assert all(len(cluster.acked[group]) > acked[group] + 50 for group in acked)
        assert len(cluster.fatal[node]) == 1
        # The process ends; what its page cache claims to hold may be gone.
        cluster.stop(node, "power")
        cluster.start(node)
        cluster.run(1.0)
        cluster.settle()


def test_commands_under_way_when_the_disk_fails_end_as_unknown() -> None:
    with SmallCluster(groups=(1,)) as cluster:
        cluster.serve()
        node = cluster.leader()
        cluster.world.network.isolate(node)
        for _ in range(5):
            cluster.world.nodes[node].call(cluster.propose, node)
        cluster.world.nodes[node].disk.fail_next("datasync", errno.EIO)
        cluster.run(0.05)
        assert cluster.fatal[node]
        assert cluster.unknown == 5
        assert (cluster.acked[1], cluster.refused[1]) == ([], [])
        cluster.stop(node, "power")
        cluster.world.network.heal_all()
        cluster.start(node)
        cluster.run(2.0)
        cluster.settle()


def test_a_disk_that_hangs_costs_the_leadership_and_nothing_else() -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        cluster.load()
        cluster.run(1.0)
        node = cluster.leader(1)
        cluster.world.nodes[node].disk.stall()
        cluster.run(5.0)
        assert node not in cluster.leaders(1)
        assert cluster.leaders(1)
        cluster.world.nodes[node].disk.unstall()
        cluster.run(1.0)
        cluster.settle()
        assert (cluster.failed, cluster.fatal) == ([], {})


@pytest.mark.parametrize(
    ("call", "use"),
    [
        ("posix_fallocate", lambda file: file.preallocate(512)),
        ("pwrite", lambda file: file.pwrite(b"x", 0)),
        ("fdatasync", lambda file: file.datasync()),
    ],
)
def test_an_error_of_a_real_disk_names_the_file_and_the_process_the_cure(
    call: str, use: Callable[[DiskFile], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system does not: these calls know a number and no name."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = str(tmp_path / "wal-0000000000000001.tmp")
    file = RealDisk().open(path, create=True)
    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        use(file)
    assert caught.value.filename == path
    settings = cast(NodeConfig, None)  # its data folder is told where no file is known
    line = f"{path}: No space left on device: make room there, then start it again"
    assert _disk_failure(caught.value, settings) == line
