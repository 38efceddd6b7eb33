"""The state machine of a partition: which batches it has, where they lie, and what may still be written.

It assigns Kafka offsets, recognises retries, and keeps the epochs that bound what the collector may delete.
The records themselves lie in object storage, but for inline batches. docs/partition.md tells the state, each
command and the reasons.

Three kinds of bad command are told apart. One that lost a race is rejected by value and changes nothing. A
producer out of step gets Kafka's own answer. One that no correct leader writes raises Corruption, which
stops the replica before its state can diverge further.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from statemachine.checkpoints import Checkpoints, RetainedCheckpoint
from statemachine.extents import Extent, Extents
from statemachine.leader_epochs import EpochEnd, LeaderEpoch, LeaderEpochs
from statemachine.machine import Corruption
from statemachine.partition_commands import (
    Appended,
    CheckpointsReleased,
    CheckpointTaken,
    CommandResult,
    EntryResult,
    EpochAdvanced,
    Kind,
    Rejected,
    Rejection,
    StartOffsetSet,
    Ticked,
)
from statemachine.producers import NO_PRODUCER, Duplicate, Producers, StaleProducerEpoch

SNAPSHOT_FORMAT = 1
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
    "leader_epochs",
    "producers",
    "checkpoints",
    "inline",
    "extents",
)
"""Keys of the state's msgpack map, in this order."""
_BIN_32 = struct.Struct(">BI")
_BIN_32_MARK = 0xC6


class PartitionStateMachine:
    """One partition; see StateMachine for what the log asks of it.

    `creation_epoch` is the cluster epoch at which the controller created the partition, the same on every
    replica. `on_checkpoint(index, state)` is called inside the apply of a Checkpoint, on every replica, with
    the state as of that very entry; when entries are applied anew after a restart it gets the same again.
    """

    kind = "partition"

    def __init__(self, creation_epoch: int, on_checkpoint: Callable[[int, bytes], None]) -> None:
        self._on_checkpoint = on_checkpoint
        self.term = 0
        self.time = 0
        """The highest time any entry carried, in ms: the only clock there is here."""
        self.creation_epoch = creation_epoch
        self.previous_applied_epoch = creation_epoch
        """Highest lower end of an applied window: no epoch below it will be accepted again."""
        self.max_applied_epoch = creation_epoch
        """Highest upper end of an applied window: what a new leader's window starts from."""
        self.max_applied_epoch_index = 0
        """Log index of the entry that raised `max_applied_epoch`; 0 for the creation."""
        self.start_offset = 0
        """Offset of the first record that is still part of the partition."""
        self.extents = Extents()
        self.leader_epochs = LeaderEpochs([])
        self.producers = Producers()
        self.checkpoints = Checkpoints([])

    # What a reader wants to know.

    @property
    def next_offset(self) -> int:
        """Offset the next record will get."""
        return self.extents.end_offset

    @property
    def high_watermark(self) -> int:
        """Offset after the last record a consumer may see: all that is applied is committed."""
        return self.extents.end_offset

    @property
    def max_collectable_epoch(self) -> int:
        """M(p): the highest epoch this partition no longer needs and will never accept again.

        One below the lowest of: the epochs its extents name, those its leased checkpoints name, and those
        it may still accept. It never goes down.
        """
        return max_collectable_epoch(
            self.previous_applied_epoch, self.extents.oldest_epoch, self.checkpoints.oldest_epoch(self.time)
        )

    def extents_between(self, first: int, end: int, max_bytes: int) -> list[Extent]:
        """The extents that hold offsets in `[first, end)`, in order, until `max_bytes` are reached.

        The first comes whatever its length. Batches are whole: it may begin below `first`.
        """
        return self.extents.between(max(first, self.start_offset), end, max_bytes)

    def first_extent_since(self, timestamp: int) -> Extent | None:
        """The first extent with a record of this time (ms) or later; None when there is none."""
        return self.extents.first_since(timestamp)

    def newest_extent(self) -> Extent | None:
        """The first extent with the newest timestamp of all; None when there is none."""
        return self.extents.newest()

    def offset_for_leader_epoch(self, term: int) -> EpochEnd | None:
        """Where the records of a term end; see LeaderEpochs.end_of."""
        return self.leader_epochs.end_of(term, self.next_offset)

    # The log.

    def begin_term(self, index: int, term: int, node: int) -> None:
        """A leader's first entry; the term becomes Kafka's partition leader epoch."""
        if term <= self.term:
            raise Corruption(f"entry {index}: node {node} begins term {term} after term {self.term}")
        self.term = term
        self.leader_epochs.begin(term, self.next_offset)

    def apply(self, index: int, term: int, command: bytes) -> EntryResult:
        """Apply an entry's commands in order. Raises Corruption; the state is then not to be used."""
        try:
            made_in, time, commands = msgpack.unpackb(command)
            if term != self.term or made_in > term:
                raise Corruption(f"made in term {made_in}, logged in {term}, while {self.term} is present")
            if made_in < term:
                return Rejected(Rejection.OLDER_TERM, term)
            if len(commands) > 1 and any(fields[0] == Kind.CHECKPOINT for fields in commands):
                raise Corruption("a checkpoint is not alone in its entry")
            if time > self.time:
                self.time = time
            results = []
            for kind, *fields in commands:
                handler = _HANDLERS.get(kind)
                if handler is None:
                    raise Corruption(f"command kind {kind} is unknown: a newer release's? Upgrade this node")
                results.append(handler(self, index, *fields))
            return results
        except Corruption as error:
            raise Corruption(f"entry {index}: {error}") from None
        except Exception as error:
            raise Corruption(f"entry {index} is not a partition's: {error!r}") from error

    def _append(
        self, index: int, oldest: int, newest: int, placeholders: Sequence[Sequence[Any]]
    ) -> CommandResult:
        if oldest < self.previous_applied_epoch or newest < self.max_applied_epoch:
            raise Corruption(
                f"window [{oldest}, {newest}] comes after "
                f"[{self.previous_applied_epoch}, {self.max_applied_epoch}]"
            )
        # Even if every batch is refused below: the fence was granted, and may have been slid to.
        self._raise_epochs(index, oldest, newest)
        results: list[Appended | Rejected] = []
        for count, timestamp, length, epoch, position, identity, producer, incarnation, first in placeholders:
            if not oldest <= epoch <= newest:
                raise Corruption(f"epoch {epoch} was never inside its fence's window [{oldest}, {newest}]")
            refused = None
            if producer != NO_PRODUCER:
                refused = self._refuse(producer, incarnation, first, count)
            if refused is not None:
                results.append(refused)
                continue
            base = self.extents.append_object(count, self.term, timestamp, length, epoch, position, identity)
            if producer != NO_PRODUCER:
                self.producers.appended(producer, incarnation, first, count, base, self.time)
            results.append(Appended(base))
        return results

    def _append_inline(self, index: int, batches: Sequence[Sequence[Any]]) -> CommandResult:
        results: list[Appended | Rejected] = []
        for count, timestamp, data, producer, incarnation, first in batches:
            refused = None
            if producer != NO_PRODUCER:
                refused = self._refuse(producer, incarnation, first, count)
            if refused is not None:
                results.append(refused)
                continue
            base = self.extents.append_inline(count, self.term, timestamp, data)
            if producer != NO_PRODUCER:
                self.producers.appended(producer, incarnation, first, count, base, self.time)
            results.append(Appended(base))
        return results

    def _refuse(self, producer: int, incarnation: int, first: int, count: int) -> Appended | Rejected | None:
        """The answer to a batch that must not be appended (again); None when it must."""
        refusal = self.producers.judge(producer, incarnation, first, count)
        if refusal is None:
            return None
        if isinstance(refusal, Duplicate):
            return Appended(refusal.base_offset, duplicate=True)
        if isinstance(refusal, StaleProducerEpoch):
            return Rejected(Rejection.INVALID_PRODUCER_EPOCH, refusal.current)
        return Rejected(Rejection.OUT_OF_ORDER_SEQUENCE_NUMBER, refusal.expected)

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

    def _advance_epoch(self, index: int, oldest: int, newest: int) -> CommandResult:
        if oldest <= self.previous_applied_epoch and newest <= self.max_applied_epoch:
            return Rejected(Rejection.LOWER_EPOCH, self.max_applied_epoch)
        self._raise_epochs(index, oldest, newest)
        return EpochAdvanced(self.previous_applied_epoch, self.max_applied_epoch)

    def _set_start_offset(self, index: int, start_offset: int) -> CommandResult:
        if start_offset < self.start_offset:
            return Rejected(Rejection.LOWER_START_OFFSET, self.start_offset)
        if start_offset > self.next_offset:
            raise Corruption(f"start offset {start_offset} lies above the next offset {self.next_offset}")
        self.start_offset = start_offset
        self.extents.trim(start_offset)
        self.leader_epochs.trim(start_offset)
        return StartOffsetSet(start_offset)

    def _tick(self, index: int, producer_expiry: int) -> CommandResult:
        return Ticked(self.time, self.producers.expire(self.time - producer_expiry))

    def _checkpoint(self, index: int, lease: int) -> CommandResult:
        until = self.time + lease
        self.checkpoints.add(RetainedCheckpoint(index, until, self.extents.oldest_epoch))
        self._on_checkpoint(index, self.snapshot())
        return CheckpointTaken(index, until)

    def _renew_checkpoint(self, index: int, checkpoint: int, lease: int) -> CommandResult:
        until = self.checkpoints.renew(checkpoint, self.time + lease, self.time)
        if until is None:
            return Rejected(Rejection.CHECKPOINT_NOT_LEASED, self.time)
        return CheckpointTaken(checkpoint, until)

    def _release_checkpoints(self, index: int, keep: int) -> CommandResult:
        return CheckpointsReleased(self.checkpoints.release(keep, self.time))

    # Snapshots.

    def snapshot(self) -> bytes:
        """The state as a msgpack map of SNAPSHOT_FIELDS; equal states give equal bytes."""
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
            self.leader_epochs.entries,
            self.producers.capture(),
            self.checkpoints.retained,
            self.extents.inline(),
        )
        packer = msgpack.Packer(autoreset=False)
        packer.pack_map_header(len(SNAPSHOT_FIELDS))
        for field, value in zip(SNAPSHOT_FIELDS[:-1], values, strict=True):
            packer.pack(field)
            packer.pack(value)
        packer.pack(SNAPSHOT_FIELDS[-1])
        # The rows are megabytes: joined behind the rest they are copied once, packed with it thrice.
        rows = self.extents.rows()
        size = sum(map(len, rows))
        return b"".join([packer.bytes(), _BIN_32.pack(_BIN_32_MARK, size), *rows])

    def restore(self, state: bytes) -> None:
        """Replace the whole state; raises ValueError and changes nothing when `snapshot` did not give it."""
        try:
            fields = msgpack.unpackb(state)
            if fields["format"] > SNAPSHOT_FORMAT:
                raise ValueError(
                    f"it has format {fields['format']}, this release reads up to {SNAPSHOT_FORMAT}: "
                    "upgrade this node"
                )
            if tuple(fields) != SNAPSHOT_FIELDS:
                raise ValueError(f"its fields are {', '.join(map(str, fields))}")
            restored = PartitionStateMachine(fields["creation_epoch"], self._on_checkpoint)
            restored._load(fields)
        except Exception as error:
            raise ValueError(f"a partition's state cannot be read: {error}") from error
        self.__dict__.update(restored.__dict__)

    def _load(self, fields: dict[str, Any]) -> None:
        self.term = fields["term"]
        self.time = fields["time"]
        self.previous_applied_epoch = fields["previous_applied_epoch"]
        self.max_applied_epoch = fields["max_applied_epoch"]
        self.max_applied_epoch_index = fields["max_applied_epoch_index"]
        self.start_offset = fields["start_offset"]
        self.leader_epochs = LeaderEpochs([LeaderEpoch(*entry) for entry in fields["leader_epochs"]])
        self.producers = Producers.restored(fields["producers"])
        self.checkpoints = Checkpoints([RetainedCheckpoint(*entry) for entry in fields["checkpoints"]])
        self.extents = Extents.restored(fields["extents"], fields["inline"], fields["next_offset"])
        if not self.creation_epoch <= self.previous_applied_epoch <= self.max_applied_epoch:
            raise ValueError(
                f"epochs {self.creation_epoch}, {self.previous_applied_epoch}, {self.max_applied_epoch} "
                "are out of order"
            )
        first = next(iter(self.extents), None)
        if first is None:
            if self.start_offset != self.next_offset:
                raise ValueError(f"no extent from {self.start_offset} to {self.next_offset}")
        elif not first.base_offset <= self.start_offset < first.end_offset:
            raise ValueError(f"the first extent, at {first.base_offset}, has no record {self.start_offset}")


def max_collectable_epoch(previous_applied: int, *oldest_named: int | None) -> int:
    """M(p) of a partition that refuses epochs below `previous_applied` and whose extents and leased
    checkpoints name epochs from `oldest_named` on (None: name none)."""
    return min([previous_applied, *(epoch for epoch in oldest_named if epoch is not None)]) - 1


_HANDLERS: dict[int, Callable[..., CommandResult]] = {
    Kind.APPEND: PartitionStateMachine._append,
    Kind.APPEND_INLINE: PartitionStateMachine._append_inline,
    Kind.ADVANCE_EPOCH: PartitionStateMachine._advance_epoch,
    Kind.SET_START_OFFSET: PartitionStateMachine._set_start_offset,
    Kind.TICK: PartitionStateMachine._tick,
    Kind.CHECKPOINT: PartitionStateMachine._checkpoint,
    Kind.RENEW_CHECKPOINT: PartitionStateMachine._renew_checkpoint,
    Kind.RELEASE_CHECKPOINTS: PartitionStateMachine._release_checkpoints,
}
