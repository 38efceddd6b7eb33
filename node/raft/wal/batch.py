"""The records waiting to be written, gathered into batches that already know their place on the disk.

A record's checksum holds for one segment and offset, so a batch is bound to its place while it is filled.
That needs no disk: batches follow each other without gaps, and where a new segment begins is decided here.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from strandline.node.raft.wal.format import (
    MARK_BYTES,
    RECORD_OVERHEAD,
    SECTOR,
    RecordKind,
    SegmentHeader,
    encode_number,
    encode_padding,
    encode_record_head,
    round_up,
)


@dataclass(slots=True)
class WalBatch:
    """Records that go to disk together, into the segment of `header`, at offsets `start` to `end`.

    `synced_end`: offset up to which the segment is synced once all earlier batches are. `seal`: of the first
    batch of a new segment: seed and offset to seal the older one with. `lsn`: number of the newest record
    of a group, or 0. `buffered`: bytes of the groups' records. `drop_before`: what a TRIM names, or 0.
    """

    header: SegmentHeader
    seed: int
    start: int
    synced_end: int
    seal: tuple[int, int] | None = None
    parts: list[bytes] = field(default_factory=list)
    end: int = 0
    lsn: int = 0
    buffered: int = 0
    drop_before: int = 0

    def __post_init__(self) -> None:
        self.end = self.start

    def has_room(self, payload_bytes: int) -> bool:
        """Whether a record fits, with padding after it and a sector for the last MARK and the SEAL."""
        return self.end + payload_bytes + 2 * RECORD_OVERHEAD <= self.header.size - SECTOR


class BatchQueue:
    """Batches in the order of the log: closed ones to write, and one, the tail, that is being filled.

    `first`: number of the oldest segment that must exist once all that is queued here is synced.
    """

    def __init__(
        self,
        header: SegmentHeader,
        start: int,
        synced_end: int,
        *,
        first: int,
        segment_bytes: int,
        rng: random.Random,
    ) -> None:
        self.first = first
        self.tail = WalBatch(header, header.seed(), start, synced_end)
        self._closed: deque[WalBatch] = deque()
        self._segment_bytes = segment_bytes
        self._rng = rng

    def put(self, lsn: int, group: int, kind: RecordKind, payload: bytes) -> None:
        """Add a group's record."""
        tail = self.tail
        if not tail.has_room(len(payload)):
            self._make_room(len(payload))
            tail = self.tail
        tail.parts.append(encode_record_head(tail.seed, tail.end, group, kind, payload))
        tail.parts.append(payload)
        size = RECORD_OVERHEAD + len(payload)
        tail.end += size
        tail.buffered += size
        tail.lsn = lsn

    def put_trim(self, first: int) -> None:
        """Add a TRIM: once it is synced, the segments numbered below `first` may go."""
        if not self.tail.has_room(MARK_BYTES - RECORD_OVERHEAD):
            self._make_room(MARK_BYTES - RECORD_OVERHEAD)
        tail = self.tail
        record = encode_number(tail.seed, tail.end, RecordKind.TRIM, first)
        tail.parts.append(record)
        tail.end += len(record)
        tail.drop_before = self.first = first

    def take(self) -> WalBatch | None:
        """The next batch to write, with nothing more to come into it; None when there is nothing to write."""
        if not self._closed:
            if not self.tail.parts:
                return None
            self._close_tail()
        return self._closed.popleft()

    def _close_tail(self) -> None:
        tail = self.tail
        padding = encode_padding(tail.seed, tail.end)
        tail.parts.append(padding)
        tail.end += len(padding)
        self._closed.append(tail)
        self.tail = WalBatch(tail.header, tail.seed, tail.end + MARK_BYTES, tail.end)

    def _make_room(self, payload_bytes: int) -> None:
        """Go on in a new segment, large enough for this record."""
        if self.tail.parts:
            self._close_tail()
        old = self.tail
        needed = round_up(SECTOR + payload_bytes + 2 * RECORD_OVERHEAD) + SECTOR
        header = SegmentHeader(
            sequence=old.header.sequence + 1,
            size=max(self._segment_bytes, needed),
            node_id=old.header.node_id,
            cluster_id=old.header.cluster_id,
            salt=self._rng.randbytes(8),
            first=self.first,
            previous_end=old.synced_end,
        )
        self.tail = WalBatch(header, header.seed(), SECTOR, SECTOR, seal=(old.seed, old.start))
