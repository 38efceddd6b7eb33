"""The controller's log and its replicas, the leaders and the calls of nodes made of plain objects."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from strandline.node.config.node_config import (
    AdminSection,
    CacheSection,
    ClusterSection,
    KafkaSection,
    LogSection,
    MeshSection,
    NodeConfig,
    NodeSection,
    PeerAddress,
    StorageSection,
    TopicsSection,
)
from strandline.node.controller.client import Unavailable
from strandline.node.controller.leaders import Leader
from strandline.node.coordinator.told_numbers import ToldNumbers
from strandline.node.level_zero.batcher_config import BatcherConfig
from strandline.node.partition.batch import Verified
from strandline.node.refusal import Refusal
from strandline.node.rpc import CallFailed
from strandline.statemachine.controller.controller import Controller, Result
from strandline.statemachine.controller.controller_commands import (
    Bootstrap,
    Command,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    FenceNode,
    Heartbeat,
    RegisterNode,
    encode,
)
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.kafka_errors import KafkaError

TERM = 7
CLUSTER = "strands"


def config(node: int = 1, **topics: Any) -> NodeConfig:
    peers = tuple(PeerAddress(id, "127.0.0.1", 7100 + id) for id in (1, 2, 3))
    return NodeConfig(
        node=NodeSection(node, "/data"),
        cluster=ClusterSection(CLUSTER, "secret", peers),
        mesh=MeshSection("127.0.0.1", 7100 + node),
        kafka=KafkaSection(port=9000 + node),
        admin=AdminSection(),
        storage=StorageSection("memory://"),
        topics=replace(TopicsSection(partitions=2, replication_factor=3), **topics),
        batching=BatcherConfig(),
        cache=CacheSection(),
        log=LogSection(),
    )


@dataclass
class Cluster:
    """The controller's log and the replica of its leader."""

    log: list[bytes] = field(default_factory=list)
    leader: Controller = field(default_factory=lambda: Controller(lambda *_: None))
    handlers: dict[tuple[int, str], Callable[[int, Any], Awaitable[Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.append(b"")
        self.apply(Bootstrap(CLUSTER, "first"))
        for node in (1, 2, 3):
            self.register(node)

    def register(self, node: int, port: int = 0, listeners: Sequence[tuple[str, str, int]] = ()) -> None:
        present = self.leader.nodes.get(node)
        boot, replaces = len(self.log) + 1, present.boot_id if present else 0
        self.apply(
            RegisterNode(
                node,
                boot,
                replaces,
                f"n{node}",
                port or 9000 + node,
                f"n{node}",
                7000 + node,
                8080,
                1,
                1,
                0,
                500 + node,
                listeners,
            )
        )

    def append(self, entry: bytes) -> Any:
        self.log.append(entry)
        return replay(self.leader, self.log, len(self.log) - 1)

    def apply(self, command: Command) -> Any:
        return self.append(encode(command))

    def fence(self, node: int) -> None:
        self.apply(FenceNode(node, self.leader.nodes[node].heard_index, 0))

    def revive(self, node: int) -> None:
        self.apply(Heartbeat(node, self.leader.nodes[node].boot_id, 0))

    def create(self, name: str, partitions: int = 2, replicas: int = 3, **configs: str) -> Topic:
        topic_id = random.Random(f"{name} {len(self.log)}").randbytes(16)
        pairs = [(key.replace("_", "."), value) for key, value in configs.items()]
        made = self.apply(
            CreateTopic(topic_id, name, partitions, replicas, None, pairs, self.leader.applied_index)
        )
        assert isinstance(made, Topic), made
        return made


def replay(machine: Controller, log: list[bytes], position: int) -> Any:
    """Apply one entry; an empty one begins the first term, with node 1 as its leader."""
    if not log[position]:
        return machine.begin_term(position + 1, TERM, 1)
    return machine.apply(position + 1, TERM, log[position])


@dataclass
class FakeController:
    """A `ControllerClient`: a replica that lags until it is asked to change something."""

    cluster: Cluster
    machine: Controller = field(default_factory=lambda: Controller(lambda *_: None))
    submitted: list[Command] = field(default_factory=list)
    down: Unavailable | None = None
    """Answer this to every command, which is not applied."""
    reads_though_down: bool = False
    """Only commands get no answer; what is committed is heard of all the same."""
    lose_answers: bool = False
    """Apply, and say that nobody knows."""
    attempts: int = 1
    """How often a command is proposed; the first answer counts where the real client can tell it."""
    after_attempt: Callable[[Command], None] = lambda command: None
    applied: int = 0
    group: Any = None
    """The Raft group of the local replica."""
    leader: int | None = 1
    """Who this node believes leads the controller."""

    async def submit(self, command: Command, timeout: float) -> Result | Unavailable:  # noqa: ASYNC109
        assert timeout >= 0
        self.submitted.append(command)
        await asyncio.sleep(0)
        if self.down is not None:
            return self.down
        first: Any = None
        for attempt in range(self.attempts):
            self.cluster.apply(command)
            result = self.hear()
            first = result if attempt == 0 else first
            self.after_attempt(command)
        self.hear()
        if self.lose_answers:
            return Unavailable("the connection was lost", True)
        answer: Result = first if isinstance(command, CreatePartitions | DeleteTopic) else result
        return answer

    async def catch_up(self, timeout: float) -> bool:  # noqa: ASYNC109
        assert timeout >= 0
        await asyncio.sleep(0)
        heard = self.down is None or self.reads_though_down
        if heard:
            self.hear()
        return heard

    def hear(self) -> Any:
        result = None
        while self.applied < len(self.cluster.log):
            result = replay(self.machine, self.cluster.log, self.applied)
            self.applied += 1
        return result


@dataclass
class FakeLeaders:
    """A `LeaderTable`: every partition's preferred replica leads, unless the test says otherwise."""

    controller: FakeController
    others: dict[int, Leader | None] = field(default_factory=dict)
    nobody: bool = False
    asked: int = 0
    watchers: list[Callable[[], None]] = field(default_factory=list)

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        self.watchers.append(callback)
        return lambda: self.watchers.remove(callback)

    def changed(self) -> None:
        for callback in [*self.watchers]:
            callback()

    def leader_of(self, group: int) -> Leader | None:
        self.asked += 1
        if group in self.others:
            return self.others[group]
        place = self.controller.machine.place_of(group)
        partition = place and self.controller.machine.partition(*place)
        return None if self.nobody or not partition else Leader(partition.replicas[0], TERM)


@dataclass
class FakeCalls:
    """A node's `MeshCalls`: what is called on another node is carried out at once."""

    cluster: Cluster
    node_id: int
    failure: CallFailed | None = None
    told: list[tuple[int, str, Any]] = field(default_factory=list)
    """What was told to nodes: it gets nowhere by itself."""

    def serve(self, method: str, handler: Callable[[int, Any], Awaitable[Any]]) -> None:
        self.cluster.handlers[self.node_id, method] = handler

    async def call(self, node: int, method: str, payload: Any, timeout: float) -> Any:  # noqa: ASYNC109
        if self.failure is not None:
            raise self.failure
        return await self.cluster.handlers[node, method](self.node_id, payload)

    def tell(self, node: int, method: str, payload: Any) -> bool:
        self.told.append((node, method, payload))
        return True


class FakeProducerIds:
    def __init__(self) -> None:
        self.given = 4000
        self.down: Unavailable | None = None

    async def next(self) -> int | Unavailable:
        self.given += 1
        return self.down or self.given


class Asked(NamedTuple):
    """What the transaction coordinator was asked."""

    transactional_id: str
    producer_id: int
    epoch: int
    what: Sequence[tuple[bytes, int]] | str
    """Partitions, or a group."""
    add: bool


class FakeVerifier:
    """A `Verifier` whose answers are a test's, after a while or when the test says."""

    def __init__(self, told: ToldNumbers) -> None:
        self.told = told
        self.asked: list[Asked] = []
        self.answer: Verified | Refusal | Exception = Verified(1)
        self.held: asyncio.Future[None] | None = None
        self.missing: list[int] = []
        """Partitions that are not in the transaction."""

    async def partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Sequence[tuple[bytes, int]],
        *,
        add: bool,
    ) -> Verified | Refusal:
        answer = await self._answered(Asked(transactional_id, producer_id, epoch, partitions, add))
        if not add and any(number in self.missing for _, number in partitions):
            return Refusal(KafkaError.INVALID_TXN_STATE, "not in it")
        return answer

    async def group(
        self, transactional_id: str, producer_id: int, epoch: int, group_id: str, *, add: bool
    ) -> Verified | Refusal:
        return await self._answered(Asked(transactional_id, producer_id, epoch, group_id, add))

    async def _answered(self, asked: Asked) -> Verified | Refusal:
        self.asked.append(asked)
        await (asyncio.sleep(0.01) if self.held is None else asyncio.shield(self.held))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer
