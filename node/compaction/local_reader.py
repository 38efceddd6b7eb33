"""Reads a replica's own log for clients: what lies below its end, in place of level one.

Nothing there is transactional, so an answer needs no list of aborted transactions, and its bytes are final:
they are sent as they lie. A reader of uncommitted records gets the same, which has no aborted ones any more;
Kafka's cleaner removes those too. An answer ends where the log ends, and the next one goes on in level one.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Final, NamedTuple, Protocol

from strandline.node.compaction.compaction_measures import CompactionMeasures
from strandline.node.compaction.local_log import View
from strandline.node.compaction.segment_files import LocalLogDamaged, OpenSegment
from strandline.node.level_one.stored_run import StoredRun
from strandline.snapshot.level_one_format import Block, StoredSpan
from strandline.snapshot.object_frame import BadObject

PIECE_BYTES: Final = 1024 * 1024
"""Bytes of one job off the loop: as much as a consumer asks of a partition by default."""

log = logging.getLogger(__name__)


class ServedLog(Protocol):
    """A replica's log, as its readers need it."""

    def readable(self) -> View | None:
        """The log as it is now, to be held in this turn of the loop; None while it may not be read."""

    def damaged(self, reason: str) -> None:
        """Reset the log: one of its files is not what was written."""


class LocalMeasured(NamedTuple):
    """The size of a possible read."""

    bytes: int
    """An upper bound; whole blocks are counted."""
    end_offset: int
    """Offset up to which was measured."""


class LocalReader:
    """One node's way into the local logs of all its replicas."""

    def __init__(
        self,
        log_of: Callable[[int], ServedLog | None],
        measures: CompactionMeasures,
        *,
        loop: asyncio.AbstractEventLoop,
        executor: Executor | None,
    ) -> None:
        """`log_of` gives the log of a replica by its group, None where there is none; `executor` has the
        threads that read, None for those of the loop."""
        self._measures = measures
        self._log_of = log_of
        self._loop = loop
        self._executor = executor

    def serves(self, group: int, offset: int) -> bool:
        """Whether an offset lies in a log that may be read."""
        return self._view(group, offset) is not None

    def measured(self, group: int, offset: int, end: int, max_bytes: int) -> LocalMeasured:
        """The size of what `read` would return, up to the block that reaches `max_bytes`; no disk access.

        Only for an offset that the log `serves`.
        """
        view = self._view(group, offset)
        assert view is not None, "it serves the offset"
        size = 0
        for _, block in _blocks(view, offset):
            if block.base_offset >= end or size >= max(max_bytes, 1):
                return LocalMeasured(size, max(block.base_offset, offset))
            size += block.length
        return LocalMeasured(size, min(end, view.manifest.log_end))

    async def read(self, group: int, offset: int, end: int, max_bytes: int) -> list[StoredRun]:
        """The batches of the log that hold offsets in `[offset, end)`, up to `max_bytes`, as they lie.

        Only for an offset that the log `serves`. The first batch comes whatever its length; else the answer
        ends with a whole block, or with the log. An offset that was removed gets the next batch there is.
        Empty if there is none below `end`, and where a file is damaged: then the log is reset. Level one has
        the answer in both cases.
        """
        present = self._view(group, offset)
        assert present is not None, "it serves the offset"
        view = present.hold()
        found: list[StoredRun] = []
        room = max_bytes
        job: asyncio.Future[list[StoredRun]] | None = None
        try:
            while offset < end and (room > 0 or not found):
                job = asyncio.ensure_future(
                    self._loop.run_in_executor(
                        self._executor, _piece, view, offset, end, min(room, PIECE_BYTES), not found
                    ),
                    loop=self._loop,
                )
                # A job that has begun goes on without the client that wanted it.
                runs = await asyncio.shield(job)
                if not runs:
                    break
                found += runs
                offset = runs[-1].end_offset
                room -= sum(len(run.data) for run in runs)
        except (BadObject, LocalLogDamaged, OSError) as error:
            self._measures.bad_reads += 1
            log.error("a file of a local log cannot be read, and the log is rebuilt: %s", error)
            served = self._log_of(group)
            # A change since then may have removed the file: if not, the next read meets it again.
            if served is not None and served.readable() is view:
                served.damaged(str(error))
        finally:
            _after(job, view)
        self._measures.local_reads += 1
        self._measures.local_read_bytes += sum(len(run.data) for run in found)
        return found

    def _view(self, group: int, offset: int) -> View | None:
        """The log that an offset lies in, as it is now."""
        served = self._log_of(group)
        view = None if served is None else served.readable()
        if view is None or not view.manifest.start_offset <= offset < view.manifest.log_end:
            return None
        return view


def _after(job: asyncio.Future[list[StoredRun]] | None, view: View) -> None:
    """Let go of a view once nothing reads from it."""

    def ended(job: asyncio.Future[list[StoredRun]]) -> None:
        view.release()
        if not job.cancelled():
            job.exception()  # which concerns nothing any more

    if job is None or job.done():
        view.release()
    else:
        job.add_done_callback(ended)


def _blocks(view: View, offset: int) -> Iterator[tuple[OpenSegment, Block]]:
    """The blocks from the one on that an offset of the log is in."""
    first = bisect_right(view.segments, offset, key=lambda one: one.segment.base_offset) - 1
    for number in range(first, len(view.segments)):
        blocks = view.segments[number].footer.blocks
        begin = (
            bisect_right(blocks, offset, key=lambda block: block.base_offset) - 1 if number == first else 0
        )
        for block in blocks[max(begin, 0) :]:
            yield view.segments[number], block


def _piece(view: View, offset: int, end: int, room: int, first: bool) -> list[StoredRun]:
    """Batches from an offset on; whole blocks, but where the first or the last one wanted is within a block.

    With `first` the first batch comes whatever its length. Blocks; raises BadObject and OSError.
    """
    found: list[StoredRun] = []
    for segment, block in _blocks(view, offset):
        if block.base_offset >= end or (block.length > room and (found or not first)):
            break
        if offset <= block.base_offset and block.end_offset <= end and block.length <= room:
            data = segment.read(block)
            found.append(StoredRun(int.from_bytes(data[:8], "big"), block.end_offset, data))
            room -= block.length
            continue
        data, spans = segment.batches(block)
        wanted = [one for one in spans if one.end_offset > offset and one.base_offset < end]
        chosen = _fitting(wanted, room)
        if chosen:
            start, stop = chosen[0].position, chosen[-1].position + chosen[-1].length
            part = memoryview(data)[start - block.position : stop - block.position]
            whole = chosen[-1] is spans[-1]
            after = block.end_offset if whole else chosen[-1].end_offset
            found.append(StoredRun(chosen[0].base_offset, after, part))
            room -= len(part)
        if len(chosen) < len(wanted):
            break
    return found


def _fitting(spans: list[StoredSpan], room: int) -> list[StoredSpan]:
    """As many batches as have room, and the first whatever its length."""
    count = 0
    for one in spans:
        room -= one.length
        if room < 0 and count:
            break
        count += 1
    return spans[:count]
