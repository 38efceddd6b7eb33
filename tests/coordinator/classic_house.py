"""A groups' coordinator on a loop and over a log that a test turns, and clients of the classic protocol."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from strandline.node.config.node_config import GroupsSection
from strandline.node.coordinator.groups.classic_group import LiveGroup
from strandline.node.coordinator.groups.classic_state import (
    ClassicGroupState,
    JoinRequest,
    JoinResponse,
    Leaving,
    SyncRequest,
    SyncResponse,
)
from strandline.node.coordinator.groups.coordinator import GroupCoordinator
from strandline.node.coordinator.replica import CoordinatorReplica
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.outcome import NotLeader
from strandline.node.refusal import Cause
from strandline.statemachine.controller.hosted_groups import PartitionGroup
from strandline.statemachine.coordinator_machine import CoordinatorCommand, encode
from strandline.statemachine.groups.classic_group import ClassicGroup
from strandline.statemachine.groups.groups import GroupsMachine
from tests.coordinator.recording import Recording
from tests.partition.lone import HandGroup, TaskLoop

T = TypeVar("T")
PLACE = PartitionGroup(64, b"t" * 16, "__consumer_offsets", 5, (1, 2, 3), 1)
DELAY = 0.2
"""The initial rebalance delay."""


class NoConsumers:
    """The other protocol, which has nothing to do here."""

    changing: tuple[str, ...] = ()

    def started(self) -> None: ...

    def stopped(self, reason: str) -> None: ...


class House:
    """One coordinator. The log commits at once, unless `by_hand`."""

    def __init__(self, **groups: Any) -> None:
        self.loop: TaskLoop = TaskLoop()  # type: ignore[abstract]
        self.wall = 1_000_000
        self.clock_is_trusted = True
        self.by_hand = False
        self.topics: dict[bytes, Any] = {}
        section = GroupsSection(**{"initial_rebalance_delay_seconds": DELAY, **groups})
        controller = SimpleNamespace(
            machine=SimpleNamespace(topic_by_id=self.topics.get), catch_up=self._catch_up
        )
        self.context = SimpleNamespace(
            loop=self.loop,
            rng=random.Random(1),
            config=SimpleNamespace(groups=section),
            controller=controller,
            wall_ms=lambda: self.wall,
            agreed_ms=lambda: self.wall if self.clock_is_trusted else None,
        )
        self.caught_up = True
        self.hears: dict[bytes, Any] = {}
        """Topics that are there, and that this node hears of when it catches up."""
        self.replica: CoordinatorReplica[GroupsMachine] = CoordinatorReplica(
            GroupsMachine, place=PLACE, loop=self.loop, wall_ms=lambda: self.wall, recorder=Recording()
        )
        self.log = HandGroup(self.loop, cast(Any, self.replica))
        self.replica.attach(cast(RaftGroup, self.log))
        self.coordinator = GroupCoordinator(self.replica, cast(Any, self.context))
        self.coordinator.consumer = cast(Any, NoConsumers())
        self.lead()

    async def _catch_up(self, timeout: float) -> bool:  # noqa: ASYNC109
        if self.caught_up:
            self.topics.update(self.hears)
        return self.caught_up

    # Time and the log.

    def lead(self) -> None:
        self.log.lead(self.log.term + 1)
        self.turn()

    def new_leader(self) -> None:
        """Leadership goes and comes; what was in the log is applied."""
        self.log.lose()
        self.lead()

    def turn(self) -> None:
        """Run what is ready, and what the log commits."""
        self.loop.run()
        while not self.by_hand and self.log._next < len(self.log.proposed):
            self.log.commit()

    def commit(self) -> None:
        self.log.commit()
        self.turn()

    def apply_foreign(self, command: CoordinatorCommand) -> Any:
        """An entry that comes before those that were proposed and not committed yet."""
        self.log.index += 1
        entry = encode(self.log.term, self.wall, command)
        return self.replica.machine_for_group.apply(self.log.index, self.log.term, entry)

    def advance(self, seconds: float) -> None:
        """Let time pass, timer by timer."""
        until = self.loop.now + seconds
        self.turn()
        while (timers := self.loop._timers) and timers[0][0] <= until:
            self.loop.advance(max(timers[0][0] - self.loop.now, 0.0))
            self.turn()
        self.loop.now = until

    def ask(self, request: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self.loop.create_task(request)
        self.turn()
        return task

    def close(self) -> None:
        """The replica goes: everybody who waits is answered."""
        self.by_hand = False
        self.turn()
        self.replica.close()
        self.log.is_leader = False
        self.log.drop(NotLeader(None))
        self.turn()
        assert self.coordinator.classic.waiting == 0

    # What there is.

    def live(self, group: str = "g") -> LiveGroup:
        found = self.coordinator.classic.get(group)
        assert found is not None
        return found

    def state(self) -> ClassicGroupState:
        return self.live().state

    def logged(self, group: str = "g") -> ClassicGroup:
        membership = self.replica.machine.groups[group].membership
        assert isinstance(membership, ClassicGroup)
        return membership

    def nothing_is_left(self) -> bool:
        """No group, no request, no byte, and of timers only the two of the coordinator itself."""
        classic = self.coordinator.classic
        return (len(classic), classic.waiting, classic.bytes, len(self.coordinator.timers)) == (0, 0, 0, 2)

    def client(self, name: str, **settings: Any) -> Client:
        return Client(self, name, **settings)

    def clients(self, names: str, **settings: Any) -> list[Client]:
        return [self.client(name, **settings) for name in names]

    def joined(self, names: str, **settings: Any) -> list[Client]:
        """Clients that are told of their first generation, which the first of them leads."""
        clients = self.clients(names, **settings)
        join(clients)
        return clients

    def stable(self, names: str, **settings: Any) -> list[Client]:
        """Clients that are the members of a group, the first of them its leader."""
        clients = self.joined(names, **settings)
        sync(clients)
        return clients


class Client:
    """Joins and syncs as a consumer does; what it was told last is what it asks with next."""

    def __init__(
        self,
        house: House,
        name: str,
        *,
        instance: str | None = None,
        session: float = 10.0,
        rebalance: float = 60.0,
        protocols: Sequence[str] = ("range", "other"),
        kind: str = "consumer",
        group: str = "g",
        takes_member_id: bool = False,
        takes_skip: bool = True,
    ) -> None:
        self.house = house
        self.name = name
        self.group = group
        self.instance = instance
        self.session = session
        self.rebalance = rebalance
        self.protocols = protocols
        self.kind = kind
        self.metadata = name.encode()
        self.takes_member_id = takes_member_id
        self.takes_skip = takes_skip
        self.member_id = ""
        self.generation = -1
        self.leads = False
        self.last: JoinResponse | None = None
        self.join: asyncio.Task[JoinResponse] | None = None
        self.syncing: asyncio.Task[SyncResponse] | None = None

    def join_ask(self) -> JoinRequest:
        return JoinRequest(
            self.member_id,
            self.instance,
            self.name,
            "/10.0.0.1",
            self.session,
            self.rebalance,
            self.kind,
            [(protocol, self.metadata) for protocol in self.protocols],
            self.takes_member_id,
            self.takes_skip,
        )

    def begin_join(self) -> asyncio.Task[JoinResponse]:
        self.join = self.house.ask(self.house.coordinator.classic.join(self.group, self.join_ask()))
        return self.join

    def waits(self) -> bool:
        return any(task is not None and not task.done() for task in (self.join, self.syncing))

    def result(self) -> JoinResponse:
        """What the last join came to; the member id is kept."""
        assert self.join is not None
        answer = self.join.result()
        self.member_id = answer.member_id
        return answer

    def joined(self) -> JoinResponse:
        """As `result`, of a join that must have succeeded."""
        self.last = answer = self.result()
        assert answer.error is None, answer
        self.generation = answer.generation
        self.leads = answer.leader == answer.member_id
        return answer

    def join_code(self) -> Cause | None:
        """Join, and be refused at once."""
        self.begin_join()
        return self.result().error

    def begin_sync(
        self, assignments: dict[str, bytes] | None = None, **changes: Any
    ) -> asyncio.Task[SyncResponse]:
        ask = SyncRequest(
            self.member_id, self.instance, self.generation, self.kind, None, assignments or {}
        )._replace(**changes)
        self.syncing = self.house.ask(self.house.coordinator.classic.sync(self.group, ask))
        return self.syncing

    def synced(self) -> SyncResponse:
        assert self.syncing is not None
        return self.syncing.result()

    def heartbeat(self) -> Cause | None:
        return self.house.coordinator.classic.heartbeat(
            self.group, self.member_id, self.instance, self.generation
        )

    def leave(self, member_id: str | None = None) -> Cause | None:
        who = Leaving(self.member_id if member_id is None else member_id, self.instance)
        (code,) = self.house.coordinator.classic.leave(self.group, [who])
        self.house.turn()
        return code

    def commit_refusal(self) -> Any:
        """What the log says to a commit of this client."""
        return self.house.logged(self.group).refuse_commit(
            self.member_id, self.instance, self.generation, transactional=False
        )


def share(clients: Sequence[Client]) -> dict[str, bytes]:
    """An assignment: to each its own name."""
    return {client.member_id: b"to " + client.name.encode() for client in clients}


def join(clients: Sequence[Client]) -> None:
    """All join a group that was empty, and are told of its first generation."""
    for client in clients:
        client.begin_join()
    clients[0].house.advance(2 * DELAY)
    for client in clients:
        client.joined()


def sync(clients: Sequence[Client]) -> None:
    """Everybody syncs, the leader last, and gets what it assigned."""
    for client in sorted(clients, key=lambda client: client.leads):
        client.begin_sync(share(clients) if client.leads else None)
    for client in clients:
        answer = client.synced()
        assert answer.error is None, answer
        assert answer.assignment == b"to " + client.name.encode()


def rejoin(clients: Sequence[Client]) -> None:
    """Everybody joins again and is in the same generation."""
    for client in clients:
        client.begin_join()
    for client in clients:
        client.joined()
    assert len({client.generation for client in clients}) == 1
