"""Frames of the mesh: however they are cut and whoever made them, decoding is bounded, strict, linear."""

from __future__ import annotations

import datetime
import struct
import time
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.node.raft.mesh.frames import (
    FrameKind,
    FrameReader,
    GarbageFrame,
    OversizedFrame,
    body_bytes,
    data_frame,
    pack_frame,
    unpack_handshake,
    unpack_message,
)

LIMIT = 1000


def read(reader: FrameReader, *pieces: bytes) -> list[bytes]:
    return [bytes(body) for piece in pieces for body in reader.feed(piece)]


@given(bodies=st.lists(st.binary(max_size=60)), cuts=st.lists(st.integers(1, 90)))
def test_frames_are_the_same_however_the_stream_is_cut(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(struct.pack(">I", len(body)) + body for body in bodies)
    pieces = []
    for cut in cuts:
        pieces.append(stream[:cut])
        stream = stream[cut:]
    assert read(FrameReader(LIMIT), *pieces, stream) == bodies


def test_a_frame_above_the_limit_is_refused_by_its_length_alone() -> None:
    assert read(FrameReader(LIMIT), struct.pack(">I", LIMIT), bytes(LIMIT)) == [bytes(LIMIT)]
    with pytest.raises(OversizedFrame, match="1001 bytes is above the limit of 1000"):
        read(FrameReader(LIMIT), struct.pack(">I", LIMIT + 1))


def test_the_limit_may_rise_between_two_frames_of_one_piece() -> None:
    reader = FrameReader(4)
    bodies = []
    for body in reader.feed(struct.pack(">I", 4) + b"open" + struct.pack(">I", 20) + bytes(20)):
        bodies.append(len(body))
        reader.limit = 20
    assert bodies == [4, 20]


def test_a_frame_in_many_pieces_costs_linear_time() -> None:
    size = 8 * 1024 * 1024
    frame = struct.pack(">I", size) + bytes(size)
    reader = FrameReader(size)
    started = time.perf_counter()
    bodies = [body for start in range(0, len(frame), 128) for body in reader.feed(frame[start : start + 128])]
    assert [len(body) for body in bodies] == [size]
    assert time.perf_counter() - started < 5, "quadratic copying takes minutes here"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.binary(), inner),
        max_leaves=20,
    )
)
def test_a_payload_comes_back_as_it_was(payload: Any) -> None:
    packed = msgpack.packb(payload)
    frame = data_frame(packed)
    (body,) = FrameReader(body_bytes(frame)).feed(frame)
    assert unpack_message(body) == [FrameKind.DATA, payload]


NOW = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)

NOT_STRICT = {
    "extension": [0, msgpack.ExtType(5, b"x")],
    "empty extension": [0, msgpack.ExtType(5, b"")],
    "timestamp": [0, NOW],
    "number as key": [0, {1: 2}],
    "array as key": [0, {(): 2}],
    "not an array": {"a": 1},
    "no kind": [],
    "a kind that is text": ["0", 1],
    "a kind that is a bool": [False, 1],
    "nothing": None,
}


@pytest.mark.parametrize("message", NOT_STRICT.values(), ids=NOT_STRICT.keys())
def test_what_is_not_plain_msgpack_in_an_array_is_garbage(message: Any) -> None:
    body = msgpack.packb(message, datetime=True)
    with pytest.raises(GarbageFrame):
        unpack_message(body)
    with pytest.raises(GarbageFrame):
        unpack_handshake(body)


@pytest.mark.parametrize(
    "body",
    [b"", b"\x92\x00", b"\x92\x00\xc1", b"\x92\x00\x01\x01", b"\x92\x00\xa1\xff", b"\x91" * 5000 + b"\x00"],
    ids=["empty", "cut", "reserved byte", "something after it", "bad UTF-8", "too deep"],
)
def test_broken_msgpack_is_garbage(body: bytes) -> None:
    with pytest.raises(GarbageFrame) as caught:
        unpack_message(body)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "message",
    [[0] * 33, [1, "x" * 257], [1, bytes(65)], [1, {}, {"a": 1}]],
    ids=["array", "text", "bytes", "map"],
)
def test_a_stranger_gets_no_more_room_than_a_hello_needs(message: list[Any]) -> None:
    body = msgpack.packb(message)
    assert unpack_message(body) == message
    with pytest.raises(GarbageFrame):
        unpack_handshake(body)


@given(st.binary(max_size=200))
def test_random_bytes_are_a_message_or_garbage_and_nothing_else(body: bytes) -> None:
    for unpack in (unpack_message, unpack_handshake):
        try:
            message = unpack(memoryview(body))
        except GarbageFrame as garbage:
            says = str(garbage)
        else:
            says = str(message[0])
        assert says.isprintable()
        assert len(says) < 200


def test_a_control_frame_is_one_length_and_one_array() -> None:
    assert read(FrameReader(LIMIT), pack_frame([FrameKind.PING, 7])) == [msgpack.packb([5, 7])]
