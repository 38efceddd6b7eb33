"""Damaged, cut, missing and foreign snapshot files: one replica waits for its leader, all else goes on."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from strandline.snapshot import document as format_module
from strandline.snapshot.document import decode
from strandline.statemachine.machine import ReadState
from tests.raft.small_cluster import SmallCluster
from tests.simulation.disk import SimDisk
from tests.simulation.inode import Inode

Damage = Callable[[SimDisk, str], None]


def inode(disk: SimDisk, path: str) -> Inode:
    return disk._find(path)


def rewrite(disk: SimDisk, path: str, content: bytes) -> None:
    node = inode(disk, path)
    node.live, node.durable = bytearray(content), bytearray(content)


def flipped(offset: int) -> Damage:
    return lambda disk, path: void(disk.flip_bit(path, offset))


def void(_: object) -> None:
    return None


def cut(size: int) -> Damage:
    return lambda disk, path: rewrite(disk, path, bytes(inode(disk, path).live[:size]))


def missing(disk: SimDisk, path: str) -> None:
    disk.turn_on()
    disk.unlink(path)
    disk.sync_dir("/data/snapshots")


def of_another_cluster(disk: SimDisk, path: str) -> None:
    rewrite(disk, path, replace(decode(bytes(inode(disk, path).live)), cluster="green").encode())


def newer(disk: SimDisk, path: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(format_module, "FORMAT_VERSION", 3)
        content = replace(decode(bytes(inode(disk, path).live)), folders=((1, 7),)).encode()
    rewrite(disk, path, content)


def of_no_known_shape(disk: SimDisk, path: str) -> None:
    """The digest is right, the content is not what any release writes."""
    body = b"\x92\x01\xa1x"
    content = format_module.MAGIC + sha256(body).digest() + body
    rewrite(disk, path, content)


def newest(disk: SimDisk, group: int) -> str:
    return max(path for path in disk.snapshot() if path.startswith(f"/data/snapshots/{group}-"))


DAMAGES: list[tuple[Damage, str]] = [
    (flipped(3), "does not begin with the magic bytes"),
    (flipped(20), "SHA-256 digest does not match"),
    (flipped(41), "SHA-256 digest does not match"),
    (flipped(1_000), "SHA-256 digest does not match"),
    (cut(0), "cut short"),
    (cut(39), "cut short"),
    (cut(500), "SHA-256 digest does not match"),
    (of_another_cluster, "holds cluster 'green'"),
    (of_no_known_shape, "does not have the fields"),
    (newer, "has format 3, this release reads up to 2: upgrade this node"),
    (missing, "of group 1 is missing or damaged"),
]


@pytest.mark.parametrize(("damage", "text"), DAMAGES)
def test_a_replica_with_a_bad_snapshot_waits_alone_and_is_repaired_by_its_leader(
    damage: Damage, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        cluster.load()
        cluster.run(2.0)
        victim = cluster.leader(1)
        cluster.stop(victim)
        disk = cluster.world.nodes[victim].disk
        path = newest(disk, 1)
        damage(disk, path)
        caplog.clear()
        cluster.world.network.isolate(victim)
        cluster.start(victim)
        cluster.run(0.2)
        # Before its leader can be heard: only the one group waits, and it has no state that it could show.
        waiting, sound = cluster.group(victim, 1), cluster.group(victim, 2)
        assert waiting.damaged_below is not None
        assert (waiting.applied, cluster.machine(victim, 1).applied) == (waiting.journal.base, {})
        assert sound.damaged_below is None
        assert cluster.machine(victim, 2).applied
        named = "/data/snapshots" if damage is missing else path
        assert any(line.startswith(named) and text in line for line in caplog.messages)
        assert any("group 1" in line and "waits for one from its leader" in line for line in caplog.messages)
        assert all(line.isprintable() for line in caplog.messages)
        cluster.run(3.0)
        assert not waiting.is_leader
        cluster.world.network.heal_all()
        cluster.run(1.0)
        cluster.settle()
        assert cluster.group(victim, 1).damaged_below is None
        assert cluster.failed == []


def test_a_flipped_bit_anywhere_in_a_snapshot_is_found() -> None:
    with SmallCluster(groups=(1,)) as cluster:
        cluster.serve()
        cluster.load()
        cluster.run(2.0)
        cluster.unload()
        cluster.run(0.5)
        host, disk = cluster.hosts[1], cluster.world.nodes[1].disk
        path = newest(disk, 1)
        index = int(path.removesuffix(".snapshot").rpartition("-")[2])
        assert host.snapshots.load(1, index).index == index
        whole = bytes(inode(disk, path).live)
        for bit in range(0, 8 * len(whole), 13):
            content = bytearray(whole)
            content[bit // 8] ^= 1 << bit % 8
            rewrite(disk, path, bytes(content))
            with pytest.raises(format_module.SnapshotDamaged) as raised:
                host.snapshots.load(1, index)
            assert str(raised.value).startswith(path)
            assert str(raised.value).isprintable()


def test_with_most_of_the_snapshots_bad_the_sound_replica_leads_and_repairs_the_others() -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        cluster.load()
        cluster.run(2.0)
        for victim in (1, 2, 3):
            cluster.stop(victim)
        for victim in (1, 2):
            disk = cluster.world.nodes[victim].disk
            disk.flip_bit(newest(disk, 1), 100)
        cluster.start()
        cluster.run(5.0)
        assert cluster.leader(1) == 3
        cluster.settle()


@pytest.mark.parametrize(
    "damage", [flipped(3), flipped(20), flipped(1_000), cut(0), cut(39), cut(500), missing]
)
@pytest.mark.parametrize("busy", [True, False])
def test_a_bad_snapshot_at_the_leader_is_stored_again_and_reaches_the_follower(
    damage: Damage, busy: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with SmallCluster(groups=(1,)) as cluster:
        cluster.serve()
        leader = cluster.leader()
        absent = next(node for node in (1, 2, 3) if node != leader)
        cluster.stop(absent)
        cluster.load()
        cluster.run(4.0)
        if not busy:
            cluster.unload()
            cluster.run(1.0)
            cluster.world.nodes[leader].call(cluster.group(leader).taking.take)
            cluster.run(1.0)
            assert cluster.group(leader).snapshot_index == cluster.group(leader).applied
        assert cluster.leader() == leader
        assert cluster.group(leader).journal.base > cluster_last(cluster, absent)
        disk = cluster.world.nodes[leader].disk
        damage(disk, newest(disk, 1))
        caplog.clear()
        cluster.start(absent)
        cluster.run(3.0)
        said = any("group 1: stored snapshot" in line and "again" in line for line in caplog.messages)
        assert said or busy, "under load a new snapshot may take its place before it is read"
        assert cluster.leader() == leader, "its own state is sound"
        cluster.settle()


def cluster_last(cluster: SmallCluster, node: int) -> int:
    """Newest snapshot of a node that is down."""
    names = [path for path in cluster.world.nodes[node].disk.snapshot() if path.endswith(".snapshot")]
    return max((int(path[-29:-9]) for path in names), default=0)


def test_a_full_disk_under_an_arriving_snapshot_is_overcome_when_space_returns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Many chunks are acknowledged, then one cannot be written: the leader must begin again at the first."""
    with SmallCluster(groups=(1,)) as cluster:
        cluster.serve()
        absent = cluster.followers()[0]
        cluster.stop(absent)
        cluster.load(size=200)
        cluster.run(4.0)
        cluster.unload()
        cluster.run(0.5)
        disk = cluster.world.nodes[absent].disk
        cluster.start(absent)
        cluster.world.run_until(lambda: absent in cluster.hosts, timeout=1.0)
        disk.fill(3 * cluster.raft.snapshot_chunk_bytes)
        cluster.run(4.0)
        assert cluster.group(absent).applied < cluster.group(cluster.leader()).applied
        trouble = cluster.group(absent).receiving.trouble
        assert trouble is not None
        assert "No space left on device" in trouble
        assert len([line for line in caplog.messages if trouble in line]) == 1, (
            "the leader tries again and again"
        )
        disk.empty()
        cluster.settle()
        assert cluster.group(absent).receiving.trouble is None


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_snapshot_that_cannot_be_stored_is_tried_again_and_not_at_every_turn(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    with SmallCluster(groups=(1,)) as cluster:
        cluster.serve()
        node = cluster.leader()
        host = cluster.hosts[node]
        tries: list[float] = []
        save = host.snapshots.save

        def failing(document: format_module.SnapshotDocument) -> None:
            tries.append(cluster.world.now)
            if len(tries) < 3:
                cluster.world.nodes[node].disk.fail_next("pwrite", code)
            save(document)

        host.snapshots.save = failing  # type: ignore[method-assign]
        cluster.load()
        cluster.run(14.0)
        lines = [line for line in caplog.messages if "cannot store snapshot" in line]
        assert len(lines) == 2, "one line for each try"
        assert all("free or repair the disk" in line and line.isprintable() for line in lines)
        assert tries[2] - tries[0] > 9.0
        names = cluster.world.nodes[node].disk.snapshot()
        assert not any(path.endswith(".writing") for path in names), "what could not be written is removed"
        assert cluster.group(node).snapshot_index > 150
        cluster.settle()


def test_a_follower_too_old_for_its_leaders_snapshots_says_so_and_costs_no_storm(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Only an upgrade helps: until then it must not make the leader serialize its state all the time."""
    with SmallCluster(groups=(1,)) as cluster:
        cluster.serve()
        old = cluster.followers()[0]
        leader = cluster.leader()
        cluster.stop(old)
        cluster.load()
        cluster.run(4.0)
        saves: list[int] = []
        store = cluster.hosts[leader].snapshots
        save = store.save

        def counted(document: format_module.SnapshotDocument) -> None:
            saves.append(document.index)
            save(document)

        store.save = counted  # type: ignore[method-assign]
        cluster.start(old)
        assert cluster.world.run_until(lambda: old in cluster.hosts, timeout=1.0)
        theirs = cluster.hosts[old].snapshots
        adopt = theirs.adopt_incoming

        def too_old(file: Any, group: int, index: int) -> Any:
            theirs.discard_incoming(file, group)
            raise format_module.SnapshotTooNew("snapshot has format 3, this release reads up to 2: upgrade")

        theirs.adopt_incoming = too_old  # type: ignore[method-assign]
        cluster.run(12.0)
        line = "group 1: the snapshot that arrived cannot be used: snapshot has format 3"
        said = [each for each in caplog.messages if each.startswith(line)]
        assert 1 <= len(said) <= 6
        assert len(saves) <= 12.0 * 100 / 150 + 6, "as many as the load asks for, and a few"
        assert cluster.leader() == leader
        theirs.adopt_incoming = adopt  # type: ignore[method-assign]
        cluster.run(5.0)
        cluster.settle()


def test_a_state_machine_that_cannot_read_a_sound_snapshot_stops_that_replica_alone() -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        behind = cluster.followers(1)[0]
        cluster.stop(behind)
        cluster.load()
        cluster.run(4.0)
        cluster.start(behind)
        assert cluster.world.run_until(lambda: behind in cluster.hosts, timeout=1.0)

        def unable(state: bytes) -> ReadState:
            raise ValueError("a field of the state is of a later release")

        cluster.machine(behind, 1).read = unable  # type: ignore[method-assign]
        cluster.run(2.0)
        assert cluster.failed == [(behind, 1, "a field of the state is of a later release")]
        assert cluster.group(behind, 2).failure is None
        # Restarted with a program that can, it goes on.
        cluster.stop(behind)
        cluster.start(behind)
        cluster.run(1.0)
        cluster.settle()
