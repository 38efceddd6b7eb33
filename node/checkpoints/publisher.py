"""Puts checkpoints into the object store, however long the store is away.

A checkpoint is taken inside an apply, which neither waits nor fails; this module takes the document from
there. It repeats a put for as long as the node lives: the name is this node's own and the bytes never
change, so a put may be repeated after any error. The number of waiting documents is bounded. At the bound the
oldest one is dropped, because a reader looks for the newest checkpoint, and an audit lists a missing one.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from strandline.node.objectstore.store import Buffer, ObjectStore, StoreError
from strandline.snapshot.document import SnapshotDocument
from strandline.snapshot.log_document import LogDocument
from strandline.snapshot.names import log_name, snapshot_name
from strandline.statemachine.machine import Captured

log = logging.getLogger(__name__)

DOCUMENT_OVERHEAD_BYTES = 512
"""Bytes that a waiting document counts besides its state and its log."""


@dataclass(frozen=True, slots=True)
class PublisherLimits:
    """Bounds on documents that wait and on uploads. Delays are seconds; they double, and each is drawn from
    its upper half."""

    max_bytes: int = 256 * 1024 * 1024
    """States and logs that wait or are on their way."""
    max_uploads: int = 4
    first_delay_seconds: float = 0.5
    max_delay_seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.max_bytes < 1 or self.max_uploads < 1:
            raise ValueError(f"nothing is published by {self.max_uploads} uploads of {self.max_bytes} bytes")
        if not 0 < self.first_delay_seconds <= self.max_delay_seconds:
            raise ValueError("first_delay_seconds must be positive and not above max_delay_seconds")


@dataclass(slots=True)
class PublisherMeasures:
    """A publisher's counters since it was made; `waiting` and `waiting_bytes` are current values."""

    documents_published: int = 0
    logs_published: int = 0
    bytes_published: int = 0
    failed_puts: int = 0
    documents_dropped: int = 0
    """Given up because too much waited, or too large for the store."""
    logs_dropped: int = 0
    """Given up, or too large to wait beside their document."""
    waiting: int = 0
    waiting_bytes: int = 0
    """Of documents and logs queued or on their way."""


@dataclass(slots=True)
class _Work:
    document: SnapshotDocument
    log: LogDocument | None

    @property
    def size(self) -> int:
        entries = len(self.log.entries) if self.log else 0
        return DOCUMENT_OVERHEAD_BYTES + len(self.document.state) + entries


class CheckpointPublisher:
    """One per node, for all its groups. Digests are computed on `executor`: a state may have megabytes."""

    def __init__(
        self,
        store: ObjectStore,
        node: int,
        *,
        loop: asyncio.AbstractEventLoop,
        executor: Executor | None,
        rng: random.Random,
        limits: PublisherLimits | None = None,
    ) -> None:
        self.measures = PublisherMeasures()
        self._store = store
        self._node = node
        self._loop = loop
        self._executor = executor
        self._rng = rng
        self._limits = limits or PublisherLimits()
        self._queue: deque[_Work] = deque()
        self._captured: deque[tuple[SnapshotDocument, Captured, LogDocument | None]] = deque()
        self._making: asyncio.Task[None] | None = None
        self._uploads: dict[asyncio.Task[None], None] = {}
        self._stopped = False

    def take(self, place: SnapshotDocument, captured: Captured, entries: LogDocument | None) -> None:
        """As `publish`, of a document without its state, which is made off the loop, one after the other.
        Until then a replica keeps both the captured rows and those that have changed since."""
        if self._stopped:
            return
        self._captured.append((place, captured, entries))
        if self._making is None:
            self._making = self._loop.create_task(self._make())

    async def _make(self) -> None:
        try:
            while self._captured:
                place, captured, entries = self._captured.popleft()
                try:
                    state = await self._loop.run_in_executor(self._executor, captured)
                except Exception as error:
                    log.error("checkpoint %d of group %d cannot be made: %r: report this",
                              place.index, place.group, error)  # fmt: skip
                else:
                    self.publish(replace(place, state=state), entries)
        finally:
            self._making = None

    def publish(self, document: SnapshotDocument, entries: LogDocument | None) -> None:
        """Put a document, and the log that leads to it, into the store, some time. Never waits or raises."""
        if self._stopped:
            return
        work = _Work(document, entries)
        if entries is not None and work.size > self._limits.max_bytes:
            work.log = None
            self.measures.logs_dropped += 1
        self._queue.append(work)
        self._count(work, 1)
        while self.measures.waiting_bytes > self._limits.max_bytes and self._queue:
            self._give_up(self._queue.popleft())
        self._start()

    async def stop(self, seconds: float = 2.0) -> None:
        """Publish waiting documents for up to this many seconds, then end; nothing is published after."""
        end = self._loop.time() + seconds
        if self._making is not None:
            await asyncio.wait([self._making], timeout=seconds)
        while self._uploads and self._loop.time() < end:
            await asyncio.wait(list(self._uploads), timeout=end - self._loop.time())
        self._stopped = True
        self._captured.clear()
        for work in self._queue:
            self._count(work, -1)
        self._queue.clear()
        for task in list(self._uploads):
            task.cancel()
        if self._uploads:
            await asyncio.wait(list(self._uploads))

    def _count(self, work: _Work, sign: int) -> None:
        self.measures.waiting += sign
        self.measures.waiting_bytes += sign * work.size

    def _give_up(self, work: _Work) -> None:
        self._count(work, -1)
        self.measures.documents_dropped += 1
        self.measures.logs_dropped += work.log is not None
        log.error(
            "group %d: checkpoint %d is not published: more than %d bytes wait for the object store; see to "
            "the store, then take another checkpoint",
            work.document.group, work.document.index, self._limits.max_bytes,
        )  # fmt: skip

    def _start(self) -> None:
        while self._queue and len(self._uploads) < self._limits.max_uploads and not self._stopped:
            task = self._loop.create_task(self._upload(self._queue.popleft()))
            self._uploads[task] = None
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._uploads[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a checkpoint could not be published: %r: report this", error)
        self._start()

    async def _upload(self, work: _Work) -> None:
        document, entries = work.document, work.log
        try:
            # The log first: a reader that finds the document then finds the log up to it.
            if entries is not None:
                name = log_name(document.cluster, document.group, entries.after, entries.index)
                parts: Sequence[Buffer] = await self._loop.run_in_executor(self._executor, entries.parts)
                stored = await self.put(name, parts)
                self.measures.logs_published += stored
                self.measures.logs_dropped += not stored
            name = snapshot_name(document.cluster, document.group, document.index, self._node)
            parts = await self._loop.run_in_executor(self._executor, document.parts)
            stored = await self.put(name, parts)
            self.measures.documents_published += stored
            self.measures.documents_dropped += not stored
        finally:
            self._count(work, -1)

    async def put(self, name: str, parts: Sequence[Buffer], max_delay_seconds: float | None = None) -> bool:
        """Store an object, however long that takes; False if it is too large for the store.

        `max_delay_seconds` is the longest pause between two attempts, where another than usual is wanted.
        """
        size = sum(map(len, parts))
        if size > self._store.max_object_bytes:
            log.error("%s has %d bytes: too many for the object store, it is not published", name, size)
            return False
        delay = self._limits.first_delay_seconds
        while True:
            try:
                await self._store.put(name, parts)
                self.measures.bytes_published += size
                return True
            except StoreError as error:
                self.measures.failed_puts += 1
                # The store's own health tells of it, once for all of a node's partitions.
                log.debug("%s is not published yet: %s; next try in up to %.1f s", name, error, delay)
            await asyncio.sleep(delay * (0.5 + 0.5 * self._rng.random()))
            delay = min(2 * delay, max_delay_seconds or self._limits.max_delay_seconds)
