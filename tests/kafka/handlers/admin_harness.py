"""A node of plain objects around the real controller, asked through real frames, in a time that jumps."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from strandline.node.config.node_config import (
    AdminSection,
    CacheSection,
    ClusterSection,
    KafkaSection,
    LogSection,
    MeshSection,
    NodeConfig,
    NodeSection,
    Peer,
    StorageSection,
    TopicsSection,
)
from strandline.node.controller.client import Unavailable
from strandline.node.controller.leaders import Leader
from strandline.node.coordinator.table import Coordinators
from strandline.node.kafka.handlers.context import BrokerContext
from strandline.node.kafka.handlers.handler import TABLE
from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.kafka.wire.codec import decode_request, encode_parts, encode_response
from strandline.node.kafka.wire.handler import EncodedBody, Request
from strandline.node.kafka.wire.response_types import response_types
from strandline.node.kafka.wire.schema import FieldLayout, entity_layout
from strandline.node.level_zero.batcher import BatcherConfig
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
from tests.kafka.wire.entities import encoded
from tests.kafka.wire.test_codec import head

TERM = 7
CLUSTER = "strands"


class _Jumping(selectors.DefaultSelector):
    """Time that passes at once when there is nothing to do but wait."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "everything waits for something that will never be"
        self.now += max(timeout, 0.0)
        return super().select(0)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test on a loop whose waits take no time."""
    selector = _Jumping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    try:
        loop.run_until_complete(asyncio.wait_for(test(), 3600))
        assert asyncio.all_tasks(loop) == set()
    finally:
        loop.close()


def config(node: int = 1, **topics: Any) -> NodeConfig:
    peers = tuple(Peer(id, "127.0.0.1", 7100 + id) for id in (1, 2, 3))
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
    nodes: dict[int, Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.append(b"")
        self.apply(Bootstrap(CLUSTER, "first"))
        for node in (1, 2, 3):
            self.register(node)

    def register(self, node: int, port: int = 0) -> None:
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

    node: Node
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
            self.node.cluster.apply(command)
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
        while self.applied < len(self.node.cluster.log):
            result = replay(self.machine, self.node.cluster.log, self.applied)
            self.applied += 1
        return result


@dataclass
class FakeLeaders:
    """A `LeaderTable`: every partition's preferred replica leads, unless the test says otherwise."""

    node: Node
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
        place = self.node.controller.machine.place_of(group)
        partition = place and self.node.controller.machine.partition(*place)
        return None if self.nobody or not partition else Leader(partition.replicas[0], TERM)


@dataclass
class FakeCalls:
    node: Node
    failure: CallFailed | None = None

    def serve(self, method: str, handler: Callable[[int, Any], Awaitable[Any]]) -> None:
        self.node.cluster.handlers[self.node.node_id, method] = handler

    async def call(self, node: int, method: str, payload: Any, timeout: float) -> Any:  # noqa: ASYNC109
        if self.failure is not None:
            raise self.failure
        return await self.node.cluster.handlers[node, method](self.node.node_id, payload)


class FakeProducerIds:
    def __init__(self) -> None:
        self.given = 4000
        self.down: Unavailable | None = None

    async def next(self) -> int | Unavailable:
        self.given += 1
        return self.down or self.given


class Node:
    """One node of the cluster; a `BrokerContext`."""

    def __init__(self, cluster: Cluster | None = None, node_id: int = 1, **topics: Any) -> None:
        self.cluster = cluster or Cluster()
        self.cluster.nodes[node_id] = self
        self.node_id = node_id
        self.config = config(node_id, **topics)
        self.loop = asyncio.get_running_loop()
        self.controller = FakeController(self)
        self.leaders = FakeLeaders(self)
        self.calls = FakeCalls(self)
        self.producer_ids = FakeProducerIds()
        self.rng = random.Random(node_id)
        self.coordinators = Coordinators(self.context)
        self.work_executor = None
        self.transfers: list[tuple[int, int]] = []
        self.transfer: Callable[[int, int], bool] = lambda group, target: True
        self.partitions = SimpleNamespace(by_group=self._by_group)
        self.controller.hear()

    def _by_group(self, group: int) -> Any:
        def transfer(target: int) -> bool:
            self.transfers.append((group, target))
            return self.transfer(group, target)

        return SimpleNamespace(group=SimpleNamespace(transfer=transfer))

    @property
    def context(self) -> BrokerContext:
        return cast(BrokerContext, self)

    async def ask(self, key: ApiKey, version: int | None = None, /, **asked_for: Any) -> Any:
        """Ask through a frame of this version (the newest), and read the frame that answers.

        Nested structures are dicts; what a version has no field for is left out.
        """
        version = APIS[key].last if version is None else version
        asked = entity_of(load_request_schema(key, version), asked_for)
        header, payload = decode_request(memoryview(head(key, version) + encoded(asked)), 200_000)
        assert payload == asked
        request = Request(header, payload, "127.0.0.1", 100, 1)
        answer = await TABLE[key](self.context, request, response_types(key, version))
        made = (
            encode_parts(header, answer.parts)
            if isinstance(answer, EncodedBody)
            else encode_response(header, answer)
        )
        frame = b"".join(made)
        behind_header = 9 if version >= APIS[key].flexible else 8
        response, size = entity_reader(load_response_schema(key, version))(frame, behind_header)
        assert behind_header + size == len(frame)
        return response


def entity_of(entity: type[Any], values: dict[str, Any]) -> Any:
    layout = entity_layout(entity)
    defaulted = {one.name for one in fields(entity) if one.default is not MISSING}
    made: dict[str, Any] = {}
    for one in (*layout.plain, *layout.tagged):
        if one.name not in values:
            if one.name not in defaulted:
                made[one.name] = _absent(one)
            continue
        value = values[one.name]
        if one.entity is not None and value is not None:
            inner = one.entity
            value = tuple(entity_of(inner, item) for item in value) if one.array else entity_of(inner, value)
        elif one.array and value is not None:
            value = tuple(value)
        made[one.name] = value
    return entity(**made)


def _absent(one: FieldLayout) -> Any:
    """What stands for a field that a request does not care about."""
    if one.array:
        return None if one.nullable else ()
    if one.nullable or one.kind == "uuid":
        return None
    if one.kind.startswith("timedelta"):
        return timedelta(0)
    return {"bool": False, "string": ""}.get(one.kind, 0)
