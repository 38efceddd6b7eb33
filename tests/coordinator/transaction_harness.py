"""Coordinators of transactions on several nodes, over one log and one mesh that a test holds in its hands.

Time jumps (see `run` of the admin harness). Every node has its own replica; an entry is committed as soon as
the loop turns, or when the test says. Who leads, and whose markers arrive, is the test's to say.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from strandline.node.controller.leaders import Leader
from strandline.node.coordinator.context import CoordinatorPlace
from strandline.node.coordinator.replica import CoordinatorReplica
from strandline.node.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from strandline.node.coordinator.verification import Verifier
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.outcome import Applied, NotLeader, Outcome, Overloaded, Unknown
from strandline.node.refusal import Refusal
from strandline.node.rpc import CallFailed
from strandline.statemachine.controller.hosted_groups import PartitionGroup
from strandline.statemachine.kafka_errors import KafkaError
from strandline.statemachine.transactions.transaction_state import TransactionState
from strandline.statemachine.transactions.transactions import TransactionsMachine
from tests.coordinator.recording import Recording
from tests.kafka.handlers.fake_cluster import Cluster
from tests.kafka.handlers.fake_node import FakeNode
from tests.runtime.jumping_loop import run

PLACE = PartitionGroup(800, b"x" * 16, "__transaction_state", 3, (1, 2, 3), 1)
GROUPS_COORDINATOR = 900
"""The Raft group that has every consumer group."""


class Log:
    """One log for all replicas. What is proposed is committed in the next turn unless it is `held`."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.index = 0
        self.held = False
        self.waiting: deque[tuple[Group, int, bytes, asyncio.Future[Outcome]]] = deque()
        self.committed: list[bytes] = []

    def propose(self, group: Group, term: int, command: bytes) -> asyncio.Future[Outcome]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()
        self.waiting.append((group, term, command, future))
        if not self.held:
            loop.call_soon(self.commit)
        return future

    def commit(self, most: int = 1000) -> None:
        """Apply on every replica what was proposed, in order."""
        while self.waiting and most:
            most -= 1
            _, term, command, future = self.waiting.popleft()
            self.index += 1
            self.committed.append(command)
            for group in self.groups:
                result = group.machine.apply(self.index, term, command)
                if group is _ and not future.done():
                    future.set_result(Applied(result, self.index, term))

    def lose_uncommitted(self) -> None:
        """The next leader has none of what was not committed."""
        while self.waiting:
            *_, future = self.waiting.popleft()
            if not future.done():
                future.set_result(NotLeader(None, "another leader's entry took its place"))

    def begin_term(self, term: int, node: int) -> None:
        self.commit()
        self.index += 1
        for group in self.groups:
            group.machine.begin_term(self.index, term, node)


class Group:
    """One node's replica of the log, as `RaftGroup` shows it."""

    def __init__(self, log: Log, replica: CoordinatorReplica[TransactionsMachine]) -> None:
        self.log = log
        self.machine = replica.machine_for_group
        self.term = 0
        self.is_leader = False
        self.overloaded = False
        self._callbacks: list[Callable[[bool, int], None]] = []
        self._ready_callbacks: list[Callable[[int], None]] = []
        log.groups.append(self)

    @property
    def is_ready(self) -> bool:
        return self.is_leader

    def on_leadership(self, callback: Callable[[bool, int], None]) -> None:
        self._callbacks.append(callback)

    def on_ready(self, callback: Callable[[int], None]) -> None:
        self._ready_callbacks.append(callback)

    def replicate(self, command: bytes, term: int) -> asyncio.Future[Outcome]:
        if self.is_leader and term == self.term and not self.overloaded:
            return self.log.propose(self, term, command)
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        future.set_result(Overloaded("full") if self.overloaded else NotLeader(None))
        return future

    async def barrier(self) -> Outcome:
        if not self.is_leader:
            return NotLeader(None)
        return Applied(None, self.log.index, self.term)

    def tell(self, leads: bool, term: int) -> None:
        self.is_leader, self.term = leads, term
        for callback in self._callbacks:
            callback(leads, term)
        if leads:
            for ready in self._ready_callbacks:
                ready(term)


class Sent(NamedTuple):
    """A marker as it arrived at a node."""

    node: int
    raft_group: int
    producer_id: int
    epoch: int
    number: int
    commit: bool
    term: int


class Member:
    """One node: its replica, its coordinator, its verifier."""

    def __init__(self, coordinated: Coordinated, node_id: int) -> None:
        self.node = FakeNode(coordinated.cluster, node_id)
        context: Any = self.node
        context.wall_ms = lambda: coordinated.wall + int(self.node.loop.time() * 1000)
        context.agreed_ms = lambda: context.wall_ms() if coordinated.clock_is_trusted else None
        context.coordinators = SimpleNamespace(
            group_place=self._group_place,
            transaction_place=self._transaction_place,
            transactions_for=self._transactions_for,
            led_transactions=lambda: [self.coordinator] if self.replica.leads else [],
            loading=lambda topic: self.replica.loading,
        )
        self.no_place = False
        self.replica: CoordinatorReplica[TransactionsMachine] = CoordinatorReplica(
            TransactionsMachine,
            place=PLACE,
            loop=self.node.loop,
            wall_ms=context.wall_ms,
            recorder=Recording(),
        )
        self.group = Group(coordinated.log, self.replica)
        self.coordinator: TransactionCoordinator = TransactionCoordinator(
            self.replica, self.node.coordinator_context
        )
        self.verifier = context.verifier = Verifier(
            self.node.coordinator_context, self.node.context.coordinators
        )
        self.replica.attach(cast(RaftGroup, self.group))

    async def _group_place(self, group_id: str) -> CoordinatorPlace:
        return CoordinatorPlace(GROUPS_COORDINATOR, 0)

    async def _transaction_place(self, transactional_id: str) -> CoordinatorPlace:
        if self.no_place:
            await asyncio.sleep(3600)
        return CoordinatorPlace(PLACE.group, PLACE.partition)

    def _transactions_for(self, transactional_id: str) -> TransactionCoordinator | KafkaError:
        return self.coordinator if self.replica.leads else KafkaError.NOT_COORDINATOR

    @property
    def machine(self) -> TransactionsMachine:
        return self.replica.machine


class Coordinated:
    """Three nodes with a coordinator each; the first leads. `sent` has every marker that arrived anywhere."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.log = Log()
        self.wall = 1_000_000
        self.clock_is_trusted = True
        self.term = 0
        self.sent: list[Sent] = []
        self.calls: list[tuple[int, int]] = []
        """FakeNode and number of markers of each call."""
        self.answer: Callable[[Sent], int] = lambda sent: 0
        self.receive: Callable[[int], None] = lambda node: None
        """Called for each call before its markers count; raises for a call that is lost."""
        self.gate: asyncio.Event | None = None
        """Answers wait until it is set."""
        self.members = [Member(self, node_id) for node_id in (1, 2, 3)]
        for member in self.members:
            self.cluster.handlers[member.node.node_id, "transactions.markers"] = self._receiver(member)
            member.node.leaders.others.update({GROUPS_COORDINATOR: _leader(2)})
        self.topic = self.cluster.create("t", partitions=3)
        for member in self.members:
            member.node.controller.hear()

    async def lead(self, number: int = 0, *, drop: bool = False) -> Member:
        """Let a member lead, in a new term; `drop`: it has nothing of what was not committed."""
        for member in self.members:
            if member.group.is_leader:
                # A leader that is deposed does not know what becomes of its entries.
                for group, _, _, future in self.log.waiting:
                    if group is member.group and not future.done():
                        future.set_result(Unknown("this node does not lead any more"))
                member.group.tell(False, self.term)
        if drop:
            self.log.lose_uncommitted()
        self.term += 1
        member = self.members[number]
        self.log.begin_term(self.term, number + 1)
        for one in self.members:
            one.node.leaders.others[PLACE.group] = _leader(number + 1, self.term)
        member.group.tell(True, self.term)
        await turns()
        assert member.replica.leads
        return member

    def depose(self) -> None:
        """Nobody leads."""
        for member in self.members:
            if member.group.is_leader:
                for group, _, _, future in self.log.waiting:
                    if group is member.group and not future.done():
                        future.set_result(Unknown("this node does not lead any more"))
                member.group.tell(False, self.term)
            member.node.leaders.others[PLACE.group] = None

    def _receiver(self, member: Member) -> Any:
        async def receive(peer: int, payload: Any) -> list[int]:
            node = member.node.node_id
            self.receive(node)
            self.calls.append((node, len(payload)))
            came = [Sent(node, *fields) for fields in payload]
            self.sent += came
            if self.gate is not None:
                await self.gate.wait()
            return [self.answer(one) for one in came]

        return receive

    def partition(self, number: int) -> tuple[bytes, int]:
        return self.topic.topic_id, number

    def raft_group(self, number: int) -> int:
        return self.topic.partitions[number].group

    def close(self) -> None:
        """End what goes on by itself."""
        for member in self.members:
            member.group.is_leader = False
            member.replica.close()


def _leader(node: int, term: int = 7) -> Leader:
    return Leader(node, term)


async def turns(count: int = 20) -> None:
    """Let the loop turn, without letting time pass."""
    for _ in range(count):
        await asyncio.sleep(0)


def lost(node: int) -> None:
    raise CallFailed(f"the connection to node {node} was lost", unknown=True)


Test = Callable[[Coordinated, Member], Coroutine[Any, Any, None]]


def led(test: Test) -> None:
    """Run a test with a coordinator that leads, and end what goes on by itself."""

    async def body() -> None:
        coordinated = Coordinated()
        try:
            await test(coordinated, await coordinated.lead())
        finally:
            coordinated.close()
            await turns()

    run(body)


def code(result: Any) -> KafkaError:
    assert isinstance(result, Refusal), result
    assert isinstance(result.reason, KafkaError)
    return result.reason


def state(member: Member, tid: str = "t") -> TransactionState:
    return member.machine.transactions[tid].state
