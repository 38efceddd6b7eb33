"""Long ranges of files that are read once go around the system's page cache, into memory that is used again.

A consumer far behind reads gigabytes once. By way of the page cache each of them takes fresh memory, which
costs more than all else about the read, and pushes out what others read. What is read a second time within
SEEN_RANGES goes by the page cache, and what is there already is taken from there. See docs/level-one.md.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import sys
import weakref
from collections import OrderedDict, deque
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Final

from strandline.node.raft.disk import DiskFile

PAST_CACHE_FROM: Final = 1024 * 1024
"""Bytes of a range from which on it is read so; a shorter one would waste most of a room."""
ALIGNMENT: Final = 4096
"""Of positions, lengths and memory: a multiple of the sectors and pages that file systems ask for."""
ROOM_BYTES: Final = 2 * 1024 * 1024 + 2 * ALIGNMENT
"""Memory of one range, wherever it begins. A longer range has memory of its own, which is not used again."""
SPARE_ROOMS: Final = 16
"""Rooms that are kept while nothing is in them: as many reads may be under way, and each that ends has a full
cache let go of one. Fresh memory costs as much as the read."""
SPARE_SECONDS: Final = 30.0
"""Time without a read around the cache after which they are given back."""
SEEN_RANGES: Final = 4096
"""Ranges that are remembered as read once: 4 to 8 GB."""
_CACHESTAT: Final = 451
"""The number of the system call, on all of Linux' architectures; from 6.5 on."""
MOSTLY: Final = 0.5
"""The part of a range that has to be in the system's memory for the rest to be read by way of it."""

_system = ctypes.PyDLL(None) if sys.platform == "linux" else None


class PastCache:
    """One store's reads around the page cache."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.bytes_read = 0
        """Bytes that were read so."""
        self._loop = loop
        self._look: asyncio.TimerHandle | None = None
        self._seen: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._spare: deque[mmap] = deque(maxlen=SPARE_ROOMS)
        self._lent: set[int] = set()
        """Rooms with something in them, by `id`. Any thread takes and gives them, each by one atomic step."""

    def is_first(self, key: str, start: int) -> bool:
        """Whether a range of an object is not remembered as read; it is from now on. On the event loop."""
        if self._look is None:
            self._look = self._loop.call_later(SPARE_SECONDS, self._give_back, self.bytes_read)
        seen = self._seen
        first = (key, start) not in seen
        seen[key, start] = None
        seen.move_to_end((key, start))
        if len(seen) > SEEN_RANGES:
            seen.popitem(last=False)
        return first

    def read(self, file: DiskFile, start: int, length: int) -> memoryview | None:
        """A range of a file, shorter where the file ends; None where it is to be read by the page cache.

        So it is if the system has most of it in memory, or cannot tell, or cannot read around its memory.
        Blocks, in any thread. Raises OSError.
        """
        descriptor = file.descriptor()
        if descriptor is None:
            return None
        try:
            if (cached := cached_part(descriptor, start, length)) is None or cached >= MOSTLY:
                return None
            return self._read(descriptor, start, length)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Give back what is spare."""
        if self._look is not None:
            self._look.cancel()
        self._spare.clear()

    def _give_back(self, before: int) -> None:
        """Let go of spare rooms, unless there were reads since there were `before` bytes.

        Looks again as long as a room may come back: a cache may keep what is in it for longer.
        """
        self._look = None
        read = self.bytes_read
        if read == before:
            self._spare.clear()
        if read != before or self._lent:
            self._look = self._loop.call_later(SPARE_SECONDS, self._give_back, read)

    def _read(self, descriptor: int, start: int, length: int) -> memoryview | None:
        try:
            # The same file, whatever has its name by now.
            direct = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        except OSError:
            return None
        try:
            before = start % ALIGNMENT
            room = self._room(before + length)
            read = _fill(direct, room[: -(-(before + length) // ALIGNMENT) * ALIGNMENT], start - before)
        except OSError as error:
            if error.errno == errno.EINVAL:  # a file system may say so only here
                return None
            raise
        finally:
            os.close(direct)
        self.bytes_read += read
        return room[before : min(read, before + length)]

    def _room(self, size: int) -> memoryview:
        """Memory for so many bytes, which comes back here when the last view of it is gone."""
        if size > ROOM_BYTES:
            return memoryview(_memory(-(-size // ALIGNMENT) * ALIGNMENT))
        try:
            memory = self._spare.pop()
        except IndexError:
            memory = _memory(ROOM_BYTES)
        shared = (ctypes.c_char * ROOM_BYTES).from_buffer(memory)
        self._lent.add(id(memory))
        weakref.finalize(shared, self._returned, memory).atexit = False
        return memoryview(shared).cast("B")

    def _returned(self, memory: mmap) -> None:
        self._lent.discard(id(memory))
        self._spare.append(memory)


def cached_part(descriptor: int, start: int, length: int) -> float | None:
    """The part (0 to 1) of a range of a file that the system has in its memory; None if it cannot tell.

    Reads nothing and waits for nothing.
    """
    if _system is None:
        return None
    span, found = (ctypes.c_uint64 * 2)(start, length), (ctypes.c_uint64 * 5)()
    if _system.syscall(ctypes.c_long(_CACHESTAT), descriptor, span, found, 0) != 0:
        return None
    pages = (start + length - 1) // ALIGNMENT - start // ALIGNMENT + 1
    return found[0] / pages


def _memory(size: int) -> mmap:
    """Fresh memory, on a page's border."""
    return mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS)


def _fill(descriptor: int, room: memoryview, position: int) -> int:
    """Read into all of a room, or up to the file's end; how many bytes were read."""
    read = 0
    while read < len(room) and (count := os.preadv(descriptor, [room[read:]], position + read)):
        read += count
        if read % ALIGNMENT:  # there the file ends
            break
    return read
