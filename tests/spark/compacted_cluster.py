"""A stored cluster with a compacted topic: tables that were cleaned and published, without a running node.

Topic `accounts` (2 partitions), written in three rounds with a checkpoint after each: plain producers,
transactions that commit and abort, keys that are overwritten, deleted and written again. Each of the three
replicas settles and cleans a log of its own by the rules of the nodes (tests/compaction); the leader's is
published, offsets of removal advance, and tombstones and markers ripen and go. Node 3 cleans later than the
others. In the third round a transaction stays open. Beside each document lies the local log's. Nothing is
collected, so level zero has all that was ever written. The same arguments give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from strandline.node.compaction.chunk import chunks
from strandline.node.compaction.filter import Ripe, kept, map_keys
from strandline.node.compaction.key_map import SLOT_BYTES, KeyHash, KeyMap
from strandline.node.compaction.rewriting import Rewritten, rewritten, settled
from strandline.node.compaction.shared_rows import shared_rows
from strandline.snapshot.aborted import Aborted
from strandline.snapshot.extent_rows import ABORTED_ROWS
from strandline.snapshot.level_one_format import batches_of, parse
from strandline.snapshot.local_document import LocalDocument
from strandline.snapshot.names import local_name
from strandline.statemachine.partition.level_one import level_one_name
from strandline.statemachine.partition.partition_commands import (
    AdvanceRemoval,
    ForgetRemoved,
    LevelOneReplaced,
    RemovalAdvanced,
    ReplaceLevelOne,
)
from tests.kafka.wire.batches import Record, build
from tests.spark.stored_cluster import CLUSTER, NODES, Producer, StoredPartition, Upload
from tests.spark.transactional_cluster import TransactionalCluster, TransactionalId

TOPIC: Final = "accounts"
RETENTION_MS: Final = 60_000
"""`delete.retention.ms` of the topic: less than between two checkpoints."""
_HASH: Final = KeyHash()

Pairs = Sequence[tuple[str | None, str | None]]


class Replica:
    """One replica's own log, in memory: batches that are settled, and clean below `clean_end`."""

    def __init__(self, partition: StoredPartition, node: int) -> None:
        self.partition, self.node = partition, node
        self.batches: list[Rewritten] = []
        self.raw: dict[int, bytes] = {}
        """Every batch that was ever ingested, as it was, by base offset."""
        self.clean_end = self.log_end = 0

    def ingest(self) -> None:
        machine = self.partition.machine
        end = min(machine.last_stable_offset, machine.last_reconciled_offset + 1)
        rows = np.array([tuple(row) for row in machine.aborted], ABORTED_ROWS)
        aborted = Aborted(rows.tobytes())
        for data, base, after in stored_batches(self.partition):
            if self.log_end <= base and after <= end:
                self.batches += settled(data, aborted)
                self.raw[base] = data
        self.log_end = end

    def clean(self) -> None:
        """A round, up to the last batch, by what is ripe in the state."""
        if not self.batches:
            return
        removals = self.partition.machine.removals
        bound = self.batches[-1].base_offset
        keys = KeyMap(400 * SLOT_BYTES, _HASH)
        for chunk in chunks(_joined(self.batches, self.clean_end, bound)):
            bound = map_keys(chunk, keys, bound)
        ripe = Ripe(removals.ripe_tombstones, removals.ripe_markers)
        made = [
            one
            for chunk in chunks(_joined(self.batches, 0, bound))
            for one in rewritten(chunk, kept(chunk, keys, ripe))
        ]
        self.batches = made + [one for one in self.batches if one.base_offset >= bound]
        self.clean_end = max(self.clean_end, bound)

    def document(self, index: int, share_bits: int = 0) -> LocalDocument:
        rows = shared_rows(_joined(self.batches, 0, self.log_end), share_bits)
        place = (CLUSTER, self.partition.group, index)
        return LocalDocument(*place, 1, 0, 0, 0, self.clean_end, self.log_end, share_bits, rows)

    def publish(self) -> None:
        """Put one object in the place of those that end where the log is clean."""
        old = [one for one in self.partition.machine.level_one if one.end_offset <= self.clean_end]
        end = old[-1].end_offset
        span = (old[0].base_offset, end)
        made = self.partition.level_one_object(
            [
                (bytes(one.data), one.base_offset, one.end_offset, one.leader_epoch, one.max_timestamp)
                for one in self.batches
                if one.base_offset < end
            ],
            span,
        )
        names = [(one.term, one.unique) for one in old]
        command = ReplaceLevelOne(names, [made], self.clean_end, end, end)
        assert isinstance(self.partition.execute(command), LevelOneReplaced)


def _joined(batches: Sequence[Rewritten], first: int, end: int) -> bytes:
    return b"".join(bytes(one.data) for one in batches if first <= one.base_offset < end)


def stored_batches(partition: StoredPartition) -> list[tuple[bytes, int, int]]:
    """The batches of a partition's level one, with base and end offset."""
    found = []
    for one in partition.machine.level_one:
        name = partition.level_one_name(one)
        data = (partition.cluster.root / name).read_bytes()
        footer = parse(name, data)
        for block in footer.blocks:
            for span in batches_of(name, block, data[block.position : block.end], footer.holes):
                at, length, base, end, *_ = span
                found.append((data[at : at + length], base, end))
    return found


class CompactedCluster:
    """The cluster, and the replicas' own logs by partition."""

    def __init__(self, root: Path) -> None:
        self.stored = TransactionalCluster(root)
        self.cluster = self.stored.cluster
        self.cluster.create_topic(TOPIC, 2, cleanup_policy="compact", delete_retention_ms=str(RETENTION_MS))
        self.logs = {number: [Replica(self.partition(number), node) for node in NODES] for number in range(2)}
        self.offsets: dict[tuple[int, str | None, str | None], int] = {}
        """Offset of each record, by partition, key and value."""

    def partition(self, number: int) -> StoredPartition:
        return self.cluster.partitions[TOPIC, number]

    def records(self, number: int, pairs: Pairs) -> tuple[Record, ...]:
        self.cluster.now += 10
        for offset, pair in enumerate(pairs, self.partition(number).machine.next_offset):
            self.offsets[number, *pair] = offset
        return tuple(
            Record(
                None if value is None else value.encode(),  # type: ignore[arg-type]
                self.cluster.now,
                None if key is None else key.encode(),
            )
            for key, value in pairs
        )

    def put(self, number: int, pairs: Pairs, producer: Producer | None = None) -> None:
        records = self.records(number, pairs)
        claim = producer.take(len(records)) if producer else (-1, -1, -1)
        data = build(records, producer=claim)
        self.cluster.upload(Upload(self.partition(number), records, data, claim))

    def transact(self, by: TransactionalId, pairs: Pairs, *, commit: bool | None) -> None:
        """A transaction in the first partition; left open without a decision."""
        by.write(self.partition(0), records=self.records(0, pairs))
        if commit is not None:
            by.end(commit=commit)

    def reconcile(self, number: int, *, left: int = 0) -> None:
        """Lift what is in level zero, but for the newest batches, into two objects."""
        count = len(self.partition(number).machine.extents) - left
        self.partition(number).reconcile(*(part for part in (count - count // 2, count // 2) if part))

    def compact(self, number: int, nodes: Sequence[int] = NODES) -> None:
        """All replicas settle, these clean, the first publishes, and all have told how far they are."""
        logs = self.logs[number]
        for log in logs:
            log.ingest()
            if log.node in nodes:
                log.clean()
        logs[0].publish()
        self.sweep(number)
        self.advance(number)

    def sweep(self, number: int) -> None:
        """Delete what is named no more, and by no leased checkpoint."""
        partition = self.partition(number)
        removable = partition.machine.removable()
        for one in removable:
            name = level_one_name(partition.topic_id, number, one.term, one.unique)
            (self.cluster.root / name).unlink()
        if removable:
            partition.execute(ForgetRemoved([one.unique for one in removable]))

    def advance(self, number: int) -> None:
        partition, logs = self.partition(number), self.logs[number]
        removals = partition.machine.removals
        clean = min(removals.level_one_clean, *(log.clean_end for log in logs))
        ends = min(removals.level_one_settled, *(log.log_end for log in logs))
        partition.execute(AdvanceRemoval(clean, ends, RETENTION_MS))

    def ripen(self, number: int) -> None:
        """Let what waits become ripe."""
        self.cluster.now += RETENTION_MS
        removals = self.partition(number).machine.removals
        result = self.partition(number).execute(AdvanceRemoval(removals.mtro, removals.mxro, RETENTION_MS))
        assert isinstance(result, RemovalAdvanced), result

    def checkpoint(self) -> None:
        self.stored.checkpoint()
        for number, logs in self.logs.items():
            index = self.partition(number).checkpoint_indexes[-1]
            for log in logs:
                name = local_name(CLUSTER, self.partition(number).group, index, log.node)
                self.cluster.put(name, log.document(index).encode())


def build_compacted(root: Path) -> CompactedCluster:
    """Write such a cluster's storage below `root`, which may not exist yet."""
    made = CompactedCluster(root)
    by = TransactionalId(made.stored, "transfers", 100, raises=True)
    other = TransactionalId(made.stored, "ledger", 101, raises=False)
    plain = Producer(7)

    made.put(0, [("a", "1"), ("b", "1"), ("c", "1"), ("d", "1")], plain)
    made.transact(by, [("e", "1"), ("f", "1")], commit=True)
    made.transact(other, [("a", "poison"), ("g", "poison")], commit=False)
    made.put(0, [("a", "2"), ("h", "1")], plain)
    made.put(0, [("b", None), ("i", None)], plain)
    made.put(0, [("last", "1")], plain)
    for value in "12":
        made.put(1, [("a", value), ("b", value)])
    # The broker took records without a key before the topic was compacted.
    made.put(1, [("b", None), (None, "nobody's")])
    made.put(1, [("last", "1")])
    for number in range(2):
        made.reconcile(number)
        made.compact(number)
    made.checkpoint()

    made.put(0, [("c", "2"), ("d", None)], plain)
    made.transact(other, [("g", "2"), ("f", None)], commit=True)
    made.transact(by, [("h", "poison")], commit=False)
    made.put(0, [("a", "3"), ("last", "2")], plain)
    made.put(0, [("n", None)], plain)
    made.transact(by, [("o", "1")], commit=True)
    made.put(1, [("a", None), ("last", "2")])
    for number in range(2):
        made.reconcile(number)
        made.compact(number)
    made.checkpoint()

    for number in range(2):
        made.ripen(number)
    made.put(0, [("j", "1"), ("d", "2"), ("c", None)], plain)
    made.transact(other, [("m", "1")], commit=True)
    made.transact(by, [("k", "poison")], commit=False)
    made.put(0, [("p", "1")], plain)
    made.put(0, [("p", "2"), ("q", "1")], plain)
    made.put(0, [("last", "3")], plain)
    made.put(1, [("k", "1"), ("last", "3")])
    made.put(1, [("l", "1")])
    made.reconcile(0)
    made.reconcile(1, left=1)
    # The third replica's log has all of it, and is clean as far as it was.
    made.compact(0, NODES[:2])
    made.compact(1)
    made.put(0, [("a", "4")], plain)
    made.transact(by, [("k", "worse")], commit=False)
    made.transact(other, [("a", "5"), ("b", "5")], commit=None)
    made.put(0, [("c", "5")], plain)
    made.checkpoint()
    return made
