"""Leaders of all partitions' groups, also of groups without a replica on this node.

A leader is named once it is ready, that is, once it has applied all of earlier terms: before that it refuses
batches, the client pauses, and its batches with acks=0 are lost. A replica knows its leader by itself. Of the
other groups a node learns from the nodes that lead them: each sends the groups it leads when it gets ready,
when a connection comes about, and all of them every few seconds, so that a lost message does no lasting harm.
The highest term is believed.

A node whose connection has just broken is most often dead, and its followers will have elected another before
long. Until then no leader is named: a client without a leader asks again soon (librdkafka after 0.1 s), and a
client of a dead leader only after it noticed the death (librdkafka after up to 1 s more).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host import RaftHost
from strandline.node.rpc import MeshCalls
from strandline.node.runtime.rounds import until_round
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP

log = logging.getLogger(__name__)

TELL_ALL_SECONDS: Final = 5.0
LOST_SECONDS: Final = 2.0
"""A node with a broken connection is not named as leader for this long, unless it says that it still leads.
An election takes less. After it, the break may concern only the connection between it and this node."""
LED: Final = "leaders.led"


class Leader(NamedTuple):
    """A node and the term it leads in, which is Kafka's leader epoch."""

    node: int
    term: int


class LeaderTable:
    """This node's view of every group's leader."""

    def __init__(self, host: RaftHost, calls: MeshCalls, *, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._calls = calls
        self._loop = loop
        self._reported: dict[int, Leader] = {}
        self._changed: dict[int, int] = {}
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._closed = False
        self._peers: dict[int, None] = {}
        self._lost: dict[int, float] = {}
        """Nodes whose connection broke, each with the time until which it is not named as a leader."""
        calls.serve(LED, self._on_led)
        host.watch_peers(self._on_connect, self._on_disconnect)

    def start(self) -> None:
        """Begin to tell the other nodes, every few seconds, the groups that this node leads."""
        self._timer = self._loop.call_later(until_round(self._loop, TELL_ALL_SECONDS), self._tell_all)

    def close(self) -> None:
        """Stop sending."""
        self._closed = True
        for handle in (self._timer, self._turn):
            if handle is not None:
                handle.cancel()

    def watch(self, group: RaftGroup) -> None:
        """Follow the leadership of a group that this node has a replica of."""
        group.on_ready(partial(self._on_ready, group.id))
        group.on_leadership(partial(self._on_leadership, group.id))

    def forget(self, group: int) -> None:
        """The group is gone."""
        self._reported.pop(group, None)

    def keep(self, group: int) -> None:
        """This node's replica goes, and the group does not: what the replica knows of its leader is kept.

        Without it clients of this node would have no leader until the leader tells of all its groups again.
        """
        leader = self._believed(group)
        if leader is not None and leader.node != self._host.node_id:
            self._reported[group] = leader

    def leader_of(self, group: int) -> Leader | None:
        """The leader of a partition's group; None while none is known to be ready, or the one that was has
        gone away."""
        leader = self._believed(group)
        if leader is not None and self._lost.get(leader.node, 0.0) > self._loop.time():
            return None
        return leader

    def _believed(self, group: int) -> Leader | None:
        replica = self._host.groups.get(group)
        reported = self._reported.get(group)
        if replica is None or replica.failure is not None:
            return reported
        ready = replica.ready_leader
        if ready is not None and (reported is None or reported.term <= replica.term):
            return Leader(ready, replica.term)
        # A leader of this very term, or a later one, made itself known before this replica heard of it.
        return reported if reported is not None and reported.term >= replica.term else None

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after a leader changed, once a loop turn at most; the returned function ends that."""
        self._callbacks.append(callback)
        return partial(self._callbacks.remove, callback)

    # Telling.

    def _on_ready(self, group: int, term: int) -> None:
        self._changed[group] = term
        self._wake()

    def _on_leadership(self, group: int, _leading: bool, _term: int) -> None:
        self._changed.pop(group, None)
        self._wake()

    def _wake(self) -> None:
        if self._turn is None and not self._closed:
            self._turn = self._loop.call_soon(self._tell_changes)

    def _tell_changes(self) -> None:
        self._turn = None
        changed, self._changed = self._changed, {}
        if changed:
            payload = [False, list(changed.items())]
            for peer in self._peers:
                self._calls.tell(peer, LED, payload)
        for callback in [*self._callbacks]:
            callback()

    def _tell_all(self) -> None:
        self._timer = self._loop.call_later(until_round(self._loop, TELL_ALL_SECONDS), self._tell_all)
        payload = [True, self._led()]
        for peer in self._peers:
            self._calls.tell(peer, LED, payload)

    def _led(self) -> list[tuple[int, int]]:
        return [
            (group.id, group.term)
            for group in self._host.groups.values()
            if group.is_ready and group.id != CONTROLLER_GROUP
        ]

    def _on_connect(self, peer: int) -> None:
        self._peers[peer] = None
        self._calls.tell(peer, LED, [True, self._led()])

    def _on_disconnect(self, peer: int) -> None:
        self._peers.pop(peer, None)
        self._lost[peer] = self._loop.time() + LOST_SECONDS
        self._wake()

    # Being told.

    async def _on_led(self, peer: int, payload: Any) -> None:
        everything, led = payload
        groups = dict(led)
        changed = False
        for group, term in groups.items():
            known = self._reported.get(group)
            if known is None or term > known.term:
                self._reported[group] = Leader(peer, term)
                changed = True
        if everything:
            self._lost.pop(peer, None)
            gone = [
                group for group, known in self._reported.items() if known.node == peer and group not in groups
            ]
            for group in gone:
                del self._reported[group]
            changed = changed or bool(gone)
        if changed:
            self._wake()
