"""Partitions that a test moves by hand, around the real state machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import NamedTuple, cast

from strandline.node.kafka.wire.control_batch import control_batch
from strandline.node.kafka.wire.record_batch import read_header
from strandline.node.level_one.reader import LevelOneReader, LevelOneReaderConfig, Place
from strandline.node.level_one.stored_run import StoredRun, TimedBatch
from strandline.node.level_zero.cache import BatchCache
from strandline.node.level_zero.reader import Reader, ReaderConfig
from strandline.node.objectstore.store import ObjectNotFound, ObjectStore, RangeNotFound
from strandline.node.partition.batch import AppendResult, ProducedBatch, StoredBatch, Validation, Verification
from strandline.node.partition.refusals import refusal_of
from strandline.node.partition.stored_batches import CommittedRead, Measured, StoredBatches
from strandline.node.partition.verifications import Verifications
from strandline.node.refusal import Reason, Refusal
from strandline.snapshot.level_one_writer import EncodedObject, LevelOneWriter
from strandline.statemachine.partition.extent import Extent, InlineExtent
from strandline.statemachine.partition.level_one import LevelOneExtent, level_one_name
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import (
    AdvanceReconciled,
    Appended,
    AppendInline,
    Command,
    CommandResult,
    EndTransaction,
    SetStartOffset,
)
from strandline.statemachine.partition.placeholder import InlineBatch
from strandline.statemachine.partition.producer_state import NO_TRANSACTION
from strandline.statemachine.partition.rejection import Rejected
from tests.kafka.handlers.fake_cluster import TERM
from tests.statemachine.partitions import Replica

NOW = 1_700_000_000_000
PLACE = Place(bytes(range(16)), 2)
LEVEL_ONE = LevelOneReaderConfig(cache_bytes=1 << 20, chunk_bytes=600, ahead_bytes=600)


class ObjectsByName:
    """An object store that is only read, at once."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.gets: list[tuple[str, int, int]] = []
        self.on_get: Callable[[str], None] = lambda name: None

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.gets.append((key, start, length))
        self.on_get(key)
        if key not in self.objects:
            raise ObjectNotFound("get_range", key)
        data = self.objects[key][start : start + length]
        if len(data) < length:
            raise RangeNotFound(key, start, length)
        return data


def written(
    place: Place, term: int, unique: bytes, extents: Iterable[Extent], block_bytes: int
) -> EncodedObject:
    """A level-one object of inline batches."""
    writer = LevelOneWriter(*place, term, unique, block_bytes)
    for extent in extents:
        assert isinstance(extent, InlineExtent)
        writer.add(extent.data, extent.base_offset, extent.end_offset, extent.term, extent.max_timestamp)
    return writer.finish()


class FakeGroup(NamedTuple):
    """What requests ask of a partition's Raft group."""

    transfer: Callable[[int], bool]


class FakePartition:
    """Has the methods of `strandline.node.partition.partition.Partition` that requests use."""

    def __init__(self, term: int = TERM) -> None:
        self.replica = Replica(term=term)
        self.group: FakeGroup | None = None
        """There once it is looked for by its group."""
        self.leads = True
        self.loading = False
        self.hold = False
        """Appends wait for `settle`."""
        self.held: list[tuple[ProducedBatch, asyncio.Future[AppendResult]]] = []
        self.appended: list[ProducedBatch] = []
        self.verifications = Verifications()
        self.refused: list[ProducedBatch] = []
        self.fail: Refusal | None = None
        self.confirms = True
        self.confirmed = 0
        self.on_confirm: Callable[[], None] = lambda: None
        self.read_error: Exception | None = None
        self.read_seconds = 0.0
        self.reads: list[tuple[int, int, int]] = []
        self.watchers: list[Callable[[], None]] = []
        self.changes = 0
        self.store = ObjectsByName()
        self.executed: list[Command] = []
        self.execution: Refusal | None = None
        """How a command ends, unless it is to be applied."""
        self.execute_seconds = 0.0

    @cached_property
    def batches(self) -> StoredBatches:
        """The real way to the bytes; batches of level zero are inline."""
        loop = asyncio.get_running_loop()
        store = cast(ObjectStore, self.store)
        nothing = BatchCache(0)
        return StoredBatches(
            PLACE,
            self.machine,
            level_zero=Reader(store, ReaderConfig(), loop=loop, written=nothing, fetched=nothing),
            level_one=LevelOneReader(store, LEVEL_ONE, loop=loop),
            written=nothing,
            confirm=self.confirm,
            group=1,
            local=None,
        )

    @property
    def machine(self) -> PartitionStateMachine:
        return self.replica.machine

    @property
    def leader_epoch(self) -> int:
        return self.machine.term

    @property
    def high_watermark(self) -> int:
        return self.machine.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self.machine.last_stable_offset

    @property
    def start_offset(self) -> int:
        return self.machine.start_offset

    # What requests call.

    def append(
        self,
        batch: ProducedBatch,
        validation: Validation | None = None,
        verification: Verification | None = None,
    ) -> asyncio.Future[AppendResult]:
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        if verification is not None:
            self.verifications.begin(batch.producer_id, batch.producer_epoch, verification)
            future.add_done_callback(lambda _: self.verifications.end(batch.producer_id))
        waited_for = verification if validation is None else validation
        if waited_for is None:
            self._take(batch, future)
        else:
            waited_for.add_done_callback(partial(self._validated, batch, future))
        return future

    def _validated(
        self,
        batch: ProducedBatch,
        future: asyncio.Future[AppendResult],
        validation: Validation | Verification,
    ) -> None:
        if validation.cancelled():
            future.set_result(Refusal(Reason.NOT_NOW, "nobody knows"))
            return
        validated = validation.result()
        if isinstance(validated, Refusal):
            future.set_result(validated)
        else:
            self._take(batch if validated is None else batch._replace(transaction=validated.number), future)

    def transaction_of(self, producer_id: int, epoch: int) -> int | Verification | None:
        opened = self.machine.open_transaction(producer_id)
        if opened is not None and opened.epoch == epoch:
            return opened.number
        return self.verifications.of(producer_id, epoch, 0)

    async def end_transaction(
        self, producer_id: int, epoch: int, number: int, commit: bool, coordinator_term: int
    ) -> Refusal | None:
        await asyncio.sleep(0.001)
        if self.execution is None:
            self.end(producer_id, epoch, number, commit, coordinator_term)
        return self.execution

    def _take(self, batch: ProducedBatch, future: asyncio.Future[AppendResult]) -> None:
        self.appended.append(batch)
        self.held.append((batch, future))
        if not self.hold:
            self.settle()

    def missed(self, batch: ProducedBatch) -> None:
        self.refused.append(batch)

    async def confirm(self) -> bool:
        self.confirmed += 1
        await asyncio.sleep(0.001)
        self.on_confirm()
        return self.confirms

    async def read(
        self, offset: int, end: int, max_bytes: int, *, files: bool = False
    ) -> list[StoredBatch | StoredRun]:
        self.reads.append((offset, end, max_bytes))
        await self._reading()
        return await self.batches.read(offset, end, max_bytes, files=files)

    async def read_committed(
        self, offset: int, end: int, max_bytes: int, *, files: bool = False
    ) -> CommittedRead:
        self.reads.append((offset, end, max_bytes))
        await self._reading()
        return await self.batches.read_committed(offset, end, max_bytes, files=files)

    async def first_since(self, timestamp: int) -> TimedBatch | None:
        await self._reading()
        return await self.batches.first_since(timestamp)

    async def newest(self) -> TimedBatch | None:
        await self._reading()
        return await self.batches.newest()

    def measured(self, offset: int, end: int, max_bytes: int) -> Measured:
        return self.batches.measured(offset, end, max_bytes)

    async def _reading(self) -> None:
        if self.read_seconds:
            await asyncio.sleep(self.read_seconds)
        if self.read_error is not None:
            raise self.read_error

    async def execute(self, command: Command) -> CommandResult | Refusal:
        self.executed.append(command)
        await asyncio.sleep(self.execute_seconds)
        if self.execution is not None:
            return self.execution
        (result,) = self.replica.apply(command)  # type: ignore[misc]
        self.moved()
        return result

    def watch(self, callback: Callable[[], None]) -> None:
        assert callback not in self.watchers
        self.watchers.append(callback)

    def unwatch(self, callback: Callable[[], None]) -> None:
        self.watchers.remove(callback)

    # What a test does.

    def settle(self) -> None:
        """Let the appends that wait end."""
        for batch, future in self.held:
            future.set_result(self.fail or self._apply(batch))
        self.held.clear()
        self.moved()

    def write(self, *batches: bytes, transaction: int = NO_TRANSACTION) -> None:
        """Append batches as somebody else's, and tell who watches; a transaction's by their producer."""
        for data in batches:
            head = read_header(data)
            claim = (-1, -1, -1)
            if transaction != NO_TRANSACTION:
                claim = (head.producer_id, head.producer_epoch, head.base_sequence)
            result = self._apply(
                ProducedBatch(data, head.record_count, head.max_timestamp, *claim, 0, transaction)
            )
            assert isinstance(result, Appended), result
        self.moved()

    def end(
        self, producer: int, epoch: int, number: int, commit: bool = True, coordinator_term: int = 3
    ) -> None:
        """A marker, as the transaction coordinator has it written."""
        data = control_batch(producer, epoch, commit, coordinator_term, NOW)
        self.replica.apply(EndTransaction(producer, epoch, number, commit, coordinator_term, NOW, data))
        self.moved()

    def moved(self) -> None:
        """Tell who watches. Must follow each change that a test makes of itself."""
        self.changes += 1
        for callback in list(self.watchers):
            callback()

    def resign(self) -> None:
        self.leads = False
        self.moved()

    def trim(self, offset: int) -> None:
        self.replica.apply(SetStartOffset(offset))
        self.moved()

    def reconcile(self, end: int, block_bytes: int = 300) -> LevelOneExtent:
        """Lift the batches up to an offset into one level-one object."""
        machine = self.machine
        first = machine.extents.first_offset
        unique = len(self.store.objects).to_bytes(16, "big")
        made = written(PLACE, machine.term, unique, machine.extents_between(first, end, 1 << 30), block_bytes)
        self.store.objects[level_one_name(*PLACE, machine.term, unique)] = b"".join(made.parts)
        self.replica.apply(AdvanceReconciled(first, [made.extent]))
        return made.extent

    def _apply(self, batch: ProducedBatch) -> AppendResult:
        inline = InlineBatch(
            batch.record_count,
            batch.max_timestamp,
            bytes(batch.data),
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            batch.transaction,
        )
        (results,) = self.replica.apply(AppendInline([inline]))  # type: ignore[misc]
        (result,) = results  # type: ignore[misc]
        if isinstance(result, Rejected):
            return refusal_of(result)
        assert isinstance(result, Appended)
        return result
