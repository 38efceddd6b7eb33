"""The mesh: one authenticated TCP connection between every two nodes, shared by all Raft groups.

It offers what Raft needs and no more: a frame to a peer, best effort, never blocking, never queued
without bound; and it tells when a peer comes and goes. Raft repeats what matters, so a frame that
cannot be sent now is refused, not kept. Rules, messages and defences: docs/mesh.md.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import msgpack

from strandline.node.raft.data_folder import Folder
from strandline.node.raft.mesh.config import MeshConfig
from strandline.node.raft.mesh.dialler import Target, keep_dialled
from strandline.node.raft.mesh.frames import data_body_bytes, data_frame
from strandline.node.raft.mesh.handshake import MAX_NODE_ID, NONCE_BYTES, Handshake, Identity, Role
from strandline.node.raft.mesh.link import Link
from strandline.node.raft.mesh.problems import MeshProblem, ProblemLog, Reason

__all__ = ["Mesh", "MeshConfig", "MeshListenError", "MeshProblem", "Reason"]

STRANGER_SECONDS: Final = 15.0
"""For so long the last coming of a refused process is news; it dials, or is dialled, every second."""
_PROBES = 3  # pings spread over the time an old connection has to defend its node id


class MeshListenError(Exception):
    """The mesh's address cannot be bound; `str()` names it and what to do."""


@dataclass
class _Peer:
    host: str
    port: int
    dialling: asyncio.Task[None] | None = None
    link: Link | None = None
    probe: _Probe | None = None


@dataclass
class _Probe:
    newcomer: Link
    token: int
    pings_left: int
    timer: asyncio.TimerHandle | None = None


@dataclass(frozen=True, slots=True)
class Stranger:
    """A process that came under a peer's node id with a data folder that is not that peer's."""

    folder: int
    at: float
    """When it came last, by the loop's clock."""


class Mesh:
    """All connections of one node to its peers. Every method and callback belongs on `loop`."""

    folder: Folder
    """This node's data folder, which knows those of the others; to be given before `start`."""

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
        """Frames sent, received and, by cause, not sent; and one counter for each Reason."""
        self.strangers: dict[int, Stranger] = {}
        """By node id, those refused for their data folder and not let in since."""
        self.disowned_at: float | None = None
        """When a peer last said that it knows this node by another data folder, by the loop's clock."""
        self._loop = loop
        self._identity = Identity(cluster_id, node_id, boot_id, config.max_frame_bytes)
        self._secret = secret
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
        self._peers: dict[int, _Peer] = {}
        self._open: dict[Link, None] = {}
        self._strangers: dict[Link, None] = {}
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._running = False
        self._ticks_alone = 0

    async def start(self) -> None:
        """Bind, then dial the peers with lower ids. Raises MeshListenError if the address cannot be had."""
        try:
            self._server = await self._loop.create_server(self._accept, self._host, self.port)
        except OSError as error:
            cure = "stop the process that has it, or configure another port"
            if error.errno != errno.EADDRINUSE:
                cure = "configure an address of this machine, and a port it may use"
            reason = error.strerror or str(error)
            where = f"{self._host}:{self.port}"
            raise MeshListenError(f"mesh: cannot listen on {where}: {reason}: {cure}") from error
        if self.port == 0:
            self.port = self._server.sockets[0].getsockname()[1]
        self._running = True
        self._ticker = self._loop.call_later(self._config.ping_seconds, self._tick)
        for node_id in self._peers:
            self._dial(node_id)

    def set_peer(self, node_id: int, host: str, port: int) -> None:
        """Accept that node from now on; dial it if its id is lower, anew if the address is another."""
        _check_node_id(node_id)
        if not 1 <= port <= 65535:
            raise ValueError(f"the port of node {node_id} is 1 to 65535, not {port}")
        if node_id == self._identity.node_id:
            raise ValueError(f"node {node_id} cannot be a peer of itself")
        known = self._peers.get(node_id)
        if known is not None and (known.host, known.port) == (host, port):
            return
        if known is not None and node_id > self._identity.node_id:
            known.host, known.port = host, port
            return
        self.remove_peer(node_id)
        self._peers[node_id] = _Peer(host, port)
        if self._running:
            self._dial(node_id)

    def remove_peer(self, node_id: int) -> None:
        """Close the connection to that node and refuse it from now on; no error if it is no peer."""
        peer = self._peers.pop(node_id, None)
        if peer is None:
            return
        if peer.dialling is not None:
            peer.dialling.cancel()
        if peer.probe is not None:
            self._end_probe(peer)
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
        if not self.connected(peer):
            self.counters["not_connected"] += 1
            return False
        packed: bytes = self._packer.pack(payload)
        return bool(self.send_packed((peer,), packed))

    def send_packed(self, peers: Iterable[int], packed: bytes) -> list[int]:
        """As send() for a payload that is msgpack already, to several peers; returns those it went to."""
        frame = data_frame(packed)
        body_bytes = data_body_bytes(packed)
        counters = self.counters
        sent = []
        for node_id in peers:
            peer = self._peers.get(node_id)
            if peer is None or peer.link is None:
                counters["not_connected"] += 1
            elif body_bytes > peer.link.max_body_bytes:
                counters["too_big"] += 1
            elif not peer.link.write(frame):
                counters["backlogged"] += 1
            else:
                counters["frames_sent"] += 1
                counters["bytes_sent"] += len(frame)
                sent.append(node_id)
        return sent

    async def close(self) -> None:
        """Stop listening and dialling, flush and close every connection within linger_seconds.

        Afterwards the mesh has no peers and stays closed.
        """
        self._running = False
        if self._ticker is not None:
            self._ticker.cancel()
        if self._server is not None:
            self._server.close()
        links = list(self._open)
        tasks = [peer.dialling for peer in self._peers.values() if peer.dialling is not None]
        for node_id in list(self._peers):
            self.remove_peer(node_id)
        for link in links:
            link.close()
        if tasks or links:
            await asyncio.wait([*tasks, *(link.closed for link in links)])
        if self._server is not None:
            await self._server.wait_closed()

    # What links tell.

    def link_opened(self, link: Link) -> None:
        """Bound the strangers: an honest handshake takes milliseconds, so the oldest one stalls."""
        self._open[link] = None
        link.closed.add_done_callback(lambda _: self._open.pop(link, None))
        if not self._running:
            link.close()
        elif link.handshake.role is Role.ACCEPTOR:
            self._strangers[link] = None
            if len(self._strangers) > self._config.max_strangers:
                oldest = next(iter(self._strangers))
                oldest.fail(
                    Reason.CROWDED,
                    f"closed, as more than {self._config.max_strangers} connections are in their handshake",
                )

    def link_proved(self, link: Link) -> None:
        self._strangers.pop(link, None)
        peer = self._peers.get(link.peer)
        if peer is None:
            link.refuse(
                Reason.UNKNOWN_NODE,
                "it is no member of this cluster as this node knows it: add it first, or correct its node_id",
            )
        elif (why := link.handshake.disowned()) is not None:
            link.refuse(Reason.OTHER_FOLDER, why)
        elif peer.link is not None and peer.link.boot_id != link.boot_id:
            self._probe(peer, link)
        elif (why := self._judge(link)) is not None:
            link.refuse(Reason.OTHER_FOLDER, why)
        else:
            if peer.probe is not None:
                self._refuse_duplicate(peer)
            link.admit()

    def link_refused(self, link: Link) -> str | None:
        return self._judge(link)

    def link_up(self, link: Link) -> None:
        """Before anything of the peer counts, its folder is known durably, and how this one stands there."""
        if link.handshake.told.newcomer != self.folder.newcomer:
            # A vote came during the handshake: for as long as this connection lasts it would not count there.
            link.close()
            return
        why = self._judge(link)
        if why is not None:
            link.fail(Reason.OTHER_FOLDER, why)
            return
        try:
            self.folder.meet(link.peer, link.standing)
        except OSError as error:
            link.fail(Reason.NOT_NOTED, f"its data folder's identity cannot be noted: {error}: mend the disk")
            return
        self.strangers.pop(link.peer, None)
        self.disowned_at = None
        peer = self._peers[link.peer]
        old, peer.link = peer.link, link
        if old is not None:
            old.close()
            self._on_disconnect(link.peer)
        if peer.link is link:
            self._on_connect(link.peer)

    def link_down(self, link: Link) -> None:
        self._strangers.pop(link, None)
        peer = self._peers.get(link.peer) if link.handshake.proved else None
        if peer is None:
            return
        probe = peer.probe
        if probe is not None and probe.newcomer is link:
            self._end_probe(peer)
        if peer.link is link:
            peer.link = None
            self._on_disconnect(link.peer)
            if probe is not None and peer.probe is probe:
                self._end_probe(peer)
                probe.newcomer.admit()

    def link_data(self, link: Link, payload: Any) -> None:
        self.counters["frames_received"] += 1
        self._on_frame(link.peer, payload)

    def link_pong(self, link: Link, token: int) -> None:
        """The old connection lives, so its peer's node id is used twice; the one that came second goes."""
        peer = self._peers[link.peer]
        probe = peer.probe
        if probe is not None and peer.link is link and probe.token == token:
            self._refuse_duplicate(peer)

    def link_problem(self, problem: MeshProblem) -> None:
        if problem.reason is Reason.OTHER_FOLDER and problem.peer not in self.strangers:
            self.disowned_at = self._loop.time()
        self._problems.add(problem)

    def is_disowned(self) -> bool:
        """Whether a peer said lately that it knows this node by another data folder."""
        at = self.disowned_at
        return at is not None and self._loop.time() - at < STRANGER_SECONDS

    def knocking(self) -> dict[int, Stranger]:
        """By node id, the processes that come with other data folders; one that stopped coming is no news."""
        since = self._loop.time() - STRANGER_SECONDS
        return {node: each for node, each in sorted(self.strangers.items()) if each.at > since}

    def is_newcomer(self, peer: int) -> bool:
        """Whether a connected peer says that it has no vote yet."""
        known = self._peers.get(peer)
        return known is not None and known.link is not None and known.link.standing.newcomer

    def _judge(self, link: Link) -> str | None:
        why = self.folder.judges(link.peer, link.standing)
        if why is not None:
            self.strangers[link.peer] = Stranger(link.standing.key.folder, self._loop.time())
        return why

    def judge_again(self) -> None:
        """What is known of the others' folders changed: let go of those that are in force no more."""
        for node_id, peer in list(self._peers.items()):
            if peer.link is not None and (why := self._judge(peer.link)) is not None:
                peer.link.fail(Reason.OTHER_FOLDER, why)
            elif node_id in self.strangers:
                known = self.folder.known.get(node_id)
                if known is not None and known.folder == self.strangers[node_id].folder:
                    del self.strangers[node_id]

    def reconnect(self) -> None:
        """Let every connection be made anew: this node's standing changed, and peers hear it in the hello."""
        for peer in list(self._peers.values()):
            if peer.link is not None:
                peer.link.close()

    # Two processes with one node id.

    def _probe(self, peer: _Peer, newcomer: Link) -> None:
        """Ask the live connection whether its process still is there before another one takes its place."""
        if peer.probe is not None:
            peer.probe.newcomer.close()
        peer.probe = _Probe(newcomer, self._rng.getrandbits(63), _PROBES)
        self._probe_step(peer, peer.probe)

    def _probe_step(self, peer: _Peer, probe: _Probe) -> None:
        assert peer.link is not None
        if probe.pings_left == 0:
            peer.link.fail(Reason.SILENT, "its connection is dead, a new process with its node id takes over")
            return
        probe.pings_left -= 1
        peer.link.ping(probe.token)
        pause = self._config.duplicate_probe_seconds / _PROBES
        probe.timer = self._loop.call_later(pause, self._probe_step, peer, probe)

    def _refuse_duplicate(self, peer: _Peer) -> None:
        assert peer.probe is not None
        newcomer = peer.probe.newcomer
        self._end_probe(peer)
        newcomer.refuse(
            Reason.DUPLICATE_NODE,
            f"a second process with node id {newcomer.peer}, while the first answers: "
            "stop one of them, or give it another node_id",
        )

    def _end_probe(self, peer: _Peer) -> None:
        assert peer.probe is not None
        if peer.probe.timer is not None:
            peer.probe.timer.cancel()
        peer.probe = None

    # Connections come about and are kept.

    def _handshake(self, role: Role, dialled: int = 0) -> Handshake:
        nonce = self._rng.randbytes(NONCE_BYTES)
        identity = replace(self._identity, standing=self.folder.standing())
        known = self.folder.known.get(dialled)
        return Handshake(role, identity, secret=self._secret, nonce=nonce, dialled=dialled, known=known)

    def _accept(self) -> Link:
        return Link(self, self._handshake(Role.ACCEPTOR), loop=self._loop, config=self._config)

    def _dial(self, node_id: int) -> None:
        if node_id < self._identity.node_id:
            peer = self._peers[node_id]
            target = Target(node_id, peer.host, peer.port)
            peer.dialling = self._loop.create_task(
                keep_dialled(
                    target,
                    loop=self._loop,
                    config=self._config,
                    rng=self._rng,
                    make_link=lambda: self._dialling_link(target),
                    report=self._problems.add,
                )
            )

    def _dialling_link(self, target: Target) -> Link:
        handshake = self._handshake(Role.DIALLER, target.node_id)
        return Link(self, handshake, loop=self._loop, config=self._config, dialled=target.address)

    def _tick(self) -> None:
        """Ping who was silent, give up who stays so; counted in turns, as a paused loop reads nothing."""
        self._ticker = self._loop.call_later(self._config.ping_seconds, self._tick)
        self._notice_alone()
        for peer in list(self._peers.values()):
            link = peer.link
            if link is None:
                continue
            if link.silent_ticks > self._config.max_unanswered_pings:
                link.fail(Reason.SILENT, f"it did not answer {self._config.max_unanswered_pings} pings")
                continue
            if link.silent_ticks:
                link.ping(0)
            link.silent_ticks += 1

    def _notice_alone(self) -> None:
        """Say that no peer is there: who has the lowest id dials nobody, and would wait in silence.

        Where peers are there and refuse this node's data folder, they have said so.
        """
        connected = any(peer.link is not None for peer in self._peers.values())
        if not self._peers or connected or self.is_disowned():
            self._ticks_alone = 0
            return
        self._ticks_alone += 1
        if self._ticks_alone * self._config.ping_seconds >= self._config.alone_seconds:
            node_id, where = self._identity.node_id, f"{self._host}:{self.port}"
            text = (
                "no peer is connected to this node: start the others, and check that they reach"
                f" node {node_id} at {where} and that no other process is node {node_id}"
            )
            self._problems.add(MeshProblem(Reason.ALONE, text, None, where))


def _check_node_id(node_id: int) -> None:
    if not 1 <= node_id <= MAX_NODE_ID:
        raise ValueError(f"a node id is 1 to {MAX_NODE_ID}, not {node_id}")
