"""What a small cluster leaves in object storage, made by the real state machines without a running node.

Three nodes, topics `orders` (3 partitions) and `clicks` (2, the second never written to), three rounds of
writing with a checkpoint after each: batches of several partitions in one object, all compressions, two
leaders' terms, epochs that advance and skip, idempotent producers (one wraps its sequences, one has its
epoch raised, one retries), inline batches, a start offset that moved. Every replica's document and the logs
between checkpoints lie there under their real names. The same arguments give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from snapshot.compression import Compression
from snapshot.document import SnapshotDocument
from snapshot.level_zero_format import Batch, encode
from snapshot.log_document import LogDocument, pack_entry
from snapshot.names import log_name, snapshot_name
from statemachine.controller import Controller
from statemachine.controller_commands import AdvanceClusterEpoch, Bootstrap, CreateTopic
from statemachine.controller_commands import Checkpoint as ControllerCheckpoint
from statemachine.controller_commands import Command as ControllerCommand
from statemachine.controller_commands import encode as encode_controller
from statemachine.controller_state import CONTROLLER_GROUP, Topic
from statemachine.epoch_window import EpochWindow, Verdict
from statemachine.object_names import object_id, object_name
from statemachine.partition import PartitionStateMachine
from statemachine.partition_commands import (
    Append,
    AppendInline,
    Checkpoint,
    Command,
    InlineBatch,
    Placeholder,
    SetStartOffset,
    Tick,
)
from statemachine.partition_commands import encode as encode_partition
from statemachine.producers import MAX_SEQUENCE
from tests.kafka_wire.batches import Record, build
from tests.statemachine.controller_harness import registration, topic_id

CLUSTER = "harbour"
NODES = (1, 2, 3)
START_MS = 1_700_000_000_000
LEASE_MS = 3_600_000


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

    def captured(self, node: int, index: int, state: bytes) -> None:
        """One replica's on_checkpoint."""
        document = SnapshotDocument(
            CLUSTER, self.machines[0].kind, self.group, index, self.term, self.voters, (), state
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
        if self.window.judge(epoch) is Verdict.NEW:
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
        if result.duplicate:
            return
        for offset, record in enumerate(upload.records, result.base_offset):
            self.records.append(StoredRecord(offset, record.timestamp, record.key, record.value, self.term))

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
    _objects: int = 0

    def __post_init__(self) -> None:
        machines = [Controller(partial(self._captured, node)) for node in NODES]
        self.controller = Group(self, CONTROLLER_GROUP, machines, NODES)

    def _captured(self, node: int, index: int, state: bytes) -> None:
        self.controller.captured(node, index, state)

    @property
    def url(self) -> str:
        return str(self.root)

    def put(self, key: str, data: bytes) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def control(self, command: ControllerCommand) -> Any:
        return self.controller.apply(encode_controller(command))

    def create_topic(self, name: str, partitions: int) -> None:
        number = len(self.topics) + 1
        topic = self.control(
            CreateTopic(topic_id(number), name, partitions, len(NODES), None, [], self.controller.index)
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
        self._objects += 1
        identity = object_id(self._objects % 4, node, self._objects.to_bytes(16, "big"))
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

    def checkpoint(self) -> None:
        """All partitions, then the controller."""
        for partition in self.partitions.values():
            partition.execute(Checkpoint(LEASE_MS))
        self.control(ControllerCheckpoint())


def _values(topic: str, round_: int, count: int, size: int = 40) -> list[bytes]:
    return [f"{topic}:{round_}:{number}:".encode().ljust(size, b"x") for number in range(count)]


def build_cluster(root: Path, *, batches_a_round: int = 6) -> StoredCluster:
    """Write a cluster's storage below `root`, which may not exist yet."""
    cluster = StoredCluster(root)
    cluster.controller.begin_term(1, 1)
    cluster.control(Bootstrap(CLUSTER))
    for node in NODES:
        cluster.control(registration(node))
    cluster.create_topic("orders", 3)
    cluster.advance(3)
    cluster.create_topic("clicks", 2)
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
        cluster.checkpoint()
    return cluster
