"""A stored cluster with transactions: coordinators, partitions, markers and group offsets, without a node.

Topics `payments` (2 partitions) and `receipts` (1), and two partitions of each kind of coordinator. One
producer speaks transactions version 2 (its epoch rises with each), one version 1 (its sequences go on), and
records of neither lie among theirs. Three rounds with a checkpoint after each: in the first all transactions
complete, in the second `receipts` is reconciled and its start offset moves behind an abort marker within an
object of level one, in the third one stays open and one has only part of its markers. The same arguments give
the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from strandline.node.kafka.wire.control_batch import control_batch
from strandline.statemachine.controller.controller_commands import Bootstrap, CreateInternalTopic
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.coordinator_machine import CoordinatorCheckpoint, encode
from strandline.statemachine.groups.group_commands import (
    CommitTransactionOffsets,
    PartitionOffset,
    TopicOffsets,
)
from strandline.statemachine.groups.group_commands import EndGroupTransaction as EndOffsets
from strandline.statemachine.groups.groups import GroupsMachine
from strandline.statemachine.internal_topics import GROUPS_TOPIC, TRANSACTIONS_TOPIC, coordinator_of
from strandline.statemachine.partition.partition_commands import (
    EndTransaction,
    SetStartOffset,
    TransactionEnded,
)
from strandline.statemachine.transactions.transaction_commands import (
    Complete,
    End,
    Enlist,
    Enlisted,
    InitializeProducer,
    Prepared,
)
from strandline.statemachine.transactions.transactions import TransactionsMachine
from tests.kafka.wire.batches import Record, build
from tests.spark.stored_cluster import (
    CLUSTER,
    NODES,
    Group,
    Producer,
    StoredCluster,
    StoredPartition,
    StoredRecord,
    Upload,
)
from tests.statemachine.controller_harness import registration, topic_id

GROUP = "auditors"
COORDINATORS = 2
TRANSACTIONAL = 0x10


class Coordinator(Group):
    """One partition of an internal topic."""

    def __init__(self, cluster: StoredCluster, topic: Topic, number: int, make: Any) -> None:
        super().__init__(cluster, topic.partitions[number].group, [], NODES)
        self.machines = [make(partial(self.captured, node)) for node in NODES]
        self.begin_term(1, topic.partitions[number].replicas[0])

    def execute(self, command: Any) -> Any:
        self.cluster.now += 10
        return self.apply(encode(self.term, self.cluster.now, command))


class TransactionalId:
    """A transactional producer and its transactions; `raises` is transactions version 2."""

    def __init__(self, stored: TransactionalCluster, name: str, producer_id: int, *, raises: bool) -> None:
        self.stored, self.name, self.id, self.raises = stored, name, producer_id, raises
        self.coordinator = stored.transactions[coordinator_of(name, COORDINATORS)]
        self.coordinator.execute(InitializeProducer(name, 60_000, -1, -1, producer_id))
        self.epoch = self.number = 0
        self._sequences: dict[StoredPartition, int] = {}
        self._written: list[tuple[StoredPartition, range]] = []

    def write(
        self,
        *partitions: StoredPartition,
        count: int = 2,
        inline: bool = False,
        records: Sequence[Record] | None = None,
    ) -> None:
        """Enlist the partitions, and put a batch into each, of these records if they are given."""
        places = [(partition.topic_id, partition.number) for partition in partitions]
        enlisted = self.coordinator.execute(Enlist(self.name, self.id, self.epoch, places))
        assert isinstance(enlisted, Enlisted), enlisted
        self.number = enlisted.number
        cluster = self.stored.cluster
        uploads = []
        for partition in partitions:
            cluster.now += 10
            first = partition.machine.next_offset
            values = [f"{self.name}:{self.number}:{first + n}".encode() for n in range(count)]
            written = tuple(records or (Record(value, cluster.now) for value in values))
            sequence = self._sequences.get(partition, 0)
            self._sequences[partition] = sequence + len(written)
            claim = (self.id, self.epoch, sequence)
            data = build(written, producer=claim, attributes=TRANSACTIONAL)
            uploads.append(Upload(partition, written, data, (*claim, self.number)))  # type: ignore[arg-type]
            self._written.append((partition, range(first, first + len(written))))
        if inline:
            for upload in uploads:
                upload.partition.append_inline(upload)
        else:
            cluster.upload(*uploads)

    def commit_offsets(self, offset: int) -> None:
        enlisted = self.coordinator.execute(Enlist(self.name, self.id, self.epoch, (), (GROUP,)))
        assert isinstance(enlisted, Enlisted), enlisted
        self.number = enlisted.number
        payments = self.stored.cluster.topics["payments"]
        offsets = [TopicOffsets(payments.topic_id, "payments", [PartitionOffset(0, offset, 0, "")])]
        claim = (self.id, self.epoch, self.number)
        self.stored.group.execute(CommitTransactionOffsets(GROUP, "", -1, None, *claim, offsets))

    def end(self, commit: bool, *, without: Sequence[StoredPartition] = (), group: bool = False) -> None:
        """Decide, send the markers, complete; `without` some of them it stays prepared."""
        producer, now = self.id, self.stored.cluster.now
        prepared = self.coordinator.execute(End(self.name, self.id, self.epoch, commit, self.raises, -1))
        assert isinstance(prepared, Prepared), prepared
        marker_epoch = self.epoch + 1 if self.raises else self.epoch
        if self.raises:
            self._sequences.clear()
        self.epoch = prepared.epoch
        term = self.coordinator.term
        for partition in dict.fromkeys(partition for partition, _ in self._written):
            if partition not in without:
                marker = control_batch(producer, marker_epoch, commit, term, now)
                command = EndTransaction(producer, marker_epoch, self.number, commit, term, now, marker)
                assert isinstance(partition.execute(command), TransactionEnded)
        if group:
            self.stored.group.execute(EndOffsets(producer, marker_epoch, self.number, commit, term))
        if not commit or without:
            # With a marker outstanding the records are not stable, in whichever partition that is.
            for partition, offsets in self._written:
                if not commit or partition in without:
                    self.stored.hidden.setdefault(partition, set()).update(offsets)
        self._written.clear()
        if not without:
            assert self.coordinator.execute(Complete(self.name, self.number)) is True

    def leave_open(self) -> None:
        for partition, offsets in self._written:
            self.stored.hidden.setdefault(partition, set()).update(offsets)


class TransactionalCluster:
    """The cluster, its coordinators, and which records a read-committed reader must not get."""

    def __init__(self, root: Path) -> None:
        self.cluster = cluster = StoredCluster(root)
        cluster.controller.begin_term(1, 1)
        cluster.control(Bootstrap(CLUSTER, "first"))
        for node in NODES:
            cluster.control(registration(node))
        cluster.create_topic("payments", 2)
        cluster.create_topic("receipts", 1)
        self.groups = self._coordinators(GROUPS_TOPIC, 90, GroupsMachine)
        self.transactions = self._coordinators(TRANSACTIONS_TOPIC, 91, TransactionsMachine)
        self.group = self.groups[coordinator_of(GROUP, COORDINATORS)]
        self.hidden: dict[StoredPartition, set[int]] = {}
        cluster.advance(3)

    def _coordinators(self, name: str, number: int, make: Any) -> list[Coordinator]:
        topic = self.cluster.control(CreateInternalTopic(topic_id(number), name, COORDINATORS, len(NODES)))
        assert isinstance(topic, Topic), topic
        return [Coordinator(self.cluster, topic, partition, make) for partition in range(COORDINATORS)]

    def partition(self, topic: str, number: int) -> StoredPartition:
        return self.cluster.partitions[topic, number]

    def checkpoint(self) -> None:
        self.cluster.now += 100_000
        for coordinator in (*self.groups, *self.transactions):
            coordinator.execute(CoordinatorCheckpoint())
        self.cluster.checkpoint()

    def committed(self) -> Mapping[tuple[str, int], list[StoredRecord]]:
        """What a read-committed reader gets: below the last stable offset, without what was aborted."""
        return {
            place: [
                record
                for record in partition.readable
                if record.offset < partition.machine.last_stable_offset
                and record.offset not in self.hidden.get(partition, set())
            ]
            for place, partition in self.cluster.partitions.items()
        }


def build_transactional(root: Path) -> TransactionalCluster:
    """Write such a cluster's storage below `root`, which may not exist yet."""
    stored = TransactionalCluster(root)
    cluster = stored.cluster
    first, second = (stored.partition("payments", number) for number in range(2))
    receipts = stored.partition("receipts", 0)
    raising = TransactionalId(stored, "transfers", 100, raises=True)
    steady = TransactionalId(stored, "ledger", 101, raises=False)
    plain = Producer(7)

    for round_ in range(3):
        cluster.upload(first.batch([b"plain"] * 2, producer=plain), second.batch([b"nobody's"]))
        raising.write(first, second, receipts)
        raising.commit_offsets(10 * round_)
        # Another's transaction within the first one's, decided before it.
        steady.write(first, receipts, inline=round_ == 1)
        raising.write(first, count=3)
        steady.end(commit=round_ != 0)
        cluster.upload(first.batch([b"plain"], producer=plain))
        raising.end(commit=True, group=True)
        raising.write(first, second)
        steady.write(second, count=4)
        raising.end(commit=False)
        steady.write(second)
        steady.end(commit=True)
        raising.write(second)
        raising.end(commit=True)
        raising.write(receipts)
        raising.end(commit=False)
        if round_ == 1:
            receipts.begin_term(2, 2)
            # The start offset moves behind the first abort's marker; the object that holds both stays whole.
            receipts.reconcile(4, len(receipts.machine.extents) - 5)
            receipts.execute(SetStartOffset(next(iter(receipts.machine.aborted)).last_offset + 1))
        if round_ == 2:
            # One has a marker in the first partition, and none in the second yet; one is open.
            steady.write(first, second)
            cluster.upload(first.batch([b"behind"], producer=plain), second.batch([b"behind"]))
            steady.end(commit=True, without=[second])
            raising.write(receipts)
            cluster.upload(receipts.batch([b"behind"]))
            raising.leave_open()
        stored.checkpoint()
    return stored
