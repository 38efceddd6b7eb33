"""State of a partition: its batches on both levels, producers, transactions, epochs; and its snapshots.

The module `partition` changes the state by the log; this one has the readers' queries and the snapshot
format. Equal states give equal bytes, so replicas can be compared by digest.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgpack

from strandline.statemachine.machine import Captured, Corruption, packed
from strandline.statemachine.partition.aborted_transactions import AbortedTransaction, AbortedTransactions
from strandline.statemachine.partition.checkpoints import Checkpoints, RetainedCheckpoint
from strandline.statemachine.partition.collectable_epoch import max_collectable_epoch
from strandline.statemachine.partition.extent import Extent
from strandline.statemachine.partition.extents import Extents
from strandline.statemachine.partition.holds import Holds
from strandline.statemachine.partition.leader_epochs import EpochEnd, LeaderEpoch, LeaderEpochs
from strandline.statemachine.partition.level_one import LevelOne, RemovedObject
from strandline.statemachine.partition.producer_state import OpenTransaction
from strandline.statemachine.partition.producers import Producers
from strandline.statemachine.partition.removal import Removals
from strandline.statemachine.partition.watermarks import high_watermark, last_stable_offset

SNAPSHOT_FORMAT = 6
WITHOUT_HOLDS = 5
"""Format of a release that did not know of holds: it is read, and nothing is held in it."""
WITHOUT_REMOVALS = 4
"""Format of a release that did not know of compaction: it is read, and nothing is removed in it."""
SNAPSHOT_FIELDS = (
    "format",
    "term",
    "time",
    "creation_epoch",
    "previous_applied_epoch",
    "max_applied_epoch",
    "max_applied_epoch_index",
    "start_offset",
    "next_offset",
    "last_reconciled_log_index",
    "leader_epochs",
    "producers",
    "aborted",
    "checkpoints",
    "removed",
    "removals",
    "holds",
    "level_one",
    "inline",
    "extents",
)
"""Keys of the state's msgpack map, in this order."""
_BIN_32 = struct.Struct(">BI")
_BIN_32_MARK = 0xC6
_EMPTY_BIN = b"\xc4\x00"
"""Empty bytes, encoded by msgpack."""


class PartitionState:
    """One partition as of some entry of its log.

    `creation_epoch` is the cluster epoch at which the controller created the partition, the same on every
    replica.
    """

    def __init__(self, creation_epoch: int) -> None:
        self.term = 0
        self.time = 0
        """The highest time any entry carried, in ms: the only clock there is here."""
        self.creation_epoch = creation_epoch
        self.previous_applied_epoch = creation_epoch
        """Highest lower end of an applied window: no epoch below it will be accepted again."""
        self.max_applied_epoch = creation_epoch
        """Highest upper end of an applied window; a new leader's window starts from it."""
        self.max_applied_epoch_index = 0
        """Log index of the entry that raised `max_applied_epoch`; 0 for the creation."""
        self.start_offset = 0
        """Offset of the first record that is still part of the partition."""
        self.last_reconciled_log_index = 0
        """Log index of the entry that raised `last_reconciled_offset` last; 0 before any did."""
        self.leader_epochs = LeaderEpochs([])
        self.producers = Producers()
        self.aborted = AbortedTransactions()
        """Aborted transactions that a reader of the partition's present batches may meet."""
        self.checkpoints = Checkpoints([])
        self.removed: list[RemovedObject] = []
        """Level-one objects that are no longer named, in that order; they are deleted, then forgotten."""
        self.level_one = LevelOne()
        """Up to the last reconciled offset."""
        self.removals = Removals()
        """Offsets below which compaction may remove tombstones and markers for good."""
        self.holds = Holds()
        """Readers whose records cleaning must leave alone."""
        self.extents = Extents()
        """Level zero: the batches after the last reconciled offset."""

    @property
    def next_offset(self) -> int:
        """Offset the next record will get."""
        return self.extents.end_offset

    @property
    def high_watermark(self) -> int:
        """Offset after the last record a consumer may see; see watermarks."""
        return high_watermark(self.extents.end_offset)

    @property
    def last_stable_offset(self) -> int:
        """LSO: below it every transaction has ended, and a read-committed consumer may read.

        First offset of the earliest open transaction, or the high watermark; never below the start offset.
        """
        return last_stable_offset(self.start_offset, self.next_offset, self.producers.first_open_offset)

    def open_transaction(self, producer_id: int) -> OpenTransaction | None:
        """The producer's transaction that has batches here and no marker yet; None when there is none."""
        return self.producers.open_transaction(producer_id)

    def aborted_between(self, first: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions with offsets in `[first, end)`, in the order of their markers.

        `end` should not lie above the last stable offset: what is open above it may be aborted yet.
        """
        return self.aborted.between(first, end)

    def batch_time(self, offset: int) -> int | None:
        """Newest timestamp (ms) of the batch that holds an offset; None where it is not in level zero."""
        found = self.extents.between(offset, offset + 1, 0)
        return found[0].max_timestamp if found else None

    @property
    def last_reconciled_offset(self) -> int:
        """LRO: up to here level one has what the partition has; -1 before anything is reconciled.

        It follows from where level zero begins, so it also rises when the start offset passes it.
        """
        return self.extents.first_offset - 1

    @property
    def max_collectable_epoch(self) -> int:
        """M(p): the highest epoch this partition no longer needs and will never accept again.

        One below the lowest of: the epochs its extents name, those its leased checkpoints name, and those
        it may still accept. It never goes down.
        """
        return max_collectable_epoch(
            self.previous_applied_epoch, self.extents.oldest_epoch, self.checkpoints.oldest_epoch(self.time)
        )

    @property
    def level_one_decided_end(self) -> int:
        """Offset up to which level one has the records, and all of their transactions have ended.

        No local log goes beyond it, and neither do compaction's statements on level one.
        """
        return min(max(self.last_reconciled_offset + 1, self.start_offset), self.last_stable_offset)

    @property
    def cleanable_end(self) -> int:
        """Offset up to which a replica may clean its log by this state: its end, and the lowest hold.

        The end is in it for a replica that replays its log after a restart: it does not know yet of holds
        that were given behind, and each of those was given at or above the end of then.
        """
        end, held = self.level_one_decided_end, self.holds.lowest
        return end if held is None else min(end, held)

    @property
    def lowest_holdable(self) -> int:
        """The lowest offset that a reader can hold: no replica has cleaned beyond it, and none will.

        While a hold stands they stop there. Without one, level one's end is what they cannot be beyond.
        """
        held = self.holds.lowest
        return self.level_one_decided_end if held is None else max(held, self.start_offset)

    def removable(self) -> list[RemovedObject]:
        """The removed objects that no leased checkpoint can name: they may be deleted.

        What is once among them stays so, since a lease that has ended is not renewed: a leader that no
        longer leads may delete them too.
        """
        leased = self.checkpoints.oldest_leased(self.time)
        return [one for one in self.removed if leased is None or one.log_index < leased]

    def extents_between(self, first: int, end: int, max_bytes: int) -> list[Extent]:
        """The level-zero extents that hold offsets in `[first, end)`, in order, up to `max_bytes`.

        The first comes whatever its length. Batches are whole: it may begin below `first`. What lies at or
        below the last reconciled offset is in level one.
        """
        return self.extents.between(max(first, self.start_offset), end, max_bytes)

    def first_extent_since(self, timestamp: int) -> Extent | None:
        """The first level-zero extent with a record of this time (ms) or later; None when there is none."""
        return self.extents.first_since(timestamp)

    def newest_extent(self) -> Extent | None:
        """The first level-zero extent with the newest timestamp of them; None when there is none."""
        return self.extents.newest()

    def offset_for_leader_epoch(self, term: int) -> EpochEnd | None:
        """End of the records of a term; see LeaderEpochs.end_of."""
        return self.leader_epochs.end_of(term, self.next_offset)

    # Snapshots.

    def snapshot(self) -> bytes:
        """The state as a msgpack map of SNAPSHOT_FIELDS; equal states give equal bytes."""
        return self.capture()()

    def _raise_epochs(self, index: int, oldest: int, newest: int) -> None:
        """Apply a window. The epoch of the batch itself moves nothing: with the window [6, 10] it may be 8,
        and a fence for 7 would still pass when 8 had become the lower end."""
        if oldest > newest:
            raise Corruption(f"[{oldest}, {newest}] is not a window")
        if oldest > self.previous_applied_epoch:
            self.previous_applied_epoch = oldest
        if newest > self.max_applied_epoch:
            self.max_applied_epoch = newest
            self.max_applied_epoch_index = index

    def capture(self) -> Captured:
        """See StateMachine."""
        values = (
            SNAPSHOT_FORMAT,
            self.term,
            self.time,
            self.creation_epoch,
            self.previous_applied_epoch,
            self.max_applied_epoch,
            self.max_applied_epoch_index,
            self.start_offset,
            self.next_offset,
            self.last_reconciled_log_index,
            list(self.leader_epochs.entries),
            self.producers.rows(),
            self.aborted.packed(),
            list(self.checkpoints.retained),
            list(self.removed),
            self.removals.fields(),
            list(self.holds.rows()),
            bytes(self.level_one.rows()),
            self.extents.inline(),
        )
        fields = dict(zip(SNAPSHOT_FIELDS[:-1], values, strict=True))
        return partial(_packed, fields, self.extents.rows())

    @staticmethod
    def loaded(state: bytes) -> PartitionState:
        """Read what `snapshot` gave, field by field; raises ValueError for anything else.

        What the fields say of one another is for partition_invariants to check.
        """
        fields = snapshot_fields(state)
        loaded = PartitionState(fields["creation_epoch"])
        loaded.term = fields["term"]
        loaded.time = fields["time"]
        loaded.previous_applied_epoch = fields["previous_applied_epoch"]
        loaded.max_applied_epoch = fields["max_applied_epoch"]
        loaded.max_applied_epoch_index = fields["max_applied_epoch_index"]
        loaded.start_offset = fields["start_offset"]
        loaded.last_reconciled_log_index = fields["last_reconciled_log_index"]
        loaded.leader_epochs = LeaderEpochs([LeaderEpoch(*entry) for entry in fields["leader_epochs"]])
        loaded.producers = Producers.restored(fields["producers"])
        loaded.aborted = AbortedTransactions.restored(fields["aborted"])
        loaded.checkpoints = Checkpoints([RetainedCheckpoint(*entry) for entry in fields["checkpoints"]])
        loaded.removed = [RemovedObject(*entry) for entry in fields["removed"]]
        loaded.removals = Removals.restored(fields["removals"])
        loaded.holds = Holds(fields["holds"])
        loaded.level_one = LevelOne.restored(fields["level_one"])
        loaded.extents = Extents.restored(fields["extents"], fields["inline"], fields["next_offset"])
        return loaded


def _packed(fields: Mapping[str, Any], extents: Sequence[bytes | bytearray]) -> bytes:
    # The extents' rows are megabytes: joined behind the rest they are copied once, otherwise three times.
    head = packed({**fields, SNAPSHOT_FIELDS[-1]: b""})[: -len(_EMPTY_BIN)]
    return b"".join([head, _BIN_32.pack(_BIN_32_MARK, sum(map(len, extents))), *extents])


def snapshot_fields(state: bytes) -> dict[str, Any]:
    """The fields of a snapshot; raises ValueError when this release does not read its format."""
    fields: dict[str, Any] = msgpack.unpackb(state)
    version = fields["format"]
    if version > SNAPSHOT_FORMAT:
        raise ValueError(
            f"it has format {version}, this release reads up to {SNAPSHOT_FORMAT}: upgrade this node"
        )
    if version in (WITHOUT_HOLDS, WITHOUT_REMOVALS):
        start = fields["start_offset"]
        removals = {**Removals().fields(), "level_one_clean": start, "level_one_settled": start}
        fields = {"removals": removals, **fields, "holds": []}
        fields = {name: fields[name] for name in SNAPSHOT_FIELDS}
    elif version < SNAPSHOT_FORMAT:
        raise ValueError(f"it has format {version} of an earlier release, this one reads {SNAPSHOT_FORMAT}")
    if tuple(fields) != SNAPSHOT_FIELDS:
        raise ValueError(f"its fields are {', '.join(map(str, fields))}")
    return fields
