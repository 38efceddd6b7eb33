"""The bound of a process's memory: beyond it a version ends with the reason, before the machine ends it."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable
from typing import Final

from strandline.cluster.view_worker.steps import STEP_RECORDS, CannotRun, Steps

LOOKS: Final = 6
"""Looks in a row that find too much, before a version gives up; there are two in a second."""
SMALL_STEP: Final = STEP_RECORDS // 64
"""Records of a step meanwhile."""
_PAGE: Final = os.sysconf("SC_PAGESIZE")


def own_memory() -> int:
    """Give the bytes that this process has in memory, without mapped files: the system takes these back."""
    with open("/proc/self/statm", encoding="ascii") as file:
        _, resident, of_files, *_ = file.read().split()
    return (int(resident) - int(of_files)) * _PAGE


def give_back() -> None:
    """Give memory that is free in the allocator back to the system, where it is glibc's."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class MemoryBound:
    """Holds a process below its limit, in bytes."""

    def __init__(self, limit: int, taken: Callable[[], int], free: Callable[[], None]) -> None:
        self._limit = limit
        self._taken = taken
        self._free = free
        self._times = 0

    def check(self, steps: Steps) -> None:
        """Make steps smaller where the process has too much; raises CannotRun when that does not help."""
        if (taken := self._taken()) > self._limit:
            self._free()
            taken = self._taken()
        self._times = self._times + 1 if taken > self._limit else 0
        steps.cap = SMALL_STEP if self._times else STEP_RECORDS
        if self._times > LOOKS:
            raise CannotRun(
                f"MEMORY: the process takes {taken:,} bytes, and views.process_bytes is {self._limit:,}: "
                "raise it on all nodes, or have the views keep less (fewer keys, columns or joined rows); "
                "then apply the program again"
            )
