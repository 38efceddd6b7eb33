"""A partition's batches as one log, wherever they lie: up to the last reconciled offset in level one, above
it in level zero. What a compacted partition's replica has in its own log is read there instead.

A read plans from one version of the state and then waits for the bytes. Meanwhile the reconciler may lift
batches from one level to the other, objects may be merged, and retention may let go of them. So an object
that is not there means: plan again. Only if a confirmed leader's present state still names it, the bytes are
lost, and that is never answered by leaving them out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import NamedTuple, TypeAlias, TypeVar

from strandline.node.compaction.local_reader import LocalReader
from strandline.node.level_one.reader import LevelOneReader, Place
from strandline.node.level_one.stored_run import StoredRun, TimedBatch
from strandline.node.level_zero.cache import BatchCache
from strandline.node.level_zero.read_pace import Pace
from strandline.node.level_zero.reader import Reader
from strandline.node.objectstore.object_file import FileRange
from strandline.node.objectstore.store import ObjectNotFound, StoreError
from strandline.node.partition.batch import StoredBatch
from strandline.node.partition.reader_holds import ReaderHolds
from strandline.snapshot.object_frame import BadObject
from strandline.statemachine.partition.aborted_transactions import AbortedTransaction, AbortedTransactions
from strandline.statemachine.partition.extent import Extent, ObjectExtent
from strandline.statemachine.partition.level_one import LevelOneExtent, parse_level_one_name
from strandline.statemachine.partition.partition import PartitionStateMachine

T = TypeVar("T")

Stored: TypeAlias = StoredBatch | StoredRun

PLANS = 8
"""Plans for one read. State that moves on faster than it can be read leaves the reader behind it."""

OBJECTS = 64
"""Level-one objects of one read, which small ones might otherwise fill with gets."""


class Measured(NamedTuple):
    """The size of a possible read, as far as it is known without access to storage."""

    bytes: int
    first: int
    """Length of the first batch; 0 where that is not known, in level one."""
    end_offset: int
    """Offset at which the next measurement starts."""


class CommittedRead(NamedTuple):
    """Result of a read-committed read: batches, and the aborted transactions that have some of them."""

    batches: list[Stored]
    aborted: list[AbortedTransaction]


class StoredBatches:
    """Reads one partition's batches, by its state and this node's two readers."""

    def __init__(
        self,
        place: Place,
        machine: PartitionStateMachine,
        *,
        level_zero: Reader,
        level_one: LevelOneReader,
        written: BatchCache,
        confirm: Callable[[], Awaitable[bool]],
        group: int,
        local: LocalReader | None,
    ) -> None:
        """`group` is that of this replica, whose own log `local` may have; None where no replica has one."""
        self.holds = ReaderHolds()
        self._place = place
        self._machine = machine
        self._level_zero = level_zero
        self._level_one = level_one
        self._written = written
        self._confirm = confirm
        self._group = group
        self._local = local

    async def read(self, offset: int, end: int, max_bytes: int, *, files: bool = False) -> list[Stored]:
        """The batches that hold offsets in `[offset, end)`, up to `max_bytes`, the first whatever its length.

        Level one ends a read with a whole block where the limit allows for one. What begins below the start
        offset is read from there. Empty when there is nothing to read. Raises BadObject for bytes that are
        damaged or lost, naming object and range, and StoreError when the store does not give them now. With
        `files`, what lies in level one may come as ranges of open files.
        """
        local = await self._locally(offset, end, max_bytes)
        if local:
            return local
        batches, _ = await self._planned(offset, end, max_bytes, files)
        return batches

    async def read_committed(
        self, offset: int, end: int, max_bytes: int, *, files: bool = False
    ) -> CommittedRead:
        """As `read`, with the aborted transactions of these batches; `end` is at most the last stable offset.

        They are taken from the version of the state that the read was planned from. While the bytes come, the
        state may forget rows that the object which is being read still needs. Of the replica's own log there
        are none: nothing there is transactional.
        """
        local = await self._locally(offset, end, max_bytes)
        if local:
            return CommittedRead(local, [])
        batches, rows = await self._planned(offset, end, max_bytes, files)
        return CommittedRead(batches, rows.between(offset, batches[-1].end_offset) if batches else [])

    async def _planned(
        self, offset: int, end: int, max_bytes: int, files: bool
    ) -> tuple[list[Stored], AbortedTransactions]:
        """The batches of both levels by the plan that succeeds, and the aborted transactions of then."""

        async def attempt() -> tuple[list[Stored], AbortedTransactions]:
            rows = self._machine.aborted.frozen()
            return await self._read(offset, end, max_bytes, files), rows

        def naming(name: str) -> tuple[int, int] | None:
            for extent in self._machine.extents_between(offset, end, max_bytes):
                if isinstance(extent, ObjectExtent) and extent.object_name == name:
                    return extent.position, extent.position + extent.length
            return self._naming(name)

        return await self._planning_again(attempt, naming)

    def measured(self, offset: int, end: int, max_bytes: int) -> Measured:
        """The size of what `read` would return: exact in level zero, an upper bound in level one.

        More than `max_bytes` only if the first batch alone is larger, and known to be. See
        LevelOneReader.bytes_from.
        """
        machine, max_bytes = self._machine, max(max_bytes, 0)
        at = max(offset, machine.start_offset)
        size = 0
        if self._local is not None and self._local.serves(self._group, at):
            local = self._local.measured(self._group, at, end, max_bytes)
            return Measured(min(local.bytes, max_bytes), 0, local.end_offset)
        objects = self._objects_from(at) if at <= machine.last_reconciled_offset else iter(())
        for one in objects:
            if at >= end or size >= max(max_bytes, 1):
                return Measured(min(size, max_bytes), 0, at)
            size += self._level_one.bytes_from(one, at)
            at = one.end_offset
        if at < end and size < max(max_bytes, 1):
            extents = machine.extents_between(at, end, max_bytes - size)
            if extents and not (size and extents[0].length > max_bytes - size):
                above = sum(extent.length for extent in extents)
                return Measured(size + above, 0 if size else extents[0].length, extents[-1].end_offset)
        return Measured(min(size, max_bytes), 0, at)

    async def first_since(self, timestamp: int) -> TimedBatch | None:
        """The first batch with a record of this time (ms) or later, by its header; None when there is none.

        It may begin below the start offset. Raises as `read` does.
        """
        return await self._planning_again(lambda: self._first_since(timestamp), self._naming)

    async def newest(self) -> TimedBatch | None:
        """The first batch with the newest timestamp of all, by its header. Raises as `read` does."""
        return await self._planning_again(self._newest, self._naming)

    # Planning again.

    async def _planning_again(
        self, attempt: Callable[[], Awaitable[T]], naming: Callable[[str], tuple[int, int] | None]
    ) -> T:
        """The result of an attempt, which plans again as long as objects of its plan are gone.

        `naming` gives the bytes of an object that a reader would read by the present state, None if it would
        not.
        """
        plans = 0
        while True:
            try:
                return await attempt()
            except ObjectNotFound as error:
                plans += 1
                if naming(error.key) is not None:
                    if not await self._confirm():
                        raise
                    lost = naming(error.key)
                    if lost is not None:
                        reason = "there is no such object, and the partition refers to it"
                        raise BadObject(error.key, *lost, reason) from None
                if plans >= PLANS:
                    raise

    def _naming(self, name: str) -> tuple[int, int] | None:
        """The bytes of a level-one object, if the present state names it."""
        try:
            unique = parse_level_one_name(name).unique
        except ValueError:
            return None
        if unique not in self._machine.level_one:
            return None
        return next((0, one.size) for one in self._machine.level_one if one.unique == unique)

    # One plan.

    async def _locally(self, offset: int, end: int, max_bytes: int) -> list[Stored]:
        """The batches in the replica's own log; none where there is no log, or it has nothing to give."""
        offset = max(offset, self._machine.start_offset)
        if offset >= end or self._local is None or not self._local.serves(self._group, offset):
            return []
        return [*await self._local.read(self._group, offset, end, max_bytes)]

    async def _read(self, offset: int, end: int, max_bytes: int, files: bool) -> list[Stored]:
        machine = self._machine
        offset = max(offset, machine.start_offset)
        found: list[Stored] = []
        if offset >= end:
            return found
        objects = self._objects(offset, end, max_bytes)
        while objects and not found:
            found += await self._level_one.read(
                self._place, objects, offset, end, max_bytes, machine.level_one.extent_at, files=files
            )
            # Of these objects nothing may be left: then the next ones have what comes first.
            offset = found[-1].end_offset if found else min(objects[-1].end_offset, end)
            if not found:
                objects = self._objects(offset, end, max_bytes)
        max_bytes -= sum(len(run.data) for run in found)
        if offset >= end or offset <= machine.last_reconciled_offset:
            return found
        extents = machine.extents_between(offset, end, max_bytes)
        if not extents or (found and extents[0].length > max_bytes):
            return found
        pace = self._pace(offset, extents[-1])
        try:
            with self.holds.over(extents):
                ahead = [] if pace is None else self._ahead(pace, extents[-1].end_offset)
                batches = await self._level_zero.read(extents, ahead)
        except (StoreError, BadObject):
            if pace is not None:
                self._level_zero.paces.failed(self._place, pace, offset)
            if not found:
                raise
            return found  # The read of the rest gets the error.
        if pace is not None:
            given = sum(map(len, batches))
            self._level_zero.paces.end(self._place, pace, extents[-1].end_offset, given)
        for extent, data in zip(extents, batches, strict=True):
            found.append(StoredBatch(extent.base_offset, extent.end_offset, extent.term, data))
        return found

    def _objects(self, offset: int, end: int, max_bytes: int) -> list[LevelOneExtent]:
        """The level-one objects a read may need."""
        found: list[LevelOneExtent] = []
        if offset > self._machine.last_reconciled_offset:
            return found
        size = 0
        for one in self._objects_from(offset):
            if size >= max(max_bytes, 1) or len(found) == OBJECTS or one.base_offset >= end:
                break
            size += self._level_one.bytes_from(one, max(offset, one.base_offset))
            found.append(one)
        return found

    def _objects_from(self, offset: int) -> Iterator[LevelOneExtent]:
        """The level-one objects from the one that holds an offset on; to be gone through without a wait."""
        while (one := self._machine.level_one.extent_at(offset)) is not None:
            yield one
            offset = one.end_offset

    def _pace(self, offset: int, last: Extent) -> Pace | None:
        """The client's; None for one that is served from memory, because this node wrote what it reads."""
        if not isinstance(last, ObjectExtent) or (last.object_id, last.position) in self._written:
            return None
        return self._level_zero.paces.begin(self._place, offset)

    def _ahead(self, pace: Pace, offset: int) -> list[Extent]:
        """Level-zero extents of a client's probable next reads, which begin at an offset.

        A quarter of its window at least, so that neighbours in an object are one get.
        """
        room = pace.window - pace.asked_bytes
        if room <= 0 or room < pace.window // 4:
            return []
        begin, end = max(pace.asked_to, offset), self._machine.high_watermark
        extents = self._machine.extents_between(begin, end, room) if begin < end else []
        if extents:
            pace.asked_to = extents[-1].end_offset
            pace.asked_bytes += sum(extent.length for extent in extents)
        return extents

    # By time.

    async def _first_since(self, timestamp: int) -> TimedBatch | None:
        machine, start = self._machine, self._machine.start_offset
        # Of the first, the only one that begins below the start offset, the newest records may be deleted.
        objects = islice((one for one in machine.level_one if one.max_timestamp >= timestamp), 2)
        extent = machine.first_extent_since(timestamp)
        for one in [*objects]:
            found = await self._level_one.first_since(self._place, one, timestamp, start)
            if found is not None:
                return found
        return None if extent is None else await self._whole(extent)

    async def _newest(self) -> TimedBatch | None:
        machine = self._machine
        while True:
            start = machine.start_offset
            times = [one.max_timestamp for one in machine.level_one if one.base_offset >= start]
            if (extent := machine.newest_extent()) is not None:
                times.append(extent.max_timestamp)
            if (first := machine.level_one.extent_at(start)) is not None and first.base_offset < start:
                time = await self._level_one.newest(self._place, first, start)
                times += [] if time is None else [time]
            found = await self._first_since(max(times)) if times else None
            if found is not None or machine.start_offset == start:
                return found

    async def _whole(self, extent: Extent) -> TimedBatch | None:
        """The batch of a level-zero extent, wherever it lies by now; None if it was deleted since."""
        batches, _ = await self._planned(extent.base_offset, extent.end_offset, extent.length, False)
        if not batches:
            return None
        base, end, data = batches[0].base_offset, batches[0].end_offset, batches[0].data
        assert not isinstance(data, FileRange), "none was asked for"
        return TimedBatch(base, end, extent.term, extent.max_timestamp, data)
