"""Keeps one peer dialled: connect, wait until the connection is gone, pause, again.

The pause grows and is jittered, so that neither a dead peer nor the return of one costs the cluster a
storm of connections; it is bounded, so that a peer that is back is found within backoff_max_seconds.
"""

from __future__ import annotations

import asyncio
import errno
import random
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strandline.node.raft.mesh.config import MeshConfig
from strandline.node.raft.mesh.link import Link
from strandline.node.raft.mesh.problems import TLS_CURE, MeshProblem, MeshReason
from strandline.node.tls.keeper import TlsKeeper
from strandline.node.tls.listener import refusal


@dataclass(frozen=True)
class DialTarget:
    """A peer to dial, and its address."""

    node_id: int
    host: str
    port: int

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


async def keep_dialled(
    targets: Callable[[], Sequence[DialTarget]],
    *,
    loop: asyncio.AbstractEventLoop,
    config: MeshConfig,
    rng: random.Random,
    make_link: Callable[[DialTarget], Link],
    report: Callable[[MeshProblem], None],
    tls: TlsKeeper | None,
) -> None:
    """Run until cancelled. After a connection that lasted longer than any pause the next pause is short.

    A peer of several addresses is dialled at the next one when the last gave no connection.
    """
    pause, turn = config.backoff_min_seconds, 0
    while True:
        choices = targets()
        target = choices[turn % len(choices)]
        link = make_link(target)
        started = loop.time()
        try:
            await _connect(link, target, loop, config.connect_seconds, tls)
            await asyncio.shield(link.closed)
        except (OSError, UnicodeError) as error:
            report(_unreachable(target, error, config.connect_seconds, encrypted=tls is not None))
        if link.up and loop.time() - started > config.backoff_max_seconds:
            pause = config.backoff_min_seconds
        if not link.up:
            turn += 1
        await asyncio.sleep(pause * (0.5 + 0.5 * rng.random()))
        pause = min(2 * pause, config.backoff_max_seconds)


async def _connect(
    link: Link,
    target: DialTarget,
    loop: asyncio.AbstractEventLoop,
    seconds: float,
    tls: TlsKeeper | None,
) -> None:
    async with asyncio.timeout(seconds):
        await loop.create_connection(
            lambda: link, target.host, target.port, ssl=None if tls is None else tls.dialling
        )


def _unreachable(target: DialTarget, error: Exception, seconds: float, *, encrypted: bool) -> MeshProblem:
    who = f"node {target.node_id} at {target.address}"
    # asyncio gives no number to the end of a connection in its TLS handshake.
    ended = encrypted and isinstance(error, ConnectionError) and error.errno in (None, errno.ECONNRESET)
    if ended or isinstance(error, ssl.SSLError):
        cause = "it ended the TLS handshake, as a node without TLS does"
        if isinstance(error, ssl.SSLError):
            cause = refusal(error, seconds, "the other node")
        text = f"{who}: {cause}: {TLS_CURE}"
        return MeshProblem(MeshReason.NO_TLS, text, peer=target.node_id, address=target.address)
    cause = "no answer in time" if isinstance(error, TimeoutError) else str(error)
    return MeshProblem(
        MeshReason.UNREACHABLE,
        f"{who}: {cause}: is it running, and the address right?",
        peer=target.node_id,
        address=target.address,
    )
