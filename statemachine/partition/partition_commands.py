"""The commands of a partition and their results, and their encoding in an entry of the log.

An entry is one msgpack array: `[term, time, [command, ...]]`. `term` is the one its fences were granted in,
`time` the leader's clock in milliseconds; a command is `[kind, field, ...]`. Results travel by value, in
memory only: they go to the entry's proposer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgpack

from strandline.statemachine.partition.epoch_window import EpochWindow
from strandline.statemachine.partition.extent import StoredInline
from strandline.statemachine.partition.holds import MAX_HOLD_MS, MAX_READER_BYTES
from strandline.statemachine.partition.level_one import LevelOneExtent
from strandline.statemachine.partition.placeholder import InlineBatch, Placeholder
from strandline.statemachine.partition.rejection import Rejected


class PartitionOpcode(IntEnum):
    """First element of a command in an entry; a number is never used for anything else."""

    APPEND = 1
    APPEND_INLINE = 2
    ADVANCE_EPOCH = 3
    SET_START_OFFSET = 4
    TICK = 5
    CHECKPOINT = 6
    RENEW_CHECKPOINT = 7
    RELEASE_CHECKPOINTS = 8
    ADVANCE_RECONCILED = 9
    REPLACE_LEVEL_ONE = 10
    FORGET_REMOVED = 11
    END_TRANSACTION = 12
    ADVANCE_REMOVAL = 13
    RENEW_HOLD = 14
    RELEASE_HOLD = 15
    STORE_INLINE = 16


NOT_PUBLISHED: Final = -1
"""In a ReplaceLevelOne: it is a merge, which makes nothing cleaner."""
NO_CLOCK: Final = -1
"""In a Tick: its leader vouches for no time."""


@dataclass(frozen=True, slots=True)
class Append:
    """Add batches that lie in objects, in this order, under the fence that had this window."""

    window: EpochWindow
    placeholders: Sequence[Placeholder]

    def fields(self) -> list[Any]:
        return [PartitionOpcode.APPEND, self.window.oldest, self.window.newest, self.placeholders]


@dataclass(frozen=True, slots=True)
class AppendInline:
    """Add batches with their bytes, in this order. They name no object, so they need no fence."""

    batches: Sequence[InlineBatch]

    def fields(self) -> list[Any]:
        return [PartitionOpcode.APPEND_INLINE, self.batches]


@dataclass(frozen=True, slots=True)
class StoreInline:
    """Inline batches lie in level-zero objects now, under the fence that had this window: in offset order.

    From then on each is an object extent like any other. What was lifted, deleted or stored meanwhile is
    passed over, so a retry after an unknown outcome has no effect.
    """

    window: EpochWindow
    stored: Sequence[StoredInline]

    def fields(self) -> list[Any]:
        return [PartitionOpcode.STORE_INLINE, self.window.oldest, self.window.newest, self.stored]


@dataclass(frozen=True, slots=True)
class AdvanceEpoch:
    """Apply a fence's window without a batch, so that an idle partition does not hold the collector back."""

    window: EpochWindow

    def fields(self) -> list[Any]:
        return [PartitionOpcode.ADVANCE_EPOCH, self.window.oldest, self.window.newest]


@dataclass(frozen=True, slots=True)
class SetStartOffset:
    """Records below this offset are no longer part of the partition: retention, DeleteRecords."""

    start_offset: int

    def fields(self) -> list[Any]:
        return [PartitionOpcode.SET_START_OFFSET, self.start_offset]


@dataclass(frozen=True, slots=True)
class Tick:
    """Let time pass: forget producers that wrote nothing for `producer_expiry` ms.

    The limit is the leader's and travels in the command, so nodes configured otherwise stay replicas. `now`
    (ms) is a clock that most nodes agree on: should the state's time be far ahead of it, pushed by a leader
    whose clock was, it goes back to it. NO_CLOCK leaves the time as it is.
    """

    producer_expiry: int
    now: int = NO_CLOCK

    def fields(self) -> list[Any]:
        return [PartitionOpcode.TICK, self.producer_expiry, self.now]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Capture the state at this very entry, on every replica, and retain it under a lease of `lease` ms."""

    lease: int

    def fields(self) -> list[Any]:
        return [PartitionOpcode.CHECKPOINT, self.lease]


@dataclass(frozen=True, slots=True)
class RenewCheckpoint:
    """Lease the checkpoint of this log index for `lease` ms more, from the entry's time."""

    log_index: int
    lease: int

    def fields(self) -> list[Any]:
        return [PartitionOpcode.RENEW_CHECKPOINT, self.log_index, self.lease]


@dataclass(frozen=True, slots=True)
class ReleaseCheckpoints:
    """Of the checkpoints without a lease retain the newest `keep`; the objects go after it is applied."""

    keep: int

    def fields(self) -> list[Any]:
        return [PartitionOpcode.RELEASE_CHECKPOINTS, self.keep]


@dataclass(frozen=True, slots=True)
class AdvanceReconciled:
    """The batches from `first_offset` on, the first unreconciled one, lie in these level-one objects now.

    The objects end where level-zero extents end, and are of the entry's own term: a leader may delete those
    of earlier terms that its state does not name.
    """

    first_offset: int
    extents: Sequence[LevelOneExtent]

    def fields(self) -> list[Any]:
        return [PartitionOpcode.ADVANCE_RECONCILED, self.first_offset, self.extents]


@dataclass(frozen=True, slots=True)
class ReplaceLevelOne:
    """Put objects of the entry's own term in the place of others that hold the same offsets.

    `old` are neighbours in level one, by (term, unique); they become removed objects. A leader that
    publishes its compacted log says up to where that is clean, and up to where level one is clean and settled
    then. Both may be empty in that case: what is there may be what would be published, byte for byte.
    """

    old: Sequence[tuple[int, bytes]]
    new: Sequence[LevelOneExtent]
    publisher_clean_end: int = NOT_PUBLISHED
    clean: int = NOT_PUBLISHED
    settled: int = NOT_PUBLISHED

    @property
    def publishes(self) -> bool:
        return self.publisher_clean_end != NOT_PUBLISHED

    def fields(self) -> list[Any]:
        merge = [PartitionOpcode.REPLACE_LEVEL_ONE, self.old, self.new]
        return [*merge, self.publisher_clean_end, self.clean, self.settled] if self.publishes else merge


@dataclass(frozen=True, slots=True)
class AdvanceRemoval:
    """All replicas and level one are clean up to `mtro` and settled up to `mxro`.

    `retention` is the topic's `delete.retention.ms`: it travels in the command, so nodes that know of another
    value stay replicas. With the present offsets it lets ripen what has waited for this long.
    """

    mtro: int
    mxro: int
    retention: int

    def fields(self) -> list[Any]:
        return [PartitionOpcode.ADVANCE_REMOVAL, self.mtro, self.mxro, self.retention]


@dataclass(frozen=True, slots=True)
class RenewHold:
    """A reader holds the records from an offset on against cleaning, for `lease` ms from the entry's time.

    It is also how a reader lets go of what lies below a higher offset.
    """

    reader: str
    offset: int
    lease: int

    def fields(self) -> list[Any]:
        return [PartitionOpcode.RENEW_HOLD, self.reader, self.offset, self.lease]


@dataclass(frozen=True, slots=True)
class ReleaseHold:
    """A reader holds nothing any more."""

    reader: str

    def fields(self) -> list[Any]:
        return [PartitionOpcode.RELEASE_HOLD, self.reader]


@dataclass(frozen=True, slots=True)
class ForgetRemoved:
    """These removed objects, by their unique bytes, are deleted from storage for certain.

    Only what `removable()` gives may be deleted and forgotten; what is forgotten already is passed over.
    """

    uniques: Sequence[bytes]

    def fields(self) -> list[Any]:
        return [PartitionOpcode.FORGET_REMOVED, self.uniques]


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """A coordinator's decision on a producer's transactions up to this number, with the marker that tells it.

    `batch` is the ready control batch of one record, `max_timestamp` the time in its header, in ms. The
    numbers of the decision stand beside it, because a replica does not read batches.
    """

    producer_id: int
    producer_epoch: int
    transaction: int
    """Number of the transaction that was decided."""
    commit: bool
    coordinator_term: int
    """Raft term of the coordinator that decided; Kafka's coordinator epoch."""
    max_timestamp: int
    batch: bytes

    def fields(self) -> list[Any]:
        return [
            PartitionOpcode.END_TRANSACTION,
            self.producer_id,
            self.producer_epoch,
            self.transaction,
            self.commit,
            self.coordinator_term,
            self.max_timestamp,
            self.batch,
        ]


Command = (
    Append
    | AppendInline
    | StoreInline
    | AdvanceEpoch
    | SetStartOffset
    | Tick
    | Checkpoint
    | RenewCheckpoint
    | ReleaseCheckpoints
    | AdvanceReconciled
    | ReplaceLevelOne
    | ForgetRemoved
    | EndTransaction
    | AdvanceRemoval
    | RenewHold
    | ReleaseHold
)


class Appended(NamedTuple):
    """A batch is in the log from this offset on; `duplicate`: since an earlier attempt."""

    base_offset: int
    duplicate: bool = False


class TransactionEnded(NamedTuple):
    """The marker is in the log, at this offset."""

    base_offset: int


class InlineStored(NamedTuple):
    """Number of inline batches that name an object now; the others were not inline any more."""

    batches: int


class EpochAdvanced(NamedTuple):
    """The applied epochs after an AdvanceEpoch."""

    previous: int
    newest: int


class StartOffsetSet(NamedTuple):
    """The start offset as it is now."""

    start_offset: int


class Ticked(NamedTuple):
    """The state machine's time in ms, and how many producers were forgotten."""

    time: int
    expired_producers: int


class CheckpointTaken(NamedTuple):
    """The checkpoint is called by this log index, and leased until this time in ms."""

    log_index: int
    lease_until: int


class CheckpointsReleased(NamedTuple):
    """Log indexes of the checkpoints that are no longer retained."""

    log_indexes: list[int]


class Reconciled(NamedTuple):
    """The last reconciled offset as it is now."""

    last_reconciled_offset: int


class LevelOneReplaced(NamedTuple):
    """Number of objects that were replaced; they are removed objects now."""

    objects: int


class RemovalAdvanced(NamedTuple):
    """The offsets of removal as they are now."""

    mtro: int
    mxro: int
    ripe_tombstones: int
    ripe_markers: int


class HoldRenewed(NamedTuple):
    """The reader holds this offset until this time of the state machine, in ms."""

    offset: int
    until: int


class HoldReleased(NamedTuple):
    """Whether the reader had a hold."""

    had_one: bool


class RemovedForgotten(NamedTuple):
    """Number of removed objects that were forgotten."""

    objects: int


CommandResult = (
    list[Appended | Rejected]
    | InlineStored
    | EpochAdvanced
    | StartOffsetSet
    | Ticked
    | CheckpointTaken
    | CheckpointsReleased
    | Reconciled
    | LevelOneReplaced
    | RemovedForgotten
    | RemovalAdvanced
    | HoldRenewed
    | HoldReleased
    | TransactionEnded
    | Rejected
)
"""Result of one command; both kinds of Append give a list, with an answer for each batch."""
EntryResult = list[CommandResult] | Rejected
"""Result of an entry: a result for each command, in order; or one rejection of them all (OLDER_TERM)."""


def encode(term: int, time: int, commands: Sequence[Command]) -> bytes:
    """One entry of the log; `term` is also the one to propose it in.

    Raises ValueError for what no replica would survive: a Checkpoint in company, a fence of another term or
    with an empty window, level-one objects of a later term or none, a marker of no transaction, a hold out of
    its bounds, no command at all.
    """
    if not commands:
        raise ValueError("an entry needs a command")
    for command in commands:
        if isinstance(command, Checkpoint) and len(commands) > 1:
            raise ValueError("a checkpoint is alone in its entry")
        if isinstance(command, (Append, StoreInline, AdvanceEpoch)):
            window = command.window
            if window.term != term or window.newest is None:
                raise ValueError(f"a fence of term {window.term} cannot be used in an entry of term {term}")
        if isinstance(command, (AdvanceReconciled, ReplaceLevelOne)):
            objects = command.extents if isinstance(command, AdvanceReconciled) else command.new
            publishes = isinstance(command, ReplaceLevelOne) and command.publishes
            if not (objects or publishes) or any(one.term > term for one in objects):
                raise ValueError(f"no objects, or objects of a term after {term}")
            if isinstance(command, ReplaceLevelOne) and bool(command.old) != bool(objects):
                raise ValueError("no objects to replace, or none to put there")
        if isinstance(command, AdvanceRemoval) and min(command.mtro, command.mxro, command.retention) < 0:
            raise ValueError(f"offsets and times are not negative: {command}")
        if isinstance(command, (RenewHold, ReleaseHold)):
            length = len(command.reader.encode())
            if not 0 < length <= MAX_READER_BYTES:
                raise ValueError(f"a reader's name has 1 to {MAX_READER_BYTES} bytes, not {length}")
        if isinstance(command, RenewHold) and not (command.offset >= 0 < command.lease <= MAX_HOLD_MS):
            raise ValueError(f"a hold is for an offset of at least 0, and 1 to {MAX_HOLD_MS} ms: {command}")
        if isinstance(command, EndTransaction):
            numbers = (command.producer_id, command.producer_epoch, command.transaction - 1)
            if min(numbers) < 0 or not command.batch:
                raise ValueError(f"no marker, or none that ends a transaction: {numbers}")
    packed: bytes = msgpack.packb([term, time, [command.fields() for command in commands]])
    return packed
