"""A damaged, cut or missing write-ahead log, met by a whole node: it refuses by name or loses nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from strandline.node.raft.host import RaftHost
from strandline.node.raft.host_settings import HostSettings
from strandline.node.raft.stored_groups import StoredGroups
from strandline.node.raft.wal.recovered_log import RaftLogDamaged
from strandline.node.raft.wal.write_ahead_log import RecordKind, WalCorruption, WalError
from tests.raft.register_map import RegisterMap
from tests.raft.small_cluster import BUSY, WAL, SmallCluster
from tests.simulation.disk import SimDisk

Files = dict[str, bytes]
NODE = 2


@dataclass(frozen=True)
class Stored:
    """What a node of a busy cluster left on its disk when it was killed, and what that stands for."""

    files: Files
    state: Any
    acked: dict[int, list[int]]

    def segments(self) -> list[str]:
        return sorted(path for path in self.files if path.endswith(".log"))

    def snapshots(self) -> list[str]:
        return sorted(path for path in self.files if path.endswith(".snapshot"))


@pytest.fixture(scope="module")
def stored() -> Stored:
    with SmallCluster() as cluster:
        cluster.serve()
        cluster.load()
        cluster.run(4.0)
        cluster.stop(NODE)
        files = cluster.world.nodes[NODE].disk.snapshot()
        whole = Stored(files, recover(files), dict(cluster.acked))
    assert len(whole.segments()) >= 3
    assert len(whole.snapshots()) == 2
    return whole


def disk_with(files: Files) -> SimDisk:
    disk = SimDisk(random.Random(1))
    for folder in ("/data", "/data/wal", "/data/snapshots"):
        if any(path.startswith(folder) for path in files):
            disk.mkdir(folder)
    for path, content in files.items():
        disk.open(path, create=True).pwrite(content, 0)
    return disk


def opened(disk: SimDisk, host_class: type[RaftHost] = RaftHost, **settings: Any) -> RaftHost:
    fields: dict[str, Any] = {"node_id": NODE, "cluster_id": "blue", "wal": WAL, "raft": BUSY} | settings
    loop = asyncio.new_event_loop()
    try:
        host = host_class(
            HostSettings(secret=b"secret", boot_id=1, folder="/data", **fields),
            loop=loop, disk=disk, wal_executor=None, snapshot_executor=None,
            rng=random.Random(2), nonces=random.Random(3),
            on_fatal=lambda error: None, on_group_failed=lambda group, error: None,
        )  # fmt: skip
        host.open()
    finally:
        loop.close()
    return host


def recover(files: Files) -> Any:
    """Terms, votes and logs as a node finds them, and the indices of its snapshots."""
    host = opened(disk_with(files))
    logs = {
        group: (log.term, log.vote, log.snapshot_index, log.entries[1:])
        for group, log in sorted(host.stored._logs.items())
    }
    return logs, host.stored._indices


def refusal(disk: SimDisk | Files, host_class: type[RaftHost] = RaftHost, **settings: Any) -> str:
    """The line with which a node refuses to open; the disk is then as it was, but for the lock."""
    if isinstance(disk, dict):
        disk = disk_with(disk)
    before = disk.snapshot()
    with pytest.raises((WalError, RaftLogDamaged)) as raised:
        opened(disk, host_class, **settings)
    line = str(raised.value)
    assert line.isprintable(), "one line"
    if host_class is RaftHost:
        assert without(disk.snapshot(), "/data/wal/wal.lock") == without(before, "/data/wal/wal.lock")
    return line


def flip(files: Files, path: str, bit: int) -> Files:
    content = bytearray(files[path])
    content[bit // 8] ^= 1 << bit % 8
    return files | {path: bytes(content)}


def without(files: Files, *names: str) -> Files:
    return {path: content for path, content in files.items() if not path.startswith(names)}


def samples(stored: Stored) -> Iterator[tuple[str, int]]:
    rng = random.Random(4)
    for path in stored.segments():
        used = len(stored.files[path].rstrip(b"\0"))
        yield path, rng.randrange(8 * 64)
        for _ in range(20):
            yield path, rng.randrange(8 * used)
        for _ in range(4):
            yield path, rng.randrange(8 * len(stored.files[path]))


def test_a_flipped_bit_in_the_log_is_refused_with_file_and_offset_or_loses_nothing(stored: Stored) -> None:
    refused = 0
    for path, bit in samples(stored):
        damaged = flip(stored.files, path, bit)
        try:
            state = recover(damaged)
        except WalCorruption:
            refused += 1
            line = refusal(damaged)
            assert line.startswith(f"{path}, offset ")
            assert "strandline node replace" in line or "newer" in line
        else:
            assert state == stored.state, f"{path}, bit {bit}: something synced is gone"
    assert refused > 80


def test_a_cut_segment_is_refused(stored: Stored) -> None:
    for path in stored.segments():
        for size in (0, 100, 511, 512, 5_000, len(stored.files[path]) - 1):
            line = refusal(stored.files | {path: stored.files[path][:size]})
            assert line.startswith(f"{path}, offset {size}: ")
            assert "strandline node replace" in line


@pytest.mark.parametrize("position", [0, 1, -1])
def test_a_missing_segment_is_refused(stored: Stored, position: int) -> None:
    path = stored.segments()[position]
    line = refusal(without(stored.files, path))
    assert path in line
    assert "missing" in line
    assert "bring the file back" in line


def test_a_log_without_any_segment_is_refused(stored: Stored) -> None:
    line = refusal(without(stored.files, *stored.segments()))
    assert "all segments are missing" in line


@pytest.mark.parametrize("snapshots", [True, False])
def test_a_missing_log_folder_is_no_new_node(stored: Stored, snapshots: bool) -> None:
    """A node that forgot its votes could vote twice in one term; it must not start as if it were new."""
    files = without(
        stored.files, "/data/wal", "/data/identity", *(() if snapshots else ("/data/snapshots/",))
    )
    disk = disk_with(files)
    disk.mkdir("/data/snapshots")
    line = refusal(disk)
    assert line.startswith("/data/wal holds no log while /data/snapshots exists")
    assert "this node's votes with it: bring it back, or keep" in line


def test_a_log_that_is_whole_but_lacks_a_groups_beginning_is_refused(stored: Stored) -> None:
    """Every segment is there and sound, but the record that says what lies below the first entry is not."""

    class Unbased(StoredGroups):
        def replay(self, group: int, kind: RecordKind, segment: int, payload: bytes) -> None:
            if kind not in (RecordKind.SNAPSHOT, RecordKind.RESET):
                super().replay(group, kind, segment, payload)

    class Forgetful(RaftHost):
        stored_class = Unbased

    line = refusal(stored.files, Forgetful)
    assert line.startswith("/data/wal: group ")
    assert "a segment of the write-ahead log is missing; keep the folder" in line


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"node_id": 3}, "belongs to node 2 of cluster 'blue', this is node 3 of cluster 'blue'"),
        ({"cluster_id": "green"}, "belongs to node 2 of cluster 'blue', this is node 2 of cluster 'green'"),
    ],
)
def test_a_data_folder_of_another_node_or_cluster_is_refused(
    stored: Stored, settings: dict[str, Any], text: str
) -> None:
    line = refusal(stored.files, **settings)
    assert line.startswith("/data/wal/wal-")
    assert text in line
    assert "start with the data folder, node id and cluster id that belong together" in line


def test_the_others_go_on_without_the_node_that_refuses_and_it_can_be_replaced() -> None:
    with SmallCluster() as cluster:
        cluster.serve()
        cluster.load()
        cluster.run(2.0)
        cluster.stop(NODE)
        disk = cluster.world.nodes[NODE].disk
        last = max(path for path in disk.snapshot() if path.endswith(".log"))
        disk.flip_bit(last, 513)
        cluster.start(NODE)
        cluster.run(2.0)
        assert str(cluster.refusals[NODE]).startswith(f"{last}, offset 512: ")
        cluster.settle(nodes=2)
        assert all(len(acked) > 200 for acked in cluster.acked.values())


def test_every_group_is_back_after_a_restart_that_refuses_nothing(stored: Stored) -> None:
    """The tests above prove nothing unless the undamaged folder opens and holds what was acknowledged."""
    host = opened(disk_with(stored.files))
    for group in (1, 2):
        machine = RegisterMap()
        document = host.snapshots.load(group, host.stored._indices[group][-1])
        machine.restore(document.state)
        for command, index, term in host.stored._logs[group].entries[1:]:
            if command[0] == 0 and index > document.index:
                machine.apply(index, term, command[1:])
        missing = [command for command in stored.acked[group] if command not in machine.applied]
        assert len(missing) <= 1, "a majority has it; this node may be a message behind"
