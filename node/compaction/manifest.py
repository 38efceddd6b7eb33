"""The manifest of a local log: its segments, and up to where it is clean. One small file, replaced whole.

magic | format version | msgpack of the fields | CRC-32C of all before it
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Final, NamedTuple

import msgpack
from crc32c import crc32c

MAGIC: Final = b"strandCM"
FORMAT_VERSION: Final = 1
NONE: Final = -1
"""In place of an offset: there is no such record."""
_HEAD: Final = struct.Struct("<8sH")
_CRC: Final = struct.Struct("<I")


class ManifestDamaged(ValueError):
    """Bytes that are no manifest, or say what cannot be."""


class LogIdentity(NamedTuple):
    """Cluster, topic and partition that a local log belongs to."""

    cluster: str
    topic_id: bytes
    partition: int

    def __str__(self) -> str:
        topic = f"the topic with id {self.topic_id.hex()} in cluster {self.cluster}"
        return f"partition {self.partition} of {topic}"


class Segment(NamedTuple):
    """A file of the log, and the offsets it stands for, `[base_offset, end_offset)`."""

    number: int
    """Its name; a log never uses one again."""
    base_offset: int
    end_offset: int
    size: int
    """Bytes of the file."""
    records: int
    lowest_tombstone: int
    """Offset of the first one, or NONE; known once a round has read the segment, NONE before."""
    lowest_marker: int
    """The same of the first marker."""
    ingested_at: int
    """When its oldest record came here, or that record's own time if that is earlier, Unix milliseconds."""


class Manifest(NamedTuple):
    """State of a local log. Its segments tile the offsets from the first one's base to `log_end`."""

    identity: LogIdentity
    reset_index: int
    """Log index that was applied when the floors were taken: at the last reset, or later while the log was
    empty. With a state of before, the log takes nothing in: see `ReplicaLog.may_be_filled`."""
    floor: int
    """The MTRO that was applied when the log was last empty and began to be filled."""
    floor_markers: int
    """The MXRO of that moment."""
    clean_end: int
    """Offset below which the log is clean: the end of a segment, or the start of the log."""
    log_end: int
    next_number: int
    segments: tuple[Segment, ...]

    @property
    def start_offset(self) -> int:
        """Base offset of the first segment; `log_end` if there is none."""
        return self.segments[0].base_offset if self.segments else self.log_end


def encoded(manifest: Manifest) -> bytes:
    """A manifest as a file; ValueError for one that cannot be."""
    _check(manifest)
    data = _HEAD.pack(MAGIC, FORMAT_VERSION) + msgpack.packb(manifest)
    return data + _CRC.pack(crc32c(data))


def parsed(data: bytes, identity: LogIdentity) -> Manifest:
    """Read and check what `encoded` gave for this log; raises ManifestDamaged."""
    if len(data) < _HEAD.size + _CRC.size or not data.startswith(MAGIC):
        raise ManifestDamaged("it is not a manifest: cut, or something else")
    if crc32c(data[: -_CRC.size]) != _CRC.unpack_from(data, len(data) - _CRC.size)[0]:
        raise ManifestDamaged("its checksum does not match")
    _, version = _HEAD.unpack_from(data)
    if version != FORMAT_VERSION:
        raise ManifestDamaged(f"it has format version {version}, this release reads {FORMAT_VERSION}")
    try:
        fields = dict(zip(Manifest._fields, msgpack.unpackb(data[_HEAD.size : -_CRC.size]), strict=True))
        fields["identity"] = LogIdentity(*fields["identity"])
        fields["segments"] = tuple(Segment(*one) for one in fields["segments"])
        manifest = Manifest(**fields)
        _check(manifest)
    except (ValueError, TypeError) as error:
        raise ManifestDamaged(f"it says what cannot be: {error}") from error
    if manifest.identity != identity:
        raise ManifestDamaged(f"it is that of {manifest.identity}, not of {identity}")
    return manifest


def _check(manifest: Manifest) -> None:
    """Raise ValueError for what no log is like."""
    segments, clean_end, log_end = manifest.segments, manifest.clean_end, manifest.log_end
    if min(manifest.floor, manifest.floor_markers, clean_end, log_end, manifest.reset_index) < 0:
        raise ValueError("an offset or index is negative")
    for one in segments:
        if one.end_offset <= one.base_offset or one.size <= 0 or one.records < 0:
            raise ValueError(f"no segment is like {one}")
    for one, other in pairwise(segments):
        if one.end_offset != other.base_offset:
            raise ValueError(f"a segment ends at {one.end_offset}, the next begins at {other.base_offset}")
    if segments and segments[-1].end_offset != log_end:
        raise ValueError(f"the segments end at {segments[-1].end_offset}, the log at {log_end}")
    numbers = [one.number for one in segments]
    if len(set(numbers)) != len(numbers) or not all(0 <= one < manifest.next_number for one in numbers):
        raise ValueError(f"segments {numbers} are not numbered below {manifest.next_number}")
    if clean_end not in (manifest.start_offset, *(one.end_offset for one in segments)):
        raise ValueError(f"it is clean up to {clean_end}, where no segment ends")
