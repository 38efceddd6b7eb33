"""One peer as the mesh knows it, and which of two processes with its node id is the living one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from strandline.node.raft.mesh.link import Link
from strandline.node.raft.mesh.problems import MeshReason

PROBES: Final = 3
"""Pings spread over the time an old connection has to defend its node id."""


@dataclass
class Peer:
    """A peer's addresses, the first of which is the newest, and its connection."""

    addresses: tuple[tuple[str, int], ...]
    dialling: asyncio.Task[None] | None = None
    link: Link | None = None
    probe: DuplicateProbe | None = None


class DuplicateProbe:
    """Asks the live connection whether its process still is there before another one takes its place.

    If it does not answer it fails, and `newcomer` can be admitted.
    """

    def __init__(
        self, peer: Peer, newcomer: Link, token: int, *, loop: asyncio.AbstractEventLoop, seconds: float
    ) -> None:
        self.newcomer = newcomer
        self.token = token
        self._peer = peer
        self._loop = loop
        self._pause = seconds / PROBES
        self._pings_left = PROBES
        self._timer: asyncio.TimerHandle | None = None

    def step(self) -> None:
        """Ping once more, or give the old connection up."""
        link = self._peer.link
        assert link is not None
        if self._pings_left == 0:
            link.fail(MeshReason.SILENT, "its connection is dead, a new process with its node id takes over")
            return
        self._pings_left -= 1
        link.ping(self.token)
        self._timer = self._loop.call_later(self._pause, self.step)

    def end(self) -> None:
        """It is decided."""
        if self._timer is not None:
            self._timer.cancel()
        self._peer.probe = None

    def refuse(self) -> None:
        """The old connection lives, so its peer's node id is used twice; the one that came second goes."""
        self.end()
        self.newcomer.refuse(
            MeshReason.DUPLICATE_NODE,
            f"a second process with node id {self.newcomer.peer}, while the first answers: "
            "stop one of them, or give it another node_id",
        )
