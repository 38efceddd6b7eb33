"""One write-ahead log for all the groups of a node: records reported as synced survive every crash.

Records are buffered in memory and go to disk in batches, one write and one `fdatasync` for all that came in
meanwhile (group commit). The log lives on the event loop; its disk operations run in the executor, one at a
time. The file format and what opening does after a crash are told in docs/wal.md.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable
from concurrent.futures import Executor

from strandline.node.raft.disk import Disk
from strandline.node.raft.wal.batch import BatchQueue, WalBatch
from strandline.node.raft.wal.config import WalConfig
from strandline.node.raft.wal.format import (
    LAST_GROUP_KIND,
    MAX_CLUSTER_ID_BYTES,
    RECORD_OVERHEAD,
    SECTOR,
    RecordKind,
    Replay,
    SegmentHeader,
    WalCorruption,
    WalError,
    WalMismatch,
)
from strandline.node.raft.wal.recovery import Recovered, recover
from strandline.node.raft.wal.segment import NO_SPACE, WalFailed, create_segment, note_started
from strandline.node.raft.wal.segment_writer import SegmentWriter

__all__ = [
    "RecordKind",
    "WalConfig",
    "WalCorruption",
    "WalError",
    "WalFailed",
    "WalFull",
    "WalLocked",
    "WalMismatch",
    "WriteAheadLog",
]

_Step = Callable[[], None]


class WalFull(WalError):
    """Too many entries are buffered; the caller must take no more until some are synced."""


class WalLocked(WalError):
    """Another process has this log open."""


def _ignore(*_: object) -> None:
    """Default of the callbacks until the owner sets them."""


class WriteAheadLog:
    """The log. All methods but `open` belong to the event loop.

    Attributes:
        tail_lsn: number of the newest record appended; the first of a process is 1.
        synced_lsn: number of the newest record known durable; 0 at the start.
        writing_lsn: number of the newest record in the batch that is being written, or was written last.
        buffered_bytes: of the records appended and not yet durable.
        stalled_since: `loop.time()` at which the running disk job, or the wait for space, began; else None.
        full: why the disk takes no more, while it is full; else None.
        first_segment: number of the oldest segment on disk.
        current_segment: number of the segment last written to.
        on_synced: called with (synced_lsn, segment) after a job; its records are in that segment.
        on_failed: called once, when the disk failed: everything after is refused, the node must stop.
        on_stall: called once for each time that the disk is full, with the error.
        on_space: called once it takes writes again.
    """

    def __init__(
        self,
        disk: Disk,
        folder: str,
        recovered: Recovered,
        release: Callable[[], None],
        *,
        loop: asyncio.AbstractEventLoop,
        executor: Executor | None,
        config: WalConfig,
        rng: random.Random,
    ) -> None:
        """Use `open`."""
        self.tail_lsn = 0
        self.synced_lsn = 0
        self.writing_lsn = 0
        self.buffered_bytes = 0
        self.stalled_since: float | None = None
        self.full: OSError | None = None
        self.first_segment = recovered.first
        self.current_segment = recovered.header.sequence
        self.on_synced: Callable[[int, int], None] = _ignore
        self.on_failed: Callable[[Exception], None] = _ignore
        self.on_stall: Callable[[OSError], None] = _ignore
        self.on_space: Callable[[], None] = _ignore
        self._writer = SegmentWriter(disk, folder, recovered)
        self._loop = loop
        self._executor = executor
        self._config = config
        self._release = release
        self._batches = BatchQueue(
            recovered.header,
            recovered.start,
            recovered.end,
            first=recovered.first,
            segment_bytes=config.segment_bytes,
            rng=rng,
        )
        self._drop_before = recovered.first
        self._busy = False
        self._retry: asyncio.TimerHandle | None = None
        self._refusal: str | None = None
        self._failed = False
        self._quiet: asyncio.Future[None] | None = None

    @classmethod
    def open(
        cls,
        disk: Disk,
        folder: str,
        *,
        loop: asyncio.AbstractEventLoop,
        executor: Executor | None,
        node_id: int,
        cluster_id: str,
        config: WalConfig,
        rng: random.Random,
        replay: Replay,
    ) -> WriteAheadLog:
        """Open or make the log in `folder`; blocking.

        `replay(group, kind, segment number, payload)` is called for every record of a group, oldest first;
        the payload is a `bytes` of its own, which may be kept. All that was replayed is durable on return.
        When this raises, the replayed records mean nothing.

        Raises WalCorruption, WalMismatch (another node's log), WalLocked, and OSError when the disk fails.
        """
        if not 0 < (size := len(cluster_id.encode())) <= MAX_CLUSTER_ID_BYTES:
            raise ValueError(f"the cluster id has {size} bytes: give 1 to {MAX_CLUSTER_ID_BYTES}")
        disk.mkdir(folder)
        try:
            release = disk.lock(f"{folder}/wal.lock")
        except BlockingIOError:
            raise WalLocked(f"{folder} is in use: stop the other process that has this data folder") from None
        try:
            recovered = recover(disk, folder, node_id, cluster_id, replay)
            if recovered is None:
                size, salt = config.segment_bytes, rng.randbytes(8)
                header = SegmentHeader(1, size, node_id, cluster_id, salt, first=1, previous_end=0)
                recovered = Recovered(create_segment(disk, folder, header), header, SECTOR, SECTOR, 1)
            note_started(disk, folder)
        except BaseException:
            release()
            raise
        return cls(disk, folder, recovered, release, loop=loop, executor=executor, config=config, rng=rng)

    def append(self, group: int, kind: RecordKind, payload: bytes) -> int:
        """Buffer a record and return its number; it is not written before `flush`.

        `payload` must not change afterwards. Raises WalFull for entries when too much is buffered, WalFailed
        after a failure or `close`, ValueError for a record that could never be written. Records of other
        kinds are small and always taken: a term that was told and has no record would be no term at all.
        Their number is bounded where they come from (docs/raft.md, "While the log cannot be written").
        """
        if self._refusal is not None:
            raise WalFailed(self._refusal)
        size = RECORD_OVERHEAD + len(payload)
        if self.buffered_bytes + size > self._config.max_buffered_bytes:
            self._check_size(kind, size)
        if not 0 < kind <= LAST_GROUP_KIND:
            raise ValueError(f"{kind!r} records are the log's own")
        self._batches.put(self.tail_lsn + 1, group, kind, payload)
        self.tail_lsn += 1
        self.buffered_bytes += size
        return self.tail_lsn

    def append_segment(self) -> int:
        """Number of the segment that the next record goes to, unless it no longer fits there."""
        return self._batches.tail.header.sequence

    @property
    def is_deleted(self) -> bool:
        """Whether the segment that is written was deleted: what it takes is gone once the process ends."""
        return self._writer.is_deleted

    def flush(self) -> None:
        """Start writing the buffer; records that come in while a write runs follow automatically."""
        if not self._busy and not self._failed:
            self._start_next()

    def may_drop_before(self, seq: int) -> None:
        """Drop the segments numbered below `seq`, of which no group needs anything; at most current_segment.

        A TRIM record is written and synced first. Progress shows in `first_segment`.
        """
        if seq > self.current_segment:
            raise ValueError(f"segment {seq} is not written yet, the current one is {self.current_segment}")
        if seq > self._batches.first and self._refusal is None:
            self._batches.put_trim(seq)
            self.flush()

    async def close(self) -> None:
        """Write the buffer and close; records that a full disk delays were never synced, and are dropped."""
        self.flush()
        self._refusal = self._refusal or "the log is closed"
        while self._busy and self._retry is None:
            self._quiet = self._loop.create_future()
            await self._quiet
        if self._retry is not None:
            self._retry.cancel()
        await self._loop.run_in_executor(self._executor, self._close)

    # Buffering.

    def _check_size(self, kind: RecordKind, size: int) -> None:
        limit = self._config.max_buffered_bytes
        if size > limit:
            raise ValueError(f"a record of {size} bytes is above max_buffered_bytes ({limit}): split it")
        if kind == RecordKind.ENTRIES:
            waiting = self.buffered_bytes
            raise WalFull(f"{waiting} bytes wait for the disk, the limit is {limit}: try again later")

    # Running jobs, one at a time.

    def _start_next(self) -> None:
        if self._drop_before > self.first_segment:
            target = self._drop_before
            drop = functools.partial(self._writer.drop, target)
            self._run(drop, functools.partial(self._on_dropped, target))
        elif (batch := self._batches.take()) is not None:
            self.writing_lsn = batch.lsn or self.writing_lsn
            write = functools.partial(self._writer.write, batch)
            self._run(write, functools.partial(self._on_written, batch))
        else:
            self._pause()

    def _run(self, job: _Step, done: _Step) -> None:
        if not self._busy:
            self._busy = True
            self.stalled_since = self._loop.time()
        self._retry = None
        future = self._loop.run_in_executor(self._executor, job)
        future.add_done_callback(functools.partial(self._on_job_end, job, done))

    def _on_job_end(self, job: _Step, done: _Step, future: asyncio.Future[None]) -> None:
        error = WalFailed("the executor was shut down") if future.cancelled() else future.exception()
        if error is None:
            self._busy = False
            if self.full is not None:
                self.full = None
                self.on_space()
            done()
        elif isinstance(error, OSError) and error.errno in NO_SPACE:
            self._retry = self._loop.call_later(self._config.full_retry_seconds, self._run, job, done)
            self._wake()
            if self.full is None:
                self.full = error
                self.on_stall(error)
        else:
            self._fail(error)

    def _on_written(self, batch: WalBatch) -> None:
        self.buffered_bytes -= batch.buffered
        self.current_segment = batch.header.sequence
        self._drop_before = max(self._drop_before, batch.drop_before)
        self._start_next()
        if batch.lsn:
            self.synced_lsn = batch.lsn
            self.on_synced(batch.lsn, batch.header.sequence)

    def _on_dropped(self, target: int) -> None:
        self.first_segment = target
        self._start_next()

    def _fail(self, error: BaseException) -> None:
        self._failed = True
        self._refusal = f"the log stopped after a disk failure: {error}"
        self._pause()
        self.on_failed(error if isinstance(error, Exception) else WalFailed(self._refusal))

    def _pause(self) -> None:
        self._busy = False
        self.stalled_since = None
        self._wake()

    def _wake(self) -> None:
        if self._quiet is not None and not self._quiet.done():
            self._quiet.set_result(None)

    def _close(self) -> None:
        self._writer.close(failed=self._failed)
        self._release()
