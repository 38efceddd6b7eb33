"""Nodes of a real mesh on loopback sockets, and a raw peer that may say whatever a test wants."""

from __future__ import annotations

import asyncio
import functools
import random
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, ParamSpec

import msgpack
import uvloop

from strandline.node.raft.mesh.frames import FrameKind
from strandline.node.raft.mesh.handshake import (
    NONCE_BYTES,
    Handshake,
    HandshakeRefused,
    HandshakeState,
    Identity,
    Role,
)
from strandline.node.raft.mesh.mesh import Mesh, MeshConfig, MeshProblem, MeshReason
from tests.raft.memory_folder import memory_folder

SECRET = b"the secret of the tests"
HOST = "127.0.0.1"
PATIENCE = 10.0  # seconds; only a failing test waits so long
QUICK = MeshConfig(backoff_min_seconds=0.005, backoff_max_seconds=0.02, problem_interval_seconds=1e-9)

P = ParamSpec("P")


def on_loop(
    test: Callable[P, Coroutine[Any, Any, None]],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> Callable[P, None]:
    """Run a test on uvloop, the loop of production, and fail it for any exception nobody handled."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def guarded() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
            async with asyncio.timeout(2 * PATIENCE):
                await test(*args, **kwargs)

        unhandled: list[dict[str, Any]] = []
        with asyncio.Runner(loop_factory=loop_factory or uvloop.new_event_loop) as runner:
            runner.run(guarded())
        assert unhandled == []

    return run


class Node:
    """A mesh that remembers what it told: events are ("up" | "down", peer), frames (peer, payload)."""

    def __init__(self, node_id: int, *, boot_id: int = 0, config: MeshConfig = QUICK, **changes: Any) -> None:
        self.node_id = node_id
        self.events: list[tuple[str, int]] = []
        self.frames: list[tuple[int, Any]] = []
        self.problems: list[MeshProblem] = []
        self.changed = asyncio.Event()
        settings: dict[str, Any] = {
            "loop": asyncio.get_running_loop(),
            "node_id": node_id,
            "cluster_id": "blue",
            "secret": SECRET,
            "boot_id": boot_id or node_id * 1000,
            "listen_host": HOST,
            "listen_port": 0,
            "config": config,
            "rng": random.SystemRandom(),
            "on_frame": lambda peer, payload: self._note(self.frames, (peer, payload)),
            "on_connect": lambda peer: self._note(self.events, ("up", peer)),
            "on_disconnect": lambda peer: self._note(self.events, ("down", peer)),
            "on_problem": lambda problem: self._note(self.problems, problem),
        }
        self.mesh = Mesh(**(settings | changes))
        self.mesh.folder = memory_folder(node_id)

    def _note(self, notes: list[Any], note: Any) -> None:
        notes.append(note)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something this node tells makes the condition true."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def until_up(self, peer: int) -> None:
        await self.until(lambda: self.mesh.connected(peer))

    async def until_down(self, peer: int) -> None:
        await self.until(lambda: not self.mesh.connected(peer))

    async def problem(self, reason: MeshReason) -> MeshProblem:
        """The first problem of that kind, awaited; it is counted and says one line."""

        def seen() -> list[MeshProblem]:
            return [problem for problem in self.problems if problem.reason is reason]

        await self.until(lambda: bool(seen()))
        assert self.mesh.counters[reason] >= 1
        assert str(seen()[0]).isprintable()
        return seen()[0]


@asynccontextmanager
async def started(*nodes: Node, introduce: bool = True) -> AsyncIterator[None]:
    """Start the nodes, make each the peer of each if wanted, and close all at the end."""
    try:
        for node in nodes:
            await node.mesh.start()
        if introduce:
            for node in nodes:
                for other in nodes:
                    if other is not node:
                        node.mesh.set_peer(other.node_id, HOST, other.mesh.port)
            for node in nodes:
                for other in nodes:
                    if other is not node:
                        await node.until_up(other.node_id)
        yield
    finally:
        for node in nodes:
            await node.mesh.close()


async def assert_unharmed(one: Node, other: Node) -> None:
    """Their connection never broke and carries frames both ways."""
    for sender, receiver in ((one, other), (other, one)):
        assert ("down", receiver.node_id) not in sender.events
        mark = f"still here {len(receiver.frames)}"
        assert sender.mesh.send(receiver.node_id, mark)
        await receiver.until(lambda r=receiver, s=sender, m=mark: (s.node_id, m) in r.frames)  # type: ignore[misc]


class RawPeer:
    """A socket to a node under test, with the frames spelled out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def dial(cls, node: Node) -> RawPeer:
        return cls(*await asyncio.open_connection(HOST, node.mesh.port))

    @classmethod
    async def enter(
        cls, node: Node, node_id: int, *, boot_id: int = 5, max_frame_bytes: int = 1 << 20
    ) -> RawPeer:
        """Dial and finish the handshake as that node."""
        peer = await cls.dial(node)
        identity = Identity("blue", node_id, boot_id, max_frame_bytes)
        try:
            await peer.shake_hands(identity, node.node_id)
        except BaseException:
            peer.close()
            raise
        return peer

    async def shake_hands(
        self, identity: Identity, dialled: int, *, secret: bytes = SECRET, repeat: int = 1
    ) -> None:
        """Raises HandshakeRefused, or asyncio.IncompleteReadError when the other side closes without a word.

        Each message after the hello is sent `repeat` times.
        """
        nonce = random.SystemRandom().randbytes(NONCE_BYTES)
        handshake = Handshake(Role.DIALLER, identity, secret=secret, nonce=nonce, dialled=dialled)
        self.writer.writelines(handshake.start())
        while handshake.state is not HandshakeState.DONE:
            self.writer.writelines(handshake.receive(await self.read_body()) * repeat)

    async def refusal(self, node: Node, identity: Identity) -> HandshakeRefused:
        """How that node refuses an identity."""
        try:
            await self.shake_hands(identity, node.node_id)
        except HandshakeRefused as refused:
            return refused
        finally:
            self.close()
        raise AssertionError("the handshake succeeded")

    async def read_body(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            (length,) = struct.unpack(">I", await self.reader.readexactly(4))
            return await self.reader.readexactly(length)

    async def read(self) -> list[Any]:
        message: list[Any] = msgpack.unpackb(await self.read_body())
        return message

    def send(self, *message: Any) -> None:
        body = msgpack.packb(list(message))
        self.writer.write(struct.pack(">I", len(body)) + body)

    def data(self, payload: Any) -> None:
        self.send(FrameKind.DATA, payload)

    async def until_closed(self) -> bytes:
        """What still comes until the node closes the connection."""
        rest = b""
        async with asyncio.timeout(PATIENCE):
            try:
                while piece := await self.reader.read(65536):
                    rest += piece
            except ConnectionError:
                pass
        self.close()
        return rest

    def close(self) -> None:
        self.writer.close()
