"""Reads the batches that extents name: from memory, or with as few ranged gets as possible.

Ranges of one object that lie next to each other are one get; readers that want the same batch share it; the
next ranges are fetched while a client digests the last. Every batch is checked before it is returned: bytes
that differ from the stored ones are an error that names the object and the range. docs/level-zero.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from strandline.node.level_zero.cache import BatchCache
from strandline.node.level_zero.measures import ReaderMeasures
from strandline.node.level_zero.read_pace import ReadPaces
from strandline.node.objectstore.get_turns import GetTurns
from strandline.node.objectstore.store import Buffer, NotDone, ObjectStore, RangeNotFound, StoreError
from strandline.snapshot.level_zero_format import BadObject, verify_batch
from strandline.statemachine.partition.extent import Extent, InlineExtent, ObjectExtent

KIB = 1024
MIB = 1024 * KIB

Loaded = bytes | StoreError | BadObject


@dataclass(frozen=True, slots=True)
class ReaderConfig:
    """Bounds of a reader, in bytes and gets."""

    join_gap_bytes: int = 32 * KIB
    """Unwanted bytes between two ranges that are cheaper to fetch than another get."""

    max_get_bytes: int = 8 * MIB
    """Ranges are not joined beyond this; a larger batch is one get all the same."""

    max_gets: int = 16
    """Most gets ahead of their readers; for what readers wait for there are a quarter more. Others wait."""

    ahead_bytes: int = MIB
    """Least bytes that are read ahead of a consumer that goes on; its pace may ask for more (ReadPaces)."""

    max_ahead_bytes: int = 16 * MIB
    """Nothing is read ahead while this much is being fetched."""

    def __post_init__(self) -> None:
        if self.join_gap_bytes < 0 or self.max_get_bytes < 1 or self.max_gets < 1 or self.max_ahead_bytes < 0:
            raise ValueError("the bounds of a reader are positive; gap and read-ahead may be 0")


@dataclass(frozen=True, slots=True)
class Range:
    """One get: a part of an object, and the extents that lie in it."""

    name: str
    start: int
    end: int
    extents: tuple[ObjectExtent, ...]


class Reader:
    """Reads batches from level zero. `written` caches those this node stored, `fetched` those it read."""

    def __init__(
        self,
        store: ObjectStore,
        config: ReaderConfig,
        *,
        loop: asyncio.AbstractEventLoop,
        written: BatchCache,
        fetched: BatchCache,
    ) -> None:
        self.measures = ReaderMeasures()
        self.loading_bytes = 0
        self.paces = ReadPaces(least=config.ahead_bytes, budget=self._ahead_budget, now=loop.time)
        """Asked by the caller of `read`, which knows places and offsets."""
        self._store = store
        self._config = config
        self._loop = loop
        self._written = written
        self._fetched = fetched
        self._loading: dict[tuple[bytes, int], asyncio.Future[Loaded]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._started = 0
        self._turns = GetTurns(config.max_gets)

    async def read(self, extents: Sequence[Extent], ahead: Sequence[Extent] = ()) -> list[bytes]:
        """The batches of some extents, in their order, as they were stored (see `patched`).

        `ahead` is what the same client will want next, and is fetched meanwhile.
        Raises ObjectNotFound (the plan may be old: plan again), BadObject (damage), or another StoreError.
        """
        batches: list[bytes | asyncio.Future[Loaded]] = []
        wanted: list[ObjectExtent] = []
        for extent in extents:
            batch = self._at_hand(extent)
            if batch is None:
                assert isinstance(extent, ObjectExtent)
                batch = self._promise(extent)
                wanted.append(extent)
            batches.append(batch)
        if wanted:
            self._fetch(wanted, ahead=False)
        if ahead:
            self._read_ahead(ahead)
        result: list[bytes] = []
        for batch in batches:
            # Shielded: one reader that goes away must not take the batch from the others.
            loaded = batch if isinstance(batch, bytes) else await asyncio.shield(batch)
            if not isinstance(loaded, bytes):
                raise loaded
            result.append(loaded)
        return result

    async def close(self) -> None:
        """End the gets in progress; their readers get an error."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
        # A task that never ran has delivered nothing.
        for future in self._loading.values():
            future.set_result(NotDone("get_range", "", "the node is stopping", retriable=True))
        self._loading.clear()

    def _at_hand(self, extent: Extent) -> bytes | asyncio.Future[Loaded] | None:
        if isinstance(extent, InlineExtent):
            return extent.data
        object_id, position = extent.object_id, extent.position
        loading = self._loading.get((object_id, position))
        if loading is not None:
            self.measures.joined += 1
            return loading
        data = self._written.get(object_id, position)
        return self._fetched.get(object_id, position) if data is None else data

    def _promise(self, extent: ObjectExtent) -> asyncio.Future[Loaded]:
        future: asyncio.Future[Loaded] = self._loop.create_future()
        self._loading[extent.object_id, extent.position] = future
        return future

    def _ahead_budget(self) -> int:
        return min(self._config.max_ahead_bytes, self._fetched.max_bytes // 2)

    def _read_ahead(self, extents: Sequence[Extent]) -> None:
        wanted = []
        room = self._ahead_budget() - self.loading_bytes
        for extent in extents:
            if isinstance(extent, InlineExtent):
                continue
            key = (extent.object_id, extent.position)
            if key in self._loading or key in self._written or key in self._fetched:
                continue
            room -= extent.length
            if room < 0:
                break
            self._promise(extent)
            wanted.append(extent)
        self.measures.batches_ahead += len(wanted)
        self._fetch(wanted, ahead=True)

    def _fetch(self, extents: Sequence[ObjectExtent], *, ahead: bool) -> None:
        for part in plan(extents, self._config.join_gap_bytes, self._config.max_get_bytes):
            self.loading_bytes += part.end - part.start
            self._started += 1
            self._tasks[self._started] = self._loop.create_task(self._get(self._started, part, ahead))

    async def _get(self, number: int, part: Range, ahead: bool) -> None:
        data: Buffer | StoreError = NotDone("get_range", part.name, "the node is stopping", retriable=True)
        try:
            async with self._turns.one(ahead=ahead):
                data = await self._range(part)
        except StoreError as error:
            data = error
        except Exception as error:
            data = NotDone("get_range", part.name, f"{type(error).__name__}: {error}", retriable=False)
            self._loop.call_exception_handler({"message": f"reading {part.name}", "exception": error})
        finally:
            del self._tasks[number]
            self.loading_bytes -= part.end - part.start
            self._deliver(part, data)

    async def _range(self, part: Range) -> Buffer:
        started = self._loop.time()
        self.measures.gets += 1
        data = await self._store.get_range(part.name, part.start, part.end - part.start)
        self.measures.bytes_read += len(data)
        seconds = self._loop.time() - started
        self.measures.get_seconds.add(seconds)
        self.paces.get_took(seconds)
        return data

    def _deliver(self, part: Range, data: Buffer | StoreError) -> None:
        if isinstance(data, StoreError):
            self.measures.failed += 1
        for extent in part.extents:
            loaded = data if isinstance(data, StoreError) else self._checked(part, extent, data)
            if isinstance(loaded, RangeNotFound):
                end = extent.position + extent.length
                loaded = BadObject(part.name, extent.position, end, "the object is cut: it ends before this")
            if isinstance(loaded, bytes):
                self._fetched.put(extent.object_id, extent.position, loaded)
            future = self._loading.pop((extent.object_id, extent.position))
            # By value: a batch that was read ahead may have no reader to take an exception.
            future.set_result(loaded)

    def _checked(self, part: Range, extent: ObjectExtent, data: Buffer) -> bytes | BadObject:
        at = extent.position - part.start
        batch = data if len(data) == extent.length else memoryview(data)[at : at + extent.length]
        try:
            verify_batch(part.name, extent.position, extent.length, batch)
        except BadObject as error:
            self.measures.bad += 1
            return error
        self.measures.batches_read += 1
        return bytes(batch)


def plan(extents: Sequence[ObjectExtent], gap: int, max_bytes: int) -> list[Range]:
    """The gets that fetch some extents: those of one object that lie within `gap` bytes are one get."""
    by_object: dict[tuple[int, bytes], list[ObjectExtent]] = {}
    for extent in extents:
        by_object.setdefault((extent.epoch, extent.object_id), []).append(extent)
    ranges: list[Range] = []
    for members in by_object.values():
        members.sort(key=lambda extent: extent.position)
        name = members[0].object_name
        joined: list[ObjectExtent] = []
        start = end = 0
        for extent in members:
            after = extent.position + extent.length
            if joined and (extent.position > end + gap or after - start > max_bytes):
                ranges.append(Range(name, start, end, tuple(joined)))
                joined = []
            if not joined:
                start = extent.position
            joined.append(extent)
            end = after
        ranges.append(Range(name, start, end, tuple(joined)))
    return ranges
