"""Connections to the peers: accepted, or dialled by the node with the higher id; through TLS where it is set.

The certificate keeps others out, and the secret says which cluster a node is of: a proof of it covers the TLS
connection (`Handshake.bind`), so the two need not trust that names in certificates are right.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from strandline.node.raft.mesh.config import MeshConfig
from strandline.node.raft.mesh.dialler import DialTarget, keep_dialled
from strandline.node.raft.mesh.guests import Asking, SeedFailed
from strandline.node.raft.mesh.handshake import ANY_NODE, NONCE_BYTES, Handshake, Identity, Role
from strandline.node.raft.mesh.link import Link, LinkOwner
from strandline.node.raft.mesh.peers import Peer
from strandline.node.raft.mesh.problems import TLS_CURE, MeshProblem, MeshReason
from strandline.node.raft.mesh.strangers import Strangers
from strandline.node.tls.keeper import TlsFilesError, TlsKeeper, TlsSettings
from strandline.node.tls.listener import OpenGate, TlsListener, not_listening


class MeshListenError(Exception):
    """The mesh's address cannot be bound; `str()` names it and what to do."""


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
        tls: TlsSettings | None,
    ) -> None:
        self._owner = owner
        self._identity = identity
        self._secret = secret
        self._strangers = strangers
        self._loop = loop
        self._config = config
        self._rng = rng
        self._report = report
        self._tls = None if tls is None else TlsKeeper(tls, "the mesh", loop=loop)
        self._server: asyncio.Server | TlsListener | None = None

    @property
    def certificate_end(self) -> float | None:
        """Unix time at which this node's certificate ends; None without TLS, and until `listen`."""
        return None if self._tls is None else self._tls.not_after

    async def listen(self, host: str, port: int) -> int:
        """Accept connections; the port that was taken. Raises MeshListenError if that cannot be."""
        try:
            if self._tls is not None:
                return await self._listen_for_tls(self._tls, host, port)
            self._server = await self._loop.create_server(self.accept, host, port)
        except TlsFilesError as error:
            raise MeshListenError(f"mesh: {error}") from error
        except OSError as error:
            raise MeshListenError(not_listening("mesh", host, port, error)) from error
        return int(self._server.sockets[0].getsockname()[1]) if port == 0 else port

    async def _listen_for_tls(self, tls: TlsKeeper, host: str, port: int) -> int:
        tls.open()
        server = self._server = TlsListener(
            self,
            tls,
            OpenGate(self.accept),
            loop=self._loop,
            places=self._config.max_strangers,
            handshake_seconds=self._config.handshake_seconds,
            shutdown_seconds=self._config.linger_seconds,
            other="the other node",
            waits=False,
        )
        await server.bind(host, port)
        server.accept()
        return server.port

    def close(self) -> None:
        """Accept no more connections."""
        if self._tls is not None:
            self._tls.close()
        if self._server is not None:
            self._server.close()

    async def wait_closed(self) -> None:
        """Wait until the address is free."""
        if isinstance(self._server, asyncio.Server):
            await self._server.wait_closed()

    def handshake_ended(self, client: str, failure: str | None) -> None:
        """Report a TLS handshake that failed."""
        if failure is not None:
            text = f"a connection from {client}: {failure}: {TLS_CURE}"
            self._report(MeshProblem(MeshReason.NO_TLS, text, peer=None, address=client))

    def accept(self) -> Link:
        """The protocol of a connection that comes in."""
        return Link(self._owner, self._handshake(Role.ACCEPTOR), loop=self._loop, config=self._config)

    def dial(self, node_id: int, peer: Peer) -> None:
        """Keep a peer with a lower id dialled; one with a higher id dials this node."""
        if node_id < self._identity.node_id:
            peer.dialling = self._loop.create_task(
                keep_dialled(
                    lambda: [DialTarget(node_id, *address) for address in peer.addresses],
                    loop=self._loop,
                    config=self._config,
                    rng=self._rng,
                    make_link=self._dialling_link,
                    report=self._report,
                    tls=self._tls,
                )
            )

    async def ask(self, host: str, port: int, question: Any, seconds: float) -> Any:
        """The answer of any member at that address; raises SeedFailed."""
        asking = Asking(question, loop=self._loop)
        handshake, target = self._handshake(Role.DIALLER, ANY_NODE), DialTarget(ANY_NODE, host, port)
        link = Link(asking, handshake, loop=self._loop, config=self._config, dialled=target.address)
        try:
            async with asyncio.timeout(seconds):
                async with asyncio.timeout(self._config.connect_seconds):
                    await self._loop.create_connection(
                        lambda: link, host, port, ssl=None if self._tls is None else self._tls.dialling
                    )
                return await asking.answer
        except TimeoutError:
            raise SeedFailed("no answer in time: does it run, and is it a member?") from None
        except (OSError, UnicodeError) as error:
            raise SeedFailed(f"{error}: does it run, and is the address right?") from None
        finally:
            asking.answer.cancel()
            link.close()

    def _dialling_link(self, target: DialTarget) -> Link:
        handshake = self._handshake(Role.DIALLER, target.node_id)
        return Link(self._owner, handshake, loop=self._loop, config=self._config, dialled=target.address)

    def _handshake(self, role: Role, dialled: int = 0) -> Handshake:
        folder = self._strangers.folder
        nonce = self._rng.randbytes(NONCE_BYTES)
        identity = replace(self._identity, standing=folder.standing())
        known = folder.known.get(dialled)
        return Handshake(role, identity, secret=self._secret, nonce=nonce, dialled=dialled, known=known)
