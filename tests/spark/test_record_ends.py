"""Ends of records, some of which numpy finds at equal distances, against a reader that goes one by one."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strandline.snapshot.record_fields import UnreadableRecords, record_ends
from tests.kafka.wire.batches import varint

COUNTS = st.sampled_from([1, 2, 31, 32, 33, 64, 200, 1_023, 1_100])
RUNS = st.lists(st.tuples(COUNTS, st.sampled_from([0, 1, 62, 63, 64, 8_191])), max_size=4)
"""Runs of records: how many, and of how many bytes."""


def one_by_one(data: bytes, at: int, count: int) -> list[int] | None:
    """The end of each record; None if they do not end with the bytes."""
    ends: list[int] = []
    for _ in range(count):
        size = shift = 0
        while True:
            if at >= len(data) or shift > 28:
                return None
            size |= (data[at] & 0x7F) << shift
            at += 1
            shift += 7
            if data[at - 1] < 0x80:
                break
        at += size >> 1
        ends.append(at)
    return ends if at == len(data) else None


def found(data: bytes, at: int, count: int) -> list[int] | None:
    ends: array[int] = array("q")
    try:
        record_ends(data, at, len(data), count, ends)
    except UnreadableRecords:
        return None
    return list(ends)


@settings(max_examples=100, deadline=None)
@given(RUNS, st.binary(max_size=3), st.binary(min_size=1, max_size=9))
@example([(32, 64), (1, 63)], b"", b"\x80")
@example([(31, 64), (1, 63), (64, 64)], b"", b"\x80")
def test_runs_of_equal_records_end_where_each_does(
    runs: list[tuple[int, int]], before: bytes, content: bytes
) -> None:
    """The content repeats, so that what is taken for a length is often one."""
    bodies = [(content * size)[:size] for count, size in runs for _ in range(count)]
    data = before + b"".join(varint(len(body)) + body for body in bodies)
    ends = found(data, len(before), len(bodies))
    assert ends == one_by_one(data, len(before), len(bodies))
    assert ends is not None


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 70), st.sampled_from([0, 3, 63, 64, 200]), st.integers(0, 1 << 20),
    st.integers(0, 255), st.integers(-2, 2),
)  # fmt: skip
def test_damaged_runs_are_read_as_one_by_one(
    records: int, size: int, place: int, byte: int, miscounted: int
) -> None:
    data = bytearray((varint(size) + b"\0" * size) * records or b"\0")
    data[place % len(data)] = byte
    count = max(0, records + miscounted)
    assert found(bytes(data), 0, count) == one_by_one(bytes(data), 0, count)


@pytest.mark.parametrize("place", [0, 1, 30, 31, 32, 63, 64, 500, 1_023, 1_024, 1_098, 1_099])
@pytest.mark.parametrize("size", [64, 66])
def test_one_record_of_another_length_in_a_long_run(place: int, size: int) -> None:
    """One byte more, and 128 with the same first byte of the length."""
    bodies = [b"v" * (size + (128 if n == place and size == 66 else n == place)) for n in range(1_100)]
    data = b"".join(varint(len(body)) + body for body in bodies)
    assert found(data, 0, len(bodies)) == one_by_one(data, 0, len(bodies))
