"""Builds level-one objects in a process of their own; see `strandline.node.worker.worker_link`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import astuple, fields
from typing import Any, Final

from strandline.node.level_one.builder import (
    BuilderConfig,
    BuildFailed,
    Built,
    LevelOneBuilder,
    Merge,
    Output,
)
from strandline.node.level_one.frames import build_messages, merge_message, result_of
from strandline.node.level_one.level_one_measures import BuilderMeasures
from strandline.node.objectstore.opening import StorePlace
from strandline.node.worker.worker_link import LIMITS, WorkerFailed, WorkerLimits, WorkerLink, program

PROGRAM: Final = program("strandline.node.level_one.worker")


class WorkerBuilder(LevelOneBuilder):
    """Builds in a process of its own. Does nothing, and has no process, until it is asked to."""

    def __init__(
        self,
        place: StorePlace,
        config: BuilderConfig,
        *,
        loop: asyncio.AbstractEventLoop,
        limits: WorkerLimits = LIMITS,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self.measures = BuilderMeasures()
        self._link = WorkerLink(
            "level-one worker",
            program,
            place,
            astuple(config),
            loop=loop,
            limits=limits,
            on_start=self._started,
        )

    @property
    def process_id(self) -> int | None:
        """Of the worker, while there is one."""
        return self._link.process_id

    async def build(self, outputs: Sequence[Output]) -> list[Built]:
        results = await self._job(build_messages(outputs))
        if isinstance(results, BuildFailed):
            self.measures.failed += len(outputs)
            return [results] * len(outputs)
        return results

    async def merge(self, merge: Merge) -> Built:
        results = await self._job([merge_message(merge)])
        if isinstance(results, BuildFailed):
            self.measures.failed += 1
            return results
        return results[0]

    async def close(self) -> None:
        await self._link.close()

    def _started(self) -> None:
        self.measures.starts += 1

    async def _job(self, messages: Iterable[list[Any]]) -> list[Built] | BuildFailed:
        try:
            results, measures = await self._link.ask(messages, "built")
        except WorkerFailed as error:
            return BuildFailed(str(error), retriable=True)
        for name, value in zip(fields(BuilderMeasures), measures, strict=True):
            setattr(self.measures, name.name, getattr(self.measures, name.name) + value)
        return [result_of(values) for values in results]
