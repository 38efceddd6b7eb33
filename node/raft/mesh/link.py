"""One TCP connection of the mesh: framing, the handshake's life on a socket, and its orderly end.

A Link knows nothing of other connections; what concerns the pair of nodes, such as which peer is admitted and
which of two connections wins, is its owner's business (node/raft/mesh/mesh.py).
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Protocol, cast

from strandline.node.raft.bad_message import BadMessage
from strandline.node.raft.data_folder import Standing
from strandline.node.raft.mesh.config import MeshConfig
from strandline.node.raft.mesh.frames import (
    HANDSHAKE_FRAME_BYTES,
    FrameError,
    FrameKind,
    FrameReader,
    GarbageFrame,
    OversizedFrame,
    pack_frame,
    unpack_message,
)
from strandline.node.raft.mesh.handshake import Handshake, HandshakeRefused, HandshakeState
from strandline.node.raft.mesh.problems import TLS_CURE, MeshProblem, MeshReason

_MAX_TOKEN = 2**63 - 1


class LinkOwner(Protocol):
    """Receiver of a Link's events, always called on the loop. Each callback may close its link."""

    def link_opened(self, link: Link) -> None: ...
    def link_proved(self, link: Link) -> None:
        """The acceptor's peer has proved the secret: answer, now or later, with admit() or refuse()."""

    def link_refused(self, link: Link) -> str | None:
        """A peer that has proved the secret refused this side's data folder: why this side refuses it."""

    def link_up(self, link: Link) -> None: ...
    def link_down(self, link: Link) -> None:
        """No frame comes or goes any more; once per link, maybe before the socket is gone."""

    def link_data(self, link: Link, payload: Any) -> None: ...
    def link_pong(self, link: Link, token: int) -> None: ...
    def link_problem(self, problem: MeshProblem) -> None: ...


class Link(asyncio.Protocol):
    """A connection from its first byte to its last; `dialled` is "host:port" on the dialling side."""

    def __init__(
        self,
        owner: LinkOwner,
        handshake: Handshake,
        *,
        loop: asyncio.AbstractEventLoop,
        config: MeshConfig,
        dialled: str | None = None,
    ) -> None:
        self.up = False
        """Authenticated on both sides; stays true at the end, so that link_down() can tell."""
        self.closed: asyncio.Future[None] = loop.create_future()
        """Resolved when the socket is gone; never cancel it, wait through asyncio.wait or shield."""
        self.silent_ticks = 0
        """Set to 0 by every received byte, counted up by the owner."""
        self.handshake = handshake
        self._owner = owner
        self._loop = loop
        self._config = config
        self._dialled = dialled
        self._address = dialled or "an unknown address"
        self._reader = FrameReader(HANDSHAKE_FRAME_BYTES)
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._closing = self._encrypted = False
        self._held: list[bytes] | None = None
        """Frames of the peer that wait for `release`; None when the link is not held."""

    @property
    def closing(self) -> bool:
        """Whether the link has ended, or is about to: it reads no more."""
        return self._closing

    @property
    def peer(self) -> int:
        """The other side's node id; only once its hello was read."""
        assert self.handshake.peer is not None
        return self.handshake.peer.node_id

    @property
    def boot_id(self) -> int:
        """The other process's boot id; only once its hello was read."""
        assert self.handshake.peer is not None
        return self.handshake.peer.boot_id

    @property
    def standing(self) -> Standing:
        """The other side's data folder; only after its hello was read."""
        assert self.handshake.peer is not None
        return self.handshake.peer.standing

    @property
    def max_body_bytes(self) -> int:
        """Largest frame body both sides accept."""
        assert self.handshake.peer is not None
        return min(self._config.max_frame_bytes, self.handshake.peer.max_frame_bytes)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peername = transport.get_extra_info("peername")
        if self._dialled is None and peername:
            self._address = str(peername[0])
        self._deadline = self._loop.call_later(self._config.handshake_seconds, self._handshake_expired)
        encrypted = transport.get_extra_info("ssl_object")
        if encrypted is not None:
            self._encrypted = True
            # TLS 1.3: the client's Finished, which both ends have, and which covers all of the TLS handshake.
            self.handshake.bind(encrypted.get_channel_binding("tls-unique"))
        for frame in self.handshake.start():
            self._transport.write(frame)
        self._owner.link_opened(self)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self.silent_ticks = 0
        try:
            for body in self._reader.feed(data):
                if not self._take(body):
                    return
            if self._held is not None and self._transport is not None:
                self._transport.pause_reading()
        except OversizedFrame as error:
            if error.is_tls and not self.up and not self._encrypted:
                self.fail(MeshReason.NO_TLS, f"it speaks TLS, and this node's mesh does not: {TLS_CURE}")
            else:
                self.fail(MeshReason.OVERSIZED, str(error))
        except (FrameError, BadMessage) as error:
            self.fail(MeshReason.GARBAGE, str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if not self.up and not self._closing and self._dialled is not None:
            said = "this node does not speak TLS"
            if self._encrypted:
                said = "it does not accept this node's certificate"
            told = f"it closed the connection during the handshake: if its log says that {said}, {TLS_CURE}"
            self._report(MeshReason.HANDSHAKE_DROPPED, told)
        self._go_down()
        if not self.closed.done():
            self.closed.set_result(None)

    def hand_to(self, owner: LinkOwner) -> None:
        """Tell another owner from now on."""
        self._owner = owner

    def hold(self) -> None:
        """Keep the frames of a peer that has just come up until `release`.

        The peer is not read any further meanwhile, so one read's frames are kept at most. The link fails
        when it is held for `handshake_seconds`.
        """
        self._held = []
        self._deadline = self._loop.call_later(self._config.handshake_seconds, self._held_too_long)

    def release(self) -> None:
        """Take the frames that were kept, and read on; nothing if the link is not held."""
        held, self._held = self._held, None
        if held is None or self._closing:
            return
        assert self._deadline is not None
        self._deadline.cancel()
        try:
            for body in held:
                if not self._take(memoryview(body)):
                    return
        except (FrameError, BadMessage) as error:
            self.fail(MeshReason.GARBAGE, str(error))
            return
        except Exception:
            self.close()  # as the loop does where a frame is taken as it comes
            raise
        if self._transport is not None:
            self._transport.resume_reading()

    def write(self, frame: bytes) -> bool:
        """Pass one complete frame to the transport; False if the link is down or its backlog full."""
        transport = self._transport
        if not self.up or transport is None:
            return False
        if transport.get_write_buffer_size() + len(frame) > self._config.max_backlog_bytes:
            return False
        transport.write(frame)
        return True

    def room(self) -> int:
        """Bytes that still fit into the backlog; 0 when the link is down."""
        if not self.up or self._transport is None:
            return 0
        return max(0, self._config.max_backlog_bytes - self._transport.get_write_buffer_size())

    def ping(self, token: int) -> None:
        """Ask for a PONG with the same token (0..2**63-1); best effort."""
        self.write(pack_frame([FrameKind.PING, token]))

    def admit(self) -> None:
        """Welcome the peer of a link that was announced by link_proved()."""
        self._send_last_words(self.handshake.admit())
        self._come_up()

    def refuse(self, reason: MeshReason, text: str) -> None:
        """Send the peer of a link that was announced by link_proved() away, with a signed reason."""
        self._send_last_words(self.handshake.refuse(reason))
        self.fail(reason, text)

    def fail(self, reason: MeshReason, text: str, *, fatal: bool = False) -> None:
        """Report a problem and close, once."""
        if not self._closing:
            self._report(reason, text, fatal=fatal)
            self.close()

    def close(self) -> None:
        """Go down now, flush written bytes for at most `linger_seconds`, then end the connection."""
        if self._closing:
            return
        self._closing = True
        if self._deadline is not None:
            self._deadline.cancel()
        if self._transport is not None:
            self._transport.close()
            self._deadline = self._loop.call_later(self._config.linger_seconds, self._transport.abort)
        self._go_down()

    def _take(self, body: memoryview) -> bool:
        """Handle one frame; False when the link is closing and reads no further."""
        if self._held is not None:
            self._held.append(bytes(body))
        elif self.up:
            self._dispatch(body)
        else:
            self._negotiate(body)
        return not self._closing

    def _negotiate(self, body: memoryview) -> None:
        before = self.handshake.state
        try:
            replies = self.handshake.receive(body)
        except HandshakeRefused as refused:
            self._send_last_words(refused.frames)
            why = None
            if refused.reason is MeshReason.OTHER_FOLDER and self.handshake.proved:
                why = self._owner.link_refused(self)
            self.fail(refused.reason, why or str(refused), fatal=refused.fatal)
            return
        self._send_last_words(replies)
        if self.handshake.state is before:
            return
        if self.handshake.state is HandshakeState.DONE:
            self._come_up()
        elif self.handshake.state is HandshakeState.DECIDING:
            self._owner.link_proved(self)

    def _dispatch(self, body: memoryview) -> None:
        message = unpack_message(body)
        kind = message[0]
        if len(message) == 2 and kind == FrameKind.DATA:
            self._owner.link_data(self, message[1])
        elif len(message) == 2 and kind in (FrameKind.PING, FrameKind.PONG):
            token = message[1]
            if type(token) is not int or not 0 <= token <= _MAX_TOKEN:
                raise GarbageFrame("a ping or pong without a valid token")
            if kind == FrameKind.PING:
                self.write(pack_frame([FrameKind.PONG, token]))
            else:
                self._owner.link_pong(self, token)
        elif kind not in (FrameKind.HELLO, FrameKind.PROOF, FrameKind.WELCOME, FrameKind.REFUSE):
            # A handshake frame here is a repetition by the network, harmless now that the handshake is over.
            raise GarbageFrame(f"a frame of unknown kind {kind} with {len(message)} elements")

    def _come_up(self) -> None:
        assert self._deadline is not None
        self._deadline.cancel()
        self._reader.limit = self._config.max_frame_bytes
        self.up = True
        self._owner.link_up(self)

    def _go_down(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport = None
            self._owner.link_down(self)

    def _send_last_words(self, frames: tuple[bytes, ...]) -> None:
        if self._transport is not None:
            for frame in frames:
                self._transport.write(frame)

    def _handshake_expired(self) -> None:
        limit = self._config.handshake_seconds
        self.fail(MeshReason.HANDSHAKE_TIMEOUT, f"the handshake was not finished within {limit:g} s")

    def _held_too_long(self) -> None:
        limit = self._config.handshake_seconds
        self.fail(
            MeshReason.NOT_NOTED,
            f"its data folder's identity is not on this node's disk after {limit:g} s: mend the disk",
        )

    def _report(self, reason: MeshReason, text: str, *, fatal: bool = False) -> None:
        """An unproved caller is named by its address alone: it could claim any id to flood the report."""
        claim = self.handshake.peer
        peer: int | None = None
        who = f"a connection from {self._address}"
        if self._dialled is not None and self.handshake.guest:
            who = f"the seed {self._address}"
        elif self._dialled is not None:
            peer = self.handshake.dialled
            who = f"node {peer} at {self._address}"
        elif claim is not None and self.handshake.proved:
            peer = claim.node_id
            who = f"node {peer} at {self._address}"
        elif claim is not None:
            who += f" that says it is node {claim.node_id}"
        self._owner.link_problem(
            MeshProblem(reason, f"{who}: {text}", peer=peer, address=self._address, fatal=fatal)
        )
