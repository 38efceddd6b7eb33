"""What a node and its worker say to each other comes out as it went in, and nothing else does."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.node.level_one import frames
from strandline.node.level_one.builder import BuildFailed, Merge, Output
from strandline.node.level_one.frames import (
    EXTENTS_AT_A_TIME,
    OutputsGathering,
    build_messages,
    merge_message,
    merge_of,
    plain,
    result_of,
)
from strandline.node.worker import worker_frames
from strandline.node.worker.worker_frames import (
    LENGTH,
    MAX_FRAME_BYTES,
    BadFrame,
    framed,
    length_of,
    message_of,
)
from strandline.statemachine.partition.extent import Extent, InlineExtent, ObjectExtent
from strandline.statemachine.partition.level_one import LevelOneExtent

offsets = st.integers(0, 2**62)
counts = st.integers(1, 2**31 - 1)
terms = st.integers(0, 2**62)
times = st.integers(-(2**63), 2**63 - 1)
lengths = st.integers(0, 2**32 - 1)
ids = st.binary(min_size=16, max_size=16)
objects = st.builds(
    ObjectExtent, offsets, counts, terms, times, lengths, terms, offsets, st.binary(min_size=20, max_size=20)
)
inlines = st.builds(InlineExtent, offsets, counts, terms, times, lengths, st.binary(max_size=100))
extents = st.lists(st.one_of(objects, inlines), max_size=30)
outputs = st.lists(st.builds(Output, ids, st.integers(0, 2**31), terms, ids, extents), max_size=5)
level_one = st.builds(LevelOneExtent, offsets, offsets, times, offsets, lengths, offsets, ids)


def received(asked: list[Output]) -> tuple[list[Output], list[int]]:
    """What the worker has of some outputs, and the sizes of the frames in which it came."""
    gathering, sizes = OutputsGathering(), []
    *messages, last = build_messages(asked)
    assert last == ["build"]
    for message in messages:
        frame = framed(message)
        assert length_of(frame[: LENGTH.size]) == len(frame) - LENGTH.size
        sizes.append(len(frame))
        heard = message_of(frame[LENGTH.size :])
        gathering.output(heard) if heard[0] == "output" else gathering.extents(heard)
    return gathering.outputs, sizes


@settings(deadline=None)
@given(outputs)
def test_outputs_arrive_as_they_were_asked_for(asked: list[Output]) -> None:
    assert received(asked)[0] == asked


def test_many_extents_go_in_slices() -> None:
    many: list[Extent] = [ObjectExtent(n, 1, 2, 3, 4, 5, 6, bytes(20)) for n in range(2500)]
    heard, sizes = received([Output(bytes(16), 0, 1, bytes(16), many)])
    assert heard[0].extents == many
    assert len(sizes) == 1 + 3
    assert max(sizes) < EXTENTS_AT_A_TIME * 70 + 100


def test_inline_batches_go_in_slices() -> None:
    inline = [InlineExtent(n, 1, 2, 3, 400_000, bytes(400_000)) for n in range(10)]
    heard, sizes = received([Output(bytes(16), 0, 1, bytes(16), inline)])
    assert heard[0].extents == inline
    assert len(sizes) == 1 + 4
    assert max(sizes) < frames.INLINE_BYTES_AT_A_TIME + 400_000


@settings(deadline=None)
@given(st.builds(Merge, ids, st.integers(0, 2**31), terms, ids, st.lists(level_one, max_size=9)))
def test_merges_arrive_as_they_were_asked_for(merge: Merge) -> None:
    assert merge_of(message_of(framed(merge_message(merge))[LENGTH.size :])) == merge


@settings(deadline=None)
@given(st.one_of(level_one, st.builds(BuildFailed, st.text(), st.booleans())))
def test_results_come_back_as_they_were(result: LevelOneExtent | BuildFailed) -> None:
    body = framed(["built", plain(result)])[LENGTH.size :]
    assert result_of(message_of(body)[1]) == result
    assert type(result_of(message_of(body)[1])) is type(result)


def test_frames_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadFrame, match=f"is above {MAX_FRAME_BYTES}"):
        length_of(LENGTH.pack(MAX_FRAME_BYTES + 1))
    assert length_of(LENGTH.pack(MAX_FRAME_BYTES)) == MAX_FRAME_BYTES
    monkeypatch.setattr(worker_frames, "MAX_FRAME_BYTES", 100)
    framed(["x" * 90])
    with pytest.raises(ValueError, match="is above 100"):
        framed(["x" * 100])


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", msgpack.packb([]), msgpack.packb([1]), msgpack.packb("built"), b"\x91"]
)
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(BadFrame):
        message_of(body)
