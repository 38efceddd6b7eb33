"""The few disk operations the node relies on, as protocols, so that durability can be tested.

Everything that must survive a crash goes through `Disk`: production runs on `RealDisk`, the simulator on one
that knows which bytes and which directory entries were synced. The operations are as small as the promises a
file system really makes: a write is not durable before `datasync`, a name is not durable before `sync_dir`.

All block; on the event loop they run by `loop.run_in_executor`. All raise `OSError` as the system does.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from strandline.node.raft.block_groups import spread_folders
from strandline.node.raft.disk_pace import MAX_PARTS, Reads, WritePace, pieces

_ZEROS = bytes(1 << 20)
_WRITES_DURABLY = sys.platform == "linux" and hasattr(os, "RWF_DSYNC")
_NO_SUCH_CALL = (errno.EOPNOTSUPP, errno.ENOSYS)
_FULL = (errno.ENOSPC, errno.EDQUOT)
PREPARED_BYTES: Final = 1 << 19
"""Zeros written behind a small write into space that was set aside. The first write of such a place changes
file's map as well, and its sync waits for the file system's journal. Writing over zeros needs neither."""


class DiskFile(Protocol):
    """An open file, read and written at given offsets (bytes)."""

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write all of `data` at `offset`, or raise; after an error an unknown part of it was written."""

    def pread(self, size: int, offset: int) -> bytes:
        """Read `size` bytes, fewer only at the end of the file."""

    def pread_into(self, memory: memoryview, offset: int) -> int:
        """Read into memory until that is full or the file ends; how many bytes were read."""
        data = self.pread(len(memory), offset)
        memory[: len(data)] = data
        return len(data)

    def preallocate(self, size: int) -> None:
        """Let the file have `size` zero bytes for which space is set aside: writing them cannot fail for want
        of it, nor does a later `datasync` have a new length to store."""

    def datasync(self) -> None:
        """Make every byte written so far durable. After an error they may be lost: never try again."""

    def overwrite_durably(self, data: bytes, offset: int) -> bool:
        """Do `pwrite` over bytes that were written before, and make these bytes durable, in one system call.

        False where that is not possible, or the disk was full on the way: `pwrite` and `datasync` have to do
        it, from the beginning. An OSError means what it means from `datasync`.
        """
        return False

    def write_durably(self, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        """Write `parts` from the file's start, one after the other, and make them durable: what `pwrite` and
        `datasync` do, in one system call where there is one. After an error the file is worthless."""
        offset = 0
        for part in parts:
            self.pwrite(part, offset)
            offset += len(part)
        self.datasync()

    def forget_cached(self) -> None:
        """Say that the durable bytes are not read soon: the system may take back the memory they are in."""
        return

    def descriptor(self) -> int | None:
        """A descriptor of this file, which the caller closes; None where the system has no such file."""
        return None

    def is_deleted(self) -> bool:
        """Whether its name was removed: it can be written as before, and goes with its last descriptor."""
        return False

    def size(self) -> int:
        """Length in bytes."""

    def close(self) -> None:
        """Close without syncing."""


class DiskUsage(NamedTuple):
    """Bytes of a file system, and those of them that are free for this process."""

    total: int
    free: int


class Disk(Protocol):
    """A file system."""

    def mkdir(self, path: str) -> None:
        """Make a folder and its parents, durably; fine if it exists."""

    def listdir(self, path: str) -> list[str]:
        """Names in a folder, sorted."""

    def exists(self, path: str) -> bool: ...

    def read(self, path: str) -> bytes:
        """The whole file."""

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        """Open to read and write. With `create` the file must not exist; its name is not yet durable."""

    def rename(self, src: str, dst: str) -> None:
        """Atomically give `src` the name `dst`, replacing what had it; durable after `sync_dir`."""

    def unlink(self, path: str) -> None:
        """Remove a file; durable after `sync_dir`."""

    def rmdir(self, path: str) -> None:
        """Remove an empty folder; OSError(ENOTEMPTY) when it is not."""

    def sync_dir(self, path: str) -> None:
        """Make the names in a folder durable."""

    def usage(self, path: str) -> DiskUsage | None:
        """Tell how full a folder's disk is; None where it has no end. Raises OSError."""
        return None

    def lock(self, path: str) -> Callable[[], None]:
        """Take a lock file and return its release; `BlockingIOError` when another process has it."""


class RealFile(DiskFile):
    """A `DiskFile` on a POSIX file descriptor."""

    def __init__(
        self, fd: int, path: str, reads: Reads, *, keep_cached: bool = False, pace: WritePace | None = None
    ) -> None:
        self._fd, self._path, self._reads = fd, path, reads
        self._keep_cached = keep_cached
        self._pace = pace
        self._prepared = self._set_aside = 0
        """Up to where the file was written, and up to where there is space for it."""

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        try:
            written = os.pwrite(self._fd, data, offset)
            if written < len(data):
                rest = memoryview(data)
                while written < len(rest):
                    written += os.pwrite(self._fd, rest[written:], offset + written)
        except OSError as error:
            raise self._named(error) from None
        if self._prepared < offset + written < self._set_aside:
            self._prepare(offset + written, written)

    def _prepare(self, end: int, size: int) -> None:
        """Write zeros behind a write of `size` bytes up to `end`, unless the next one would use them up."""
        self._prepared = end
        if size >= PREPARED_BYTES:
            return
        zeros = memoryview(_ZEROS)[: min(PREPARED_BYTES, self._set_aside - end)]
        try:
            self._prepared += os.pwrite(self._fd, zeros, end)
        except OSError as error:
            if error.errno not in _FULL:
                raise self._named(error) from None
            self._set_aside = 0  # It copies on write. What was written has its place.

    def pread(self, size: int, offset: int) -> bytes:
        parts: list[bytes] = []
        while size > 0 and (part := self._reads.pread(self._fd, size, offset)):
            parts.append(part)
            size -= len(part)
            offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def pread_into(self, memory: memoryview, offset: int) -> int:
        read = 0
        while read < len(memory) and (
            count := self._reads.pread_into(self._fd, memory[read:], offset + read)
        ):
            read += count
        return read

    def preallocate(self, size: int) -> None:
        if hasattr(os, "posix_fallocate"):
            # Reserving takes a millisecond where writing zeros would hold up every sync for a long one.
            try:
                os.posix_fallocate(self._fd, 0, size)
            except OSError as error:
                raise self._named(error) from None
            self._set_aside = size
            return
        for offset in range(0, size, len(_ZEROS)):
            self.pwrite(memoryview(_ZEROS)[: size - offset], offset)

    def datasync(self) -> None:
        try:
            if sys.platform == "darwin":  # There fsync leaves the bytes in the drive's own volatile cache.
                fcntl.fcntl(self._fd, fcntl.F_FULLFSYNC)
            else:
                os.fdatasync(self._fd)
        except OSError as error:
            raise self._named(error) from None

    def write_durably(self, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        if self._pace is not None:
            self._write_paced(parts, self._pace)
        elif not self._write_at_once(parts, 0):
            super().write_durably(parts)

    def overwrite_durably(self, data: bytes, offset: int) -> bool:
        if offset + len(data) > self._prepared:
            return False
        try:
            return self._write_at_once((data,), offset)
        except OSError as error:
            # What the call had written may be lost with its sync; so all of it is written again.
            if error.errno in _FULL:
                return False
            raise self._named(error) from None

    def _write_at_once(self, parts: Sequence[bytes | bytearray | memoryview], offset: int) -> bool:
        """Write parts from an offset on, durably; False if one call cannot do that or has not done it."""
        if not _WRITES_DURABLY or not 0 < len(parts) <= MAX_PARTS:
            return False
        # Each call gives the interpreter away and has to get it back: under load that is what takes long.
        try:
            return os.pwritev(self._fd, parts, offset, os.RWF_DSYNC) == sum(map(len, parts))
        except OSError as error:
            if error.errno not in _NO_SUCH_CALL:
                raise
        return False

    def _write_paced(self, parts: Sequence[bytes | bytearray | memoryview], pace: WritePace) -> None:
        """Write piece by piece, and leave the disk to others between them."""
        offset, took = 0, 0.0
        for piece in pieces(parts, pace.piece_bytes):
            if offset:
                pace.rest(took)
            began, start = time.monotonic(), offset
            offset += sum(map(len, piece))
            if not self._write_at_once(piece, start):
                for part in piece:
                    self.pwrite(part, start)
                    start += len(part)
                self.datasync()
            took = time.monotonic() - began
        if not offset:
            self.datasync()

    def forget_cached(self) -> None:
        if not self._keep_cached and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def descriptor(self) -> int | None:
        return os.dup(self._fd)

    def is_deleted(self) -> bool:
        return not os.fstat(self._fd).st_nlink

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        os.close(self._fd)

    def _named(self, error: OSError) -> OSError:
        """The error with the file's path: the system names none where it is given a descriptor."""
        return OSError(error.errno, error.strerror, self._path)


class RealDisk(Disk):
    """The machine's own file system."""

    def __init__(
        self, *, keep_cached: bool = False, pace: WritePace | None = None, reads: Reads | None = None
    ) -> None:
        """With `keep_cached` what is said to be not read soon stays in memory: other processes read it.

        With a `pace` large files become durable bit by bit, with PacedReads they are read so: a write-ahead
        log on the same disk must not wait for what no client waits for."""
        self._keep_cached = keep_cached
        self._pace = pace
        self._reads = reads or Reads()

    def mkdir(self, path: str) -> None:
        if os.path.isdir(path):
            return
        parent = os.path.dirname(os.path.abspath(path))
        self.mkdir(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        self.sync_dir(parent)

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def read(self, path: str) -> bytes:
        with open(path, "rb", buffering=0) as file:
            return file.read()

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        fd = os.open(path, flags, 0o640)
        self._reads.begin(fd)
        return RealFile(fd, path, self._reads, keep_cached=self._keep_cached, pace=self._pace)

    def rename(self, src: str, dst: str) -> None:
        os.rename(src, dst)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def spread(self, path: str) -> None:
        spread_folders(path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def usage(self, path: str) -> DiskUsage:
        told = os.statvfs(path)
        return DiskUsage(told.f_blocks * told.f_frsize, told.f_bavail * told.f_frsize)

    def lock(self, path: str) -> Callable[[], None]:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(fd)
            raise

        def release() -> None:
            os.close(fd)

        return release
