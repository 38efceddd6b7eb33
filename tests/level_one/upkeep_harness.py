"""A node whose replicas do what a test says, a simulated bucket, and a builder of hollow objects."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal, TypeVar, cast

from strandline.node.config.node_config import CollectorSection, LevelOneSection, NodeConfig, RetentionSection
from strandline.node.controller.client import ControllerClient
from strandline.node.level_one.builder import BuildFailed, Merge, Output
from strandline.node.level_one.level_one_measures import BuilderMeasures
from strandline.node.level_one.level_one_upkeep import LevelOneUpkeep
from strandline.node.objectstore.store import ObjectStore, StoreError
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.controller.settings import Configs
from strandline.statemachine.object_names import object_id
from strandline.statemachine.partition.epoch_window import EpochWindow
from strandline.statemachine.partition.extent import Extent
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name, partition_prefix
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import Append, Checkpoint, Command, encode
from strandline.statemachine.partition.placeholder import Placeholder
from tests.level_zero.samples import run, started
from tests.simulation.node import SimNode
from tests.simulation.store import SimStore
from tests.simulation.world import World

T = TypeVar("T")
EPOCH = 1
KIB = 1024
INDEX_BYTES = 100
HEADER_BYTES = 16
CONFIG = LevelOneSection(
    target_bytes=64 * KIB,
    job_bytes=128 * KIB,
    block_bytes=KIB,
    reconcile_seconds=60,
    merge_count=4,
    sweep_seconds=600,
)
Ending = Literal["apply", "refuse", "lost", "late"]
"""How a proposal ends: applied; definitely not; unknown and never applied; unknown, and applied by then."""


class HandReplica:
    """A partition whose commands end as a test says; leads in term 1 at once."""

    def __init__(self, group: int, topic_id: bytes, topic: str, number: int) -> None:
        self.group = SimpleNamespace(id=group)
        self.topic_id, self.topic, self.number = topic_id, topic, number
        self.machine = PartitionStateMachine(EPOCH, lambda index, state: None)
        self.leads = False
        self.leader_epoch = 0
        self.index = 0
        self.now_ms = 1_000
        self.endings: list[Ending] = []
        """For the next proposals, in turn; then all are applied."""
        self.before: Callable[[Command], None] = lambda command: None
        """Called with each proposal before it ends."""
        self.proposed: list[Command] = []
        self.asked = 0
        """Calls of `execute`, whether it leads or not."""
        self.confirms = True
        self.lead(1)

    def lead(self, term: int) -> None:
        self.index += 1
        self.machine.begin_term(self.index, term, 1)
        self.leads, self.leader_epoch = True, term

    def lose(self) -> None:
        self.leads = False

    def apply(self, *commands: Command) -> Any:
        self.index += 1
        results = self.machine.apply(
            self.index, self.machine.term, encode(self.machine.term, self.now_ms, commands)
        )
        assert isinstance(results, list)
        return results[-1]

    def write(self, length: int = 1000, *, count: int = 1, timestamp: int = 1_000, number: int = 0) -> None:
        """Append a batch that lies in a level-zero object."""
        window = EpochWindow(self.machine.term, EPOCH, EPOCH)
        unique = number.to_bytes(16, "big")
        self.apply(
            Append(window, [Placeholder(count, timestamp, length, EPOCH, 16, object_id(0, 1, unique))])
        )

    def checkpoint(self, lease_ms: int) -> int:
        self.apply(Checkpoint(lease_ms))
        return self.index

    async def confirm(self) -> bool:
        return self.leads and self.confirms

    async def execute(self, command: Command) -> Any:
        self.asked += 1
        if not self.leads:
            return Refusal(Reason.NOT_LEADER, "it does not lead")
        self.proposed.append(command)
        self.before(command)
        ending = self.endings.pop(0) if self.endings else "apply"
        # An entry belongs to the log of the term it was proposed in from this turn on.
        if ending == "refuse":
            return Refusal(Reason.NOT_LEADER, "the log was full")
        result = self.apply(command) if ending in ("apply", "late") else None
        await asyncio.sleep(0.001)
        if ending == "apply":
            return result
        return Refusal(Reason.UNDECIDED, "lost leadership")


class HollowBuilder:
    """Stores objects of the right names and sizes whose bytes mean nothing."""

    def __init__(self, store: ObjectStore) -> None:
        self.measures = BuilderMeasures()
        self.jobs: list[Sequence[Output]] = []
        self.merges: list[Merge] = []
        self.bad: dict[int, BuildFailed] = {}
        """By the position of an extent's object: what reading it gives."""
        self.while_building: Callable[[], None] = lambda: None
        self.after_building: Callable[[], None] = lambda: None
        self.seconds = 0.01
        self.closed = False
        self._store = store

    async def build(self, outputs: Sequence[Output]) -> list[LevelOneExtent | BuildFailed]:
        self.jobs.append(outputs)
        await asyncio.sleep(self.seconds)
        self.while_building()
        made = [await self._build(output) for output in outputs]
        self.after_building()
        return made

    async def merge(self, merge: Merge) -> LevelOneExtent | BuildFailed:
        self.merges.append(merge)
        await asyncio.sleep(self.seconds)
        self.while_building()
        names = [
            level_one_name(merge.topic_id, merge.partition, one.term, one.unique) for one in merge.sources
        ]
        for name, one in zip(names, merge.sources, strict=True):
            try:
                size = await self._store.size(name)
            except StoreError as error:
                return BuildFailed(str(error), error.retriable)
            if size != one.size:
                return BuildFailed(f"object {name} has another size", False)
        return await self._put(
            Output(merge.topic_id, merge.partition, merge.term, merge.unique, ()),
            merge.sources[0].base_offset,
            merge.sources[-1].end_offset,
            max(one.max_timestamp for one in merge.sources),
            sum(one.size - one.index_bytes - HEADER_BYTES for one in merge.sources),
        )

    async def close(self) -> None:
        self.closed = True

    async def _build(self, output: Output) -> LevelOneExtent | BuildFailed:
        extents = output.extents
        for extent in extents:
            if extent.base_offset in self.bad:
                return self.bad[extent.base_offset]
        assert all(a.end_offset == b.base_offset for a, b in itertools.pairwise(extents))
        return await self._put(
            output,
            extents[0].base_offset,
            extents[-1].end_offset,
            max(extent.max_timestamp for extent in extents),
            sum(extent.length for extent in extents),
        )

    async def _put(self, output: Output, base: int, end: int, newest: int, payload: int) -> LevelOneExtent:
        size = HEADER_BYTES + payload + INDEX_BYTES
        name = level_one_name(output.topic_id, output.partition, output.term, output.unique)
        await self._store.put(name, [bytes(size)])
        return LevelOneExtent(base, end, newest, size, INDEX_BYTES, output.term, output.unique)


@dataclass
class HandClock:
    trusted: bool = True


class Topics:
    """The local replica of the controller, as far as it is asked."""

    def __init__(self) -> None:
        self.configs: dict[bytes, Configs] = {}
        self.collection_paused = False

    def topic_by_id(self, topic_id: bytes) -> Any:
        configs = self.configs.get(topic_id)
        return None if configs is None else SimpleNamespace(configs=configs)


Member = TypeVar("Member", bound=HandReplica)


class Replicas(list[Member]):
    """Those of a node: any of them may have changed at any moment, unless they are `still`."""

    def __init__(self) -> None:
        super().__init__()
        self.still = False
        self.looks = 0
        self._changes = 0

    def __iter__(self) -> Iterator[Member]:
        self.looks += 1
        return super().__iter__()

    @property
    def changes(self) -> int:
        self._changes += not self.still
        return self._changes


@dataclass
class Node:
    """A node of these tests: what the upkeep needs of it, and the upkeep."""

    world: World
    sim: SimNode
    bucket: SimStore
    store: ObjectStore
    level_one_builder: Any
    config: NodeConfig
    rng: random.Random
    topics: Topics = field(default_factory=Topics)
    partitions: Replicas[HandReplica] = field(default_factory=Replicas)
    clock: HandClock = field(default_factory=HandClock)
    now_ms: int = 1_000_000
    registered: bool = True

    def __post_init__(self) -> None:
        self.loop = self.sim.loop
        self.controller = cast(ControllerClient, SimpleNamespace(machine=self.topics))
        self.upkeep = LevelOneUpkeep(cast(Any, self))

    @property
    def builder(self) -> HollowBuilder:
        assert isinstance(self.level_one_builder, HollowBuilder)
        return self.level_one_builder

    def wall_ms(self) -> int:
        return self.now_ms

    def add(self, number: int = 0, group: int | None = None, configs: Configs | None = None) -> HandReplica:
        topic_id = bytes([number]) * 16
        made = HandReplica(group or number + 1, topic_id, f"t{number}", number)
        self.topics.configs[topic_id] = configs or {}
        self.partitions.append(made)
        return made

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return run(self.world, self.sim, coroutine)

    def work(self) -> bool:
        """One step of the reconciler, now."""
        return self.run(self.upkeep.reconciler.step())

    def wait(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    def names(self, replica: HandReplica) -> list[str]:
        """What is stored of a partition."""
        return self.bucket.keys(partition_prefix(replica.topic_id, replica.number))


def named(replica: HandReplica) -> list[str]:
    """The objects that the state names, and those it still knows to be removed, in name order."""
    objects = [*replica.machine.level_one, *replica.machine.removed]
    return sorted(level_one_name(replica.topic_id, replica.number, one.term, one.unique) for one in objects)


def extents_of(replica: HandReplica) -> list[Extent]:
    return list(replica.machine.extents)


@contextmanager
def upkeep_node(
    level_one: LevelOneSection = CONFIG,
    retention: RetentionSection | None = None,
    seed: int = 1,
    grace: float = 0.0,
) -> Iterator[Node]:
    with World(seed) as world:
        sim = started(world)
        bucket = SimStore(world)
        store = bucket.client(sim)
        config = SimpleNamespace(
            level_one=level_one,
            retention=retention or RetentionSection(),
            collector=CollectorSection(grace_seconds=grace),
        )
        yield Node(
            world, sim, bucket, store, HollowBuilder(store), cast(NodeConfig, config), sim.rng("level one")
        )


def raising(node: Node, replica: HandReplica) -> list[dict[str, Any]]:
    """Let a replica's proposals end in an exception that nobody foresees; gives what the loop is told."""
    said: list[dict[str, Any]] = []

    def broken(command: Command) -> None:
        raise RuntimeError("unforeseen")

    replica.before = broken
    node.sim.loop.call_exception_handler = said.append  # type: ignore[method-assign,assignment]
    return said
