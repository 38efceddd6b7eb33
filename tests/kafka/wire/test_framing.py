"""Frames come out as they went in, whatever the pieces, and memory follows the bytes that were received."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.node.kafka.wire.framing import FIRST_BYTES, FrameParser, FramingError

LIMIT = 8 << 20


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def push(parser: FrameParser, data: bytes) -> list[bytes]:
    """Deliver bytes as a transport does, through a buffer that is used again afterwards."""
    frames: list[bytes] = []
    while data:
        space = parser.space()
        if space is not None:
            assert space
            size = min(len(space), len(data))
            space[:size] = data[:size]
            parser.filled(size)
        else:
            size = len(data)
            scratch = bytearray(data)
            parser.feed(memoryview(scratch))
            frames += take(parser)
            parser.keep()
            scratch[:] = b"\xff" * size
        data = data[size:]
        frames += take(parser)
    return frames


def take(parser: FrameParser) -> list[bytes]:
    frames = []
    while (frame := parser.next_frame(lambda _size: True)) is not None:
        assert frame.readonly
        frames.append(bytes(frame))
    return frames


@given(
    bodies=st.lists(st.binary(max_size=300), max_size=8),
    big=st.booleans(),
    cuts=st.lists(st.integers(1, 5000), max_size=40),
)
def test_any_pieces_give_the_same_frames(bodies: list[bytes], big: bool, cuts: list[int]) -> None:
    if big:
        bodies.insert(len(bodies) // 2, bytes(range(256)) * 9000)
    stream = b"".join(map(framed, bodies))
    parser = FrameParser(LIMIT)
    frames: list[bytes] = []
    for cut in cuts:
        frames += push(parser, stream[:cut])
        stream = stream[cut:]
    assert frames + push(parser, stream) == bodies
    assert not parser.waits_for_bytes


@pytest.mark.parametrize("length", [-1, -(2**31), LIMIT + 1, 2**31 - 1])
def test_a_length_outside_the_limit_ends_the_stream(length: int) -> None:
    parser = FrameParser(LIMIT)
    parser.feed(struct.pack(">i", length))
    with pytest.raises(FramingError, match=str(length)):
        parser.next_frame(lambda _size: pytest.fail("admission was asked for"))


def test_a_frame_of_exactly_the_limit_passes() -> None:
    assert push(FrameParser(LIMIT), framed(bytes(LIMIT))) == [bytes(LIMIT)]


def test_a_promise_allocates_little_until_the_bytes_come() -> None:
    parsers = [FrameParser(100 << 20) for _ in range(20)]
    tracemalloc.start()
    for parser in parsers:
        push(parser, struct.pack(">i", 100 << 20) + b"x")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 21 * FIRST_BYTES


def test_a_frame_in_small_pieces_costs_a_linear_number_of_copied_bytes() -> None:
    parser = FrameParser(LIMIT)
    parser.feed(struct.pack(">i", LIMIT))
    parser.next_frame(lambda _size: True)
    copied, room = 0, parser.space()
    for _ in range(LIMIT // 64):
        space = parser.space()
        assert space is not None
        if room is not None and space.obj is not room.obj:
            copied += memoryview(room.obj).nbytes
        room = space
        parser.filled(min(64, len(space)))
    assert copied <= LIMIT


def test_a_frame_that_is_not_admitted_stays_and_is_asked_for_again() -> None:
    parser = FrameParser(LIMIT)
    parser.feed(framed(b"abc") + framed(b"defg"))
    assert parser.next_frame(lambda _size: False) is None
    assert parser.wanted == 3
    parser.keep()
    asked: list[int] = []

    def admit(size: int) -> bool:
        asked.append(size)
        return True

    assert [bytes(parser.next_frame(admit) or b"") for _ in range(2)] == [b"abc", b"defg"]
    assert asked == [3, 4]
    assert parser.wanted == 0


def test_an_admitted_incomplete_frame_is_reserved_until_it_is_handed_out() -> None:
    parser = FrameParser(LIMIT)
    push(parser, struct.pack(">i", 10) + b"12345")
    assert parser.reserved == 10
    assert push(parser, b"67890") == [b"1234567890"]
    assert parser.reserved == 0


def test_a_complete_frame_that_is_not_taken_yet_lets_further_bytes_in() -> None:
    parser = FrameParser(LIMIT)
    push(parser, struct.pack(">i", 10) + b"12345")
    space = parser.space()
    assert space is not None
    space[:5] = b"67890"
    parser.filled(5)
    assert parser.space() is None
    parser.feed(framed(b"next"))
    parser.keep()
    assert take(parser) == [b"1234567890", b"next"]
