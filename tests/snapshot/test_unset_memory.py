"""Buffers that are not zeroed are buffers like any other once they are written."""

from __future__ import annotations

import tracemalloc

import pytest

from strandline.snapshot.unset_memory import unset_bytes


@pytest.mark.parametrize("size", [0, 1, 4096, 3 << 20])
def test_a_buffer_holds_what_is_written_and_grows(size: int) -> None:
    buffer, other = unset_bytes(size), unset_bytes(size)
    assert type(buffer) is bytearray
    assert len(buffer) == size
    buffer[:] = b"\x07" * size
    other[:] = b"\x08" * size
    buffer += b"end"
    assert buffer == b"\x07" * size + b"end"
    assert other == b"\x08" * size


def test_its_memory_is_pythons_and_goes_with_it() -> None:
    tracemalloc.start()
    try:
        buffer = unset_bytes(5 << 20)
        assert tracemalloc.get_traced_memory()[0] >= 5 << 20
        del buffer
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_size_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="a buffer cannot have -1 bytes"):
        unset_bytes(-1)
