"""A round's work on segments: their keys into the map, and what the map leaves of them. All of it blocks.

The map lives as long as a round. A segment is read some blocks at a time, so a round's memory is the map, one
chunk and the segment that is being made.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np

from strandline.node.compaction.bad_batch import BadBatch
from strandline.node.compaction.breath import Breath
from strandline.node.compaction.chunk import CHUNK_BYTES, DecodedChunk, chunks
from strandline.node.compaction.compactor import (
    BEGAN_ANEW,
    Filtered,
    FilterJob,
    JobFailed,
    MapJob,
    Mapped,
    Why,
)
from strandline.node.compaction.filter import Ripe, kept, map_keys
from strandline.node.compaction.key_map import KeyHash, KeyMap, least_map_bytes, map_bytes
from strandline.node.compaction.manifest import NONE, Segment
from strandline.node.compaction.rewriting import Rewritten, rewritten
from strandline.node.compaction.segment_files import (
    TERM,
    LocalLogDamaged,
    OpenSegment,
    disk_reason,
    open_segment,
    segment_unique,
    write_made,
)
from strandline.node.raft.disk import Disk
from strandline.snapshot.level_one_format import Block, StoredSpan
from strandline.snapshot.level_one_writer import LevelOneWriter
from strandline.snapshot.object_frame import BadObject
from strandline.snapshot.record_fields import Longs

_FAR = np.iinfo(np.int64).max
"""In place of a bound, where there is none."""


class SegmentCleaning:
    """The map of the present round, and its jobs one after the other."""

    def __init__(self, disk: Disk, breath: Breath) -> None:
        self._disk = disk
        self._breath = breath
        self._round: int | None = None
        self._keys: KeyMap | None = None

    def map(self, job: MapJob) -> Mapped | JobFailed:
        """Note a segment's keys, up to the first batch that the round must not clean."""
        if job.is_first:
            self._keys = None  # before the next one takes its memory
            # Small rounds get small maps, which are in the processor's cache.
            self._round = job.round
            self._keys = KeyMap(min(job.map_bytes, map_bytes(job.round_records)), KeyHash())
        if self._round != job.round or self._keys is None:
            return JobFailed(Why.LOST, BEGAN_ANEW)
        try:
            opened = open_segment(self._disk, job.place.folder, job.place.identity, job.segment)
            opened.hold()
            try:
                return self._map(job, opened, self._keys)
            finally:
                opened.release()
        except (LocalLogDamaged, BadObject) as error:
            return JobFailed(Why.DAMAGED, str(error))
        except OSError as error:
            return JobFailed(Why.DISK, disk_reason(error, job.place.folder))

    def _map(self, job: MapJob, opened: OpenSegment, keys: KeyMap) -> Mapped:
        last = _last_base(opened) if job.is_last else _FAR
        for data in _pieces(opened):
            begin = 0
            try:
                for chunk in chunks(data):
                    self._breath.take()
                    mapped = _map_chunk(chunk, keys, last, job)
                    if mapped is not None:
                        return mapped
                    begin = int(chunk.position[-1] + chunk.length[-1])
            except BadBatch:
                # One batch at a time: those before the bad one can be cleaned.
                while begin < len(data):
                    end = begin + int.from_bytes(data[begin + 8 : begin + 12], "big") + 12
                    base = int.from_bytes(data[begin : begin + 8], "big")
                    try:
                        [chunk] = chunks(data[begin:end])
                    except BadBatch as error:
                        reason = f"the batch of offset {base} cannot be read: {error}"
                        return Mapped(keys.size, base, problem=reason)
                    mapped = _map_chunk(chunk, keys, last, job)
                    if mapped is not None:
                        return mapped
                    begin = end
        return Mapped(keys.size)

    def filter(self, job: FilterJob) -> Filtered | JobFailed:
        """Make the segments that take the place of some."""
        keys = self._keys
        if self._round != job.round or keys is None:
            return JobFailed(Why.LOST, BEGAN_ANEW)
        opened: list[OpenSegment] = []
        try:
            for one in job.segments:
                opened.append(open_segment(self._disk, job.place.folder, job.place.identity, one))
                opened[-1].hold()
            return _Filtering(self._disk, self._breath, job, keys).run(opened)
        except (LocalLogDamaged, BadObject, BadBatch) as error:
            return JobFailed(Why.DAMAGED, str(error))
        except OSError as error:
            return JobFailed(Why.DISK, disk_reason(error, job.place.folder))
        finally:
            for each in opened:
                each.release()


def _map_chunk(chunk: DecodedChunk, keys: KeyMap, last: int, job: MapJob) -> Mapped | None:
    """Note a chunk's keys; the outcome if the round ends in it."""
    bound, young = last, None
    ends = chunk.base_offset + chunk.header["last_offset_delta"] + 1
    held = np.flatnonzero(ends > job.cleanable_end)
    if held.size:
        bound = min(bound, int(chunk.base_offset[held[0]]))
    if job.newest_ms is not None:
        times = chunk.header["max_timestamp"]
        late = np.flatnonzero(times > job.newest_ms)
        if late.size and (base := int(chunk.base_offset[late[0]])) < bound:
            bound, young = base, int(times[late[0]])
    reached = map_keys(chunk, keys, bound)
    if reached < bound:
        if keys.size == 0:
            records = int(chunk.count[np.searchsorted(chunk.base_offset, reached)])
            problem = (
                f"the batch of offset {reached} has {records} records, and the map of compaction.map_bytes "
                f"is for {keys.capacity} keys: raise it to {least_map_bytes(records)} bytes at least"
            )
            return Mapped(0, reached, problem=problem)
        return Mapped(keys.size, reached)
    if bound <= int(chunk.base_offset[-1]):
        return Mapped(keys.size, bound, young_ms=young)
    return None


def _last_base(opened: OpenSegment) -> int:
    """Base offset of the last batch; a segment without any has none that ends a round."""
    if not opened.footer.blocks:
        return _FAR
    _, spans = opened.batches(opened.footer.blocks[-1])
    return spans[-1].base_offset


def _pieces(opened: OpenSegment) -> Iterator[bytes]:
    """The segment's batches, blocks of about CHUNK_BYTES together."""
    for run in _runs(opened.footer.blocks):
        yield opened.read_run(run)


def _runs(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Neighbouring blocks, of about CHUNK_BYTES together."""
    run: list[Block] = []
    size = 0
    for block in blocks:
        run.append(block)
        size += block.length
        if size >= CHUNK_BYTES:
            yield run
            run, size = [], 0
    if run:
        yield run


class _Filtering:
    """One job: the clean segment in the making, and the one behind the bound."""

    def __init__(self, disk: Disk, breath: Breath, job: FilterJob, keys: KeyMap) -> None:
        self._disk, self._breath, self._job, self._keys = disk, breath, job, keys
        self._ripe = Ripe(job.ripe_tombstones, job.ripe_markers)
        self._base_offset = job.segments[0].base_offset
        self._end_offset = job.segments[-1].end_offset
        self._cut = min(job.bound, self._end_offset)
        """The clean segment ends here."""
        self._clean = self._writer(0, self._base_offset, self._cut)
        self._rest = self._writer(1, job.bound, self._end_offset) if job.bound < self._end_offset else None
        self._read = self._records = self._rest_records = self._removed = 0
        self._rest_since = job.now_ms
        self._tombstone = self._marker = NONE

    def _writer(self, which: int, base_offset: int, end_offset: int) -> LevelOneWriter:
        identity = self._job.place.identity
        unique = segment_unique(self._job.numbers[which])
        writer = LevelOneWriter(identity.topic_id, identity.partition, TERM, unique, self._job.block_bytes)
        writer.allow_holes(base_offset, end_offset)
        return writer

    def run(self, opened: Sequence[OpenSegment]) -> Filtered:
        for one in opened:
            self._segment(one)
        job = self._job
        if not self._removed and len(job.segments) == 1 and self._rest is None:
            same = job.segments[0]._replace(lowest_tombstone=self._tombstone, lowest_marker=self._marker)
            return Filtered((same,), self._read, 0, 0)
        oldest = min(one.ingested_at for one in job.segments)
        row = (self._records, self._tombstone, self._marker, oldest)
        made = [self._made(self._clean, 0, self._base_offset, self._cut, row)]
        if self._rest is not None:
            row = (self._rest_records, NONE, NONE, self._rest_since)
            made.append(self._made(self._rest, 1, self._cut, self._end_offset, row))
        return Filtered(tuple(made), self._read, sum(one.size for one in made), self._removed)

    def _segment(self, opened: OpenSegment) -> None:
        """Filter what lies below the bound, and copy the rest."""
        blocks, bound = opened.footer.blocks, self._job.bound
        below = bisect_right(blocks, bound, key=lambda one: one.end_offset)
        for run in _runs(blocks[:below]):
            self._read += sum(block.length for block in run)
            self._clean_up(opened.read_run(run))
        for block in blocks[below:]:
            data, spans = opened.batches(block)
            self._read += len(data)
            self._clean_up(self._rest_of(data, block.position, spans, opened.segment.ingested_at))

    def _rest_of(self, data: bytes, start: int, spans: Sequence[StoredSpan], ingested_at: int) -> bytes:
        """Copy the batches from the bound on; the bytes of those below it.

        They have waited since their own time: by `ingested_at`, which is of the segment's oldest record, the
        log's last batch would be overdue for good in a log that gets a little at a time. A batch without a
        time has only that.
        """
        below = 0
        view = memoryview(data)
        for one in spans:
            at = one.position - start
            if one.base_offset < self._job.bound:
                below = at + one.length
                continue
            assert self._rest is not None, "there is a batch behind the bound"
            batch = view[at : at + one.length]
            self._rest.add(batch, one.base_offset, one.end_offset, one.leader_epoch, one.max_timestamp)
            self._rest_records += int.from_bytes(batch[57:61], "big")
            since = one.max_timestamp if one.max_timestamp >= 0 else ingested_at
            self._rest_since = min(self._rest_since, since)
        return data[:below]

    def _clean_up(self, data: bytes) -> None:
        for chunk in chunks(data):
            keep = kept(chunk, self._keys, self._ripe)
            self._removed += int(keep.size - np.count_nonzero(keep))
            live = keep & ~chunk.marker
            self._note(chunk.offset[live & chunk.tombstone], chunk.offset[keep & chunk.marker])
            for one in rewritten(chunk, keep):
                self._add(one)
            self._breath.take()

    def _note(self, tombstones: Longs, markers: Longs) -> None:
        if self._tombstone == NONE and tombstones.size:
            self._tombstone = int(tombstones[0])
        if self._marker == NONE and markers.size:
            self._marker = int(markers[0])

    def _add(self, one: Rewritten) -> None:
        self._clean.add(one.data, one.base_offset, one.end_offset, one.leader_epoch, one.max_timestamp)
        self._records += one.records

    def _made(
        self, writer: LevelOneWriter, which: int, base: int, end: int, row: tuple[int, int, int, int]
    ) -> Segment:
        made, place = writer.finish(), self._job.place
        number = self._job.numbers[which]
        write_made(self._disk, place.folder, number, place.maker, made.parts)
        return Segment(number, base, end, made.size, *row)
