"""A paced disk makes large files durable bit by bit, with rests, and reads few bits of them at a time."""

from __future__ import annotations

import errno
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from strandline.node.raft.disk import RealDisk
from strandline.node.raft.disk_pace import (
    HALF,
    MAX_PARTS,
    MOST_REST_SECONDS,
    PIECE_BYTES,
    READS_AT_ONCE,
    PacedReads,
)


class Played:
    """The system's calls: each sync takes so many seconds of a played clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.now = 0.0
        self.rests: list[float] = []
        self.pieces: list[tuple[int, int]] = []
        """Offset and size of each durable write."""
        self.short = 0
        """Bytes that each durable write leaves out."""
        self.code = 0
        self._seconds = seconds
        monkeypatch.setattr(os, "pwritev", self._write)
        monkeypatch.setattr(os, "fdatasync", self._sync)
        monkeypatch.setattr(time, "sleep", self.rests.append)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def _write(self, fd: int, parts: list[Any], offset: int, flags: int) -> int:
        assert flags == os.RWF_DSYNC
        assert len(parts) <= MAX_PARTS
        if self.code:
            raise OSError(self.code, os.strerror(self.code))
        data = b"".join(parts)
        self.pieces.append((offset, len(data)))
        self.now += self._seconds
        return os.pwrite(fd, data[: len(data) - self.short], offset)

    def _sync(self, fd: int) -> None:
        del fd
        self.now += self._seconds


def written(path: Path, parts: list[bytes | bytearray | memoryview], *, paced: bool = True) -> bytes:
    file = RealDisk(pace=HALF if paced else None).open(str(path), create=True)
    try:
        file.write_durably(parts)
        return file.pread(10 * PIECE_BYTES, 0)
    finally:
        file.close()


LARGE: list[bytes | bytearray | memoryview] = [
    os.urandom(10), os.urandom(3 * PIECE_BYTES), b"", os.urandom(PIECE_BYTES - 10), bytearray(os.urandom(5)),
]  # fmt: skip


def test_after_each_piece_but_the_last_it_rests_as_long_as_that_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(monkeypatch, 0.02)
    assert written(tmp_path / "a", LARGE) == b"".join(LARGE)
    assert played.pieces == [(number * PIECE_BYTES, PIECE_BYTES) for number in range(4)] + [
        (4 * PIECE_BYTES, 5)
    ]
    assert played.rests == pytest.approx([0.02] * 4)


def test_a_rest_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, 30.0)
    written(tmp_path / "a", LARGE)
    assert played.rests == [MOST_REST_SECONDS] * 4


def test_others_write_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, 0.02)
    assert written(tmp_path / "a", LARGE, paced=False) == b"".join(LARGE)
    assert played.pieces == [(0, 4 * PIECE_BYTES + 5)]
    assert played.rests == []


def test_small_parts_go_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, 0.02)
    parts: list[bytes | bytearray | memoryview] = [n.to_bytes(2, "big") for n in range(3_000)]
    assert written(tmp_path / "a", parts) == b"".join(parts)
    assert [size for _, size in played.pieces] == [2048, 2048, 1904]


@pytest.mark.parametrize("code", [0, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_piece_that_is_cut_short_or_cannot_be_so_is_made_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    played = Played(monkeypatch, 0.02)
    played.code, played.short = code, 3
    assert written(tmp_path / "a", LARGE) == b"".join(LARGE)
    assert len(played.rests) == 4


def test_an_error_of_the_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Played(monkeypatch, 0.02).code = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        written(tmp_path / "a", LARGE)


def test_an_empty_file_is_durable_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, 0.02)
    assert written(tmp_path / "a", []) == b""
    assert played.now == 0.02


# Reading.


class Reading:
    """The system's calls for reading: each waits until READS_AT_ONCE are there, for a while at most."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.most = 0
        """Calls that were under way together."""
        self.advice: list[int] = []
        self.error: OSError | None = None
        self._under_way = 0
        self._changed = threading.Condition()
        self._pread, self._preadv = os.pread, os.preadv
        monkeypatch.setattr(os, "pread", lambda fd, size, at: self._do(size, self._pread, fd, size, at))
        monkeypatch.setattr(os, "preadv", lambda fd, to, at: self._do(len(to[0]), self._preadv, fd, to, at))
        monkeypatch.setattr(os, "posix_fadvise", lambda fd, start, size, advice: self.advice.append(advice))

    def _do(self, size: int, call: Any, *args: Any) -> Any:
        with self._changed:
            self.sizes.append(size)
            self._under_way += 1
            self.most = max(self.most, self._under_way)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._under_way > READS_AT_ONCE, 0.01)
        try:
            if self.error is not None:
                raise self.error
            return call(*args)
        finally:
            with self._changed:
                self._under_way -= 1


def stored(path: Path) -> bytes:
    data = os.urandom(3 * PIECE_BYTES + 7)
    path.write_bytes(data)
    return data


def test_threads_read_few_pieces_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, reading = stored(tmp_path / "a"), Reading(monkeypatch)
    file = RealDisk(reads=PacedReads()).open(str(tmp_path / "a"))

    def read(number: int) -> bytes:
        if number % 2:
            return file.pread(2 * PIECE_BYTES, PIECE_BYTES + number)
        memory = bytearray(2 * PIECE_BYTES)
        assert file.pread_into(memoryview(memory), PIECE_BYTES + number) == len(memory)
        return bytes(memory)

    with ThreadPoolExecutor(6) as threads:
        assert [*threads.map(read, range(6))] == [
            data[PIECE_BYTES + number : 3 * PIECE_BYTES + number] for number in range(6)
        ]
    file.close()
    assert reading.sizes == [PIECE_BYTES] * 12
    assert reading.most == READS_AT_ONCE
    assert reading.advice == [os.POSIX_FADV_RANDOM]


def test_a_file_that_ends_early_is_read_to_its_end(tmp_path: Path) -> None:
    data = stored(tmp_path / "a")
    file = RealDisk(reads=PacedReads()).open(str(tmp_path / "a"))
    memory = bytearray(4 * PIECE_BYTES)
    assert file.pread_into(memoryview(memory), 0) == len(data)
    assert bytes(memory[: len(data)]) == file.pread(4 * PIECE_BYTES, 0) == data
    file.close()


def test_a_read_that_fails_gives_its_turn_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, reading = stored(tmp_path / "a"), Reading(monkeypatch)
    file = RealDisk(reads=PacedReads()).open(str(tmp_path / "a"))
    reading.error = OSError(errno.EIO, "played")
    for _ in range(READS_AT_ONCE + 1):
        with pytest.raises(OSError, match="played"):
            file.pread(10, 0)
        with pytest.raises(OSError, match="played"):
            file.pread_into(memoryview(bytearray(10)), 0)
    reading.error = None
    assert file.pread(10, 0) == data[:10]
    file.close()


def test_a_file_system_that_takes_no_advice_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: int) -> None:
        raise OSError(errno.EINVAL, "played")

    data = stored(tmp_path / "a")
    monkeypatch.setattr(os, "posix_fadvise", refuse)
    file = RealDisk(reads=PacedReads()).open(str(tmp_path / "a"))
    assert file.pread(len(data), 0) == data
    file.close()


def test_others_read_at_once_and_as_much_as_they_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, reading = stored(tmp_path / "a"), Reading(monkeypatch)
    file = RealDisk(pace=HALF).open(str(tmp_path / "a"))
    assert file.pread(len(data), 0) == data
    memory = bytearray(len(data))
    assert file.pread_into(memoryview(memory), 0) == len(data)
    file.close()
    assert reading.sizes == [len(data)] * 2
    assert reading.advice == []
