"""Does the jobs of compaction in this process: a worker, or a node whose store no other process sees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, TypeVar

from strandline.node.compaction.bad_batch import BadBatch
from strandline.node.compaction.breath import Breath
from strandline.node.compaction.compactor import (
    BEGAN_ANEW,
    Compactor,
    CompactorMeasures,
    Filtered,
    FilterJob,
    Ingested,
    IngestJob,
    JobFailed,
    MapJob,
    Mapped,
    Published,
    PublishJob,
    Shared,
    ShareJob,
    Why,
)
from strandline.node.compaction.publishing import publish
from strandline.node.objectstore.store import ObjectStore
from strandline.node.raft.disk import Disk

if TYPE_CHECKING:
    from strandline.node.compaction.segment_cleaning import SegmentCleaning

T = TypeVar("T")
J = TypeVar("J", MapJob, FilterJob)


class StoreCompactor(Compactor):
    """Works in an executor; operations of `store` try again by themselves.

    Its libraries are imported with the first job: they are 100 MB, and most nodes in one process need none.
    """

    def __init__(
        self,
        store: ObjectStore,
        disk: Disk,
        *,
        loop: asyncio.AbstractEventLoop,
        executor: Executor | None,
        breath: Breath | None = None,
    ) -> None:
        """`breath` is of the executor's one thread; None where others need that thread: then no job rests."""
        self.measures = CompactorMeasures()
        self._store = store
        self._disk = disk
        self._loop = loop
        self._executor = executor
        self._breath = breath or Breath(None)
        self._cleaning: SegmentCleaning | None = None
        self._turns = {store: asyncio.Lock() for store in (True, False)}
        """Of the jobs that need the object store, and of those that do not: these never wait for it."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def ingest(self, job: IngestJob) -> Ingested | JobFailed:
        return await self._do(lambda: self._ingest(job), store=True)

    async def map(self, job: MapJob) -> Mapped | JobFailed:
        return await self._do(lambda: self._map(job))

    async def filter(self, job: FilterJob) -> Filtered | JobFailed:
        return await self._do(lambda: self._filter(job))

    async def publish(self, job: PublishJob) -> Published | JobFailed:
        return await self._do(
            lambda: publish(
                job, store=self._store, disk=self._disk, loop=self._loop, executor=self._executor
            ),
            store=True,
        )

    async def share(self, job: ShareJob) -> Shared | JobFailed:
        return await self._do(lambda: self._share(job))

    async def close(self) -> None:
        self._closed = True
        for task in (tasks := [*self._tasks]):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ingest(self, job: IngestJob) -> Ingested | JobFailed:
        await self._loop.run_in_executor(self._executor, _import)
        from strandline.node.compaction.ingest import ingest

        return await ingest(job, store=self._store, disk=self._disk, loop=self._loop, executor=self._executor)

    async def _map(self, job: MapJob) -> Mapped | JobFailed:
        await self._loop.run_in_executor(self._executor, _import)
        from strandline.node.compaction.segment_cleaning import SegmentCleaning

        if self._cleaning is None:
            self._cleaning = SegmentCleaning(self._disk, self._breath)
        return await self._loop.run_in_executor(self._executor, self._breathing, self._cleaning.map, job)

    async def _filter(self, job: FilterJob) -> Filtered | JobFailed:
        if self._cleaning is None:
            return JobFailed(Why.LOST, BEGAN_ANEW)
        return await self._loop.run_in_executor(self._executor, self._breathing, self._cleaning.filter, job)

    def _breathing(self, work: Callable[[J], T], job: J) -> T:
        with self._breath.job(job.rests):
            return work(job)

    async def _share(self, job: ShareJob) -> Shared | JobFailed:
        return await self._loop.run_in_executor(self._executor, _shared, job)

    async def _do(
        self, begin: Callable[[], Coroutine[Any, Any, T | JobFailed]], *, store: bool = False
    ) -> T | JobFailed:
        async with self._turns[store]:
            if self._closed:
                return JobFailed(Why.LOST, "the node is stopping")
            task = self._loop.create_task(begin())
            self._tasks.add(task)
            try:
                return await task
            except asyncio.CancelledError:
                caller = asyncio.current_task()
                # Where the caller is cancelled the job is, too: that is to end the caller.
                if task.cancelled() and not (caller is not None and caller.cancelling()):  # by `close`
                    return JobFailed(Why.LOST, "the node is stopping")
                raise
            finally:
                task.cancel()
                self._tasks.discard(task)


def _shared(job: ShareJob) -> Shared | JobFailed:
    from strandline.node.compaction.shared_rows import shared_rows

    try:
        return Shared(shared_rows(job.data, job.share_bits))
    except BadBatch as error:
        return JobFailed(Why.SOURCE, str(error))


def _import() -> None:
    """Import the libraries, which takes a second the first time: not on the loop."""
    from strandline.node.compaction import ingest, segment_cleaning

    del ingest, segment_cleaning
