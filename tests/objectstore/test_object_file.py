"""Objects held open: what is read of them, what is in memory, when they are let go of."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
from pathlib import Path

import pytest
from crc32c import crc32c

from strandline.node.objectstore import object_file
from strandline.node.objectstore.object_file import CHECKED_BYTES, FileCut, ObjectFile
from strandline.node.objectstore.store import ObjectNotFound, RangeNotFound
from tests.objectstore.files import opened_store, stored_file
from tests.open_files import open_below

DATA = os.urandom(3 * CHECKED_BYTES + 1000)


def test_checksums_are_those_of_the_bytes(tmp_path: Path) -> None:
    async def check() -> None:
        store = opened_store(tmp_path)
        file = await stored_file(store, "a/b", DATA)
        ranges = [(0, 1), (5, CHECKED_BYTES), (7, CHECKED_BYTES + 1), (0, len(DATA))]
        found = await store.checked(file, ranges)
        parts = [DATA[start : start + length] for start, length in ranges]
        assert found == [(crc32c(part), part[:8]) for part in parts]
        with pytest.raises(RangeNotFound):
            await store.checked(file, [(0, 1), (len(DATA) - 5, 6)])

    asyncio.run(check())


def test_what_the_system_has_let_go_of_is_told_and_comes_back_by_a_load(tmp_path: Path) -> None:
    async def check() -> None:
        file = await stored_file(opened_store(tmp_path), "a/b", DATA)
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        before = file.in_memory(0, len(DATA))
        await file.load(0, len(DATA))
        assert (before, file.in_memory(0, len(DATA))) == (False, True)
        with pytest.raises(FileCut):
            file.in_memory(0, len(DATA) + 1)
        with pytest.raises(FileCut):
            await file.load(len(DATA) - 1, 2)

    asyncio.run(check())


def test_what_is_not_in_memory_is_asked_for_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An advice that is refused is no error: the bytes come all the same."""
    asked: list[tuple[int, int, int]] = []
    looked: list[int] = []

    def has(file: ObjectFile, position: int) -> bool:
        looked.append(position)
        return len(looked) > 1

    def advise(fd: int, start: int, length: int, advice: int) -> None:
        asked.append((start, length, advice))
        raise OSError(errno.EINVAL, "no such advice")

    async def check() -> None:
        store = opened_store(tmp_path)
        file = await stored_file(store, "a/b", DATA)
        monkeypatch.setattr(ObjectFile, "_has", has)
        monkeypatch.setattr(os, "posix_fadvise", advise)
        ranges = [(4, 5000), (5004, CHECKED_BYTES), (5004 + CHECKED_BYTES, 3)]
        for _ in range(2):
            assert [one.crc for one in await store.checked(file, ranges)] == [
                crc32c(DATA[start : start + length]) for start, length in ranges
            ]
        assert asked == [(4, 5003 + CHECKED_BYTES, os.POSIX_FADV_WILLNEED)], "it is in memory then"
        assert looked == [4, 4]
        assert await store.checked(file, []) == []

    asyncio.run(check())


def test_a_deleted_object_keeps_its_bytes_while_it_is_open(tmp_path: Path) -> None:
    async def check() -> None:
        store = opened_store(tmp_path)
        file = await stored_file(store, "a/b", DATA)
        before = file.deleted
        await store.delete_many(["a/b"])
        assert (before, file.deleted) == (False, True)
        assert os.pread(file.fileno(), len(DATA), 0) == DATA
        with pytest.raises(ObjectNotFound):
            await store.open_file("a/b")

    asyncio.run(check())


def open_objects(folder: Path) -> int:
    """Descriptors of this process for objects a/... that are stored below a folder."""
    return sum("/a/" in name for name in open_below(folder))


def test_open_files_are_counted_bounded_and_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_file, "MAX_OPEN_FILES", 2)

    async def check() -> None:
        store = opened_store(tmp_path)
        files = [await stored_file(store, f"a/{number}", b"data") for number in range(2)]
        assert await store.open_file("a/0") is None
        assert store.has_files
        assert open_objects(tmp_path) == 2
        files.pop()
        await store.size("a/0")  # so that the thread has let go of its last job
        gc.collect()
        assert open_objects(tmp_path) == 1
        assert await store.open_file("a/0") is not None

    asyncio.run(check())


def test_a_file_system_that_cannot_say_what_is_in_memory_has_no_files_to_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    async def check() -> None:
        store = opened_store(tmp_path)
        await store.put("a/b", [DATA])
        monkeypatch.setattr(os, "preadv", unsupported)
        assert await store.open_file("a/b") is None
        assert not store.has_files
        assert not open_objects(tmp_path)

    asyncio.run(check())
