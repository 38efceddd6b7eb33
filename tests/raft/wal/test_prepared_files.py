"""A real file whose space was set aside has zeros written ahead of small writes: their syncs are short."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from strandline.node.raft.disk import PREPARED_BYTES, DiskFile, RealDisk
from strandline.node.raft.wal.segment import WalFailed, write_synced

SIZE = 4 * PREPARED_BYTES


class Writes:
    """The places that the system is told to write, and how the next one ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places: list[tuple[int, int]] = []
        """Offset and size."""
        self.ends: dict[int, int] = {}
        """By offset: so many bytes are written at most, or it is the error with this number, less than 0."""
        self.durable: list[tuple[int, int]] = []
        """Those that are made durable by the same call."""
        self._pwrite = os.pwrite
        monkeypatch.setattr(os, "pwrite", self._write)
        monkeypatch.setattr(os, "pwritev", self._write_durably)

    def _write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        most = self.ends.get(offset, len(data))
        if most < 0:
            raise OSError(-most, os.strerror(-most))
        self.places.append((offset, min(most, len(data))))
        return self._pwrite(fd, data[:most], offset)

    def _write_durably(self, fd: int, parts: Sequence[bytes], offset: int, flags: int) -> int:
        assert flags == os.RWF_DSYNC
        written = self._write(fd, b"".join(parts), offset)
        self.durable.append(self.places.pop())
        return written


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    return Writes(monkeypatch)


def made(path: Path) -> DiskFile:
    file = RealDisk().open(str(path / "file"), create=True)
    file.preallocate(SIZE)
    return file


def test_small_writes_find_zeros_that_were_written_ahead(tmp_path: Path, writes: Writes) -> None:
    file = made(tmp_path)
    for number in range(4):
        file.pwrite(b"x" * 512, number * 512)
    assert writes.places == [(0, 512), (512, PREPARED_BYTES), (512, 512), (1024, 512), (1536, 512)]
    assert file.pread(SIZE + 1, 0) == (b"x" * 2048).ljust(SIZE, b"\0")


def test_the_next_zeros_are_written_where_these_end(tmp_path: Path, writes: Writes) -> None:
    file = made(tmp_path)
    file.pwrite(b"a" * 512, 0)
    file.pwrite(b"b" * 1024, PREPARED_BYTES)
    end = PREPARED_BYTES + 1024
    assert writes.places[2:] == [(PREPARED_BYTES, 1024), (end, PREPARED_BYTES)]
    expected = (b"a" * 512).ljust(PREPARED_BYTES, b"\0") + b"b" * 1024
    assert file.pread(SIZE + 1, 0) == expected.ljust(SIZE, b"\0")


def test_zeros_end_where_the_space_ends(tmp_path: Path, writes: Writes) -> None:
    file = made(tmp_path)
    file.pwrite(b"x" * 512, SIZE - 2048)
    file.pwrite(b"y" * 1536, SIZE - 1536)
    assert writes.places == [(SIZE - 2048, 512), (SIZE - 1536, 1536), (SIZE - 1536, 1536)]
    assert file.size() == SIZE
    assert file.pread(SIZE, SIZE - 2048) == b"x" * 512 + b"y" * 1536


def test_what_is_written_before_them_stays(tmp_path: Path, writes: Writes) -> None:
    """A mark lies before the end that the file was written to."""
    file = made(tmp_path)
    file.pwrite(b"x" * 2048, 0)
    file.pwrite(b"y" * 512, 512)
    assert writes.places[2:] == [(512, 512)]
    assert file.pread(3000, 0) == b"x" * 512 + b"y" * 512 + b"x" * 1024 + bytes(952)


def test_a_write_as_large_as_they_are_has_none_behind_it(tmp_path: Path, writes: Writes) -> None:
    file = made(tmp_path)
    file.pwrite(b"x" * PREPARED_BYTES, 0)
    file.pwrite(b"y" * PREPARED_BYTES, PREPARED_BYTES)
    assert writes.places == [(0, PREPARED_BYTES), (PREPARED_BYTES, PREPARED_BYTES)]


def test_a_file_that_no_space_was_set_aside_for_gets_no_zeros(tmp_path: Path, writes: Writes) -> None:
    file = RealDisk().open(str(tmp_path / "file"), create=True)
    file.pwrite(b"x" * 512, 0)
    assert (writes.places, file.size()) == ([(0, 512)], 512)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_zeros_for_which_there_is_no_space_fail_no_write(tmp_path: Path, writes: Writes, error: int) -> None:
    """A file system that copies on write needs space for them; the write has its own."""
    file = made(tmp_path)
    writes.ends[512] = -error
    file.pwrite(b"x" * 512, 0)
    writes.ends.clear()
    file.pwrite(b"y" * 512, 512)
    assert writes.places == [(0, 512), (512, 512)], "it is not tried again"
    assert file.pread(2048, 0) == b"x" * 512 + b"y" * 512 + bytes(1024)


def test_zeros_that_were_written_in_part_count_in_part(tmp_path: Path, writes: Writes) -> None:
    file = made(tmp_path)
    writes.ends[512] = 1024
    file.pwrite(b"x" * 512, 0)
    file.pwrite(b"y" * 1024, 512)
    file.pwrite(b"z" * 512, 1536)
    assert writes.places == [(0, 512), (512, 1024), (512, 1024), (1536, 512), (2048, PREPARED_BYTES)]


def test_a_write_cut_short_goes_on_and_has_its_zeros_behind_all_of_it(tmp_path: Path, writes: Writes) -> None:
    file = made(tmp_path)
    writes.ends[0] = 100
    file.pwrite(b"x" * 512, 0)
    assert writes.places == [(0, 100), (100, 412), (512, PREPARED_BYTES)]
    assert file.pread(1024, 0) == b"x" * 512 + bytes(512)


def test_a_disk_that_fails_at_zeros_has_failed(tmp_path: Path, writes: Writes) -> None:
    file = made(tmp_path)
    writes.ends[512] = -errno.EIO
    with pytest.raises(OSError, match="Input/output error") as caught:
        file.pwrite(b"x" * 512, 0)
    assert caught.value.filename == str(tmp_path / "file")


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Descriptors that were synced by a call of its own."""
    called: list[int] = []
    monkeypatch.setattr(os, "fdatasync", called.append)
    return called


def test_over_zeros_one_call_writes_and_syncs(tmp_path: Path, writes: Writes, synced: list[int]) -> None:
    file = made(tmp_path)
    write_synced(file, b"a" * 512, 0)
    assert (writes.places, writes.durable, len(synced)) == ([(0, 512), (512, PREPARED_BYTES)], [], 1)
    write_synced(file, b"b" * 1024, 512)
    write_synced(file, b"c" * (PREPARED_BYTES - 1024), 1536)
    assert (len(writes.places), len(synced)) == (2, 1)
    assert writes.durable == [(512, 1024), (1536, PREPARED_BYTES - 1024)]
    assert file.pread(2048, 0) == b"a" * 512 + b"b" * 1024 + b"c" * 512


def test_beyond_the_zeros_there_are_two_calls(tmp_path: Path, writes: Writes, synced: list[int]) -> None:
    """The sync has to take the zeros along that are written behind."""
    file = made(tmp_path)
    write_synced(file, b"a" * 512, 0)
    write_synced(file, b"b" * 1024, PREPARED_BYTES)
    assert (writes.durable, len(synced)) == ([], 2)


@pytest.mark.parametrize("end", [100, -errno.ENOSPC, -errno.EDQUOT, -errno.EOPNOTSUPP, -errno.ENOSYS])
def test_what_one_call_did_not_do_is_done_again_from_the_beginning(
    tmp_path: Path, writes: Writes, synced: list[int], monkeypatch: pytest.MonkeyPatch, end: int
) -> None:
    """A part may have got there, and what a full disk refused may be lost with the sync."""
    file = made(tmp_path)
    write_synced(file, b"a" * 512, 0)
    write_at_once = writes._write_durably

    def fails(fd: int, parts: Sequence[bytes], offset: int, flags: int) -> int:
        writes.ends[offset] = end
        try:
            return write_at_once(fd, parts, offset, flags)
        finally:
            writes.ends.clear()

    monkeypatch.setattr(os, "pwritev", fails)
    write_synced(file, b"b" * 512, 512)
    assert (writes.places[2:], len(synced)) == ([(512, 512)], 2)
    assert file.pread(1536, 0) == b"a" * 512 + b"b" * 512 + bytes(512)


def test_any_other_error_of_it_ends_the_log(tmp_path: Path, writes: Writes) -> None:
    """Written again, the same pages may count as synced, and be nowhere."""
    file = made(tmp_path)
    write_synced(file, b"a" * 512, 0)
    writes.ends[512] = -errno.EIO
    with pytest.raises(WalFailed, match="Input/output error"):
        write_synced(file, b"b" * 512, 512)
    assert len(writes.places) == 2
