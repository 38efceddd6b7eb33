"""The bytes of a write-ahead log segment: its header, its records, and how to walk over them.

Nothing here touches a disk. The layout, and why each field is there, is told in docs/wal.md.
All integers are little-endian. A segment is a header sector, then batches of records; every batch is padded
to a whole number of sectors, so that a write cut short never shares a sector with bytes synced before it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from crc32c import crc32c

SECTOR: Final = 512
"""A write may damage the sectors of this many bytes that it touches, and no others."""

FORMAT_VERSION: Final = 1
WAL_GROUP: Final = 2**64 - 1
"""The group of the log's own records; real groups are below 2**63."""

_MAGIC: Final = b"strndWAL"
_FRAME: Final = struct.Struct("<8sI")
_HEADER: Final = struct.Struct("<8sIIQQ8sQQIB")
_RECORD: Final = struct.Struct("<IIQB")
_SCOPE: Final = struct.Struct("<QB")
_NUMBER: Final = struct.Struct("<Q")
_CRC_END: Final = 8
_MASK: Final = 0xFFFFFFFF
MAX_CLUSTER_ID_BYTES: Final = 255
RECORD_OVERHEAD: Final = _RECORD.size
MARK_BYTES: Final = RECORD_OVERHEAD + _NUMBER.size
MAX_SEGMENT_BYTES: Final = 2**32 - SECTOR


class RecordKind(IntEnum):
    """RecordKind of a record. Those up to CARRIED belong to the groups, the others to the log itself."""

    ENTRIES = 1
    TRUNCATE = 2
    STATE = 3
    SNAPSHOT = 4
    RESET = 5
    FORGET = 6
    CARRY = 7
    CARRIED = 8
    MARK = 64
    SEAL = 65
    TRIM = 66
    PAD = 67


LAST_GROUP_KIND: Final = RecordKind.CARRIED
_GROUP_KINDS: Final[dict[int, RecordKind]] = {
    int(kind): kind for kind in RecordKind if kind <= LAST_GROUP_KIND
}

Replay = Callable[[int, RecordKind, int, bytes], None]
"""Called with (group, kind, segment number, payload)."""


class WalError(Exception):
    """The log cannot do an operation; the message is one line with cause and cure."""


class WalCorruption(WalError):
    """A file of the log is damaged, missing, or of a format this version cannot read."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(f"{file}, offset {offset}: {reason}")
        self.file = file
        self.offset = offset
        self.reason = reason


class WalMismatch(WalError):
    """The log belongs to another node or cluster."""


REPLACE: Final = (
    "keep the folder for inspection, start this node with an empty one, and let that in with `strandline "
    "node replace` and this node's id, so that it copies the others' log"
)


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The first sector of a segment.

    `size`: bytes of the whole file. `first`: number of the oldest segment that must exist. `previous_end`:
    offset up to which the segment before this one was synced when this one was made.
    """

    sequence: int
    size: int
    node_id: int
    cluster_id: str
    salt: bytes
    first: int
    previous_end: int

    def encode(self) -> bytes:
        """The header sector: magic, version and checksum keep their places in every version to come."""
        cluster = self.cluster_id.encode()
        assert len(cluster) <= MAX_CLUSTER_ID_BYTES, "the cluster id's length is checked on opening"
        place = self.sequence, self.size, self.salt, self.first, self.previous_end
        fixed = _HEADER.pack(_MAGIC, FORMAT_VERSION, 0, *place, self.node_id, len(cluster))
        body = (fixed + cluster).ljust(SECTOR, b"\0")
        return body[: _FRAME.size] + struct.pack("<I", crc32c(body)) + body[_FRAME.size + 4 :]

    def seed(self) -> int:
        """Initial value of the segment's record checksums; it covers the whole header, with the salt."""
        return crc32c(self.encode())


def decode_header(file: str, data: bytes) -> SegmentHeader:
    """The header of segment `file`; raises WalCorruption when it is short, damaged, or of a newer format."""
    if len(data) < SECTOR:
        raise WalCorruption(file, len(data), f"the file ends within its header: it was truncated; {REPLACE}")
    magic, version, checksum, *fields = _HEADER.unpack_from(data)
    at = _FRAME.size
    if magic != _MAGIC or crc32c(data[:at] + bytes(4) + data[at + 4 : SECTOR]) != checksum:
        raise WalCorruption(file, 0, f"the segment header is damaged; {REPLACE}")
    if version != FORMAT_VERSION:
        reason = f"written in format {version}, this program reads {FORMAT_VERSION}: start the newer one"
        raise WalCorruption(file, 8, reason)
    sequence, size, salt, first, previous_end, node_id, cluster_bytes = fields
    cluster = data[_HEADER.size : _HEADER.size + cluster_bytes].decode()
    header = SegmentHeader(sequence, size, node_id, cluster, salt, first, previous_end)
    if len(data) != size:
        reason = f"the file has {len(data)} bytes where {size} were preallocated; {REPLACE}"
        raise WalCorruption(file, min(len(data), size), reason)
    return header


def encode_record_head(seed: int, offset: int, group: int, kind: int, payload: bytes) -> bytes:
    """The bytes before a payload. The checksum holds only in this segment and at this offset."""
    checksum = crc32c(payload, crc32c(_SCOPE.pack(group, kind), (seed + offset) & _MASK))
    return _RECORD.pack(len(payload), checksum, group, kind)


def encode_number(seed: int, offset: int, kind: RecordKind, number: int) -> bytes:
    """A record of the log's own: MARK and SEAL carry their offset, TRIM the first segment still needed."""
    payload = _NUMBER.pack(number)
    return encode_record_head(seed, offset, WAL_GROUP, kind, payload) + payload


def round_up(offset: int) -> int:
    """The next sector's start, or `offset` where it is one."""
    return -(-offset // SECTOR) * SECTOR


def encode_padding(seed: int, offset: int) -> bytes:
    """The PAD record that fills from `offset` to a sector's end; nothing where a sector ends already."""
    if offset % SECTOR == 0:
        return b""
    payload = bytes(-(offset + RECORD_OVERHEAD) % SECTOR)
    return encode_record_head(seed, offset, WAL_GROUP, RecordKind.PAD, payload) + payload


@dataclass(frozen=True, slots=True)
class Scan:
    """Result of a walk over a segment's records.

    `end`: offset of the first bytes that are no valid record, or of the SEAL. `mark_end`: end of the last
    MARK met, or of the header. `first`: the highest segment number named by a TRIM, 0 without one.
    """

    end: int
    sealed: bool
    mark_end: int
    first: int


def scan(file: str, sequence: int, seed: int, data: bytes, replay: Replay | None) -> Scan:
    """Walk over a segment's records, giving those of groups to `replay`, up to the SEAL or a bad record."""
    view = memoryview(data)
    size = len(data)
    unpack, group_kind = _RECORD.unpack_from, _GROUP_KINDS.get
    offset, mark_end, first = SECTOR, SECTOR, 0
    while offset + RECORD_OVERHEAD <= size:
        length, checksum, group, kind = unpack(data, offset)
        begin = offset + RECORD_OVERHEAD
        end = begin + length
        if end > size or crc32c(view[offset + _CRC_END : end], (seed + offset) & _MASK) != checksum:
            break
        known = group_kind(kind)
        if known is not None:
            if replay is not None:
                replay(group, known, sequence, data[begin:end])
        elif kind == RecordKind.SEAL:
            return Scan(offset, True, mark_end, first)
        elif kind == RecordKind.MARK:
            mark_end = end
        elif kind == RecordKind.TRIM:
            first = max(first, _NUMBER.unpack_from(data, begin)[0])
        elif kind != RecordKind.PAD:
            reason = f"record of unknown kind {kind}: start the newer program that wrote it instead"
            raise WalCorruption(file, offset, reason)
        offset = end
    return Scan(offset, False, mark_end, first)


def find_mark(seed: int, data: bytes, after: int) -> int | None:
    """Offset of a valid MARK at or after offset `after`: the proof that all bytes before it were synced."""
    for offset in range(round_up(after), len(data) - MARK_BYTES + 1, SECTOR):
        if data[offset + RECORD_OVERHEAD - 1] != RecordKind.MARK:
            continue
        if data.startswith(encode_number(seed, offset, RecordKind.MARK, offset), offset):
            return offset
    return None
