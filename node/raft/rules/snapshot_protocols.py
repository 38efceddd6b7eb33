"""Snapshots as the rules use them; `node/raft/snapshots/` implements it."""

from __future__ import annotations

from typing import Protocol

from strandline.node.raft.rules.messages import NeedSnapshot, SnapshotChunk, SnapshotReply
from strandline.node.raft.rules.progress import Progress


class SnapshotTaker(Protocol):
    """A replica's own snapshots."""

    def due(self) -> bool:
        """Whether enough was applied since the last snapshot, or a follower waits for one."""

    def take(self) -> bool:
        """Capture the applied state and store it off the loop; returns whether a snapshot was begun."""


class SnapshotSender(Protocol):
    """A leader's side of bringing followers up by snapshot."""

    def start(self, peer: int, progress: Progress, least_index: int = 0) -> None:
        """Bring a follower up by snapshot: its next entry is no longer in the log, or its state is gone."""

    def end(self, peer: int) -> None: ...
    def abandon(self) -> None: ...
    def let_go(self, *, idle: bool) -> None:
        """Let what stayed for followers leave memory once they are level, or members no more."""

    def tick(self, peer: int, now: float) -> None: ...
    def on_reply(self, peer: int, progress: Progress, reply: SnapshotReply) -> None: ...
    def on_need(self, peer: int, progress: Progress, need: NeedSnapshot) -> None: ...


class SnapshotReceiver(Protocol):
    """A follower's side of it."""

    def on_chunk(self, peer: int, chunk: SnapshotChunk) -> None: ...
