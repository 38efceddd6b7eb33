"""Three nodes with real state machines, recorders, publishers, coordinators, and no log between them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from strandline.node.checkpoints.checkpoint_coordinator import METHOD, CheckpointCoordinator, CheckpointReport
from strandline.node.checkpoints.context import CheckpointContext
from strandline.node.checkpoints.recorder import CheckpointPlace, CheckpointRecorder, TailBudget
from strandline.node.controller.client import Unavailable
from strandline.node.controller.leaders import Leader
from strandline.node.coordinator.decision_hold import DecisionHold, HeldCoordinators
from strandline.node.raft.outcome import Applied, NotLeader, Outcome
from strandline.node.rpc import CallFailed
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_commands import Bootstrap, Command, CreateTopic, encode
from strandline.statemachine.partition.partition_commands import Command as PartitionCommand
from tests.checkpoints.harness import CLUSTER, Replica, publisher
from tests.level_zero.samples import run, started
from tests.simulation.store import SimStore
from tests.simulation.world import World
from tests.statemachine.controller_harness import registration, topic_id

NODES = (1, 2, 3)
CONTROLLER_LEADER = 1
LEASE_MS = 60_000

Handler = Callable[[int, Any], Awaitable[Any]]


class Cluster:
    """Three nodes that live in one process: groups apply on every node that is up, at once.

    `down` are nodes that apply nothing and answer nothing; `leaderless` are groups nobody leads; `deposed`
    are groups whose leader is none any more without knowing it. `calls` are (node, group) of each checkpoint
    asked for. `now_ms` is what the leaders' clocks say. `refuse` are methods whose calls come to nothing;
    `led` are coordinators of transactions that every node has. `behind` are nodes whose controller applies
    nothing before it has to. `beside` is called with the group of each command that was applied.
    """

    def __init__(self, made: World, keep: int = 8) -> None:
        self.nodes = [started(made, node) for node in NODES]
        self.store = SimStore(made)
        self.down: set[int] = set()
        self.behind: set[int] = set()
        self.late: dict[int, list[tuple[int, bytes]]] = {node: [] for node in NODES}
        self.leaderless: set[int] = set()
        self.deposed: set[int] = set()
        self.keep = keep
        self.now_ms = 1_000
        self.lose_answers = 0
        self.led: list[tuple[int, Any]] = []
        self.refuse: set[str] = set()
        self.beside: Callable[[int], None] = lambda group: None
        self.calls: list[tuple[int, int]] = []
        self.handlers: dict[tuple[int, str], Handler] = {}
        self.publishers = {node.id: publisher(node, self.store) for node in self.nodes}
        self.recorders: dict[int, CheckpointRecorder] = {}
        self.controllers: dict[int, Controller] = {}
        for node in NODES:
            recorder = CheckpointRecorder(
                cluster=CLUSTER,
                kind="controller",
                group=0,
                place=lambda index: CheckpointPlace(1, NODES, ()),
                publisher=self.publishers[node],
                budget=TailBudget(),
            )
            self.recorders[node] = recorder
            self.controllers[node] = Controller(recorder.checkpoint)
        self.index = 1
        for node in NODES:
            self.recorders[node].begin_term(1, 1, 1)
            self.controllers[node].begin_term(1, 1, 1)
        self.control(Bootstrap(CLUSTER, "first"))
        for node in NODES:
            self.control(registration(node))
        self.replicas: dict[int, dict[int, Replica]] = {}
        self.create(1, "orders", 3)
        self.create(2, "clicks", 2)
        self.holds = {node.id: DecisionHold(node.loop) for node in self.nodes}
        for number, hold in self.holds.items():
            calls: Any = SimpleNamespace(serve=partial(self._serve, number))
            hold.serve(calls, cast(HeldCoordinators, self))
        self.coordinators = {
            node.id: CheckpointCoordinator(cast(CheckpointContext, self.context(node.id)))
            for node in self.nodes
        }

    def create(self, number: int, name: str, count: int) -> None:
        """A topic of so many partitions, with a record in each."""
        topic = self.control(CreateTopic(topic_id(number), name, count, 3, None, [], self.index))
        for partition in topic.partitions:
            self.replicas[partition.group] = {
                node: Replica(self.publishers[node], group=partition.group) for node in NODES
            }
            for replica in self.replicas[partition.group].values():
                replica.begin_term(1)
                replica.write()

    def context(self, node: int) -> SimpleNamespace:
        return SimpleNamespace(
            config=SimpleNamespace(
                cluster=SimpleNamespace(id=CLUSTER, nodes=[SimpleNamespace(id=peer) for peer in NODES]),
                checkpoints=SimpleNamespace(keep=self.keep),
            ),
            loop=self.nodes[node - 1].loop,
            rng=random.Random(node),
            wall_ms=lambda: self.now_ms,
            calls=SimpleNamespace(
                call=self.call,
                tell=lambda peer, method, payload: None,
                serve=partial(self._serve, node),
            ),
            host=SimpleNamespace(groups=_Groups(self, node)),
            controller=SimpleNamespace(
                machine=self.controllers[node],
                submit=partial(self.submit, node),
                catch_up=partial(self.catch_up, node),
                leader=CONTROLLER_LEADER,
            ),
            leaders=SimpleNamespace(leader_of=lambda group: self.leader_of(group)),
            store=self.store.client(self.nodes[node - 1]),
            partitions=SimpleNamespace(by_group=lambda group: self._partition(group, node)),
            coordinators=SimpleNamespace(by_group=lambda group: None),
        )

    def _serve(self, node: int, method: str, handler: Handler) -> None:
        self.handlers[node, method] = handler

    def transaction_replicas(self) -> list[tuple[int, Any]]:
        return self.led

    def control(self, command: Command) -> Any:
        self.index += 1
        result = None
        for node in NODES:
            if node not in self.down:
                self.late[node].append((self.index, encode(command)))
                if node not in self.behind:
                    result = self.apply(node)
        return result

    def apply(self, node: int) -> Any:
        """Have a node's controller apply all that it has yet to; gives the last one's result."""
        result = None
        while self.late[node]:
            index, entry = self.late[node].pop(0)
            self.recorders[node].applied(index, 1, entry)
            result = self.controllers[node].apply(index, 1, entry)
        return result

    async def catch_up(self, node: int, timeout: float) -> bool:  # noqa: ASYNC109
        if 0 in self.leaderless:
            await asyncio.sleep(timeout)
            return False
        self.apply(node)
        return True

    async def submit(self, node: int, command: Command, timeout: float) -> Any:  # noqa: ASYNC109
        if 0 in self.leaderless:
            await asyncio.sleep(timeout)
            return Unavailable("the controller has no leader", unknown=False)
        result = self.control(command)
        self.apply(node)
        return result

    def leader_of(self, group: int) -> Leader | None:
        return None if group in self.leaderless else Leader(group % 3 + 1, 1)

    async def call(self, node: int, method: str, payload: Any, timeout: float) -> Any:  # noqa: ASYNC109
        if method == METHOD:
            self.calls.append((node, payload[0]))
        await asyncio.sleep(0.001)
        if node in self.down:
            raise CallFailed(f"node {node} is not connected", unknown=False)
        if method in self.refuse:
            raise CallFailed("it is not to be", unknown=False)
        task = self.nodes[node - 1].loop.create_task(self.handle(node, method, payload))
        while not task.done():  # another loop's: it cannot be awaited  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        answer = task.result()
        if self.lose_answers:
            self.lose_answers -= 1
            raise CallFailed("the connection was lost", unknown=True)
        return answer

    async def handle(self, node: int, method: str, payload: Any) -> Any:
        """Answer a call where it arrives; on that node's loop."""
        return await self.handlers[node, method](1, payload)

    async def barrier(self, node: int) -> Outcome:
        if node == CONTROLLER_LEADER and not {0} & (self.leaderless | self.deposed):
            return Applied(None, self.index, 1)
        return NotLeader(None)

    def _partition(self, group: int, node: int) -> SimpleNamespace | None:
        if group not in self.replicas:
            return None
        replica = self.replicas[group][node]

        def leads() -> bool:
            leader = self.leader_of(group)
            return leader is not None and leader.node == node

        async def execute(command: PartitionCommand) -> Any:
            if not leads():
                return "not the leader"
            for peer, each in self.replicas[group].items():
                each.now_ms = self.now_ms
                if peer not in self.down:
                    each.apply(command)
            result = replica.result
            self.beside(group)
            return result

        async def confirm() -> bool:
            return leads() and group not in self.deposed

        return SimpleNamespace(execute=execute, confirm=confirm, machine=replica.machine)


class _Groups(dict[int, Any]):
    """The logs on one node."""

    def __init__(self, cluster: Cluster, node: int) -> None:
        super().__init__({0: _ControllerGroup(cluster, node)})
        self._cluster, self._node = cluster, node

    def __missing__(self, group: int) -> Any:
        leader = self._cluster.leader_of(group)
        return SimpleNamespace(is_leader=leader is not None and leader.node == self._node)

    def get(self, group: int, default: Any = None) -> Any:
        return self[group]


class _ControllerGroup:
    """The controller's log on one node."""

    def __init__(self, cluster: Cluster, node: int) -> None:
        self._cluster = cluster
        self._node = node

    @property
    def applied(self) -> int:
        return self._cluster.controllers[self._node].applied_index

    async def barrier(self) -> Outcome:
        return await self._cluster.barrier(self._node)


def take(
    made: World,
    cluster: Cluster,
    topics: list[str] | None = None,
    *,
    node: int = 1,
    lease_ms: int = LEASE_MS,
    timeout: float = 10.0,
) -> CheckpointReport:
    coordinator = cluster.coordinators[node]
    return run(made, cluster.nodes[node - 1], coordinator.take(topics, lease_ms, timeout))
