"""Nodes as small as reports and removal let them be; what they tell waits until a test delivers it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, cast

from strandline.node.compaction.removal_leader import RemovalLeader
from strandline.node.compaction.removal_minimum import Ends
from strandline.node.compaction.reports import TELL, Reports
from strandline.node.controller.leaders import Leader
from strandline.node.raft.configuration import Configuration
from strandline.node.rpc import CallFailed
from strandline.statemachine.partition.producers import Producers
from strandline.statemachine.partition.removal import Removals
from tests.gc.parts import drive

Payload = list[Any]
GROUP = 1
"""Of the one partition, where there is only one."""


class Topic(NamedTuple):
    configs: dict[str, str]


class Post:
    """The frames on their way, for each connection in their order; and which connections there are."""

    def __init__(self) -> None:
        self.nodes: dict[int, RemovalNode] = {}
        self.connected: dict[tuple[int, int], None] = {}
        self.waiting: dict[tuple[int, int], list[Payload]] = {}

    def connect(self, one: int, other: int) -> None:
        if (one, other) not in self.connected:
            for sender, receiver in ((one, other), (other, one)):
                self.connected[sender, receiver] = None
                self.nodes[sender].on_connect(receiver)

    def disconnect(self, one: int, other: int) -> None:
        if (one, other) in self.connected:
            for sender, receiver in ((one, other), (other, one)):
                del self.connected[sender, receiver]
                self.waiting.pop((sender, receiver), None)
                self.nodes[sender].on_disconnect(receiver)

    def deliver(self, sender: int, receiver: int, payload: Payload) -> str | None:
        """Hand over one frame; the reason if it is refused."""
        try:
            drive(self.nodes[receiver].handlers[TELL](sender, payload))
        except CallFailed as failed:
            return failed.reason
        return None

    def deliver_all(self) -> None:
        waiting, self.waiting = self.waiting, {}
        for (sender, receiver), frames in waiting.items():
            for payload in frames:
                assert self.deliver(sender, receiver, payload) is None


class Group:
    def __init__(self, group: int, members: tuple[int, ...]) -> None:
        self.id = group
        self.configuration = Configuration(1, members)


class State:
    """As much of a partition's state as removal reads."""

    def __init__(self, removals: Removals) -> None:
        self.removals = removals
        self.producers = Producers()


class Replica:
    """As much of a partition as removal needs; `execute` is what a test puts there."""

    topic_id = b"t" * 16
    topic = "table"

    def __init__(self, group: int, members: tuple[int, ...] = (1, 2, 3)) -> None:
        self.group = Group(group, members)
        self.number = group
        self.machine: Any = State(Removals())
        self.leads = False
        self.leader_epoch = 1
        self.executed: list[Any] = []
        self.on_execute: Callable[[Any], Coroutine[Any, Any, Any]] | None = None

    async def execute(self, command: Any) -> Any:
        self.executed.append(command)
        assert self.on_execute is not None
        return await self.on_execute(command)


class Log(NamedTuple):
    """The local log of a replica, as its manifest says."""

    replica: Any
    of_disk: Ends | None

    def ends(self, machine: object) -> Ends | None:
        assert machine is self.replica.machine
        return self.of_disk


class RemovalNode:
    """One node's reports and leaders' part; it is its own mesh, host, logs, controller and broker."""

    def __init__(self, post: Post, node: int, loop: asyncio.AbstractEventLoop) -> None:
        self.node_id, self.loop = node, loop
        self.handlers: dict[str, Any] = {}
        self.leaders: dict[int, Leader] = {}
        self.disk: dict[int, Ends | None] = {}
        """By group, what the manifests of the logs here say."""
        self.replicas: dict[int, Replica] = {}
        self.configs = {"cleanup.policy": "compact"}
        self.now_ms: int | None = 0
        self.full = False
        self.post = post
        post.nodes[node] = self
        me = cast(Any, self)
        self.controller = self.machine = self.partitions = self.compaction = me
        self.reports = Reports(me, me, me, me, loop=loop)
        self.leader = RemovalLeader(me)

    # Calls and host.

    def serve(self, method: str, handler: Any) -> None:
        self.handlers[method] = handler

    def watch_peers(self, on_connect: Callable[[int], None], on_disconnect: Callable[[int], None]) -> None:
        self.on_connect, self.on_disconnect = on_connect, on_disconnect

    def tell(self, peer: int, method: str, payload: Any) -> bool:
        if self.full or (self.node_id, peer) not in self.post.connected:
            return False
        rows = [[*row] for row in payload[1]]
        self.post.waiting.setdefault((self.node_id, peer), []).append([payload[0], rows])
        return True

    @property
    def groups(self) -> dict[int, Replica]:
        return self.replicas

    def leader_of(self, group: int) -> Leader | None:
        return self.leaders.get(group)

    # Logs and replicas.

    @property
    def logs(self) -> dict[int, Log]:
        return {group: Log(self.replicas.get(group), ends) for group, ends in self.disk.items()}

    def log_of(self, group: int) -> Log | None:
        return self.logs.get(group)

    def by_group(self, group: int) -> Replica | None:
        return self.replicas.get(group)

    def topic_by_id(self, topic_id: bytes) -> Topic | None:
        return Topic(self.configs)

    def agreed_ms(self) -> int | None:
        return self.now_ms

    # What a test has it do.

    def look(self, *, everything: bool = False) -> None:
        drive(self.reports.look(everything=everything))

    def known(self, group: int, term: int = 1) -> dict[int, Ends]:
        """What it would count as leader."""
        return self.reports.known(group, term, (1, 2, 3, 4))
