"""Both ends of one connection, without a network: a test carries the bytes."""

from __future__ import annotations

import asyncio
from typing import Any

from strandline.node.raft.mesh.config import MeshConfig
from strandline.node.raft.mesh.handshake import NONCE_BYTES, Handshake, Identity, Role
from strandline.node.raft.mesh.link import Link


class NotingOwner:
    """Holds a link that comes up, and keeps what it is told."""

    def __init__(self) -> None:
        self.taken: list[object] = []

    def link_opened(self, link: Link) -> None: ...
    def link_down(self, link: Link) -> None: ...
    def link_problem(self, problem: object) -> None: ...
    def link_pong(self, link: Link, token: int) -> None: ...
    def link_refused(self, link: Link) -> str | None:
        return None

    def link_proved(self, link: Link) -> None:
        link.admit()

    def link_up(self, link: Link) -> None:
        if link.handshake.role is Role.DIALLER:
            link.hold()

    def link_data(self, link: Link, payload: object) -> None:
        self.taken.append(payload)


class WrittenTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.reads = True

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def close(self) -> None:
        self.reads = False

    def abort(self) -> None: ...

    def sent(self) -> bytes:
        written, self.written = bytes(self.written), bytearray()
        return written


class LinkPair:
    """A dialler, which is held as soon as it is up, and an acceptor; `shake` carries the handshake."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.owner = NotingOwner()
        config = MeshConfig()
        ends = []
        for role, node, dialled in ((Role.DIALLER, 2, 1), (Role.ACCEPTOR, 1, 0)):
            identity = Identity("blue", node, node, config.max_frame_bytes)
            nonce = bytes([node]) * NONCE_BYTES
            handshake = Handshake(role, identity, secret=b"s", nonce=nonce, dialled=dialled)
            address = "h:1" if dialled else None
            link = Link(self.owner, handshake, loop=loop, config=config, dialled=address)
            transport = WrittenTransport()
            link.connection_made(transport)
            ends.append((link, transport))
        (self.dialler, self.there), (self.acceptor, self.here) = ends

    def shake(self) -> None:
        """Up to the acceptor's last frame, which is written and not yet carried."""
        self.acceptor.data_received(self.there.sent())
        self.dialler.data_received(self.here.sent())
        self.acceptor.data_received(self.there.sent())
        assert self.acceptor.up

    def carry(self) -> None:
        """To the dialler, in one read."""
        self.dialler.data_received(self.here.sent())
