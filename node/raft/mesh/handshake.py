"""Handshake in which two nodes prove to each other that they belong to one cluster, without any I/O.

A Handshake takes the bodies of frames and answers with frames to send, so every order of messages can be
tested without a socket. The dialler proves first, the acceptor decides, then proves itself:

    dialler                           acceptor
    HELLO ->                          AWAIT_HELLO
    AWAIT_HELLO         <- HELLO      AWAIT_PROOF
    PROOF ->                          DECIDING: the owner calls admit() or refuse()
    AWAIT_WELCOME     <- WELCOME      DONE
    DONE

docs/mesh.md has the content of each message, the reason for this order, and the attacks that it stops.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from strandline.node.raft.data_folder import NO_FOLDER, Standing
from strandline.node.raft.folder_file import FolderKey
from strandline.node.raft.mesh.frames import FrameKind, GarbageFrame, pack_frame, unpack_handshake
from strandline.node.raft.mesh.problems import TOLD, MeshReason

MAGIC: Final = "strandline-mesh"
VERSIONS: Final = (2, 2)
"""Oldest and newest protocol version this program speaks."""
NONCE_BYTES: Final = 32
MAX_NODE_ID: Final = 65535
ANY_NODE: Final = 0
"""In place of the node that is dialled: any member, of a dialler that looks for the cluster."""
_MAC_BYTES: Final = hashlib.sha256().digest_size
_HELLO_FIELDS: Final = 16
_MAX_INCARNATION: Final = 64
_UNMET: Final = FolderKey(0, NO_FOLDER)
_UNKNOWN: Final = Standing(_UNMET)


class Role(Enum):
    """Side of the connection. Each proof covers it, so no proof is valid in the other direction."""

    DIALLER = b"dialler"
    ACCEPTOR = b"acceptor"


class HandshakeState(Enum):
    """Progress of a handshake; DONE and FAILED are final."""

    AWAIT_HELLO = auto()
    AWAIT_PROOF = auto()
    DECIDING = auto()
    AWAIT_WELCOME = auto()
    DONE = auto()
    FAILED = auto()


@dataclass(frozen=True)
class Identity:
    """A node's description of itself in its hello."""

    cluster_id: str
    node_id: int
    boot_id: int
    max_frame_bytes: int
    versions: tuple[int, int] = VERSIONS
    standing: Standing = _UNKNOWN
    """Of the data folder that this process has."""


class HandshakeRefused(Exception):
    """The handshake has failed; `frames` are to be sent before closing.

    `str()` is one line with cause and cure, to be read after a name of the other side.
    """

    def __init__(
        self, reason: MeshReason, text: str, *, frames: tuple[bytes, ...] = (), fatal: bool = False
    ) -> None:
        super().__init__(text)
        self.reason = reason
        self.frames = frames
        self.fatal = fatal


class Handshake:
    """One side of one handshake. Not reusable; `nonce` must be fresh and unpredictable, NONCE_BYTES long."""

    def __init__(
        self,
        role: Role,
        identity: Identity,
        *,
        secret: bytes,
        nonce: bytes,
        dialled: int = 0,
        known: FolderKey | None = None,
    ) -> None:
        """`dialled` is the node id the dialler wants to reach, or ANY_NODE, and `known` the data folder it
        knows of it; an acceptor leaves both away."""
        self.role = role
        self.state = HandshakeState.AWAIT_HELLO
        self.peer: Identity | None = None
        """The other side's hello once read: a claim until the state is DECIDING or DONE."""
        self.proved = False
        """The other side has proved that it knows the secret."""
        self.guest = role is Role.DIALLER and dialled == ANY_NODE
        """Whether the dialler is no peer, but asks any member one question; known once the hello was read."""
        self._known_there = _UNMET
        """The data folder by which the dialler knows this node."""
        self._identity = identity
        self._secret = secret
        self.dialled = dialled
        self._nonce = nonce
        self._hello = self._hello_body(dialled, known or _UNMET)
        self._accepted: list[bytes] = []
        self._transcript = b""
        self._channel = b""

    @property
    def told(self) -> Standing:
        """The description of its own data folder in this side's hello."""
        return self._identity.standing

    def bind(self, channel: bytes) -> None:
        """Have all proofs cover `channel`, which is known to the two ends of this TLS connection alone.

        Call it before `start`. A process between the two that has a certificate of the same authority has two
        connections, and so can pass on no proof (RFC 5056).
        """
        self._channel = channel

    def start(self) -> tuple[bytes, ...]:
        """Frames to send when the connection opens: the dialler speaks first."""
        return (self._hello,) if self.role is Role.DIALLER else ()

    def receive(self, body: bytes | memoryview) -> tuple[bytes, ...]:
        """Take one frame's body, return the frames to send; raises HandshakeRefused when it has failed.

        An exact repetition of a message already taken changes nothing: a duplicating network is no attack.
        """
        message = bytes(body)
        if message in self._accepted:
            return ()
        try:
            fields = unpack_handshake(message)
            replies = self._step(fields, message)
        except GarbageFrame as error:
            raise self._fail(MeshReason.GARBAGE, f"{error} of the handshake") from None
        self._accepted.append(message)
        return replies

    def admit(self) -> tuple[bytes, ...]:
        """The acceptor's yes: its own proof. Only in DECIDING."""
        assert self.state is HandshakeState.DECIDING, self.state
        self.state = HandshakeState.DONE
        return (pack_frame([FrameKind.WELCOME, self._mac(Role.ACCEPTOR, FrameKind.WELCOME)]),)

    def refuse(self, reason: MeshReason) -> tuple[bytes, ...]:
        """The acceptor's no to a peer that has proved the secret, hence signed. Only in DECIDING."""
        assert self.state is HandshakeState.DECIDING, self.state
        self.state = HandshakeState.FAILED
        mac = self._mac(Role.ACCEPTOR, FrameKind.REFUSE, reason)
        return (pack_frame([FrameKind.REFUSE, str(reason), mac]),)

    def disowned(self) -> str | None:
        """The problem if the dialler knows this node by another folder, so that it would hang up; else None.

        Refuse the dialler in that case: the refusal is signed, so the dialler can believe the folder in this
        side's hello.
        """
        assert self.peer is not None
        own, known = self._identity.standing.key, self._known_there
        if known.folder in (NO_FOLDER, own.folder) or own.generation > known.generation:
            return None
        return (
            f"node {self.peer.node_id} knows this node by data folder {known.folder:016x}, and this one is "
            f"{own.folder:016x}: bring that one back, or let this one in with "
            f"`strandline node replace {self._identity.node_id}`"
        )

    def _step(self, fields: list[Any], message: bytes) -> tuple[bytes, ...]:
        kind = fields[0]
        if kind == FrameKind.REFUSE and self.role is Role.DIALLER:
            raise self._refused_by_peer(fields)
        if kind == FrameKind.HELLO and self.state is HandshakeState.AWAIT_HELLO:
            return self._take_hello(fields, message)
        if kind == FrameKind.PROOF and self.state is HandshakeState.AWAIT_PROOF:
            self._check_proof(fields, Role.DIALLER, FrameKind.PROOF)
            self.state = HandshakeState.DECIDING
            return ()
        if kind == FrameKind.WELCOME and self.state is HandshakeState.AWAIT_WELCOME:
            self._check_proof(fields, Role.ACCEPTOR, FrameKind.WELCOME)
            self.state = HandshakeState.DONE
            return ()
        raise GarbageFrame(f"a frame of kind {kind} does not belong in state {self.state.name}")

    def _take_hello(self, fields: list[Any], message: bytes) -> tuple[bytes, ...]:
        self.peer, wanted, self._known_there = self._parse_hello(fields)
        self.guest = self.guest or (self.role is Role.ACCEPTOR and wanted == ANY_NODE)
        self._check_identity(self.peer, wanted)
        ours = self._hello[4:]
        dialler, acceptor = (ours, message) if self.role is Role.DIALLER else (message, ours)
        self._transcript = b"".join(struct.pack(">I", len(part)) + part for part in (dialler, acceptor))
        if self.role is Role.ACCEPTOR:
            self.state = HandshakeState.AWAIT_PROOF
            return (self._hello,)
        self.state = HandshakeState.AWAIT_WELCOME
        return (pack_frame([FrameKind.PROOF, self._mac(Role.DIALLER, FrameKind.PROOF)]),)

    def _parse_hello(self, fields: list[Any]) -> tuple[Identity, int, FolderKey]:
        """Check the versions before the rest, so that a later protocol may change the rest."""
        if len(fields) < 4 or fields[1] != MAGIC:
            raise GarbageFrame("the first frame is not the hello of a mesh node")
        low, high = fields[2:4]
        if not _is_int(low, 1) or not _is_int(high, low):
            raise GarbageFrame("the hello has an impossible range of versions")
        ours = self._identity.versions
        if min(high, ours[1]) < max(low, ours[0]):
            older = "this node" if high > ours[1] else "that one"
            raise self._fail(
                MeshReason.WRONG_VERSION,
                f"it speaks mesh protocol {_span(low, high)}, this node {_span(*ours)}: upgrade {older}",
            )
        if len(fields) < _HELLO_FIELDS or (len(fields) > _HELLO_FIELDS and high <= ours[1]):
            raise GarbageFrame("the hello does not have the fields of its version")
        cluster_id, node_id, boot_id, frame_bytes, wanted, nonce = fields[4:10]
        generation, folder, incarnation, newcomer, known_generation, known_folder = fields[10:_HELLO_FIELDS]
        if not (
            type(cluster_id) is str
            and _is_int(node_id, 1, MAX_NODE_ID)
            and _is_int(boot_id, 0)
            and _is_int(frame_bytes, 1)
            and _is_int(wanted, 0, MAX_NODE_ID)
            and type(nonce) is bytes
            and len(nonce) == NONCE_BYTES
            and all(_is_int(number, 0) for number in (generation, folder, known_generation, known_folder))
            and type(incarnation) is str
            and len(incarnation) <= _MAX_INCARNATION
            and type(newcomer) is bool
        ):
            raise GarbageFrame("the hello has a field of the wrong type or size")
        standing = Standing(FolderKey(generation, folder), incarnation, newcomer)
        peer = Identity(cluster_id, node_id, boot_id, frame_bytes, (low, high), standing)
        return peer, wanted, FolderKey(known_generation, known_folder)

    def _check_identity(self, peer: Identity, wanted: int) -> None:
        own = self._identity
        if peer.cluster_id != own.cluster_id:
            raise self._fail(
                MeshReason.WRONG_CLUSTER,
                f"it belongs to cluster {peer.cluster_id!a}, this node to {own.cluster_id!a}: "
                "correct cluster_id or the peer's address",
            )
        if peer.node_id == own.node_id:
            what = "it is this node itself" if peer.boot_id == own.boot_id else "it has this node's own id"
            raise self._fail(
                MeshReason.OWN_NODE_ID,
                f"{what}, {own.node_id}: correct the peer's address, or the node_id of one",
            )
        if self.guest:
            return
        if self.role is Role.DIALLER and peer.node_id != self.dialled:
            raise self._fail(
                MeshReason.OTHER_NODE,
                f"it is node {peer.node_id}, not {self.dialled}: correct the peer's address",
            )
        if self.role is Role.ACCEPTOR and wanted != own.node_id:
            raise self._fail(
                MeshReason.OTHER_NODE,
                f"node {peer.node_id} dials node {wanted} here, but this is node {own.node_id}: "
                f"correct the address of node {wanted} there",
            )
        if (peer.node_id > own.node_id) is (self.role is Role.DIALLER):
            raise self._fail(
                MeshReason.WRONG_DIRECTION,
                f"node {peer.node_id} and node {own.node_id}: the one with the higher id has to dial",
            )

    def _refused_by_peer(self, fields: list[Any]) -> HandshakeRefused:
        """Take a refusal. Only a signed one can be fatal: any process may answer at a wrong address."""
        word, mac = fields[1:] if len(fields) == 3 else ("", b"")
        reason = next((known for known in TOLD if known == word), None)
        if reason is None:
            return self._fail(
                MeshReason.GARBAGE, "it refused for a reason this node does not know: upgrade it"
            )
        expected = self._mac(Role.ACCEPTOR, FrameKind.REFUSE, reason)
        signed = type(mac) is bytes and hmac.compare_digest(mac, expected)
        self.proved = self.proved or signed
        fatal = signed and reason is MeshReason.DUPLICATE_NODE
        return self._fail(reason, TOLD[reason], fatal=fatal)

    def _fail(self, reason: MeshReason, text: str, *, fatal: bool = False) -> HandshakeRefused:
        """Enter FAILED. An acceptor tells a mesh node why, unsigned; to anything else it says nothing."""
        self.state = HandshakeState.FAILED
        frames: tuple[bytes, ...] = ()
        if self.role is Role.ACCEPTOR and reason is not MeshReason.GARBAGE:
            refusal = pack_frame([FrameKind.REFUSE, str(reason), b""])
            frames = (refusal,) if reason is MeshReason.WRONG_SECRET else (self._hello, refusal)
        return HandshakeRefused(reason, text, frames=frames, fatal=fatal)

    def _hello_body(self, wanted: int, known: FolderKey) -> bytes:
        own = self._identity
        return pack_frame(
            [
                FrameKind.HELLO,
                MAGIC,
                *own.versions,
                own.cluster_id,
                own.node_id,
                own.boot_id,
                own.max_frame_bytes,
                wanted,
                self._nonce,
                *own.standing.key,
                own.standing.incarnation,
                own.standing.newcomer,
                *known,
            ]
        )

    def _check_proof(self, fields: list[Any], role: Role, kind: FrameKind) -> None:
        if len(fields) != 2 or type(fields[1]) is not bytes or len(fields[1]) != _MAC_BYTES:
            raise GarbageFrame("a proof has the wrong shape")
        if not hmac.compare_digest(fields[1], self._mac(role, kind)):
            raise self._fail(
                MeshReason.WRONG_SECRET,
                "its proof of the cluster secret is wrong: give every node the same secret"
                + (", and let nothing between them end TLS" if self._channel else ""),
            )
        self.proved = True

    def _mac(self, role: Role, kind: FrameKind, reason: str = "") -> bytes:
        label = f"{MAGIC} {kind.name} {reason}".encode()
        proved = b"\0".join((role.value, label, self._transcript + self._channel))
        return hmac.digest(self._secret, proved, "sha256")


def _is_int(value: Any, low: int, high: int = 2**63 - 1) -> bool:
    return type(value) is int and low <= value <= high


def _span(low: int, high: int) -> str:
    return f"version {low}" if low == high else f"versions {low} to {high}"
