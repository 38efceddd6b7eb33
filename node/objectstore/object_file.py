"""An object that the system has as a file, held open, so that its bytes go to a socket without a copy here.

An open descriptor keeps an object's bytes, also after the object was deleted. The bytes are read by pread and
sendfile and never mapped: a file that was cut is then an error of one call, where a mapping would end the
process (SIGBUS).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Final, NamedTuple
from weakref import WeakSet

from crc32c import crc32c

from strandline.node.raft.disk import Disk

CHECKED_BYTES: Final = 256 * 1024
"""Bytes that are read at a time for their checksum: a buffer that stays in a processor's own cache."""
HEAD_BYTES: Final = 8
MAX_OPEN_FILES: Final = 1024
"""Objects that are held open together, read or still to be sent to slow clients; beyond it, objects are read
into memory. A node may have as few as 4,096 files, and connections and logs need most of them."""
_NO_WAIT: Final = getattr(os, "RWF_NOWAIT", None)
_SENDS_FILES: Final = hasattr(os, "sendfile") and _NO_WAIT is not None
"""Whether the system has both calls that this needs (Linux has)."""

_threads = threading.local()


class FileCut(Exception):
    """A file ends before a range of it does: it was cut, as objects are stored whole. Has the range."""

    def __init__(self, start: int, length: int) -> None:
        super().__init__(f"the file ends before byte {start + length}")
        self.start = start
        self.length = length


class Checked(NamedTuple):
    """The checksum of a range that was read, and how it begins."""

    crc: int
    """CRC-32C of all of it."""
    head: bytes
    """Its first HEAD_BYTES."""


class ObjectFile:
    """One object's open file. It is closed when nothing refers to it any more."""

    __slots__ = ("__weakref__", "_descriptor", "_executor", "_loop", "key")

    def __init__(
        self, key: str, descriptor: int, *, loop: asyncio.AbstractEventLoop, executor: Executor
    ) -> None:
        """`descriptor` is this object's from now on."""
        self.key = key
        self._descriptor = descriptor
        self._loop = loop
        self._executor = executor

    def __del__(self) -> None:
        os.close(self._descriptor)

    def fileno(self) -> int:
        """The descriptor, open as long as this object is referred to."""
        return self._descriptor

    @property
    def deleted(self) -> bool:
        """Whether the object has no name any more. Its bytes take disk space until this is let go of."""
        return os.fstat(self._descriptor).st_nlink == 0

    def in_memory(self, start: int, length: int) -> bool:
        """Whether the system has the first and the last byte of a range in memory: then probably all of it.

        Does not wait. Raises FileCut, and OSError (EOPNOTSUPP where the file system cannot say).
        """
        return self._has(start) and self._has(start + length - 1)

    async def load(self, start: int, length: int) -> None:
        """Have the system read a range into its memory, in a thread. Raises FileCut and OSError."""
        await self._loop.run_in_executor(self._executor, self._load, start, length)

    def checked(self, ranges: Sequence[tuple[int, int]]) -> list[Checked]:
        """Read ranges (position, length) and tell their checksums. Blocks. Raises FileCut and OSError.

        They should be neighbours: the system is asked for all from the first to the last of them at once.
        """
        if ranges:
            self._ask_for(ranges[0][0], sum(ranges[-1]))
        return [self._checked(start, length) for start, length in ranges]

    def _has(self, position: int) -> bool:
        assert _NO_WAIT is not None
        try:
            if not os.preadv(self._descriptor, [bytearray(1)], position, _NO_WAIT):
                raise FileCut(position, 1)
        except BlockingIOError:
            return False
        return True

    def _ask_for(self, start: int, end: int) -> None:
        """Have the system read all of a range if it does not have its first byte in memory.

        Else the system guesses by itself what comes next, from pieces that several threads read of one file.
        """
        if not self._has(start):
            with contextlib.suppress(OSError):  # advice: whether the file can be read, the reading tells
                os.posix_fadvise(self._descriptor, start, end - start, os.POSIX_FADV_WILLNEED)

    def _load(self, start: int, length: int) -> None:
        buffer = _buffer()
        for position in range(start, start + length, CHECKED_BYTES):
            self._fill(buffer[: min(CHECKED_BYTES, start + length - position)], position)

    def _checked(self, start: int, length: int) -> Checked:
        buffer, crc, head = _buffer(), 0, b""
        for position in range(start, start + length, CHECKED_BYTES):
            piece = buffer[: min(CHECKED_BYTES, start + length - position)]
            self._fill(piece, position)
            crc = crc32c(piece, crc)
            head = head or bytes(piece[:HEAD_BYTES])
        return Checked(crc, head)

    def _fill(self, piece: memoryview, position: int) -> None:
        while piece:
            count = os.preadv(self._descriptor, [piece], position)
            if not count:
                raise FileCut(position, len(piece))
            piece, position = piece[count:], position + count


class FileRange:
    """Bytes of an object's file, to be sent: nothing of them is in this process's memory."""

    __slots__ = ("file", "length", "start")

    def __init__(self, file: ObjectFile, start: int, length: int) -> None:
        self.file = file
        self.start = start
        self.length = length

    def __len__(self) -> int:
        return self.length


class ObjectFiles:
    """The objects of one store that are held open, up to MAX_OPEN_FILES."""

    def __init__(self, loop: asyncio.AbstractEventLoop, executor: Executor) -> None:
        self.has_any = _SENDS_FILES
        """Whether there may be files to send, as far as is known."""
        self._loop = loop
        self._executor = executor
        self._open: WeakSet[ObjectFile] = WeakSet()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def has_room(self) -> bool:
        """Whether one more may be opened."""
        return self.has_any and len(self._open) < MAX_OPEN_FILES

    def open(self, disk: Disk, path: str, key: str) -> ObjectFile | None:
        """The file of an object; None where none can be sent from here. Blocks. Raises OSError."""
        file = disk.open(path)
        try:
            descriptor = file.descriptor()
        finally:
            file.close()
        if descriptor is None:
            self.has_any = False
            return None
        # Made here, so that the descriptor is closed also if the caller has stopped waiting.
        opened = ObjectFile(key, descriptor, loop=self._loop, executor=self._executor)
        if not _can_tell(descriptor):
            self.has_any = False
            return None
        self._open.add(opened)
        return opened


def _can_tell(descriptor: int) -> bool:
    """Whether the file system of an open file says what of it is in memory: ext4, xfs and btrfs do."""
    if _NO_WAIT is None:
        return False
    try:
        os.preadv(descriptor, [bytearray(1)], 0, _NO_WAIT)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            return False
        raise
    return True


def _buffer() -> memoryview:
    """This thread's own buffer of CHECKED_BYTES."""
    buffer: memoryview | None = getattr(_threads, "buffer", None)
    if buffer is None:
        buffer = _threads.buffer = memoryview(bytearray(CHECKED_BYTES))
    return buffer
