"""One stored batch beside what is said of it: the same for every place where a batch may lie."""

from __future__ import annotations

import struct
from array import array
from typing import Final, NamedTuple

import numpy as np

from strandline.snapshot.compression import Compression, DecompressionError, decompress
from strandline.snapshot.decode import MAX_DECOMPRESSED_BYTES
from strandline.snapshot.level_zero_format import verify_batch
from strandline.snapshot.object_frame import BadObject, Buffer
from strandline.snapshot.record_fields import read_fields, record_ends

_HEADER = struct.Struct(">qiibIhiqqqhii")
_COMPRESSION: Final = 0x07
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_MARKER_KIND = struct.Struct(">h")
_MARKER_END = _HEADER.size + 9
"""End of a marker record's key (KIP-98): after five fields of a byte each, version and kind."""
_COMMIT = 1


class Header(NamedTuple):
    """Fields of a batch's header that audits use."""

    records: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    committed: bool | None
    """A marker's decision; None for a batch of records."""


NOT_READ = (None,) * len(Header._fields)
"""In place of a header that could not be read."""


def check_batch(
    name: str, position: int, length: int, count: int, timestamp: int, data: Buffer, *, whole: bool = True
) -> tuple[str | None, Header | None]:
    """Problems of a batch of `count` offsets with this newest timestamp (ms), and its header.

    A `whole` batch has a record at each of its offsets; of another one compaction may have removed some.
    """
    try:
        verify_batch(name, position, length, data)
    except BadObject as error:
        return error.reason, None
    fields = _HEADER.unpack_from(data)
    attributes, delta, _, newest, producer, epoch, sequence, records = fields[5:]
    problem = None
    if delta != count - 1 or records > count or records < (count if whole else 1):
        problem = f"the extent says {count} records, the batch {records}, the last with delta {delta}"
    elif newest != timestamp:
        problem = f"the extent's newest timestamp is {timestamp}, the batch's {newest}"
    else:
        problem = _records_problem(data, attributes, delta, records, whole)
    committed = None
    if attributes & _CONTROL:
        if length < _MARKER_END:
            return problem or "it is a control batch without a record", None
        (kind,) = _MARKER_KIND.unpack_from(data, _MARKER_END - _MARKER_KIND.size)
        committed = kind == _COMMIT
    transactional = bool(attributes & _TRANSACTIONAL)
    return problem, Header(records, producer, epoch, sequence, transactional, committed)


def _records_problem(data: Buffer, attributes: int, delta: int, records: int, whole: bool) -> str | None:
    """The problem of the records behind a batch's header: they are not as many as it says, or, where
    compaction may have removed some, their offsets do not rise to the header's last."""
    payload = bytes(memoryview(data)[_HEADER.size :])
    ends = array("q")
    try:
        if attributes & _COMPRESSION:
            kind = Compression(attributes & _COMPRESSION)
            payload = bytes(decompress(kind, memoryview(payload), MAX_DECOMPRESSED_BYTES))
        record_ends(payload, 0, len(payload), records, ends)
        if whole:
            return None
        after = np.frombuffer(ends, np.int64)
        starts = np.concatenate([np.zeros(1, np.int64), after[:-1]])
        found = read_fields(np.frombuffer(payload, np.uint8), starts, after, bodies=False, headers=False)
    except (DecompressionError, ValueError) as error:
        return f"its records cannot be read: {error}"
    deltas = found.offset_delta
    if deltas[0] < 0 or (np.diff(deltas) <= 0).any() or deltas[-1] != delta:
        return f"its records have the deltas {deltas.tolist()[:5]} and so on, the header's last is {delta}"
    return None
