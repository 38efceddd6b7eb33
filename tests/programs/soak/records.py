"""The records of the load: what each holds follows from who sent it and when, so nothing of it need be kept.

Most are small, some are large, as in a log that many applications share. The bytes do not compress, so that
bytes stored can be held against bytes sent.
"""

from __future__ import annotations

import random
import struct
import zlib
from typing import Final

LARGEST: Final = 900_000
"""Bytes of the largest value; brokers take 1 MiB."""
_FILLER: Final = random.Random(1).randbytes(2 * LARGEST)
_SEED: Final = struct.Struct(">IQ")


def value_of(stream: int, sequence: int) -> bytes:
    """What a stream's record holds."""
    drawn = zlib.crc32(_SEED.pack(stream, sequence))
    head = b"%d %d " % (stream, sequence)
    start = drawn % LARGEST
    return head + _FILLER[start : start + _size(drawn) - len(head)]


def size_of(stream: int, sequence: int) -> int:
    """Bytes of its value."""
    return _size(zlib.crc32(_SEED.pack(stream, sequence)))


def parsed(value: bytes | str | None) -> tuple[int, int]:
    """Stream and sequence of a record; ValueError when it is not, byte for byte, what the load sent."""
    try:
        assert isinstance(value, bytes)
        first, second, _ = value.split(b" ", 2)
        stream, sequence = int(first), int(second)
        if value != value_of(stream, sequence):
            raise ValueError
    except (AssertionError, ValueError, struct.error):
        raise ValueError(f"{(value or b'')[:40]!r} is no record of this load") from None
    return stream, sequence


def _size(drawn: int) -> int:
    """90 of 100 up to 2 kB, 9 up to 64 kB, one up to LARGEST: 9.8 kB on average."""
    kind, rest = drawn % 100, drawn // 100
    if kind < 90:
        return 100 + rest % 1_900
    if kind < 99:
        return 10_000 + rest % 54_000
    return 200_000 + rest % (LARGEST - 200_000)
