"""Opening a log after any crash: replay its records, cut a torn tail, refuse a damaged log.

Nothing on the disk changes before every segment was read and found whole (but a rewrite that an earlier
opening began is finished), so a refusal leaves the evidence as it was. The rules, and
the argument for them, are in docs/wal.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.node.raft.disk import Disk, DiskFile
from strandline.node.raft.wal.format import (
    MARK_BYTES,
    REPLACE,
    SECTOR,
    Replay,
    Scan,
    SegmentHeader,
    WalCorruption,
    WalMismatch,
    decode_header,
    encode_padding,
    find_mark,
    scan,
)
from strandline.node.raft.wal.rewrite import finish_rewrite, rewrite
from strandline.node.raft.wal.segment import (
    drop_segments,
    list_segments,
    mark_synced,
    seal_segment,
    segment_path,
    sync,
    was_started,
)


@dataclass(frozen=True, slots=True)
class Recovered:
    """The segment to go on writing: all before offset `end` is durable, the next batch begins at `start`.

    `first`: number of the oldest segment.
    """

    file: DiskFile
    header: SegmentHeader
    end: int
    start: int
    first: int


class _Segment:
    """One segment read into memory."""

    def __init__(self, disk: Disk, folder: str, sequence: int, node_id: int, cluster_id: str) -> None:
        self.path = segment_path(folder, sequence)
        self.data = disk.read(self.path)
        self.header = decode_header(self.path, self.data)
        if self.header.sequence != sequence:
            reason = f"the file holds segment {self.header.sequence}: undo the renaming"
            raise WalCorruption(self.path, 0, reason)
        if (self.header.node_id, self.header.cluster_id) != (node_id, cluster_id):
            raise WalMismatch(
                f"{self.path} belongs to node {self.header.node_id} of cluster {self.header.cluster_id!r}, "
                f"this is node {node_id} of cluster {cluster_id!r}: start with the data folder, node id and "
                "cluster id that belong together"
            )
        self.seed = self.header.seed()
        self.used = len(self.data.rstrip(b"\0"))

    def scan(self, replay: Replay | None) -> Scan:
        return scan(self.path, self.header.sequence, self.seed, self.data, replay)

    def is_empty(self) -> bool:
        """Whether nothing at all was written after the header (whose own end may be zeros)."""
        return self.used <= SECTOR


def recover(disk: Disk, folder: str, node_id: int, cluster_id: str, replay: Replay) -> Recovered | None:
    """Open the log in `folder`; None when there is none yet. Raises WalCorruption and WalMismatch."""
    finish_rewrite(disk, folder)
    numbers, temporaries = list_segments(disk, folder)
    recovered = None
    if not numbers and was_started(disk, folder):
        reason = f"all segments are missing: bring them back, or {REPLACE}"
        raise WalCorruption(segment_path(folder, 1), 0, reason)
    if numbers:
        recovered = _recover_segments(disk, folder, numbers, node_id, cluster_id, replay)
    for path in temporaries:
        disk.unlink(path)
    return recovered


def _recover_segments(
    disk: Disk, folder: str, numbers: list[int], node_id: int, cluster_id: str, replay: Replay
) -> Recovered:
    last = _Segment(disk, folder, numbers[-1], node_id, cluster_id)
    tail = last.scan(None)
    if tail.sealed:
        missing = segment_path(folder, numbers[-1] + 1)
        raise WalCorruption(missing, 0, f"the newest segment is missing: bring the file back, or {REPLACE}")
    _refuse_synced_damage(last, tail)
    first = max(last.header.first, tail.first)
    _refuse_gaps(folder, first, numbers)
    before_empty: tuple[_Segment, Scan] | None = None
    for number in range(first, last.header.sequence):
        segment = _Segment(disk, folder, number, node_id, cluster_id)
        found = segment.scan(replay)
        if number + 1 == last.header.sequence and last.is_empty():
            before_empty = segment, found
            intact = found.end >= last.header.previous_end
        else:
            intact = found.sealed
        if not intact:
            raise _damage(segment.path, found.end, "a later segment proves")
    last.scan(replay)
    # A process killed while it rolled over may have left the newest name unsynced: before a SEAL may promise
    # that segment, and before records go into it, the name must be durable.
    disk.sync_dir(folder)
    if before_empty is not None:
        _seal_again(disk, *before_empty)
    recovered = _repair_tail(disk, last, tail, first)
    drop_segments(disk, folder, first)
    return recovered


def _damage(path: str, offset: int, proof: str) -> WalCorruption:
    reason = f"a record is damaged, and {proof} that it was synced, so it is not a torn tail; {REPLACE}"
    return WalCorruption(path, offset, reason)


def _refuse_synced_damage(last: _Segment, tail: Scan) -> None:
    if tail.end >= last.used:
        return
    mark = find_mark(last.seed, last.data, tail.end + 1)
    if mark is not None:
        raise _damage(last.path, tail.end, f"the mark at offset {mark} proves")


def _refuse_gaps(folder: str, first: int, numbers: list[int]) -> None:
    present = set(numbers)
    for number in range(first, numbers[-1]):
        if number not in present:
            reason = f"this segment of {first} to {numbers[-1]} is missing: bring the file back, or {REPLACE}"
            raise WalCorruption(segment_path(folder, number), 0, reason)


def _seal_again(disk: Disk, segment: _Segment, found: Scan) -> None:
    """End a roll-over cut short: the SEAL may be missing, torn, or seen by us without being durable."""
    file = disk.open(segment.path)
    _write_again(disk, file, segment, found)
    seal_segment(file, segment.seed, found.end)
    file.close()


def _repair_tail(disk: Disk, last: _Segment, tail: Scan, first: int) -> Recovered:
    """Sync the replayed records, wipe the bytes after them, and pad the log to the end of a sector.

    Each step is synced before the next: were the padding durable before the wiping, old bytes that happen to
    follow it could be read as records after another crash.
    """
    file = disk.open(last.path)
    _write_again(disk, file, last, tail)
    _clear(file, last, tail.end)
    sync(file)
    if tail.end == tail.mark_end:
        start = tail.end
        end = start if start == SECTOR else start - MARK_BYTES
        return Recovered(file, last.header, end, start, first)
    padding = encode_padding(last.seed, tail.end)
    if padding:
        file.pwrite(padding, tail.end)
        sync(file)
    end = tail.end + len(padding)
    mark_synced(file, last.seed, end)
    return Recovered(file, last.header, end, end + MARK_BYTES, first)


def _write_again(disk: Disk, file: DiskFile, segment: _Segment, found: Scan) -> None:
    """Write what no sync is known to cover: the last MARK, which is never synced itself, and what follows it.

    Syncing alone would not do: after a failed fdatasync the system may hold these pages as clean though they
    never reached the disk, and would then report a success that is none. A lost MARK would be a hole.
    """
    start = max(found.mark_end - MARK_BYTES, SECTOR)
    data = segment.data[start : found.end]
    if found.mark_end < found.end:
        folder, _, _ = segment.path.rpartition("/")
        rewrite(
            disk, folder, file, data, seed=segment.seed, sequence=segment.header.sequence, offset=start
        )  # fmt: skip
    elif data:
        file.pwrite(data, start)


def _clear(file: DiskFile, segment: _Segment, offset: int) -> None:
    if offset < segment.used:
        file.pwrite(bytes(segment.used - offset), offset)
