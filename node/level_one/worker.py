"""The process that builds a node's level-one objects, so that the node's loop is free for its clients.

An unfinished object has no name yet, and an object that lands late is never used, so it may end at any time.
`python -m strandline.node.level_one.worker` starts it; see `strandline.node.worker.worker_process`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from dataclasses import astuple
from typing import Any, Final

from strandline.node.level_one.builder import BuilderConfig, Built, StoreBuilder
from strandline.node.level_one.frames import OutputsGathering, merge_of, plain
from strandline.node.level_one.level_one_measures import BuilderMeasures
from strandline.node.objectstore.store import ObjectStore
from strandline.node.worker.worker_frames import BadFrame
from strandline.node.worker.worker_process import CpuSeconds, Jobs, serve

NICENESS: Final = 5
"""Niceness that gives a third of the node's own share of a busy processor. Moving records to level one takes
a fifth to a quarter of the time of producing them; with much less, level zero would grow while a machine is
busy."""


class BuilderJobs(Jobs):
    """The jobs of a StoreBuilder, as the node sends them."""

    def __init__(self, store: ObjectStore, settings: list[Any], loop: asyncio.AbstractEventLoop) -> None:
        self._builder = StoreBuilder(store, BuilderConfig(*settings), loop=loop)
        self._asked = OutputsGathering()
        self._cpu = CpuSeconds()

    def take(self, message: list[Any]) -> Coroutine[Any, Any, list[Any]] | None:
        kind = message[0]
        if kind == "output":
            self._asked.output(message)
        elif kind == "extents":
            self._asked.extents(message)
        elif kind == "build":
            asked, self._asked = self._asked, OutputsGathering()
            return self._build(asked)
        elif kind == "merge":
            return self._merge(message)
        else:
            raise BadFrame(f"there is no {kind!r}")
        return None

    async def _build(self, asked: OutputsGathering) -> list[Any]:
        return self._done(await self._builder.build(asked.outputs))

    async def _merge(self, message: list[Any]) -> list[Any]:
        return self._done([await self._builder.merge(merge_of(message))])

    def _done(self, results: list[Built]) -> list[Any]:
        measures, self._builder.measures = self._builder.measures, BuilderMeasures()
        measures.cpu_seconds = self._cpu.take()
        return ["built", [plain(result) for result in results], astuple(measures)]


def main() -> int:
    """Serve the node until it goes away."""
    return serve(BuilderJobs, NICENESS)


if __name__ == "__main__":
    sys.exit(main())
