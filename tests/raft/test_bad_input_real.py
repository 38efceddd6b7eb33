"""Bad input to whole nodes on real files and real loopback sockets."""

from __future__ import annotations

import asyncio
import random
import shutil
import struct
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import pytest

from strandline.node.raft.config import RaftConfig
from strandline.node.raft.disk import RealDisk
from strandline.node.raft.entries import pack_entries
from strandline.node.raft.host import RaftHost
from strandline.node.raft.host_settings import HostSettings
from strandline.node.raft.mesh.handshake import Identity
from strandline.node.raft.outcome import Applied
from strandline.node.raft.rules.messages import MessageKind
from strandline.node.raft.wal.write_ahead_log import WalConfig, WalError
from tests.raft.mesh.mesh_nodes import HOST, PATIENCE, QUICK, SECRET, RawPeer, on_loop
from tests.raft.register_map import RegisterMap, set_register

VOTERS = (1, 2, 3)
RAFT = RaftConfig(snapshot_entries=50, trailing_entries=5, snapshot_chunk_bytes=1024)


@dataclass
class RealNode:
    """One host; `lines` is all it told its operator."""

    host: RaftHost
    lines: list[str]
    executors: tuple[ThreadPoolExecutor, ThreadPoolExecutor]

    @property
    def mesh(self) -> Any:
        return self.host.mesh

    def machine(self) -> RegisterMap:
        machine = self.host.groups[1].machine
        assert isinstance(machine, RegisterMap)
        return machine

    async def stop(self) -> None:
        await self.host.stop(hand_over_seconds=0.0)
        for executor in self.executors:
            executor.shutdown()


class RealCluster:
    """Nodes below one folder; every one knows the address of every other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: dict[int, RealNode] = {}
        self.acked: list[int] = []
        self._ports: dict[int, int] = {}

    def make(self, node_id: int, folder: Path, **changes: Any) -> RealNode:
        lines: list[str] = []
        executors = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        fields: dict[str, Any] = {"cluster_id": "blue", "secret": SECRET, "listen_port": 0} | changes
        host = RaftHost(
            HostSettings(node_id, boot_id=random.getrandbits(63), folder=str(folder), listen_host=HOST,
                         raft=RAFT, wal=WalConfig(segment_bytes=65_536), mesh=QUICK, **fields),
            loop=asyncio.get_running_loop(), disk=RealDisk(),
            wal_executor=executors[0], snapshot_executor=executors[1],
            rng=random.Random(1), nonces=random.SystemRandom(),
            on_fatal=lambda error: lines.append(f"fatal: {error}"),
            on_group_failed=lambda group, error: lines.append(f"group failed: {error}"),
        )  # fmt: skip
        host.on_problem = lambda problem: lines.append(str(problem))
        return RealNode(host, lines, executors)

    async def start(self, node_id: int) -> RealNode:
        node = self.make(node_id, self.folder / str(node_id), listen_port=self._ports.get(node_id, 0))
        node.host.open()
        node.host.create_group(1, RegisterMap(), VOTERS)
        await node.host.start()
        self._ports[node_id] = node.host.mesh.port
        self.nodes[node_id] = node
        for other in self.nodes:
            if other != node_id:
                self.introduce(node, other)
                self.nodes[other].host.set_peer(node_id, HOST, node.host.mesh.port)
        return node

    def introduce(self, node: RealNode, other: int) -> None:
        node.host.set_peer(other, HOST, self._ports[other])

    async def stop(self, node_id: int) -> None:
        await self.nodes.pop(node_id).stop()

    async def command(self) -> None:
        """Have one command applied, by whoever leads."""
        number = len(self.acked) + 1000
        async with asyncio.timeout(PATIENCE):
            while True:
                for node in list(self.nodes.values()):
                    group = node.host.groups[1]
                    if group.is_leader:
                        outcome = await group.replicate(set_register(number, "r", number), group.term)
                        if isinstance(outcome, Applied):
                            self.acked.append(number)
                            return
                        number += 500_000
                await asyncio.sleep(0.01)

    async def commands(self, count: int) -> None:
        for _ in range(count):
            await self.command()

    async def until_level(self) -> None:
        """Every node that is up has every acknowledged command, once."""
        await until(
            lambda: all(set(self.acked) <= set(node.machine().applied) for node in self.nodes.values())
        )
        assert all(node.machine().doubled == [] for node in self.nodes.values())


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - shows in state, not in an event
            await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(folder: Path, *nodes: int) -> AsyncIterator[RealCluster]:
    cluster = RealCluster(folder)
    try:
        for node in nodes:
            await cluster.start(node)
        await cluster.command()
        yield cluster
    finally:
        for node in list(cluster.nodes):
            await cluster.stop(node)


async def told(node: RealNode, text: str) -> str:
    await until(lambda: any(text in line for line in node.lines))
    line = next(line for line in node.lines if text in line)
    assert line.isprintable()
    assert len(line) < 400
    return line


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", "mesh: oversized: "),
        (struct.pack(">I", 4097), "mesh: oversized: "),
        (frame(b"\xff" * 100), "mesh: garbage: "),
        (frame(msgpack.packb([0, [0, [[1, 3, 99, 1, 1, False]]]])), "mesh: garbage: "),
    ],
)
@on_loop
async def test_nonsense_from_a_stranger(tmp_path: Path, sent: bytes, text: str) -> None:
    async with serving(tmp_path, 1, 2) as cluster:
        node = cluster.nodes[1]
        terms = [each.host.groups[1].term for each in cluster.nodes.values()]
        stranger = await RawPeer.dial(node)  # type: ignore[arg-type]
        stranger.writer.write(sent)
        await stranger.until_closed()
        assert "a connection from 127.0.0.1" in await told(node, text)
        await cluster.command()
        assert [each.host.groups[1].term for each in cluster.nodes.values()] == terms


async def enter(node: RealNode) -> RawPeer:
    """The third member, with its real id and the secret, and a program gone mad."""
    peer = await RawPeer.dial(node)  # type: ignore[arg-type]
    await peer.shake_hands(Identity("blue", 3, 77, 1 << 20), node.host.node_id)
    return peer


APPEND = [1, int(MessageKind.APPEND), 50, 10**6, 1, 0]
MAD: list[tuple[Any, str]] = [
    ("no array", "frame is not an array"),
    ([0], "frame of messages has a wrong shape"),
    ([0, [[1, 3, 10**6]]], "message of unknown kind 3, or with a wrong number of fields"),
    ([0, [[1, 99, 5]]], "message of unknown kind 99"),
    ([0, [[1, "x" * 100_000, 5]]], "message's kind is not a whole number"),
    ([0, [[1, 3, 2**64 - 1, 1, 1, False]]], "message's group or term is not a whole number, or out of range"),
    ([0, [[1, 2, 1, True, 1, 0, 0, float("inf")]]], "field of a wrong type, or out of range"),
    ([0, [[*APPEND, b"garbage", 1.0]]], "run of entries cannot be read"),
    ([0, [[*APPEND, pack_entries([(b"\x00x", 7, 1)]), 1.0]]], "do not follow its previous index"),
    ([4, [["unhashable"], {}]], "list of groups holds something else"),
    ([9], "frame of unknown kind"),
]


@pytest.mark.parametrize(("payload", "text"), MAD)
@on_loop
async def test_a_member_gone_mad_costs_its_own_connection_only(
    tmp_path: Path, payload: Any, text: str
) -> None:
    async with serving(tmp_path, 1, 2) as cluster:
        for node in list(cluster.nodes.values()):
            node.host.set_peer(3, HOST, 1)
            mad = await enter(node)
            before = node.host.groups[1].term
            mad.data(payload)
            await mad.until_closed()
            line = await told(node, text)
            assert line.startswith("mesh: garbage: node 3 at 127.0.0.1")
            assert node.host.groups[1].failure is None
            assert node.host.groups[1].term == before
        await cluster.commands(3)
        await cluster.until_level()


@on_loop
async def test_an_oversized_frame_of_a_member(tmp_path: Path) -> None:
    async with serving(tmp_path, 1, 2) as cluster:
        node = cluster.nodes[1]
        node.host.set_peer(3, HOST, 1)
        mad = await enter(node)
        mad.writer.write(struct.pack(">I", QUICK.max_frame_bytes + 1))
        await mad.until_closed()
        assert "node 3 at 127.0.0.1" in await told(node, "mesh: oversized: ")
        await cluster.command()
        # The real third node comes, and takes the place of the mad one.
        await cluster.start(3)
        await cluster.until_level()


@on_loop
async def test_two_processes_with_one_id(tmp_path: Path) -> None:
    async with serving(tmp_path, 1, 2, 3) as cluster:
        twin = cluster.make(3, tmp_path / "twin")
        twin.host.open()
        twin.host.create_group(1, RegisterMap(), VOTERS)
        for peer in (1, 2):
            cluster.introduce(twin, peer)
        await twin.host.start()
        line = await told(twin, "fatal: ")
        assert line.startswith("fatal: mesh: duplicate_node_id: node ")
        assert "another running process has this node's id: stop it" in line
        await twin.stop()
        await cluster.commands(3)
        await cluster.until_level()
        assert not any("fatal" in line for node in cluster.nodes.values() for line in node.lines)


@on_loop
async def test_two_processes_on_one_folder(tmp_path: Path) -> None:
    async with serving(tmp_path, 1, 2) as cluster:
        second = cluster.make(1, tmp_path / "1")
        with pytest.raises(WalError, match="is in use: stop the other process that has this data folder"):
            second.host.open()
        await cluster.command()


@on_loop
async def test_a_damaged_snapshot_file_is_replaced_by_the_leaders(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, 1, 2, 3) as cluster:
        await cluster.commands(120)
        await cluster.until_level()
        await cluster.stop(3)
        path = max((tmp_path / "3" / "snapshots").iterdir())
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
        node = await cluster.start(3)
        assert node.host.groups[1].damaged_below is not None
        assert any(str(path) in line and "digest does not match" in line for line in caplog.messages)
        await cluster.commands(3)
        await cluster.until_level()
        assert node.host.groups[1].damaged_below is None


@pytest.mark.parametrize("harm", ["cut", "flipped", "segment lost", "folder lost", "of another node"])
@on_loop
async def test_a_log_that_is_not_whole_is_refused_and_the_others_go_on(tmp_path: Path, harm: str) -> None:
    async with serving(tmp_path, 1, 2, 3) as cluster:
        await cluster.commands(20)
        await cluster.until_level()
        await cluster.stop(3)
        folder = tmp_path / "3" / "wal"
        path = max(folder.glob("wal-*.log"))
        if harm == "cut":
            path.write_bytes(path.read_bytes()[:-1])
        elif harm == "flipped":
            content = bytearray(path.read_bytes())
            content[600] ^= 16
            path.write_bytes(content)
        elif harm == "segment lost":
            path.unlink()
        elif harm == "folder lost":
            shutil.rmtree(folder)
        else:
            shutil.rmtree(tmp_path / "3")
            await cluster.stop(2)
            shutil.copytree(tmp_path / "2", tmp_path / "3")
            await cluster.start(2)
        node = cluster.make(3, tmp_path / "3")
        with pytest.raises(WalError) as raised:
            node.host.open()
        line = str(raised.value)
        assert line.startswith(str(folder))
        assert line.isprintable()
        cures = ("bring", "strandline node replace", "start with the data folder")
        assert any(cure in line for cure in cures)
        await cluster.commands(3)
        await cluster.until_level()
