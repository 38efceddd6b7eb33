"""The messages of one turn, gathered into one frame for each peer."""

from __future__ import annotations

from typing import Any

from strandline.node.raft.mesh.mesh import Mesh

FRAME_BYTES = 1 << 20
"""Messages of one turn are gathered up to this size; a larger one is a frame of its own."""

FRAME_MESSAGES = 256
"""Messages in one frame at most: its receiver does nothing else meanwhile."""

_OVERHEAD_BYTES = 96
"""Most bytes of a message beside its bytes fields: a few numbers."""

MESSAGES = 0
"""First element of a frame that holds groups' messages."""


class _Gathering:
    __slots__ = ("messages", "size")

    def __init__(self) -> None:
        self.messages: list[tuple[Any, ...]] = []
        self.size = 0


class Outbox:
    """Frames that are being filled, bounded by the mesh's limit for each peer."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._gathering: dict[int, _Gathering] = {}

    def put(self, peer: int, message: tuple[Any, ...]) -> bool:
        """Add a message; false, and nothing is added, when the peer is away or too much waits for it."""
        size = _OVERHEAD_BYTES
        for value in message:
            if type(value) is bytes:
                size += len(value)
        if not self._mesh.connected(peer):
            return False
        gathering = self._gathering.get(peer)
        if gathering is None:
            gathering = self._gathering[peer] = _Gathering()
        if size > _OVERHEAD_BYTES * 2 and gathering.size + size > self._mesh.room(peer):
            return False
        full = gathering.size + size > FRAME_BYTES or len(gathering.messages) >= FRAME_MESSAGES
        if full and gathering.messages:
            self._flush(peer, gathering)
        gathering.messages.append(message)
        gathering.size += size
        return True

    def flush(self) -> None:
        """Hand every frame to the mesh."""
        for peer, gathering in self._gathering.items():
            if gathering.messages:
                self._flush(peer, gathering)

    def drop(self, peer: int) -> None:
        """Drop the messages for a peer that is gone."""
        self._gathering.pop(peer, None)

    def _flush(self, peer: int, gathering: _Gathering) -> None:
        messages, gathering.messages, gathering.size = gathering.messages, [], 0
        self._mesh.send(peer, [MESSAGES, messages])
