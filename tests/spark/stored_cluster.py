"""What a small cluster leaves in object storage, made by the real state machines without a running node.

Three nodes, topics `orders` (3 partitions) and `clicks` (2, the second never written to), three rounds of
writing with a checkpoint after each: batches of several partitions in one object, all compressions, two
leaders' terms, epochs that advance and skip, idempotent producers (one wraps its sequences, one has its
epoch raised, one retries), inline batches, a start offset that moved. All of that stays in level zero.
`visits` (2) is reconciled: objects of several blocks, one that is removed and one that was merged while a
leased checkpoint names it, a partition with both levels and one that has level one alone. Nothing was
collected, so level zero still has every record. Every replica's document and the logs between checkpoints lie
there under their real names. The same arguments give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from strandline.snapshot.compression import Compression
from strandline.snapshot.document import SnapshotDocument
from strandline.snapshot.level_one_format import batches_of, parse
from strandline.snapshot.level_one_writer import LevelOneWriter
from strandline.snapshot.level_zero_format import Batch, encode
from strandline.snapshot.log_document import LogDocument, pack_entry
from strandline.snapshot.names import log_name, snapshot_name
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_commands import (
    AdvanceClusterEpoch,
    Bootstrap,
    CreateTopic,
    Heartbeat,
)
from strandline.statemachine.controller.controller_commands import Command as ControllerCommand
from strandline.statemachine.controller.controller_commands import (
    ControllerCheckpoint as ControllerCheckpoint,
)
from strandline.statemachine.controller.controller_commands import encode as encode_controller
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP, Topic
from strandline.statemachine.machine import Captured
from strandline.statemachine.object_names import object_id, object_name
from strandline.statemachine.partition.epoch_window import EpochStatus, EpochWindow
from strandline.statemachine.partition.extent import Extent, InlineExtent, ObjectExtent, StoredInline
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import (
    AdvanceReconciled,
    Append,
    AppendInline,
    Checkpoint,
    Command,
    Reconciled,
    ReplaceLevelOne,
    SetStartOffset,
    StoreInline,
    Tick,
)
from strandline.statemachine.partition.partition_commands import encode as encode_partition
from strandline.statemachine.partition.placeholder import InlineBatch, Placeholder
from strandline.statemachine.partition.producer_state import MAX_SEQUENCE
from tests.kafka.wire.batches import Record, build
from tests.statemachine.controller_harness import registration, topic_id

CLUSTER = "harbour"
NODES = (1, 2, 3)
START_MS = 1_700_000_000_000
LEASE_MS = 3_600_000
ROUND_MS = 900_000
"""Between two checkpoints: longer than an audit's grace, and all of them are still leased at the last."""
BLOCK_BYTES = 600
"""Blocks of level one are small here, so that objects have several."""


class StoredRecord(NamedTuple):
    """A record as a reader has to find it; the timestamp is in ms."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes
    leader_epoch: int


class Producer:
    """An idempotent producer of one partition."""

    def __init__(self, producer_id: int, epoch: int = 0, sequence: int = 0) -> None:
        self.id, self.epoch, self.sequence = producer_id, epoch, sequence

    def take(self, count: int) -> tuple[int, int, int]:
        claim = (self.id, self.epoch, self.sequence)
        self.sequence = (self.sequence + count) & MAX_SEQUENCE
        return claim


class Upload(NamedTuple):
    """A batch on its way: into an object with others, then into its partition's log."""

    partition: StoredPartition
    records: tuple[Record, ...]
    data: bytes
    claim: tuple[int, int, int]


class Group:
    """One Raft group as three replicas of its machine and one log."""

    def __init__(
        self, cluster: StoredCluster, group: int, machines: Sequence[Any], voters: tuple[int, ...]
    ) -> None:
        self.cluster, self.group, self.machines, self.voters = cluster, group, machines, voters
        self.index = self.term = self.checkpointed = 0
        self.entries = bytearray()
        self.checkpoint_indexes: list[int] = []

    def begin_term(self, term: int, node: int) -> None:
        self.index += 1
        self.term = term
        self.entries += pack_entry(self.index, term, node)
        for machine in self.machines:
            machine.begin_term(self.index, term, node)

    def apply(self, entry: bytes) -> Any:
        self.index += 1
        self.entries += pack_entry(self.index, self.term, entry)
        results = [machine.apply(self.index, self.term, entry) for machine in self.machines]
        return results[0]

    def change_members(self) -> None:
        """An entry of the log that no machine gets to see."""
        self.index += 1

    def captured(self, node: int, index: int, captured: Captured) -> None:
        """One replica's on_checkpoint."""
        document = SnapshotDocument(
            CLUSTER, self.machines[0].kind, self.group, index, self.term, self.voters, (), captured()
        )
        self.cluster.put(snapshot_name(CLUSTER, self.group, index, node), document.encode())
        if node == self.voters[-1]:
            log = LogDocument(
                CLUSTER, document.kind, self.group, self.checkpointed, index, bytes(self.entries)
            )
            self.cluster.put(log_name(CLUSTER, self.group, self.checkpointed, index), log.encode())
            self.checkpointed = index
            self.entries.clear()
            self.checkpoint_indexes.append(index)


class StoredPartition(Group):
    """A partition's group; `records` is everything ever appended, `window` its leader's."""

    def __init__(self, cluster: StoredCluster, topic: Topic, number: int) -> None:
        place = topic.partitions[number]
        machines = [
            PartitionStateMachine(place.creation_epoch, partial(self.captured, node)) for node in NODES
        ]
        super().__init__(cluster, place.group, machines, NODES)
        self.topic, self.topic_id, self.number = topic.name, topic.topic_id, number
        self.records: list[StoredRecord] = []
        self.window = EpochWindow(0)

    @property
    def machine(self) -> PartitionStateMachine:
        machine: PartitionStateMachine = self.machines[0]
        return machine

    def begin_term(self, term: int, node: int) -> None:
        super().begin_term(term, node)
        self.window = EpochWindow.recovered(term, self.machine.max_applied_epoch)

    def execute(self, *commands: Command) -> Any:
        self.cluster.now += 10
        return self.apply(encode_partition(self.term, self.cluster.now, commands))[0]

    def fence(self, epoch: int) -> EpochWindow:
        if self.window.classify(epoch) is EpochStatus.NEW:
            self.window = self.window.slide(epoch)
        return self.window

    def batch(
        self,
        values: Sequence[bytes],
        *,
        compression: Compression = Compression.NONE,
        producer: Producer | None = None,
    ) -> Upload:
        self.cluster.now += 10
        records = tuple(
            Record(value, self.cluster.now + number, None if number % 3 == 2 else f"key-{number}".encode())
            for number, value in enumerate(values)
        )
        claim = producer.take(len(values)) if producer else (-1, -1, -1)
        return Upload(self, records, build(records, compression=compression, producer=claim), claim)

    def append_inline(self, upload: Upload) -> None:
        newest = max(record.timestamp for record in upload.records)
        (result,) = self.execute(
            AppendInline([InlineBatch(len(upload.records), newest, upload.data, *upload.claim)])
        )
        self.note(upload, result)

    def note(self, upload: Upload, result: Any) -> None:
        if result.duplicate or not self.cluster.keeps_records:
            return
        for offset, record in enumerate(upload.records, result.base_offset):
            self.records.append(StoredRecord(offset, record.timestamp, record.key, record.value, self.term))

    # Level one.

    def reconcile(self, *counts: int) -> None:
        """Lift the oldest extents into objects of so many extents each."""
        if not sum(counts):
            return
        extents = iter(list(self.machine.extents))
        lifted = [
            self.level_one_object([self._batch(next(extents)) for _ in range(count)]) for count in counts
        ]
        result = self.execute(AdvanceReconciled(self.machine.extents.first_offset, lifted))
        assert isinstance(result, Reconciled), result

    def merge(self, first: int, count: int) -> None:
        """Put one object in the place of some neighbours."""
        old = list(self.machine.level_one)[first : first + count]
        if not old:
            return
        batches: list[tuple[bytes, int, int, int, int]] = []
        for one in old:
            name = self.level_one_name(one)
            data = (self.cluster.root / name).read_bytes()
            for block in parse(name, data).blocks:
                for span in batches_of(name, block, data[block.position : block.end]):
                    at, length, base, end, leader_epoch, newest = span
                    batches.append((data[at : at + length], base, end, leader_epoch, newest))
        merged = self.level_one_object(batches)
        self.execute(ReplaceLevelOne([(one.term, one.unique) for one in old], [merged]))

    def compact(self, number: int, keeps: Callable[[int], bool]) -> None:
        """Put an object in the place of one that has only the batches whose base offsets are kept."""
        old = list(self.machine.level_one)[number]
        name = self.level_one_name(old)
        data = (self.cluster.root / name).read_bytes()
        kept: list[tuple[bytes, int, int, int, int]] = []
        for block in parse(name, data).blocks:
            for span in batches_of(name, block, data[block.position : block.end]):
                at, length, base, end, leader_epoch, newest = span
                if keeps(base):
                    kept.append((data[at : at + length], base, end, leader_epoch, newest))
                else:
                    self.records = [one for one in self.records if not base <= one.offset < end]
        made = self.level_one_object(kept, (old.base_offset, old.end_offset))
        self.execute(ReplaceLevelOne([(old.term, old.unique)], [made]))

    def level_one_object(
        self, batches: Sequence[tuple[bytes, int, int, int, int]], span: tuple[int, int] | None = None
    ) -> LevelOneExtent:
        """Store one, of (batch, base offset, end offset, leader epoch, newest timestamp).

        With holes if its offsets, the `span`, are given.
        """
        self.cluster.objects += 1
        unique = self.cluster.objects.to_bytes(16, "big")
        writer = LevelOneWriter(self.topic_id, self.number, self.term, unique, self.cluster.block_bytes)
        if span is not None:
            writer.allow_holes(*span)
        for batch in batches:
            writer.add(*batch)
        encoded = writer.finish()
        self.cluster.put(self.level_one_name(encoded.extent), b"".join(encoded.parts))
        return encoded.extent

    def level_one_name(self, one: LevelOneExtent) -> str:
        return level_one_name(self.topic_id, self.number, one.term, one.unique)

    def _batch(self, extent: Extent) -> tuple[bytes, int, int, int, int]:
        if isinstance(extent, ObjectExtent):
            data = (self.cluster.root / extent.object_name).read_bytes()
            data = data[extent.position : extent.position + extent.length]
        else:
            data = extent.data
        return data, extent.base_offset, extent.end_offset, extent.term, extent.max_timestamp

    @property
    def readable(self) -> list[StoredRecord]:
        """The records from the start offset on, at the newest checkpoint."""
        return [record for record in self.records if record.offset >= self.machine.start_offset]


@dataclass
class StoredCluster:
    """The folder `root` and what is in it; the store's URL is its path."""

    root: Path
    now: int = START_MS
    epoch: int = 1
    partitions: dict[tuple[str, int], StoredPartition] = field(default_factory=dict)
    controller: Group = field(init=False)
    topics: dict[str, Topic] = field(default_factory=dict)
    objects: int = 0
    """How many were stored, for unique names."""
    block_bytes: int = BLOCK_BYTES
    keeps_records: bool = True
    """Whether partitions remember all that was appended to them."""

    def __post_init__(self) -> None:
        machines = [Controller(partial(self._captured, node)) for node in NODES]
        self.controller = Group(self, CONTROLLER_GROUP, machines, NODES)

    def _captured(self, node: int, index: int, captured: Captured) -> None:
        self.controller.captured(node, index, captured)

    @property
    def url(self) -> str:
        return str(self.root)

    def put(self, key: str, data: bytes) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}")  # as a node does: nobody sees half of an object
        unfinished.write_bytes(data)
        unfinished.rename(path)

    def control(self, command: ControllerCommand) -> Any:
        return self.controller.apply(encode_controller(command))

    def create_topic(self, name: str, partitions: int, **configs: str) -> None:
        """Configs are named with underscores in place of dots."""
        number = len(self.topics) + 1
        topic = self.control(
            CreateTopic(
                topic_id(number),
                name,
                partitions,
                len(NODES),
                None,
                [(config.replace("_", "."), value) for config, value in configs.items()],
                self.controller.index,
            )
        )
        assert isinstance(topic, Topic), topic
        self.topics[name] = topic
        for partition in range(partitions):
            stored = StoredPartition(self, topic, partition)
            stored.begin_term(1, topic.partitions[partition].replicas[0])
            self.partitions[name, partition] = stored

    def advance(self, epoch: int) -> None:
        self.epoch = self.control(AdvanceClusterEpoch(epoch))

    def upload(self, *uploads: Upload, node: int = 1, epoch: int | None = None) -> str:
        """Put batches into one object and append each to its partition; returns the object's name."""
        epoch = self.epoch if epoch is None else epoch
        self.objects += 1
        identity = object_id(self.objects % 4, node, self.objects.to_bytes(16, "big"))
        batches = [Batch(u.partition.topic_id, u.partition.number, u.data) for u in uploads]
        encoded = encode(epoch, identity, batches)
        name = object_name(epoch, identity)
        self.put(name, b"".join(encoded.parts))
        for upload, position in zip(uploads, encoded.positions, strict=True):
            newest = max(record.timestamp for record in upload.records)
            placeholder = Placeholder(
                len(upload.records), newest, len(upload.data), epoch, position, identity, *upload.claim
            )
            (result,) = upload.partition.execute(Append(upload.partition.fence(epoch), [placeholder]))
            upload.partition.note(upload, result)
        return name

    def store_inline(self, partition: StoredPartition, count: int) -> str:
        """Put a partition's first inline batches into one object, and let them name it; returns its name."""
        inline = [one for one in partition.machine.extents if isinstance(one, InlineExtent)][:count]
        self.objects += 1
        identity = object_id(self.objects % 4, NODES[0], self.objects.to_bytes(16, "big"))
        encoded = encode(
            self.epoch, identity, [Batch(partition.topic_id, partition.number, one.data) for one in inline]
        )
        name = object_name(self.epoch, identity)
        self.put(name, b"".join(encoded.parts))
        rows = [
            StoredInline(one.base_offset, one.length, self.epoch, position, identity)
            for one, position in zip(inline, encoded.positions, strict=True)
        ]
        partition.execute(StoreInline(partition.fence(self.epoch), rows))
        return name

    def checkpoint(self) -> None:
        """All partitions, then the controller."""
        for partition in self.partitions.values():
            partition.execute(Checkpoint(LEASE_MS))
        self.control(Heartbeat(NODES[0], 100 + NODES[0], self.now))
        self.control(ControllerCheckpoint())
        self.now += ROUND_MS


def _values(topic: str, round_: int, count: int, size: int = 40) -> list[bytes]:
    return [f"{topic}:{round_}:{number}:".encode().ljust(size, b"x") for number in range(count)]


def build_cluster(root: Path, *, batches_a_round: int = 6) -> StoredCluster:
    """Write a cluster's storage below `root`, which may not exist yet."""
    cluster = StoredCluster(root)
    cluster.controller.begin_term(1, 1)
    cluster.control(Bootstrap(CLUSTER, "first"))
    for node in NODES:
        cluster.control(registration(node))
    cluster.create_topic("orders", 3)
    cluster.advance(3)
    cluster.create_topic("clicks", 2)
    cluster.create_topic("visits", 2)
    orders = [cluster.partitions["orders", number] for number in range(3)]
    clicks = cluster.partitions["clicks", 0]
    steady, restarted = Producer(7), Producer(9)
    wrapping = Producer(8, sequence=MAX_SEQUENCE - 4)

    for round_, epoch in enumerate((3, 4, 8)):
        cluster.advance(epoch)
        for number in range(batches_a_round):
            compression = Compression((round_ + number) % len(Compression))
            uploads = [
                orders[0].batch(_values("a", round_, 3 + number), compression=compression, producer=steady),
                orders[1].batch(_values("b", round_, 4), compression=compression, producer=wrapping),
                clicks.batch(_values("c", round_, 2, 400), compression=compression),
            ]
            if number % 2:
                uploads.append(orders[0].batch(_values("d", round_, 1), producer=restarted))
            # An upload that began before the epoch changed comes in one late.
            late = number == 1 and round_ > 0
            cluster.upload(*uploads, node=NODES[number % 3], epoch=(3, 4)[round_ - 1] if late else None)
            if number == 2:
                cluster.upload(uploads[0], node=2)  # a retry: the object is there, the batch counts once
        orders[2].append_inline(orders[2].batch(_values("inline", round_, 2)))
        cluster.upload(orders[2].batch(_values("e", round_, 5)), node=3)
        if round_ == 0:
            orders[1].change_members()
            orders[0].begin_term(2, 2)
            restarted.epoch, restarted.sequence = 1, 0
        if round_ == 1:
            orders[0].execute(SetStartOffset(orders[0].machine.next_offset // 3))
            clicks.begin_term(4, 3)
            clicks.execute(Tick(7 * 24 * 3600 * 1000))
        _visits(cluster, round_, batches_a_round)
        cluster.checkpoint()
    return cluster


def _visits(cluster: StoredCluster, round_: int, batches: int) -> None:
    """Both partitions are written to and reconciled; the first keeps the last round in level zero."""
    both, whole = (cluster.partitions["visits", number] for number in range(2))
    if round_ == 2:
        both.begin_term(3, 2)
    producer = Producer(11, epoch=round_)
    for number in range(max(batches, 3)):
        compression = Compression((round_ + number) % len(Compression))
        cluster.upload(
            both.batch(_values("f", round_, 3, 100), compression=compression, producer=producer),
            whole.batch(_values("g", round_, 1 + number), compression=compression),
        )
    whole.append_inline(whole.batch(_values("h", round_, 2)))
    if round_ == 1:
        # The first round's two objects are named by no checkpoint but the next, which has the second only.
        both.reconcile(1, len(both.machine.extents) // 2)
        both.execute(SetStartOffset(next(iter(both.machine.level_one)).end_offset + 1))
    if round_ == 2:
        both.reconcile(2, len(both.machine.extents) // 2)
        both.merge(0, 2)
    whole.reconcile(len(whole.machine.extents))
