"""Pings for silent peers, and a warning when no peer is connected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strandline.node.raft.mesh.config import MeshConfig
from strandline.node.raft.mesh.peers import Peer
from strandline.node.raft.mesh.problems import MeshProblem, MeshReason
from strandline.node.raft.mesh.strangers import Strangers


class Liveness:
    """A look at all peers, every `ping_seconds`."""

    def __init__(
        self,
        node_id: int,
        peers: dict[int, Peer],
        strangers: Strangers,
        *,
        loop: asyncio.AbstractEventLoop,
        config: MeshConfig,
        report: Callable[[MeshProblem], None],
    ) -> None:
        self._node_id = node_id
        self._peers = peers
        self._strangers = strangers
        self._loop = loop
        self._config = config
        self._report = report
        self._where = ""
        self._ticks_alone = 0
        self._ticker: asyncio.TimerHandle | None = None

    def start(self, where: str) -> None:
        """The node listens at `where`, host and port."""
        self._where = where
        self._ticker = self._loop.call_later(self._config.ping_seconds, self._tick)

    def stop(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()

    def _tick(self) -> None:
        """Ping silent peers, and give up those that stay silent; counted in turns, as a paused loop reads
        nothing."""
        self._ticker = self._loop.call_later(self._config.ping_seconds, self._tick)
        self._notice_alone()
        for peer in list(self._peers.values()):
            link = peer.link
            if link is None:
                continue
            if link.silent_ticks > self._config.max_unanswered_pings:
                link.fail(MeshReason.SILENT, f"it did not answer {self._config.max_unanswered_pings} pings")
                continue
            if link.silent_ticks:
                link.ping(0)
            link.silent_ticks += 1

    def _notice_alone(self) -> None:
        """Report that no peer is connected to this node.

        The node with the lowest id dials no other, and would wait in silence. There is no report if peers
        refuse this node's data folder: that has its own report.
        """
        connected = any(peer.link is not None for peer in self._peers.values())
        if not self._peers or connected or self._strangers.is_disowned():
            self._ticks_alone = 0
            return
        self._ticks_alone += 1
        if self._ticks_alone * self._config.ping_seconds >= self._config.alone_seconds:
            node_id, where = self._node_id, self._where
            text = (
                "no peer is connected to this node: start the others, and check that they reach"
                f" node {node_id} at {where} and that no other process is node {node_id}"
            )
            self._report(MeshProblem(MeshReason.ALONE, text, None, where))
