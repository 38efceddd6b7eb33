"""A paced disk makes large files durable bit by bit, and leaves the disk to others in between."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from strandline.node.raft.disk import RealDisk
from strandline.node.raft.write_pace import HALF, MAX_PARTS, MOST_REST_SECONDS, PIECE_BYTES


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
