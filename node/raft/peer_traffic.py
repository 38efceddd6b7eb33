"""Frames from the other nodes, and their coming and going."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from strandline.node.raft.bad_message import BadMessage
from strandline.node.raft.clock import HostClock
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.mesh.mesh import Mesh
from strandline.node.raft.mesh.outbox import Outbox
from strandline.node.raft.rules.messages import PreVoteReply, decode
from strandline.node.raft.rules.shared_heartbeats import SharedHeartbeats
from strandline.node.raft.sweeps import Sweeps

_MAX_OFFERS = 65_536
"""Pre-votes of one peer that are kept for groups which are not here yet."""


class TrafficHost(Protocol):
    """The node, as traffic needs it."""

    groups: dict[int, RaftGroup]
    mesh: Mesh
    outbox: Outbox
    clock: HostClock
    heartbeats: SharedHeartbeats
    stopped: bool

    def by_rank(self) -> list[RaftGroup]: ...
    def guard(self, group: RaftGroup, call: Callable[..., object], *args: Any) -> None: ...


class PeerTraffic:
    """Frames, connections, and the groups that they concern."""

    def __init__(self, host: TrafficHost, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._sweeps = Sweeps(loop)
        self._offers: dict[int, dict[int, None]] = {}
        self._takers: dict[int, Callable[[int, list[Any]], None]] = {}
        self._watchers: list[tuple[Callable[[int], None], Callable[[int], None]]] = []
        self._newcomers: set[int] = set()

    def take_frames(self, kind: int, taker: Callable[[int, list[Any]], None]) -> None:
        """Hand frames `[kind, ...]` to `taker(peer, frame)`, which raises BadMessage for a malformed one."""
        self._takers[kind] = taker

    def watch_peers(self, on_connect: Callable[[int], None], on_disconnect: Callable[[int], None]) -> None:
        """Call back when a peer's connection is there and when it is gone."""
        self._watchers.append((on_connect, on_disconnect))

    def offered_pre_votes(self, group: int) -> list[int]:
        """Peers that offered a pre-vote for this group's first leader before the group was here."""
        return [peer for peer, groups in self._offers.items() if groups.pop(group, self) is None]

    def is_newcomer(self, peer: int) -> bool:
        """Whether a peer said so of itself when it was last connected."""
        return peer in self._newcomers

    def on_frame(self, peer: int, payload: Any) -> None:
        if self._host.stopped:
            return
        self._host.clock.notice_gap(self._host.clock.now())
        if type(payload) is not list or not payload:
            raise BadMessage("frame is not an array")
        if payload[0] != 0:
            taker = self._takers.get(payload[0]) if type(payload[0]) is int else None
            if taker is not None:
                taker(peer, payload)
            else:
                self._host.heartbeats.on_frame(peer, payload)
            return
        if len(payload) != 2 or type(payload[1]) is not list:
            raise BadMessage("frame of messages has a wrong shape")
        for packed in payload[1]:
            message = decode(packed)
            group = self._host.groups.get(message.group)
            if group is not None:
                self._host.guard(group, group.receive, peer, message)
            elif isinstance(message, PreVoteReply) and message.granted:
                offers = self._offers.setdefault(peer, {})
                if len(offers) < _MAX_OFFERS:
                    offers[message.group] = None

    def on_connect(self, peer: int) -> None:
        if self._host.mesh.is_newcomer(peer):
            self._newcomers.add(peer)
        else:
            self._newcomers.discard(peer)
        self._sweeps.begin(
            lambda group: self._host.guard(group, group.connections.on_connect, peer), self._host.by_rank()
        )
        for connected, _ in self._watchers:
            connected(peer)

    def on_disconnect(self, peer: int) -> None:
        self._host.outbox.drop(peer)
        self._host.heartbeats.forget_untold(peer)
        self._offers.pop(peer, None)
        self._sweeps.begin(
            lambda group: self._host.guard(group, group.connections.on_disconnect, peer), self._host.by_rank()
        )
        self._host.heartbeats.forget_untold(peer)
        for _, disconnected in self._watchers:
            disconnected(peer)
