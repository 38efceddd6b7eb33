"""The mesh: one authenticated TCP connection between every two nodes, shared by all Raft groups.

It offers what Raft needs and no more: a frame to a peer, best effort, never blocking, never queued
without bound; and it tells when a peer comes and goes. Raft repeats what matters, so a frame that
cannot be sent now is refused, not kept. Rules, messages and defences: docs/mesh.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgpack

from strandline.node.raft.data_folder import Folder
from strandline.node.raft.mesh.config import MeshConfig
from strandline.node.raft.mesh.connecting import Connector, MeshListenError
from strandline.node.raft.mesh.frames import body_bytes, data_frame
from strandline.node.raft.mesh.guests import Guests
from strandline.node.raft.mesh.handshake import MAX_NODE_ID, Identity, Role
from strandline.node.raft.mesh.link import Link
from strandline.node.raft.mesh.liveness import Liveness
from strandline.node.raft.mesh.peers import DuplicateProbe, Peer
from strandline.node.raft.mesh.problems import MeshProblem, MeshReason, ProblemLog
from strandline.node.raft.mesh.strangers import Strangers
from strandline.node.tls.keeper import TlsSettings

__all__ = ["Mesh", "MeshConfig", "MeshListenError", "MeshProblem", "MeshReason"]


class Mesh:
    """All connections of one node to its peers. Every method and callback belongs on `loop`."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        node_id: int,
        cluster_id: str,
        secret: bytes,
        boot_id: int,
        listen_host: str,
        listen_port: int,
        config: MeshConfig,
        rng: random.Random,
        on_frame: Callable[[int, Any], None],
        on_connect: Callable[[int], None],
        on_disconnect: Callable[[int], None],
        on_problem: Callable[[MeshProblem], None],
        tls: TlsSettings | None = None,
    ) -> None:
        """`rng` gives nonces: pass random.SystemRandom() outside a simulation.

        on_frame(peer, payload) is called only between on_connect(peer) and on_disconnect(peer), and must
        not raise: an exception ends that peer's connection. A problem with `fatal` set means that this
        node must stop. Raises ValueError for an impossible id or an empty secret.
        """
        _check_node_id(node_id)
        if not secret:
            raise ValueError("the cluster secret is empty: give all nodes the same random secret")
        if not 0 <= boot_id < 2**63:
            raise ValueError(f"a boot id is 0 to 2**63-1, not {boot_id}")
        if len(cluster_id.encode()) > 255:
            raise ValueError("the cluster id is longer than 255 bytes")
        self.port = listen_port
        """Port the mesh listens on; after start() never 0."""
        self.counters: dict[str, int] = dict.fromkeys(
            ("frames_sent", "frames_received", "bytes_sent", "not_connected", "too_big", "backlogged"), 0
        )
        """Frames sent, received and, by cause, not sent; and one counter for each MeshReason."""
        self.strangers = Strangers(loop.time)
        self._loop = loop
        self._identity = Identity(cluster_id, node_id, boot_id, config.max_frame_bytes)
        self._host = listen_host
        self._config = config
        self._rng = rng
        self._on_frame = on_frame
        self._on_connect = on_connect
        self._on_disconnect = on_disconnect
        self._problems = ProblemLog(
            time=loop.time,
            interval=config.problem_interval_seconds,
            counters=self.counters,
            report=on_problem,
        )
        self._packer = msgpack.Packer()
        self._peers: dict[int, Peer] = {}
        report = self._problems.add
        self.guests = Guests(loop, report)
        self._connector = Connector(
            self,
            self._identity,
            secret,
            self.strangers,
            loop=loop,
            config=config,
            rng=rng,
            report=report,
            tls=tls,
        )
        self._liveness = Liveness(
            node_id, self._peers, self.strangers, loop=loop, config=config, report=report
        )
        self._open: dict[Link, None] = {}
        self._in_handshake: dict[Link, None] = {}
        self._running = False

    @property
    def folder(self) -> Folder:
        """This node's data folder, which knows those of the others; to be given before `start`."""
        return self.strangers.folder

    @folder.setter
    def folder(self, folder: Folder) -> None:
        self.strangers.folder = folder

    async def start(self) -> None:
        """Bind, then dial the peers with lower ids. Raises MeshListenError if the address cannot be had."""
        self.port = await self._connector.listen(self._host, self.port)
        self._running = True
        self._liveness.start(f"{self._host}:{self.port}")
        for node_id in self._peers:
            self._connector.dial(node_id, self._peers[node_id])

    @property
    def certificate_end(self) -> float | None:
        """Unix time at which this node's certificate ends; None without TLS."""
        return self._connector.certificate_end

    def set_peer(self, node_id: int, host: str, port: int, also: tuple[str, int] | None = None) -> None:
        """Accept that node from now on; dial it if its id is lower, again if its address has changed.

        It is dialled by turns with `also`. A link that is up stays: by it addresses of long ago may come.
        """
        _check_node_id(node_id)
        if not 1 <= port <= 65535:
            raise ValueError(f"the port of node {node_id} is 1 to 65535, not {port}")
        if node_id == self._identity.node_id:
            raise ValueError(f"node {node_id} cannot be a peer of itself")
        known, dials = self._peers.get(node_id), node_id < self._identity.node_id
        addresses = ((host, port),) if also in (None, (host, port)) else ((host, port), also)
        if known is not None and (known.link or known.addresses[0] == (host, port) or not dials):
            known.addresses = addresses
            return
        self.remove_peer(node_id)
        self._peers[node_id] = Peer(addresses)
        if self._running:
            self._connector.dial(node_id, self._peers[node_id])

    async def ask(self, host: str, port: int, question: Any, seconds: float) -> Any:
        """The answer of the member that listens there, whichever it is; raises SeedFailed."""
        return await self._connector.ask(host, port, question, seconds)

    def remove_peer(self, node_id: int) -> None:
        """Close the connection to that node and refuse it from now on; no error if it is no peer."""
        peer = self._peers.pop(node_id, None)
        if peer is None:
            return
        if peer.dialling is not None:
            peer.dialling.cancel()
        if peer.probe is not None:
            peer.probe.end()
        for link in list(self._open):
            if link.handshake.dialled == node_id or (link.handshake.proved and link.peer == node_id):
                link.close()
        if peer.link is not None:
            peer.link = None
            self._on_disconnect(node_id)

    def connected(self, peer: int) -> bool:
        """True between on_connect(peer) and on_disconnect(peer)."""
        known = self._peers.get(peer)
        return known is not None and known.link is not None

    def room(self, peer: int) -> int:
        """Bytes that still fit into the peer's backlog; 0 when it is not connected."""
        known = self._peers.get(peer)
        return known.link.room() if known is not None and known.link is not None else 0

    def send(self, peer: int, payload: Any) -> bool:
        """Hand one payload (msgpack types) to the peer's connection, in one transport.write.

        False, and counted by cause, when it is not connected, the frame too big, or the backlog full.
        Raises TypeError or ValueError for what msgpack cannot encode: that is the caller's mistake.
        """
        known = self._peers.get(peer)
        if known is None or known.link is None:
            self.counters["not_connected"] += 1
            return False
        link, counters = known.link, self.counters
        frame = data_frame(self._packer.pack(payload))
        if body_bytes(frame) > link.max_body_bytes:
            counters["too_big"] += 1
        elif not link.write(frame):
            counters["backlogged"] += 1
        else:
            counters["frames_sent"] += 1
            counters["bytes_sent"] += len(frame)
            return True
        return False

    async def close(self) -> None:
        """Stop listening and dialling, flush and close every connection within linger_seconds.

        Afterwards the mesh has no peers and stays closed.
        """
        self._running = False
        self._liveness.stop()
        self._connector.close()
        links = list(self._open)
        tasks = [peer.dialling for peer in self._peers.values() if peer.dialling is not None]
        for node_id in list(self._peers):
            self.remove_peer(node_id)
        for link in links:
            link.close()
        if tasks or links:
            await asyncio.wait([*tasks, *(link.closed for link in links)])
        await self._connector.wait_closed()

    # What links tell.

    def link_opened(self, link: Link) -> None:
        """Bound the strangers: an honest handshake takes milliseconds, so the oldest one stalls."""
        self._open[link] = None
        link.closed.add_done_callback(lambda _: self._open.pop(link, None))
        if not self._running:
            link.close()
        elif link.handshake.role is Role.ACCEPTOR:
            self._in_handshake[link] = None
            if len(self._in_handshake) > self._config.max_strangers:
                oldest = next(iter(self._in_handshake))
                oldest.fail(
                    MeshReason.CROWDED,
                    f"closed, as more than {self._config.max_strangers} connections are in their handshake",
                )

    def link_proved(self, link: Link) -> None:
        self._in_handshake.pop(link, None)
        peer = self._peers.get(link.peer)
        if link.handshake.guest:
            self.guests.come(link)
        elif peer is None and (why := self.strangers.check(link)) is not None:
            link.refuse(MeshReason.OTHER_FOLDER, why)
        elif peer is None:
            link.refuse(
                MeshReason.UNKNOWN_NODE,
                "as this node knows the cluster, it is not a member: add it first, or correct its node_id",
            )
        elif (why := link.handshake.disowned()) is not None:
            self.strangers.disowned()
            link.refuse(MeshReason.OTHER_FOLDER, why)
        elif peer.link is not None and peer.link.boot_id != link.boot_id:
            self._probe(peer, link)
        elif (why := self.strangers.check(link)) is not None:
            link.refuse(MeshReason.OTHER_FOLDER, why)
        else:
            if peer.probe is not None:
                peer.probe.refuse()
            link.admit()

    def link_refused(self, link: Link) -> str | None:
        why = self.strangers.check(link)
        if why is None:
            self.strangers.disowned()
        return why

    def link_up(self, link: Link) -> None:
        """Before anything of the peer counts, its folder is known durably, and how this one stands there."""
        self.strangers.admit(link, self._connected)

    def _connected(self, link: Link) -> None:
        peer = self._peers[link.peer]
        old, peer.link = peer.link, link
        if old is not None:
            old.close()
            self._on_disconnect(link.peer)
        if peer.link is link:
            self._on_connect(link.peer)

    def link_down(self, link: Link) -> None:
        self._in_handshake.pop(link, None)
        peer = self._peers.get(link.peer) if link.handshake.proved else None
        if peer is None:
            return
        probe = peer.probe
        if probe is not None and probe.newcomer is link:
            probe.end()
        if peer.link is link:
            peer.link = None
            self._on_disconnect(link.peer)
            if probe is not None and peer.probe is probe:
                probe.end()
                probe.newcomer.admit()

    def link_data(self, link: Link, payload: Any) -> None:
        self.counters["frames_received"] += 1
        self._on_frame(link.peer, payload)

    def link_pong(self, link: Link, token: int) -> None:
        """The old connection lives, so its peer's node id is used twice; the one that came second goes."""
        peer = self._peers[link.peer]
        probe = peer.probe
        if probe is not None and peer.link is link and probe.token == token:
            probe.refuse()

    def link_problem(self, problem: MeshProblem) -> None:
        self._problems.add(problem)

    def is_newcomer(self, peer: int) -> bool:
        """Whether a connected peer says that it has no vote yet."""
        known = self._peers.get(peer)
        return known is not None and known.link is not None and known.link.standing.newcomer

    def check_again(self) -> None:
        """Check all links after a change of the known folders; close those of folders out of force."""
        for node_id, peer in list(self._peers.items()):
            if peer.link is not None and (why := self.strangers.check(peer.link)) is not None:
                peer.link.fail(MeshReason.OTHER_FOLDER, why)
            else:
                self.strangers.forget_if_known(node_id)

    def reconnect(self) -> None:
        """Reconnect to every peer: this node's standing has changed, and its hello carries it."""
        for peer in list(self._peers.values()):
            if peer.link is not None:
                peer.link.close()

    def _probe(self, peer: Peer, newcomer: Link) -> None:
        if peer.probe is not None:
            peer.probe.newcomer.close()
        token, seconds = self._rng.getrandbits(63), self._config.duplicate_probe_seconds
        peer.probe = DuplicateProbe(peer, newcomer, token, loop=self._loop, seconds=seconds)
        peer.probe.step()


def _check_node_id(node_id: int) -> None:
    if not 1 <= node_id <= MAX_NODE_ID:
        raise ValueError(f"a node id is 1 to {MAX_NODE_ID}, not {node_id}")
