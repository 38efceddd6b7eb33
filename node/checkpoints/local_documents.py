"""Publishing, beside a checkpoint of a compacted partition, what this replica's own log had then.

The log goes on being cleaned, so it is held as it is while the checkpoint's entry is applied, which costs
nothing but the disk space of files that are replaced meanwhile. It is read afterwards, block by block; the
compactor finds the rows in each, and a rest follows: nothing waits for it but an audit. A document that is
not made, for whatever reason, is only missed (docs/audits.md, local_logs_agree).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from strandline.node.checkpoints.document_rows import DocumentRows
from strandline.node.checkpoints.publisher import CheckpointPublisher
from strandline.node.compaction.compactor import JobFailed, Shared, ShareJob
from strandline.node.compaction.local_log import View
from strandline.node.compaction.segment_files import LocalLogDamaged
from strandline.snapshot.local_document import LocalDocument
from strandline.snapshot.names import local_name
from strandline.snapshot.object_frame import BadObject
from strandline.statemachine.partition.partition import PartitionStateMachine

log = logging.getLogger(__name__)

MAX_WAITING: Final = 1_000
"""Logs that are held. Above that the oldest document gives way, as a checkpoint's does."""


class Replica(Protocol):
    """A compacted partition's replica here."""

    @property
    def machine(self) -> PartitionStateMachine: ...


class ReplicaLog(Protocol):
    """The local log of one."""

    @property
    def replica(self) -> Replica: ...

    def readable(self) -> View | None:
        """The log as it is, if it may be read."""

    def damaged(self, reason: str) -> None:
        """Have the log reset."""


class Compactor(Protocol):
    """Finds the rows, in a process of its own where there is one."""

    async def share(self, job: ShareJob, /) -> Shared | JobFailed: ...


@dataclass(slots=True)
class LocalDocumentMeasures:
    """Counters since the node started."""

    published: int = 0
    dropped: int = 0
    """Not made, because too many waited, the log could not be read, or the node stopped."""


class _Taken(NamedTuple):
    group: int
    log_index: int
    replica_log: ReplicaLog
    view: View


class LocalDocuments:
    """One per node. Everything belongs on its loop but the reading of blocks."""

    def __init__(
        self,
        cluster: str,
        node: int,
        publisher: CheckpointPublisher,
        log_of: Callable[[int], ReplicaLog | None],
        compactor: Compactor,
        *,
        loop: asyncio.AbstractEventLoop,
        executor: Executor | None,
        share_bits: int,
    ) -> None:
        """`log_of` gives the local log of a group's replica, None if it has none."""
        self.measures = LocalDocumentMeasures()
        self._cluster = cluster
        self._node = node
        self._publisher = publisher
        self._log_of = log_of
        self._compactor = compactor
        self._loop = loop
        self._executor = executor
        self._share_bits = share_bits
        self._waiting: deque[_Taken] = deque()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def take(self, group: int, index: int) -> None:
        """Have the local log published as it is now, in the apply of a checkpoint. Never waits or raises."""
        replica_log = None if self._stopped else self._log_of(group)
        view = None if replica_log is None else replica_log.readable()
        if replica_log is None or view is None:
            return
        if view.manifest.log_end > replica_log.replica.machine.last_stable_offset:
            return  # it is ahead of a state that was restored, and may have removed what that state knows
        self._waiting.append(_Taken(group, index, replica_log, view.hold()))
        if len(self._waiting) > MAX_WAITING:
            self._drop(self._waiting.popleft())
        if self._task is None:
            self._task = self._loop.create_task(self._work())

    async def stop(self) -> None:
        """Drop what waits or is under way."""
        self._stopped = True
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        while self._waiting:
            self._drop(self._waiting.popleft())

    def _drop(self, taken: _Taken) -> None:
        taken.view.release()
        self.measures.dropped += 1

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._publish(self._waiting.popleft())
        finally:
            self._task = None

    async def _publish(self, taken: _Taken) -> None:
        stored = False
        try:
            try:
                rows = await self._rows(taken)
            finally:
                # The store may be away for hours, and the files that were replaced need not wait for it.
                taken.view.release()
            if rows is not None:
                data = self._document(taken, rows).encode()
                name = local_name(self._cluster, taken.group, taken.log_index, self._node)
                stored = await self._publisher.put(name, [data])
        finally:
            self.measures.published += stored
            self.measures.dropped += not stored

    def _document(self, taken: _Taken, rows: DocumentRows) -> LocalDocument:
        manifest = taken.view.manifest
        return LocalDocument(
            self._cluster,
            taken.group,
            taken.log_index,
            manifest.reset_index,
            manifest.floor,
            manifest.floor_markers,
            manifest.start_offset,
            manifest.clean_end,
            manifest.log_end,
            rows.share_bits,
            rows.packed(),
        )

    async def _rows(self, taken: _Taken) -> DocumentRows | None:
        off = self._loop.run_in_executor
        rows = DocumentRows(self._share_bits)
        for segment in taken.view.segments:
            for block in segment.footer.blocks:
                began = self._loop.time()
                try:
                    data = await off(self._executor, segment.read, block)
                except (BadObject, LocalLogDamaged) as error:
                    # The log may have been reset since: then it has no such file.
                    present = taken.replica_log.readable()
                    if present is not None and segment in present.segments:
                        taken.replica_log.damaged(str(error))
                    return None
                except OSError as error:
                    _missed(taken, str(error))
                    return None
                found = await self._compactor.share(ShareJob(data, rows.share_bits))
                if isinstance(found, JobFailed):
                    # A batch that cannot be read came so from level one; the log is not at fault.
                    _missed(taken, found.reason)
                    return None
                await off(self._executor, rows.add, found.rows)
                await asyncio.sleep(self._loop.time() - began)
        return rows


def _missed(taken: _Taken, reason: str) -> None:
    log.warning("group %d: the local log is not told beside checkpoint %d: %s",
                taken.group, taken.log_index, reason)  # fmt: skip
