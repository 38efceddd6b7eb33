"""Does the jobs of compaction in a process of their own; see `strandline.node.worker.worker_link`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from strandline.node.compaction.compactor import (
    BEHIND_STORE,
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
from strandline.node.compaction.job_frames import ingest_messages, result_of, share_messages
from strandline.node.objectstore.opening import StorePlace
from strandline.node.worker.worker_frames import BadFrame
from strandline.node.worker.worker_link import WorkerFailed, WorkerLimits, WorkerLink, program

T = TypeVar("T", Ingested, Mapped, Filtered, Published, Shared)
PROGRAM: Final = program("strandline.node.compaction.worker")
LIMITS: Final = WorkerLimits(idle_seconds=180.0)
"""A process's start costs a second of processor time for its libraries, and logs are filled once a minute."""


class WorkerCompactor(Compactor):
    """Has a process while there are jobs, and none until there is the first.

    The map of a round is the process's: when it dies, the round's next job fails, and another round begins.
    While a job waits for the object store, rounds have a second process, which ends when it has no more jobs.
    """

    def __init__(
        self,
        place: StorePlace,
        *,
        loop: asyncio.AbstractEventLoop,
        limits: WorkerLimits = LIMITS,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self.measures = CompactorMeasures()
        # A folder takes one process of each owner at a time.
        second = replace(place, owner=f"{place.owner}-second")
        self._link, self._spare = (
            WorkerLink(name, program, at, [], loop=loop, limits=limits, on_start=self._started)
            for name, at in (("compaction worker", place), ("second compaction worker", second))
        )
        self._cleaning = self._link
        """The process that has the map of the present round."""
        self._storing = 0
        """Jobs under way that need the object store."""

    @property
    def process_id(self) -> int | None:
        """Of the worker, while there is one."""
        return self._link.process_id

    async def ingest(self, job: IngestJob) -> Ingested | JobFailed:
        return await self._with_store(ingest_messages(job), Ingested, "ingest")

    async def map(self, job: MapJob) -> Mapped | JobFailed:
        if job.is_first:
            self._cleaning = self._spare if self._storing else self._link
        return await self._clean(["map", *job], Mapped)

    async def filter(self, job: FilterJob) -> Filtered | JobFailed:
        return await self._clean(["filter", *job], Filtered)

    async def publish(self, job: PublishJob) -> Published | JobFailed:
        return await self._with_store([["publish", *job]], Published, "publish")

    async def share(self, job: ShareJob) -> Shared | JobFailed:
        return await self._do(self._link, share_messages(job), Shared, "tell")

    async def close(self) -> None:
        await asyncio.gather(self._link.close(), self._spare.close())

    async def _with_store(self, messages: Iterable[list[Any]], kind: type[T], work: str) -> T | JobFailed:
        self._storing += 1
        try:
            return await self._do(self._link, messages, kind, work)
        finally:
            self._storing -= 1

    async def _clean(self, message: list[Any], kind: type[T]) -> T | JobFailed:
        if self._storing and self._cleaning is self._link:
            return JobFailed(Why.BUSY, BEHIND_STORE)
        return await self._do(self._cleaning, [message], kind, "clean")

    def _started(self) -> None:
        self.measures.starts += 1

    async def _do(
        self, link: WorkerLink, messages: Iterable[list[Any]], kind: type[T], work: str
    ) -> T | JobFailed:
        try:
            values, cpu_seconds, puts, gets = await link.ask(messages, "done")
            result = result_of(values)
        except (WorkerFailed, BadFrame, ValueError) as error:
            return JobFailed(Why.LOST, str(error))
        self.measures.cpu_seconds[work] += cpu_seconds
        self.measures.puts += puts
        self.measures.gets += gets
        if isinstance(result, kind | JobFailed):
            return result
        return JobFailed(Why.LOST, f"the compaction worker answered with {result}")
