"""A snapshot on its way: whatever the network does with the chunks, the bytes arrive or nothing does."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.node.raft.disk import DiskFile
from strandline.node.raft.snapshots.transfer import Receiver, Sender
from tests.simulation.disk import SimDisk

CHUNK, WINDOW = 10, 3


def file_with(data: bytes) -> DiskFile:
    disk = SimDisk(random.Random(0))
    file = disk.open("/f", create=True)
    file.pwrite(data, 0)
    return file


def sender(data: bytes) -> Sender:
    return Sender(file_with(data), 5, 1, b"digest", CHUNK, WINDOW, 0.0)


def receiver(total: int) -> Receiver:
    return Receiver((5, 1, total, b"digest"), file_with(b""))


def chunks(source: Sender) -> list[tuple[int, int]]:
    taken = []
    while (chunk := source.next_chunk()) is not None:
        taken.append(chunk)
    return taken


def test_no_more_than_a_window_is_under_way() -> None:
    source = sender(bytes(100))
    assert chunks(source) == [(0, 10), (10, 10), (20, 10)]
    source.acknowledged(10, 1.0)
    assert chunks(source) == [(30, 10)]
    source.acknowledged(40, 1.0)
    assert chunks(source) == [(40, 10), (50, 10), (60, 10)]


def test_last_chunk_is_as_long_as_what_is_left() -> None:
    assert chunks(sender(bytes(13))) == [(0, 10), (10, 3)]


def test_rewind_sends_again_from_what_is_acknowledged() -> None:
    source = sender(bytes(100))
    chunks(source)
    source.acknowledged(20, 1.0)
    source.rewind(2.0)
    assert source.progress_at == 2.0
    assert chunks(source)[0] == (20, 10)


def test_old_acknowledgement_changes_nothing() -> None:
    source = sender(bytes(100))
    chunks(source)
    source.acknowledged(20, 1.0)
    source.acknowledged(10, 5.0)
    assert source.progress_at == 1.0
    assert chunks(source) == [(30, 10), (40, 10)]


def test_receiver_that_had_to_start_anew_gets_all_again() -> None:
    source = sender(bytes(100))
    chunks(source)
    source.acknowledged(20, 1.0)
    source.acknowledged(0, 2.0)
    assert chunks(source)[0] == (0, 10)


def test_receiver_takes_only_the_chunk_that_comes_next() -> None:
    target = receiver(20)
    assert target.take(10, bytes(10)) is None
    assert target.take(0, b"") is None
    assert target.take(0, bytes(21)) is None, "more than was announced"
    job = target.take(0, bytes(10))
    assert job is not None
    assert job() == 10
    assert target.take(0, bytes(10)) is None
    assert target.expected == 10


@settings(max_examples=100, deadline=None)
@given(st.binary(min_size=1, max_size=120), st.integers(0, 2**32))
def test_lost_doubled_and_reordered_chunks_cost_only_time(data: bytes, seed: int) -> None:
    chance = random.Random(seed)
    source, target = sender(data), receiver(len(data))
    wire: list[tuple[int, bytes]] = []
    for step in range(5000):
        wire += [(offset, source.file.pread(size, offset)) for offset, size in chunks(source)]
        if not wire or chance.random() < 0.05:
            source.rewind(float(step))
            continue
        offset, chunk = wire.pop(chance.randrange(len(wire)))
        if chance.random() < 0.2:
            continue
        if chance.random() < 0.2:
            wire.append((offset, chunk))
        job = target.take(offset, chunk)
        if job is not None:
            target.written = job()
        if target.written == target.total:
            break
        if target.expected:
            source.acknowledged(target.expected, float(step))
    assert target.file.pread(1000, 0) == data
