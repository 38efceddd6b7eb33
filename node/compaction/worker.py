"""The process that does the work of a node's local logs; nothing of it may make the node's clients wait.

It is another process than the level-one worker: a long round must not keep records in level zero, where they
hold up the collector; when memory runs out, or compaction meets what it cannot bear, lifting goes on; and
only nodes with compacted topics have its libraries in memory, which are 100 MB.

`python -m strandline.node.compaction.worker` starts it; see `strandline.node.worker.worker_process`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from strandline.node.compaction.breath import PIECE_BYTES, Breath
from strandline.node.compaction.compactor import (
    Filtered,
    Ingested,
    JobFailed,
    Mapped,
    Published,
    Shared,
    ShareJob,
)
from strandline.node.compaction.job_frames import filter_of, ingest_of, map_of, plain, publish_of
from strandline.node.compaction.store_compactor import StoreCompactor
from strandline.node.objectstore.requests import requests_of
from strandline.node.objectstore.store import ObjectStore
from strandline.node.raft.disk import RealDisk
from strandline.node.raft.disk_pace import WritePace
from strandline.node.worker.worker_frames import BadFrame
from strandline.node.worker.worker_process import CpuSeconds, Jobs, serve

NICENESS: Final = 10
"""A tenth of the node's own share of a busy processor, and less than lifting has (5): a log that is cleaned
later costs disk and nothing else, while records that stay in level zero hold up its deletion."""


class CompactorJobs(Jobs):
    """The jobs of a StoreCompactor, as the node sends them."""

    def __init__(self, store: ObjectStore, settings: list[Any], loop: asyncio.AbstractEventLoop) -> None:
        breath = Breath(time.sleep)
        self._compactor = StoreCompactor(
            store,
            RealDisk(pace=WritePace(PIECE_BYTES, breath.after_write)),
            loop=loop,
            # A thread, so that the end of the node is noticed while a job computes or rests.
            executor=ThreadPoolExecutor(1),
            breath=breath,
        )
        self._rows = bytearray()
        self._batches = bytearray()
        self._cpu = CpuSeconds()
        self._store = store
        self._told = requests_of(store)
        """Requests that the node knows of."""

    def take(self, message: list[Any]) -> Coroutine[Any, Any, list[Any]] | None:
        kind = message[0]
        if kind == "rows":
            self._rows += message[1]
            return None
        if kind == "batches":
            self._batches += message[1]
            return None
        if kind == "ingest":
            rows, self._rows = self._rows, bytearray()
            return self._done(self._compactor.ingest(ingest_of(message, bytes(rows))))
        if kind == "map":
            return self._done(self._compactor.map(map_of(message)))
        if kind == "filter":
            return self._done(self._compactor.filter(filter_of(message)))
        if kind == "publish":
            return self._done(self._compactor.publish(publish_of(message)))
        if kind == "share":
            batches, self._batches = self._batches, bytearray()
            return self._done(self._compactor.share(ShareJob(bytes(batches), message[1])))
        raise BadFrame(f"there is no {kind!r}")

    async def _done(
        self, job: Awaitable[Ingested | Mapped | Filtered | Published | Shared | JobFailed]
    ) -> list[Any]:
        result = plain(await job)
        before, self._told = self._told, requests_of(self._store)
        since = [now - then for now, then in zip(self._told, before, strict=True)]
        return ["done", result, self._cpu.take(), *since]


def main() -> int:
    """Serve the node until it goes away."""
    return serve(CompactorJobs, NICENESS)


if __name__ == "__main__":
    sys.exit(main())
