"""A partition whose object store and log do what a test says, on a loop that a test turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import Any, NamedTuple, TypeVar, cast

import msgpack

from strandline.node.config.node_config import InlineSection
from strandline.node.kafka.handlers.error_codes import code_of
from strandline.node.level_one.reader import LevelOneReader, LevelOneReaderConfig
from strandline.node.level_zero.batcher import Batcher, Result, Stored
from strandline.node.level_zero.cache import BatchCache
from strandline.node.level_zero.read_pace import ReadPaces
from strandline.node.level_zero.reader import Reader
from strandline.node.objectstore.store import Buffer, ObjectNotFound, ObjectStore
from strandline.node.partition.batch import AppendResult, ProducedBatch, Validation, Verification
from strandline.node.partition.inline_budget import InlineBudget
from strandline.node.partition.partition import Partition
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.outcome import Applied, NotLeader, Outcome, Overloaded, Unknown
from strandline.node.refusal import Reason, Refusal
from strandline.statemachine.controller.hosted_groups import PartitionGroup
from strandline.statemachine.machine import Captured
from strandline.statemachine.object_names import object_id
from strandline.statemachine.partition.extent import Extent
from strandline.statemachine.partition.producer_state import NO_TRANSACTION
from tests.runtime.manual_loop import ManualLoop

T = TypeVar("T")
TOPIC = bytes(range(16))
CREATION_EPOCH = 5
NOW = 1_700_000_000_000


class TaskLoop(ManualLoop):
    """Counts the tasks that are made on it."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks = 0

    def create_task(self, coro: Coroutine[Any, Any, T], **_: Any) -> asyncio.Task[T]:  # type: ignore[override]
        self.tasks += 1
        return asyncio.Task(coro, loop=self)


class HandBatcher:
    """Uploads that end when a test says; `staged` has all there ever were."""

    def __init__(self, loop: ManualLoop) -> None:
        self.staged: list[tuple[Buffer, asyncio.Future[Result]]] = []
        self.refusing: str | None = None
        self._loop = loop

    def stage(self, topic_id: bytes, partition: int, data: Buffer) -> asyncio.Future[Result]:
        assert (topic_id, partition) == (TOPIC, 2)
        if len(data) > 1000:
            raise ValueError("it fits no object")
        future: asyncio.Future[Result] = self._loop.create_future()
        self.staged.append((data, future))
        if self.refusing is not None:
            future.set_result(Refusal(Reason.NOT_NOW, self.refusing))
        return future

    def stored(self, number: int, epoch: int = CREATION_EPOCH) -> None:
        """The upload of the batch staged as this one ends well."""
        data, future = self.staged[number]
        future.set_result(Stored(epoch, object_id(0, 1, number.to_bytes(16, "big")), 16, len(data)))

    def failed(self, number: int, reason: str = "no disk") -> None:
        self.staged[number][1].set_result(Refusal(Reason.STORAGE_FAILED, f"object l0/0: {reason}"))


class Entry(NamedTuple):
    command: bytes
    term: int
    future: asyncio.Future[Outcome]


class HandTaking:
    """Notes how many bytes of entries each snapshot was to leave."""

    def __init__(self) -> None:
        self.log_bytes = 0
        self.left: list[int] = []

    def shorten(self, most_trailing_bytes: int) -> bool:
        self.left.append(most_trailing_bytes)
        self.log_bytes = min(self.log_bytes, most_trailing_bytes)
        return True


class HandSending:
    """Says whether followers are brought up."""

    since = inf

    @property
    def brought(self) -> bool:
        return self.since < inf


class HandGroup:
    """A log that commits when a test says, and leads when a test says."""

    id = 64

    def __init__(self, loop: ManualLoop, partition: Partition) -> None:
        self.taking = HandTaking()
        self.sending = HandSending()
        self.term = 0
        self.is_leader = False
        self.is_ready = False
        self.catches_up = True
        """Whether a new leader is ready at once."""
        self.refusal: NotLeader | Overloaded | None = None
        self.full = False
        self.proposed: list[Entry] = []
        self.index = 0
        self.confirmed = True
        self.barriers: list[asyncio.Future[Outcome]] = []
        self.holders: int | None = 3
        """Replicas that have what is committed; None: nobody may ask."""
        self._waiting: list[asyncio.Future[bool]] = []
        self._next = 0
        self._loop = loop
        self._machine = partition.machine_for_group
        self._callbacks: list[Callable[[bool, int], None]] = []
        self._ready_callbacks: list[Callable[[int], None]] = []

    def on_leadership(self, callback: Callable[[bool, int], None]) -> None:
        self._callbacks.append(callback)

    def on_ready(self, callback: Callable[[int], None]) -> None:
        self._ready_callbacks.append(callback)

    def replicate(self, command: bytes, term: int) -> asyncio.Future[Outcome]:
        future: asyncio.Future[Outcome] = self._loop.create_future()
        if not self.is_leader or term != self.term:
            future.set_result(NotLeader(None))
        elif self.refusal is not None:
            future.set_result(self.refusal)
        else:
            self.proposed.append(Entry(command, term, future))
        return future

    async def barrier(self) -> Outcome:
        if not self.is_leader:
            return NotLeader(None)
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self.barriers.append(future)
        if self.confirmed:
            self.pass_barriers()
        return await future

    def in_sync(self) -> int:
        return 3

    def overloaded(self, size: int = 0) -> bool:
        return self.full

    def when_held(self, index: int, count: int) -> asyncio.Future[bool]:
        assert self.holders is not None
        assert index == self.index
        future: asyncio.Future[bool] = self._loop.create_future()
        self._waiting.append(future)
        if count <= self.holders:
            self.hold_all()
        return future

    def hold_all(self) -> None:
        """Every replica has what is committed."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.set_result(True)
        self._loop.run()

    def pass_barriers(self) -> None:
        while self.barriers:
            self.barriers.pop().set_result(Applied(None, self.index, self.term))

    def lead(self, term: int) -> None:
        """Elected; what was there before is applied if it catches up."""
        self.commit()
        self.term, self.is_leader = term, True
        for callback in self._callbacks:
            callback(True, term)
        if self.catches_up:
            self.catch_up()
        self._loop.run()

    def catch_up(self) -> None:
        """The term's first entry is applied."""
        self.index += 1
        self._machine.begin_term(self.index, self.term, 1)
        self.is_ready = True
        for callback in self._ready_callbacks:
            callback(self.term)
        self._loop.run()

    def lose(self) -> None:
        self.is_leader = self.is_ready = False
        while self.barriers:
            self.barriers.pop().set_result(NotLeader(2))
        for callback in self._callbacks:
            callback(False, self.term)
        self._loop.run()

    def commit(self) -> None:
        """Apply what was proposed, and let everybody act on it."""
        self.apply()
        self._loop.run()

    def apply(self) -> None:
        while self._next < len(self.proposed):
            entry = self.proposed[self._next]
            self._next += 1
            self.index += 1
            result = self._machine.apply(self.index, self.term, entry.command)
            if not entry.future.done():
                entry.future.set_result(Applied(result, self.index, self.term))

    def drop(self, outcome: Outcome) -> None:
        """What was proposed and not applied never will be."""
        for entry in self.proposed[self._next :]:
            entry.future.set_result(outcome)
        self._next = len(self.proposed)
        self._loop.run()

    def entries(self) -> list[list[Any]]:
        """The commands of every entry ever proposed."""
        return [msgpack.unpackb(entry.command)[2] for entry in self.proposed]


class HandEpoch:
    def __init__(self) -> None:
        self.known = CREATION_EPOCH

    def current(self) -> int:
        return self.known

    def learn(self, epoch: int) -> None:
        self.known = max(self.known, epoch)


class HandReader:
    """Gives what a test put into `answers`, in turn: batches, or an error."""

    def __init__(self) -> None:
        self.answers: list[Callable[[], list[bytes]]] = []
        self.asked: list[tuple[Sequence[Extent], Sequence[Extent]]] = []
        self.wait_for: asyncio.Future[list[bytes]] | None = None
        """The next read waits for this first."""
        self.paces = ReadPaces(least=1 << 20, budget=lambda: 1 << 24, now=lambda: 0.0)

    async def read(self, extents: Sequence[Extent], ahead: Sequence[Extent] = ()) -> list[bytes]:
        self.asked.append((extents, ahead))
        if self.wait_for is not None:
            waiting, self.wait_for = self.wait_for, None
            await waiting
        if self.answers:
            return self.answers.pop(0)()
        return [b"x" * extent.length for extent in extents]


LEVEL_ONE = LevelOneReaderConfig(cache_bytes=1 << 20, chunk_bytes=600, ahead_bytes=0)


class HandObjects:
    """Level-one objects, whose gets end at once, or when a test says if it holds them."""

    def __init__(self, loop: ManualLoop) -> None:
        self.objects: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.hold = False
        self._held: list[asyncio.Future[None]] = []
        self._loop = loop

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.asked.append(key)
        if self.hold:
            self._held.append(self._loop.create_future())
            await self._held[-1]
        if key not in self.objects:
            raise ObjectNotFound("get_range", key)
        return self.objects[key][start : start + length]

    def release(self) -> None:
        """The gets that are held end."""
        self.hold = False
        for future in self._held:
            if not future.done():
                future.set_result(None)
        self._held.clear()
        self._loop.run()


class Records:
    """A recorder that keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def begin_term(self, index: int, term: int, node: int) -> None:
        self.heard.append(("begin_term", index, term, node))

    def applied(self, index: int, term: int, command: bytes) -> None:
        self.heard.append(("applied", index, term))

    def checkpoint(self, index: int, captured: Captured) -> None:
        self.heard.append(("checkpoint", index))

    def restored(self) -> None:
        self.heard.append(("restored",))


class Lone:
    """The partition and its surroundings; leads in term 1 from the start unless told otherwise."""

    def __init__(self, *, leading: bool = True, inline: InlineSection | None = None) -> None:
        """With `inline`, small batches go into the log within that budget."""
        self.loop = TaskLoop()  # type: ignore[abstract]
        self.budget = None if inline is None else InlineBudget(inline, self.loop.time)
        self.batcher = HandBatcher(self.loop)
        self.reader = HandReader()
        self.store = HandObjects(self.loop)
        self.written = BatchCache(1 << 20)
        self.epoch = HandEpoch()
        self.records = Records()
        self.wall = NOW
        self.clock_is_trusted = True
        self.partition = Partition(
            place=PartitionGroup(64, TOPIC, "orders", 2, (1, 2, 3), CREATION_EPOCH),
            loop=self.loop,
            batcher=cast(Batcher, self.batcher),
            reader=cast(Reader, self.reader),
            level_one=LevelOneReader(cast(ObjectStore, self.store), LEVEL_ONE, loop=self.loop),
            written=self.written,
            epoch=self.epoch,
            wall_ms=lambda: self.wall,
            agreed_ms=lambda: self.wall if self.clock_is_trusted else None,
            recorder=self.records,
            inline=self.budget,
        )
        self.group = HandGroup(self.loop, self.partition)
        self.partition.attach(cast(RaftGroup, self.group))
        self.answers: list[tuple[str, AppendResult]] = []
        self.numbers: dict[str, int] = {}
        if leading:
            self.group.lead(1)
            assert self.partition.leads

    def __enter__(self) -> Lone:
        return self

    def __exit__(self, *exc: object) -> None:
        self.partition.close()
        self.loop.run()

    def append(
        self,
        name: str,
        *,
        producer: int = -1,
        sequence: int = -1,
        producer_epoch: int = 0,
        connection: int = 0,
        count: int = 1,
        size: int = 100,
        validation: Validation | None = None,
        transaction: int = NO_TRANSACTION,
        verification: Verification | None = None,
        replicas: int = 0,
    ) -> asyncio.Future[AppendResult]:
        """A batch under a name; its answer comes into `answers`, its number at the batcher into `numbers`."""
        self.numbers[name] = len(self.batcher.staged)
        batch = ProducedBatch(
            bytes(size),
            count,
            NOW,
            producer,
            producer_epoch if producer >= 0 else -1,
            sequence,
            connection,
            transaction,
            replicas,
        )
        future = self.partition.append(batch, validation, verification)
        future.add_done_callback(
            lambda ended: None if ended.cancelled() else self.answers.append((name, ended.result()))
        )
        self.loop.run()
        return future

    def stored(self, *names: str, epoch: int = CREATION_EPOCH) -> None:
        """The uploads of these batches end well, in one turn of the loop."""
        for name in names:
            self.batcher.stored(self.numbers[name], epoch)
        self.loop.run()

    def failed(self, name: str) -> None:
        self.batcher.failed(self.numbers[name])
        self.loop.run()

    def end(
        self, number: int, *, producer: int = 7, epoch: int = 0, commit: bool = True, term: int = 3
    ) -> asyncio.Task[Refusal | None]:
        """A transaction's marker, on its way to the log."""
        return self.run(self.partition.end_transaction(producer, epoch, number, commit, term))

    def codes(self) -> dict[str, str]:
        """How the batches were answered so far: an offset, or an error's name."""
        return {
            name: code_of(result).name if isinstance(result, Refusal) else str(result.base_offset)
            for name, result in self.answers
        }

    def run(self, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self.loop)
        self.loop.run()
        return task


def unknown() -> Unknown:
    return Unknown("lost leadership")


def filled(lone: Lone, *epochs: int) -> None:
    """One batch for each epoch, applied."""
    for epoch in epochs:
        name = f"filled {len(lone.batcher.staged)}"
        lone.append(name, connection=1)
        lone.stored(name, epoch=epoch)
        lone.group.commit()
