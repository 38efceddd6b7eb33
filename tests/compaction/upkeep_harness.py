"""A node with compacted partitions: real batches in real level-one objects, the upkeep of their local logs.

The states do what a test says; the disk, the store and the executor are simulated, everything between is the
production code.
"""

from __future__ import annotations

import struct
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import msgpack

from strandline.node.compaction.compaction_upkeep import CompactionUpkeep
from strandline.node.compaction.compactor import Compactor
from strandline.node.compaction.manifest import NONE, Manifest
from strandline.node.compaction.replica_log import ReplicaLog
from strandline.node.compaction.store_compactor import StoreCompactor
from strandline.node.compaction.unreadable_objects import UnreadableObjects
from strandline.node.config.node_config import CompactionSection, NodeConfig
from strandline.node.controller.client import ControllerClient
from strandline.node.level_one.level_one_upkeep import LevelOneUpkeep
from strandline.snapshot.level_one_format import batches_of, parse
from strandline.snapshot.level_one_writer import LevelOneWriter
from strandline.statemachine.controller.settings import Configs
from strandline.statemachine.partition.level_one import level_one_name
from strandline.statemachine.partition.partition_commands import (
    AdvanceReconciled,
    AdvanceRemoval,
    AppendInline,
    EndTransaction,
    Reconciled,
    ReplaceLevelOne,
)
from strandline.statemachine.partition.placeholder import InlineBatch
from tests.compaction.logs import TIME, Plan, Written, bytes_of, read
from tests.level_one.upkeep_harness import HandReplica, Replicas
from tests.level_zero.samples import run, started
from tests.simulation.node import SimNode
from tests.simulation.store import SimStore
from tests.simulation.world import World

T = TypeVar("T")
KIB = 1024
CONFIG = CompactionSection(
    map_bytes=64 * KIB, segment_bytes=8 * KIB, ingest_bytes=2 * KIB, ingest_seconds=10.0
)
EAGER: Configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0"}
MARKER = Plan(())
HERE = SimpleNamespace(replicas=(1,))
LATER_MS = 1_000
"""Of the newest record of a batch, by whose time it waits, after its first at most."""


class Replica(HandReplica):
    """A partition whose batches are real, and known to the test."""

    def __init__(self, bucket: SimStore, group: int, topic_id: bytes, topic: str, number: int) -> None:
        super().__init__(group, topic_id, topic, number)
        self.group = cast(Any, self)
        self.id = group
        self.bucket = bucket
        self.written: list[tuple[int, bytes, int | None]] = []
        """Base offset, bytes and producer of each batch; the producer only of one of a transaction."""
        self.aborted: list[tuple[int, int, int]] = []
        """Producer, first offset and marker of each aborted transaction."""
        self.opened: dict[int, tuple[int, int]] = {}
        """First offset and number of each producer's open transaction."""
        self._numbers: dict[int, int] = {}
        self._sequences: dict[int, int] = {}
        self._uniques = 0
        self.lifted = 0
        """Batches of `written` that are not in level zero, at the last lift."""

    @property
    def applied(self) -> int:
        return self.index

    @property
    def ripe(self) -> tuple[int, int]:
        removals = self.machine.removals
        return removals.ripe_tombstones, removals.ripe_markers

    def put(self, plan: Plan, producer: int | None = None) -> int:
        """Append a batch, of a producer's transaction if one is given; its base offset."""
        base = self.machine.next_offset
        data = bytes_of(plan._replace(transactional=producer is not None), base, producer or -1)
        one = InlineBatch(len(plan.records), TIME, data)
        if producer is not None:
            if producer not in self.opened:
                self._numbers[producer] = self._numbers.get(producer, 0) + 1
                self.opened[producer] = (base, self._numbers[producer])
            _, number = self.opened[producer]
            sequence = self._sequences.get(producer, 0)
            self._sequences[producer] = sequence + len(plan.records)
            one = one._replace(
                producer_id=producer, producer_epoch=0, base_sequence=sequence, transaction=number
            )
        [result] = self.apply(AppendInline([one]))
        assert result == (base, False), result
        self.written.append((base, data, producer))
        return base

    def end(self, producer: int, commit: bool) -> None:
        """Commit or abort a producer's open transaction, with a marker."""
        base = self.machine.next_offset
        first, number = self.opened.pop(producer)
        data = bytes_of(MARKER, base, producer, commit=commit)
        self.apply(EndTransaction(producer, 0, number, commit, 3, TIME, data))
        self.written.append((base, data, None))
        if not commit:
            self.aborted.append((producer, first, base))

    def lift(self, count: int | None = None) -> None:
        """Put the next batches into one level-one object, which the state comes to name."""
        first = self.machine.extents.first_offset
        self.lifted = sum(base < first for base, _, _ in self.written)
        left = self.written[self.lifted :][:count]
        if not left:
            return
        self._uniques += 1
        unique = self._uniques.to_bytes(16, "big")
        made = self.object_of([data for _, data, _ in left], unique)
        assert isinstance(self.apply(AdvanceReconciled(left[0][0], [made])), Reconciled)

    def object_of(self, batches: Sequence[bytes], unique: bytes, span: tuple[int, int] | None = None) -> Any:
        """Store a level-one object of these batches; `span` for one with holes."""
        writer = LevelOneWriter(self.topic_id, self.number, self.machine.term, unique, 400)
        if span is not None:
            writer.allow_holes(*span)
        for data in batches:
            base, last = struct.unpack_from(">q", data)[0], struct.unpack_from(">i", data, 23)[0]
            writer.add(data, base, base + last + 1, self.machine.term, struct.unpack_from(">q", data, 35)[0])
        made = writer.finish()
        name = level_one_name(self.topic_id, self.number, self.machine.term, unique)
        self.bucket.objects[name] = b"".join(bytes(part) for part in made.parts)
        return made.extent

    def merge(self, count: int = 2) -> list[str]:
        """Replace the first objects by one; the names of those that are gone."""
        old = list(self.machine.level_one)[:count]
        if len(old) < 2:
            return []
        self._uniques += 1
        names = [level_one_name(self.topic_id, self.number, one.term, one.unique) for one in old]
        data = []
        for name in names:
            stored = self.bucket.objects[name]
            footer = parse(name, stored)
            for block in footer.blocks:
                spans = batches_of(name, block, stored[block.position : block.end], footer.holes)
                data += [stored[span.position :][: span.length] for span in spans]
        span = (old[0].base_offset, old[-1].end_offset)
        made = self.object_of(data, self._uniques.to_bytes(16, "big"), span)
        self.apply(ReplaceLevelOne([(one.term, one.unique) for one in old], [made]))
        return names

    def publish(self, replica_log: ReplicaLog) -> int:
        """Replace the objects below which the log is clean by one of its batches; where that ends."""
        it = replica_log.log
        assert it is not None, "it is open"
        manifest = it.manifest
        old = [one for one in self.machine.level_one if one.end_offset <= manifest.clean_end]
        if not old or old[0].base_offset < manifest.start_offset:
            return self.machine.removals.level_one_clean
        base, end = old[0].base_offset, old[-1].end_offset
        self._uniques += 1
        data = [one for one in batches(replica_log) if base <= struct.unpack_from(">q", one)[0] < end]
        made = self.object_of(data, self._uniques.to_bytes(16, "big"), (base, end))
        gone = [(one.term, one.unique) for one in old]
        self.apply(ReplaceLevelOne(gone, [made], manifest.clean_end, end, end))
        return end

    def removal(self, mtro: int, mxro: int, *, ripe: bool = True) -> None:
        """All copies are clean, and settled, up to there; `ripe` at once, or not before an hour."""
        self.apply(ReplaceLevelOne([], [], mtro, mtro, max(mtro, mxro)))
        self.apply(AdvanceRemoval(mtro, mxro, 0 if ripe else 3_600_000))

    def history(self) -> list[Written]:
        """Every record and marker below the last stable offset that was not aborted."""
        gone = {
            base
            for base, _, owner in self.written
            for producer, first, marker in self.aborted
            if owner == producer and first <= base < marker
        }
        below = self.machine.last_stable_offset
        return read([data for base, data, _ in self.written if base < below and base not in gone])


class Topics:
    """The local replica of the controller, as far as it is asked."""

    def __init__(self) -> None:
        self.configs: dict[bytes, Configs] = {}

    def topic_by_id(self, topic_id: bytes) -> Any:
        configs = self.configs.get(topic_id)
        return None if configs is None else SimpleNamespace(configs=configs, partitions=[HERE] * 8)


@dataclass
class Node:
    """What the upkeep needs of a node, and the upkeep."""

    world: World
    sim: SimNode
    bucket: SimStore
    config: NodeConfig
    compactor: Compactor
    boot_id: int = 1
    topics: Topics = field(default_factory=Topics)
    partitions: Replicas[Replica] = field(default_factory=Replicas)
    now_ms: int = TIME
    registered: bool = True

    def __post_init__(self) -> None:
        self.loop = self.sim.loop
        self.disk = self.sim.disk
        self.log_executor = self.sim.executor
        self.controller = cast(ControllerClient, SimpleNamespace(machine=self.topics))
        self.rng = self.sim.rng("level one")
        self.level_one = LevelOneUpkeep(cast(Any, self))
        self.handlers: dict[str, Any] = {}
        self.leader: Node | None = None
        """The node that is told what a leader has to know."""
        self.unreadable = UnreadableObjects(cast(Any, self), self, cast(Any, self))
        self.upkeep = CompactionUpkeep(cast(Any, self))

    @property
    def groups(self) -> dict[int, Replica]:
        """Those of the replicas here."""
        return {replica.group.id: replica for replica in self.partitions}

    # Calls to other nodes, of which there is one: the leader.

    def serve(self, method: str, handler: Any) -> None:
        self.handlers[method] = handler

    def leader_of(self, group: int) -> Any:
        return None if self.leader is None else SimpleNamespace(node=self.leader, term=1)

    def tell(self, node: Node, method: str, payload: Any) -> bool:
        sent = msgpack.unpackb(msgpack.packb(payload))
        self.loop.create_task(node.handlers[method](1, sent))
        return True

    def wall_ms(self) -> int:
        return self.now_ms

    def add(self, number: int = 0, configs: Configs = EAGER) -> Replica:
        topic_id = bytes([number + 1]) * 16
        made = Replica(self.bucket, number + 1, topic_id, f"t{number}", number)
        made.leads = False  # what leads publishes; see publishing_rig
        self.topics.configs[topic_id] = configs
        self.partitions.append(made)
        return made

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return run(self.world, self.sim, coroutine)

    def step(self, seconds: float = 11.0) -> bool:
        """Let time pass, so that what waits is due, and do one step."""
        self.world.run(self.world.now + seconds)
        return self.run(self.upkeep.step())

    def settle(self, limit: int = 60) -> None:
        """Steps until there is nothing to do: one opens a log, the next notes what waits, for a while."""
        idle = 0
        for _ in range(limit):
            idle = 0 if self.step() else idle + 1
            if idle == 3:
                return
        raise AssertionError("it never comes to an end")

    def step_or_crash(self, seconds: float = 11.0) -> bool | None:
        """As `step`; None if the machine crashed meanwhile."""
        self.world.run(self.world.now + seconds)
        task = self.sim.spawn(self.upkeep.step())
        assert self.world.run_until(lambda: task.done() or not self.sim.alive, timeout=300.0, step=0.001)
        return task.result() if self.sim.alive else None

    def again(self) -> Node:
        """The node after a restart, on the same disk, with the same partitions."""
        if self.sim.alive:
            self.sim.crash("kill")
        self.sim.start(lambda _: None)
        self.world.run(self.world.now)
        made = node_on(self.world, self.sim, self.bucket, self.config.compaction)
        made.boot_id, made.partitions, made.now_ms = self.boot_id + 1, self.partitions, self.now_ms
        made.topics.configs = self.topics.configs
        return made

    def log(self, replica: Replica) -> ReplicaLog:
        found = self.upkeep.log_of(replica.id)
        assert found is not None
        return found


def batches(replica_log: ReplicaLog) -> list[bytes]:
    """The batches of a local log."""
    it = replica_log.log
    assert it is not None, "it is open"
    found = []
    for one in it.view.segments:
        for block in one.footer.blocks:
            data, spans = one.batches(block)
            found += [data[span.position - block.position :][: span.length] for span in spans]
    return found


def contents(replica_log: ReplicaLog) -> list[Written]:
    """Everything in a local log, by another library's reader."""
    return read(batches(replica_log))


def check(replica_log: ReplicaLog, ripe: tuple[int, int] = (0, 0), *, in_round: bool = False) -> None:
    """C1 to C3 of docs/compaction.md by brute force, and that the log is settled. `clean_is_clean`.

    In the middle of a round, and after one that a crash ended, a record may also have been superseded by one
    that is not clean yet.
    """
    it, replica = replica_log.log, replica_log.replica
    assert it is not None
    assert isinstance(replica, Replica)
    manifest, there = it.manifest, contents(replica_log)
    _check_rows(manifest, there)
    end, clean, start = manifest.log_end, manifest.clean_end, replica.machine.start_offset
    history = [one for one in replica.history() if one.offset < end]
    assert set(there) <= set(history), "what is left is as it was written"
    assert there == sorted(there, key=lambda one: one.offset)
    raw = max(clean, start, replica.machine.removals.level_one_clean)
    assert [one for one in there if one.offset >= raw] == [one for one in history if one.offset >= raw]
    clean_ones = [one for one in there if one.offset < clean and not one.marker]
    assert len({one.key for one in clean_ones}) == len(clean_ones), "C1"
    assert None not in {one.key for one in clean_ones}, "C2"
    later = {one.key: one.offset for one in there}
    for below, rule in ((clean, "C3"), (end, "the table is that of the history")):
        for key, one in {one.key: one for one in history if one.offset < below and not one.marker}.items():
            if key is None or one.offset < start or (one.value is None and one.offset < ripe[0]):
                continue
            assert one in there or (in_round and later.get(key, -1) > one.offset), rule
    for one in history:
        if one.marker and one.offset >= max(ripe[1], start):
            assert one in there, "a marker waits until it is ripe"


def _check_rows(manifest: Manifest, there: Sequence[Written]) -> None:
    """What the manifest says of each segment's records: by that it is decided what is due."""
    for one in manifest.segments:
        inside = [each for each in there if one.base_offset <= each.offset < one.end_offset]
        assert one.records == len(inside)
        assert one.ingested_at <= min((each.timestamp for each in inside), default=one.ingested_at) + LATER_MS
        if one.end_offset <= manifest.clean_end:
            markers = [each.offset for each in inside if each.marker]
            tombstones = [each.offset for each in inside if each.value is None and not each.marker]
            assert one.lowest_marker == next(iter(markers), NONE)
            assert one.lowest_tombstone == next(iter(tombstones), NONE)


@contextmanager
def compaction_node(config: CompactionSection = CONFIG, seed: int = 1) -> Iterator[Node]:
    with World(seed) as world:
        sim = started(world)
        yield node_on(world, sim, SimStore(world), config)


def node_on(world: World, sim: SimNode, bucket: SimStore, config: CompactionSection = CONFIG) -> Node:
    compactor = StoreCompactor(bucket.client(sim), sim.disk, loop=sim.loop, executor=sim.executor)
    whole = SimpleNamespace(
        compaction=config,
        level_one=SimpleNamespace(block_bytes=400),
        node=SimpleNamespace(id=1, data="/data"),
        cluster=SimpleNamespace(id="harbour"),
    )
    return Node(world, sim, bucket, cast(NodeConfig, whole), compactor)
