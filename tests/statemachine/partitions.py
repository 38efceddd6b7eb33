"""Making partitions, entries and batches for tests, with everything that does not matter filled in."""

from __future__ import annotations

from strandline.statemachine.machine import Captured
from strandline.statemachine.object_names import object_id
from strandline.statemachine.partition.epoch_window import EpochWindow
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import (
    Append,
    Appended,
    Command,
    EntryResult,
    encode,
)
from strandline.statemachine.partition.placeholder import InlineBatch, Placeholder
from strandline.statemachine.partition.producer_state import NO_TRANSACTION
from strandline.statemachine.partition.rejection import Rejected

CREATION_EPOCH = 5
NOW = 1_700_000_000_000
OBJECT = object_id(shard=3, node=2, unique=bytes(range(16)))


def placeholder(
    count: int = 1,
    *,
    epoch: int = CREATION_EPOCH,
    timestamp: int = NOW,
    length: int = 100,
    producer: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
    transaction: int = NO_TRANSACTION,
) -> Placeholder:
    claim = (producer, producer_epoch, sequence, transaction)
    return Placeholder(count, timestamp, length, epoch, 64, OBJECT, *claim)


def inline(count: int = 1, data: bytes = b"control", *, timestamp: int = NOW) -> InlineBatch:
    return InlineBatch(count, timestamp, data)


class Replica:
    """A partition and its log: entries get the next index, and the present term unless told otherwise."""

    def __init__(self, creation_epoch: int = CREATION_EPOCH, term: int = 1) -> None:
        self.checkpoints: list[tuple[int, bytes]] = []
        self.machine = PartitionStateMachine(creation_epoch, self.captured)
        self.index = 0
        self.begin_term(term)

    def captured(self, index: int, captured: Captured) -> None:
        self.checkpoints.append((index, captured()))

    def begin_term(self, term: int) -> None:
        self.index += 1
        self.machine.begin_term(self.index, term, 1)

    def apply(self, *commands: Command, time: int = NOW, made_in: int | None = None) -> EntryResult:
        term = self.machine.term
        return self.apply_bytes(encode(term if made_in is None else made_in, time, commands))

    def apply_bytes(self, entry: bytes) -> EntryResult:
        self.index += 1
        return self.machine.apply(self.index, self.machine.term, entry)

    def append(
        self,
        *placeholders: Placeholder,
        window: tuple[int, int] = (CREATION_EPOCH, CREATION_EPOCH),
        time: int = NOW,
    ) -> list[Appended | Rejected]:
        """Append under a fence with this window; the answer for each batch."""
        fence = EpochWindow(self.machine.term, *window)
        results = self.apply(Append(fence, placeholders), time=time)
        assert isinstance(results, list)
        assert isinstance(results[0], list)
        return results[0]

    def restored(self) -> Replica:
        """Another replica, from this one's snapshot."""
        other = Replica(creation_epoch=0)
        other.machine.restore(self.machine.snapshot())
        other.index = self.index
        return other
