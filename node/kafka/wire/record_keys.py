"""Finds the records of a batch that have no key, which a compacted topic does not take.

    length varint, attributes i8, timestamp_delta varlong, offset_delta varint, key length varint, key, ...

(https://kafka.apache.org/documentation/#record); a key length below 0, an odd number in zigzag, is no key.
Reading record by record costs half a microsecond each, so runs of records of one size are read column by
column: the same byte of all of them at once.
"""

from __future__ import annotations

import time
from typing import Final

from strandline.node.kafka.wire.record_lengths import WrongRecords, same_size_run
from strandline.node.kafka.wire.response_encoder import Buffer

_LONGEST_RUN: Final = 512
_SHORTEST_RUN: Final = 8
_SINGLY: Final = 64
_RECORDS_A_TURN: Final = 4096
_HIGH: Final = bytes(range(0x80, 0x100))
_EVEN: Final = bytes(range(0, 0x100, 2))


def keyless_records(data: Buffer, position: int, end: int, count: int, most: int) -> list[int]:
    """Numbers within the batch of the first `most` records without a key, ascending.

    `data[position:end]` are uncompressed records that `check_records` has found to be `count`. Raises
    WrongRecords for a record that ends before its key begins. In a thread, the loop's gets its turns: a
    batch may have millions of records.
    """
    found: list[int] = []
    number, pause = 0, _RECORDS_A_TURN
    try:
        while number < count and len(found) < most:
            if number >= pause:
                pause = number + _RECORDS_A_TURN
                time.sleep(0)
            run, stride = same_size_run(data, position, min(count - number, _LONGEST_RUN))
            keys = _column(data, position, run, stride) if run >= _SHORTEST_RUN else None
            if keys is None:
                run = min(count - number, _SINGLY)
                for one in range(number, number + run):
                    keyed, position = _one(data, position, end)
                    if not keyed:
                        found.append(one)
            else:
                position += run * stride
                if keys.translate(None, _EVEN):
                    found += [number + place for place, byte in enumerate(keys) if byte & 1]
            number += run
    except IndexError:
        raise WrongRecords("a record that ends before its key begins") from None
    return found[:most]


def _column(data: Buffer, position: int, run: int, stride: int) -> bytes | None:
    """The first byte of each key's length in a run of records; None when it is not at one place in all."""
    at = 3 if data[position] >= 0x80 else 2
    for _ in ("timestamp delta", "offset delta"):
        more = True
        while more:
            column = bytes(data[position + at : position + run * stride : stride])
            more = not column.isascii()
            if more and column.translate(None, _HIGH):
                return None
            at += 1
            if at >= stride:
                return None
    return bytes(data[position + at : position + run * stride : stride])


def _one(data: Buffer, position: int, end: int) -> tuple[bool, int]:
    """Whether a record has a key, and the position after it."""
    length = shift = 0
    more = True
    while more:
        byte = data[position]
        length |= (byte & 0x7F) << shift
        shift += 7
        position += 1
        more = byte >= 0x80
    after = position + (length >> 1)
    position += 1
    for _ in ("timestamp delta", "offset delta"):
        while data[position] >= 0x80:
            position += 1
        position += 1
    if position >= min(after, end):
        raise WrongRecords("a record that ends before its key begins")
    return not data[position] & 1, after
