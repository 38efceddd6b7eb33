"""Partitions that a test moves by hand, around the real state machine, and short ways to ask for data."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, NamedTuple, cast

from kio.index import load_request_schema

from strandline.node.kafka.handlers.handler import BrokerHandler
from strandline.node.kafka.wire.apis import APIS, ApiKey
from strandline.node.kafka.wire.codec import RequestHeader
from strandline.node.kafka.wire.control_batch import control_batch
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.record_batch import read_header
from strandline.node.level_one.reader import LevelOneReader, LevelOneReaderConfig, Place
from strandline.node.level_one.stored_run import StoredRun, TimedBatch
from strandline.node.level_zero.cache import BatchCache
from strandline.node.level_zero.reader import Reader, ReaderConfig
from strandline.node.objectstore.store import ObjectNotFound, ObjectStore, RangeNotFound
from strandline.node.partition.batch import (
    AppendResult,
    ProducedBatch,
    StoredBatch,
    Validation,
    Verification,
    Verified,
)
from strandline.node.partition.refusals import refusal_of
from strandline.node.partition.stored_batches import CommittedRead, Measured, StoredBatches
from strandline.node.partition.verifications import Verifications
from strandline.node.refusal import Reason, Refusal
from strandline.snapshot.level_one_format import EncodedObject, LevelOneWriter
from strandline.statemachine.controller.controller_commands import DeleteTopic
from strandline.statemachine.controller.controller_state import Topic
from strandline.statemachine.kafka_errors import KafkaError
from strandline.statemachine.partition.extents import Extent, InlineExtent
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
from strandline.statemachine.partition.producers import NO_TRANSACTION
from strandline.statemachine.partition.rejection import Rejected
from tests.kafka.handlers.admin_harness import TERM, Node, entity_of
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


class FakePartition:
    """Has the methods of `strandline.node.partition.partition.Partition` that requests use."""

    def __init__(self, term: int = TERM) -> None:
        self.replica = Replica(term=term)
        self.leads = True
        self.loading = False
        self.group_id = 0
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

    async def read(self, offset: int, end: int, max_bytes: int) -> list[StoredBatch | StoredRun]:
        self.reads.append((offset, end, max_bytes))
        await self._reading()
        return await self.batches.read(offset, end, max_bytes)

    async def read_committed(self, offset: int, end: int, max_bytes: int) -> CommittedRead:
        self.reads.append((offset, end, max_bytes))
        await self._reading()
        return await self.batches.read_committed(offset, end, max_bytes)

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


class Asked(NamedTuple):
    """What the transaction coordinator was asked."""

    transactional_id: str
    producer_id: int
    epoch: int
    partitions: Sequence[tuple[bytes, int]]
    add: bool


class FakeVerifier:
    """A `Verifier` whose answers are a test's, after a while or when the test says."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answer: Verified | Refusal | Exception = Verified(1)
        self.held: asyncio.Future[None] | None = None
        self.missing: list[int] = []
        """Partitions that are not in the transaction."""

    async def partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Sequence[tuple[bytes, int]],
        *,
        add: bool,
    ) -> Verified | Refusal:
        self.asked.append(Asked(transactional_id, producer_id, epoch, partitions, add))
        await (asyncio.sleep(0.01) if self.held is None else asyncio.shield(self.held))
        if isinstance(self.answer, Exception):
            raise self.answer
        if not add and any(number in self.missing for _, number in partitions):
            return Refusal(KafkaError.INVALID_TXN_STATE, "not in it")
        return self.answer


class DataNode(Node):
    """Node 1, which leads every partition of the topics made here."""

    def __init__(self, **topics: Any) -> None:
        super().__init__(**topics)
        self.fakes: dict[tuple[bytes, int], FakePartition] = {}
        self.partitions = self  # type: ignore[assignment]
        self.leaders.others = {}
        self.verifier = FakeVerifier()
        self.now_ms = NOW

    def wall_ms(self) -> int:
        return self.now_ms

    def get(self, topic_id: bytes, number: int) -> FakePartition | None:
        return self.fakes.get((topic_id, number))

    def topic(self, name: str = "t", partitions: int = 1, **configs: Any) -> Topic:
        made = self.cluster.create(name, partitions, **configs)
        self.controller.hear()
        for number in range(partitions):
            self.fakes[made.topic_id, number] = FakePartition()
        return made

    def partition(self, name: str = "t", number: int = 0) -> FakePartition:
        topic = self.controller.machine.topic(name)
        assert topic is not None
        return self.fakes[topic.topic_id, number]

    def delete(self, name: str) -> None:
        """The topic goes, as on a real node: first the controller's replica knows, then the rest."""
        topic = self.controller.machine.topic(name)
        assert topic is not None
        self.cluster.apply(DeleteTopic(topic.topic_id))
        self.controller.hear()
        for key in [key for key in self.fakes if key[0] == topic.topic_id]:
            self.fakes.pop(key).resign()

    # Requests. Where a version has ids in place of names, the name becomes the id.

    async def produce(
        self,
        batches: Mapping[Any, bytes | None],
        version: int | None = None,
        *,
        acks: int = -1,
        seconds: float = 1.0,
        transactional_id: str | None = None,
    ) -> Any:
        """`batches`: records by (topic, partition) or by the partition of topic t; answers by the same."""
        asked = self._topics(batches, lambda number, data: {"index": number, "records": data})
        data = [{"name": name, "topic_id": self._id(name), "partition_data": parts} for name, parts in asked]
        fields: dict[str, Any] = {
            "transactional_id": transactional_id,
            "acks": acks,
            "timeout": timedelta(seconds=seconds),
            "topic_data": data,
        }
        if acks == 0:
            return await self.unframed(ApiKey.PRODUCE, version, **fields)
        response = await self.ask(ApiKey.PRODUCE, version, **fields)
        assert response.throttle_time == timedelta(0)
        return response

    async def unframed(self, key: ApiKey, version: int | None, **fields: Any) -> Any:
        """What the request's function returns, for answers that no frame holds."""
        version = APIS[key].last if version is None else version
        payload = entity_of(load_request_schema(key, version), fields)
        request = Request(RequestHeader(key, version, 1, None), payload, "127.0.0.1", 100, 1)
        return await BrokerHandler(self.context).handle(request)

    async def fetch(
        self,
        offsets: Mapping[Any, int | dict[str, Any]],
        version: int | None = None,
        *,
        max_wait: float = 0.0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 30,
        **fields: Any,
    ) -> Any:
        """`offsets`: the offset, or fields of FetchPartition, by (topic, partition) or by the partition."""

        def part(number: int, wanted: int | dict[str, Any]) -> dict[str, Any]:
            more = {"fetch_offset": wanted} if isinstance(wanted, int) else wanted
            return {"partition": number, "partition_max_bytes": 1 << 20, **more}

        data = [
            {"topic": name, "topic_id": self._id(name), "partitions": parts}
            for name, parts in self._topics(offsets, part)
        ]
        response = await self.ask(
            ApiKey.FETCH,
            version,
            max_wait=timedelta(seconds=max_wait),
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            **{"isolation_level": 0, "topics": data, **fields},
        )
        assert response.throttle_time == timedelta(0)
        return response

    async def list_offsets(
        self,
        times: Iterable[tuple[int, int]],
        version: int | None = None,
        *,
        topic: str = "t",
        seconds: float = 1.0,
        committed: bool = False,
        **more: Any,
    ) -> list[Any]:
        """`times`: (partition, timestamp); the partitions' answers in that order."""
        parts = [{"partition_index": number, "timestamp": time, **more} for number, time in times]
        response = await self.ask(
            ApiKey.LIST_OFFSETS,
            version,
            replica_id=-1,
            isolation_level=int(committed),
            topics=[{"name": topic, "partitions": parts}],
            timeout=timedelta(seconds=seconds),
        )
        return [*response.topics[0].partitions]

    def _topics(
        self, wanted: Mapping[Any, Any], part: Callable[[int, Any], Any]
    ) -> list[tuple[Any, list[Any]]]:
        """Neighbours of one topic are one entry, in the order given."""
        found: list[tuple[Any, list[Any]]] = []
        for key, value in wanted.items():
            name, number = key if isinstance(key, tuple) else ("t", key)
            if not found or found[-1][0] != name:
                found.append((name, []))
            found[-1][1].append(part(number, value))
        return found

    def _id(self, name: Any) -> Any:
        topic = self.controller.machine.topic(name) if isinstance(name, str) else None
        if name is None or isinstance(name, uuid.UUID) or topic is None:
            return name if not isinstance(name, str) else uuid.UUID(int=404)
        return uuid.UUID(bytes=topic.topic_id)
