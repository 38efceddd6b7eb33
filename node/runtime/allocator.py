"""Keeps the memory of large buffers in the process, instead of giving it back after every request.

glibc returns freed memory at the top of the heap to the kernel as soon as there is a little of it. A node
frees a few megabytes with every large request and takes them again with the next, so the kernel unmaps, maps
and zeroes them each time: two thirds of the CPU of receiving records went there.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_TRIM_THRESHOLD: Final = -1  # glibc's malloc.h: M_TRIM_THRESHOLD
_MMAP_THRESHOLD: Final = -3  # M_MMAP_THRESHOLD
_MMAP_MAX: Final = -4  # M_MMAP_MAX
_ARENA_MAX: Final = -8  # M_ARENA_MAX

KEPT_BYTES: Final = 64 * 1024 * 1024
"""Free memory at the top of the heap that the process keeps."""
MAPPED_FROM_BYTES: Final = 32 * 1024 * 1024
"""Buffers from this size on are mapped on their own and given back at once; the most that glibc allows."""


LARGE_KEPT_BYTES: Final = 1024 * 1024 * 1024


def keep_freed_memory(*, large: bool = False) -> bool:
    """Set the thresholds for this process, once and early; whether its C library knows them (glibc does).

    With `large`, for a process that works through buffers of any size and then ends, nothing is given back.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    if large:
        # With a heap for each of its threads, each keeps what its largest buffers took: 30 MB of a worker.
        mallopt(_ARENA_MAX, 1)
        return bool(mallopt(_TRIM_THRESHOLD, LARGE_KEPT_BYTES) and mallopt(_MMAP_MAX, 0))
    kept = mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
    return bool(kept and mallopt(_MMAP_THRESHOLD, MAPPED_FROM_BYTES))


def give_back_memory() -> bool:
    """Give all free memory of this process back to the system; whether its C library can (glibc can).

    Takes some milliseconds for 100 MB, and the next large buffers have to be mapped and zeroed again.
    """
    if not sys.platform.startswith("linux"):
        return False
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and bool(trim(0))
