"""Long ranges that are read once: the same bytes, and the system's page cache stays as it was."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strandline.node.objectstore import past_cache
from strandline.node.objectstore.past_cache import (
    ALIGNMENT,
    PAST_CACHE_FROM,
    ROOM_BYTES,
    SEEN_RANGES,
    SPARE_ROOMS,
    SPARE_SECONDS,
    PastCache,
    cached_part,
)
from strandline.node.raft.disk import DiskFile, RealDisk
from tests.objectstore.files import opened_store

MIB = 1 << 20
DATA = os.urandom(3 * MIB + 1234)


class FakeLoop:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []

    def call_later(self, delay: float, call: Callable[..., None], *args: Any) -> Any:
        self.timers.append((delay, call, args))
        return self

    def cancel(self) -> None:
        self.timers.clear()

    def fire(self) -> float:
        delay, call, args = self.timers.pop(0)
        call(*args)
        return delay


@pytest.fixture
def loop() -> FakeLoop:
    return FakeLoop()


@pytest.fixture
def reads(loop: FakeLoop) -> PastCache:
    fake: Any = loop
    return PastCache(fake)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that is not in the system's memory."""
    path = tmp_path / "object"
    path.write_bytes(DATA)
    written = part(path)
    forget(path)
    if (written, part(path)) != (1.0, 0.0):  # an overlay says that nothing is, and a tmpfs forgets nothing
        pytest.skip("the system cannot say what of a file is in memory")
    return path


def forget(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def part(path: Path, start: int = 0, length: int = len(DATA)) -> float | None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return cached_part(descriptor, start, length)
    finally:
        os.close(descriptor)


def taken(reads: PastCache, file: DiskFile, start: int, length: int = MIB) -> bytes | None:
    """A copy of what is read past the cache."""
    view = reads.read(file, start, length)
    return None if view is None else bytes(view)


def opened(path: Path) -> DiskFile:
    return RealDisk().open(str(path))


@pytest.mark.parametrize(
    ("start", "length"),
    [
        (0, MIB),
        (1, MIB),
        (ALIGNMENT - 1, ALIGNMENT + 2),
        (ALIGNMENT, ROOM_BYTES - ALIGNMENT),
        (777, ROOM_BYTES),  # more than a room
        (MIB + 5, 2 * MIB + 1229),
        (len(DATA) - 1, 1),
    ],
)
def test_the_bytes_are_those_of_the_file_and_do_not_stay_in_memory(
    reads: PastCache, path: Path, start: int, length: int
) -> None:
    found = reads.read(opened(path), start, length)
    assert found is not None, "ext4, xfs and btrfs can read so"
    assert found == DATA[start : start + length]
    assert part(path) == 0.0


def test_a_file_that_ends_before_gives_what_there_is(reads: PastCache, path: Path) -> None:
    assert taken(reads, opened(path), len(DATA) - 10) == DATA[-10:]
    assert taken(reads, opened(path), len(DATA) + MIB) == b""


def test_what_is_in_memory_is_taken_from_there(reads: PastCache, path: Path) -> None:
    with open(path, "rb") as file:
        file.read(MIB)
    part_of_both = part(path, 0, 2 * MIB)
    assert part_of_both is not None
    assert part_of_both >= 0.5
    assert reads.read(opened(path), 0, MIB) is None
    assert reads.read(opened(path), 0, 2 * MIB) is None
    assert reads.bytes_read == 0


def test_the_second_time_a_store_reads_by_the_page_cache(tmp_path: Path, path: Path) -> None:
    async def check() -> None:
        store = opened_store(tmp_path)
        length = PAST_CACHE_FROM
        for wanted in (0.0, 1.0, 1.0):
            assert await store.get_range("object", MIB, length) == DATA[MIB : MIB + length]
            assert part(path, MIB, length) == wanted
        forget(path)
        assert await store.get_range("object", MIB - 1, length) == DATA[MIB - 1 : MIB - 1 + length]
        assert part(path) == 0.0, "another range"
        await store.get_range("object", 0, length - 1)
        assert part(path, 0, length) != 0.0, "a short one"
        await store.close()

    asyncio.run(check())


def test_so_many_ranges_are_remembered(reads: PastCache) -> None:
    assert reads.is_first("a", 0)
    for number in range(SEEN_RANGES - 1):
        assert reads.is_first("b", number)
    assert not reads.is_first("a", 0)  # and is the newest now
    assert reads.is_first("c", 0)
    assert reads.is_first("b", 0)
    assert not reads.is_first("a", 0)


def test_memory_is_used_again_only_once_nothing_of_it_is_referred_to(reads: PastCache, path: Path) -> None:
    file = opened(path)
    views = [reads.read(file, number * 1000, MIB) for number in range(SPARE_ROOMS + 2)]
    kept = [view[10:20] for view in views if view is not None]
    del views
    assert len(reads._spare) == 0
    for number in range(3):
        assert taken(reads, file, 500 + number) == DATA[500 + number : 500 + number + MIB]
    assert [bytes(view) for view in kept] == [
        DATA[number * 1000 + 10 : number * 1000 + 20] for number in range(SPARE_ROOMS + 2)
    ]
    assert len(reads._spare) == 1, "one that all three had"
    kept.clear()
    assert len(reads._spare) == SPARE_ROOMS


def test_spare_memory_is_given_back_after_a_while(reads: PastCache, loop: FakeLoop, path: Path) -> None:
    assert reads.is_first("object", 0)
    reads.read(opened(path), 0, MIB)
    assert reads.is_first("object", 1)
    assert loop.fire() == SPARE_SECONDS
    assert len(reads._spare) == 1, "there was a read meanwhile"
    loop.fire()
    assert len(reads._spare) == 0
    assert not loop.timers
    assert reads.is_first("object", 3)
    cached = reads.read(opened(path), 0, MIB)
    loop.fire()
    loop.fire()
    assert cached is not None
    assert bytes(cached) == DATA[:MIB]
    del cached  # a cache kept it for longer
    loop.fire()
    assert len(reads._spare) == 0
    assert not loop.timers
    reads.is_first("object", 2)
    reads.close()
    assert not loop.timers


@pytest.mark.parametrize("call", ["open", "preadv"])
def test_where_the_file_system_refuses_the_page_cache_has_it(
    reads: PastCache, path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    file, refused = opened(path), []

    def refuse(*_: object) -> int:
        refused.append(call)
        raise OSError(errno.EINVAL, "no")

    monkeypatch.setattr(os, call, refuse)
    assert reads.read(file, 0, MIB) is None
    assert refused == [call]


def test_a_disk_that_cannot_read_is_an_error(
    reads: PastCache, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = opened(path)

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "damaged")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(OSError, match="damaged"):
        reads.read(file, 0, MIB)


def test_a_system_that_cannot_tell_reads_as_ever(
    reads: PastCache, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past_cache, "_system", None)
    assert part(path) is None
    assert reads.read(opened(path), 0, MIB) is None
