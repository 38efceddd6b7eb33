"""Counts the records of a batch by their lengths: the part of validation whose cost grows with the records.

A record begins with its length, a zigzag varint. Going from one to the next in Python costs a tenth of a
microsecond, which for small records is ten times the CRC. So runs of records of one size, as most producers
send, are recognised and compared as a whole.
"""

from __future__ import annotations

from typing import Final

from strandline.node.kafka.wire.response_encoder import Buffer

_SHORTEST_RECORD: Final = 7  # length, attributes, two deltas, key, value, header count: one byte each
_LONGEST_RUN: Final = 512
_SHORTEST_RUN: Final = 8
_HOPS: Final = 64


class WrongRecords(Exception):
    """The records are not as many, or not of the lengths, that the batch declares."""


def check_records(data: Buffer, position: int, end: int, count: int) -> None:
    """Hold the declared count against the uncompressed records in data[position:end], from length to length.

    What is inside a record is not looked at: that is ten times the work, and the CRC has shown that it is
    what the client wrote. Raises WrongRecords.
    """
    if count * _SHORTEST_RECORD > end - position:
        raise WrongRecords(f"{count} records do not fit into {end - position} bytes")
    left = count
    try:
        while left:
            run, stride = same_size_run(data, position, min(left, _LONGEST_RUN))
            if run < _SHORTEST_RUN:
                run, stride = min(left, _HOPS), 0
                position = _hop(data, position, run)
            position += run * stride
            left -= run
    except IndexError:
        raise WrongRecords(f"fewer than the declared {count} records") from None
    if position != end:
        what = "fewer" if position > end else "more"
        raise WrongRecords(f"{what} than the declared {count} records")


def same_size_run(data: Buffer, position: int, most: int) -> tuple[int, int]:
    """Number of records from here on with the same length bytes, and the distance between two in bytes.

    Records of one size come in long runs, and a strided slice compares their lengths all at once.
    """
    first, second = data[position], data[position + 1]
    if first & 1 or (first >= 0x80 and second >= 0x80):
        return 0, 0
    stride = 1 + (first >> 1) if first < 0x80 else (first >> 1) + (second << 6) - 62
    firsts = bytes(data[position : position + most * stride : stride])
    run = len(firsts) - len(firsts.lstrip(firsts[:1]))
    if first >= 0x80 and run >= _SHORTEST_RUN:
        seconds = bytes(data[position + 1 : position + 1 + run * stride : stride])
        run = len(seconds) - len(seconds.lstrip(seconds[:1]))
    return run, stride


def _hop(data: Buffer, position: int, count: int) -> int:
    """The position after `count` records."""
    signs = 0
    for _ in range(count):
        # A zigzag varint: in one or two bytes for nearly every record, half of it the length.
        first = data[position]
        if first < 0x80:
            position += 1 + (first >> 1)
        else:
            second = data[position + 1]
            if second < 0x80:
                position += (first >> 1) + (second << 6) - 62
            else:
                length, position = _long_varint(data, position)
                position += length >> 1
        signs |= first
    if signs & 1:
        raise WrongRecords("a record of negative length")
    return position


def _long_varint(data: Buffer, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 35:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise WrongRecords("a record's length is not a varint of 32 bits")
