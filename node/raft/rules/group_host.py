"""The node, as a group needs it. All times are seconds of one clock that never goes backward."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Protocol

from strandline.node.raft.attention import Attention
from strandline.node.raft.campaigns import Campaigns
from strandline.node.raft.config import RaftConfig
from strandline.node.raft.rules.messages import Message
from strandline.node.raft.rules.peer_heartbeat import PeerHeartbeat


class Clock(Protocol):
    """The node's time, and the gaps in which it did not run."""

    @property
    def attention(self) -> Attention: ...
    @property
    def time_gap(self) -> tuple[float, float]:
        """Between which times the loop last did not run, or the clock jumped."""

    def now(self) -> float: ...
    def attentive(self) -> float:
        """`now` on a clock that stops while the loop is blocked, for deadlines of messages from others."""

    def crowd_seconds(self) -> float:
        """Seconds to allow for what takes longer the more groups a node has."""


class Peers(Protocol):
    """The other nodes, and the messages to them."""

    def connected(self, peer: int) -> bool: ...
    def is_newcomer(self, peer: int) -> bool: ...
    def folder_of(self, node: int) -> int:
        """Identity of a node's data folder, this one's included; 0 if it is not known."""

    def peer_heartbeat(self, peer: int) -> PeerHeartbeat: ...
    def offered_pre_votes(self, group: int) -> list[int]:
        """Peers that offered a pre-vote for this group's first leader before the group was here."""

    def send(self, peer: int, message: Message) -> bool: ...
    def send_when_synced(self, peer: int, message: Message) -> None: ...


class Storage(Protocol):
    """The disk: its state, and the actions that follow a sync."""

    def backlogged(self) -> bool: ...
    def disk_stalled(self) -> bool: ...
    def when_synced(self, callback: Callable[[], None]) -> None: ...
    def run_blocking(self, job: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None: ...


class Scheduler(Protocol):
    """The node's order of work."""

    def admit_campaign(self, group: Any) -> bool: ...
    def campaign_ended(self, group: Any) -> None: ...
    def guard(self, group: Any, call: Callable[..., object], *args: Any) -> None: ...
    def later(self, seconds: float, group: Any, call: Callable[[], object]) -> None: ...
    def wake(self, group: Any) -> None: ...
    def appended(self, group: Any, size: int) -> None:
        """A leader's log has a new entry of this many bytes: the group is active, has work in this turn."""

    def set_active(self, group: Any, active: bool) -> None: ...


class GroupHost(Clock, Peers, Storage, Scheduler, Protocol):
    """The node."""

    node_id: int
    cluster_id: str
    config: RaftConfig
    rng: random.Random
    campaigns: Campaigns
    loop: asyncio.AbstractEventLoop
    reading: dict[int, Any]
    """Groups with readers that wait for a round to be answered."""
    leaving: bool
    """Whether this node is about to stop, and takes no leadership any more."""

    @property
    def newcomer(self) -> bool:
        """Whether this node's folder may have had a predecessor, and so neither votes nor counts."""
