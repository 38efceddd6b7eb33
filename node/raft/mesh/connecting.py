"""Connections to the peers: accepted, or dialled by the node with the higher id."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

from strandline.node.raft.mesh.config import MeshConfig
from strandline.node.raft.mesh.dialler import DialTarget, keep_dialled
from strandline.node.raft.mesh.handshake import NONCE_BYTES, Handshake, Identity, Role
from strandline.node.raft.mesh.link import Link, LinkOwner
from strandline.node.raft.mesh.peers import Peer
from strandline.node.raft.mesh.problems import MeshProblem
from strandline.node.raft.mesh.strangers import Strangers


class Connector:
    """Makes the links of one node; their events go to `owner`."""

    def __init__(
        self,
        owner: LinkOwner,
        identity: Identity,
        secret: bytes,
        strangers: Strangers,
        *,
        loop: asyncio.AbstractEventLoop,
        config: MeshConfig,
        rng: random.Random,
        report: Callable[[MeshProblem], None],
    ) -> None:
        self._owner = owner
        self._identity = identity
        self._secret = secret
        self._strangers = strangers
        self._loop = loop
        self._config = config
        self._rng = rng
        self._report = report

    def accept(self) -> Link:
        """The protocol of a connection that comes in."""
        return Link(self._owner, self._handshake(Role.ACCEPTOR), loop=self._loop, config=self._config)

    def dial(self, node_id: int, peer: Peer) -> None:
        """Keep a peer with a lower id dialled; one with a higher id dials this node."""
        if node_id < self._identity.node_id:
            target = DialTarget(node_id, peer.host, peer.port)
            peer.dialling = self._loop.create_task(
                keep_dialled(
                    target,
                    loop=self._loop,
                    config=self._config,
                    rng=self._rng,
                    make_link=lambda: self._dialling_link(target),
                    report=self._report,
                )
            )

    def _dialling_link(self, target: DialTarget) -> Link:
        handshake = self._handshake(Role.DIALLER, target.node_id)
        return Link(self._owner, handshake, loop=self._loop, config=self._config, dialled=target.address)

    def _handshake(self, role: Role, dialled: int = 0) -> Handshake:
        folder = self._strangers.folder
        nonce = self._rng.randbytes(NONCE_BYTES)
        identity = replace(self._identity, standing=folder.standing())
        known = folder.known.get(dialled)
        return Handshake(role, identity, secret=self._secret, nonce=nonce, dialled=dialled, known=known)
