"""Record batches of magic 2, as a producer makes them.

(https://kafka.apache.org/documentation/#recordbatch.) What follows the offset in a record, its key, value and
headers, is made when the record comes; the numbers before that when its batch is closed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from strandline.snapshot.compression import Compression, compress
from strandline.snapshot.producing.transactions import Producer

_COVERED: Final = struct.Struct(">hiqqqhii")
_FRONT: Final = struct.Struct(">qiibI")
_BEHIND_LENGTH: Final = 9
"""Bytes between the length and what the checksum covers: leader epoch, magic, checksum."""
_MAGIC: Final = 2
_TRANSACTIONAL: Final = 0x10
_NO_EPOCH: Final = -1
HEADER_BYTES: Final = _FRONT.size + _COVERED.size
NULL: Final = b"\x01"
"""The length -1."""


def varint(value: int) -> bytes:
    """Zigzag."""
    number = (value << 1) ^ (value >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


SHORT: Final = tuple(varint(number) for number in range(16384))
"""The varints of small numbers, which most are."""


_FRONTS: Final = tuple(b"\0\0" + number for number in SHORT)
"""Attributes, time and number of the records of a batch that are all of one time."""
_MOST_FRONT_BYTES: Final = 16
_NO_HEADERS: Final = b"\0"


def _varint(value: int) -> bytes:
    return SHORT[value] if 0 <= value < len(SHORT) else varint(value)


def sized(data: bytes | None) -> bytes:
    """A length and the bytes; for None the length -1."""
    return NULL if data is None else _varint(len(data)) + data


def headers(pairs: Sequence[tuple[bytes, bytes | None]]) -> bytes:
    """A count, and each header's key and value."""
    return _varint(len(pairs)) + b"".join([sized(key) + sized(value) for key, value in pairs])


def tails(
    keys: Sequence[bytes | None], values: Sequence[bytes | None], packed: Sequence[bytes] | None
) -> list[bytes]:
    """Key, value and headers of each record; `packed`: its headers, None if no record has any."""
    if packed is not None:
        rows = zip(keys, values, packed, strict=True)
        return [sized(key) + sized(value) + more for key, value, more in rows]
    most = len(SHORT)
    return [
        (NULL if key is None else SHORT[len(key)] + key if len(key) < most else sized(key))
        + (NULL if value is None else SHORT[len(value)] + value if len(value) < most else sized(value))
        + _NO_HEADERS
        for key, value in zip(keys, values, strict=True)
    ]


def _records(found: Sequence[bytes], timestamps: Sequence[int]) -> bytes:
    """Records one behind the other. The usual ones are of one time, and short: they go by tables."""
    base, most = timestamps[0], len(SHORT) - _MOST_FRONT_BYTES
    pieces: list[bytes] = []
    if len(found) <= len(_FRONTS) and timestamps.count(base) == len(timestamps):
        for front, tail in zip(_FRONTS, found, strict=False):
            size = len(front) + len(tail)
            pieces += (SHORT[size] if size < most else varint(size), front, tail)
    else:
        for number, (tail, timestamp) in enumerate(zip(found, timestamps, strict=True)):
            front = b"\0" + _varint(timestamp - base) + _varint(number)
            pieces += (_varint(len(front) + len(tail)), front, tail)
    return b"".join(pieces)


def record_batch(
    tails: Sequence[bytes],
    timestamps: Sequence[int],
    producer: Producer,
    sequence: int,
    compression: Compression,
) -> bytes:
    """A transactional batch. `tails`: key, value and headers of each record; timestamps in Unix ms."""
    records = _records(tails, timestamps)
    return framed(records, len(tails), timestamps[0], max(timestamps), producer, sequence, compression)


def framed(
    records: bytes | memoryview[int],
    count: int,
    first_time: int,
    newest_time: int,
    producer: Producer,
    sequence: int,
    compression: Compression,
) -> bytes:
    """A transactional batch of `count` records that lie one behind the other; times in Unix ms."""
    packed = compress(compression, records) if compression else records
    covered = _COVERED.pack(
        _TRANSACTIONAL | compression,
        count - 1,
        first_time,
        newest_time,
        producer.producer_id,
        producer.epoch,
        sequence,
        count,
    )
    length = _BEHIND_LENGTH + len(covered) + len(packed)
    front = _FRONT.pack(0, length, _NO_EPOCH, _MAGIC, crc32c(packed, crc32c(covered)))
    return b"".join((front, covered, packed))
