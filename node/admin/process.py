"""The operating system's figures of this process."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from typing import Final, NamedTuple

_PAGE: Final = resource.getpagesize()
_STARTED: Final = time.time()


class ProcessState(NamedTuple):
    """Processor seconds, bytes in RAM, open files (None where there is no /proc), start in s since 1970."""

    cpu_seconds: float
    resident_bytes: int
    open_files: int | None
    started: float


def resident_bytes(pid: int | None = None) -> int:
    """Bytes in RAM of a process, this one without an id; 0 if it is gone, or there is no /proc."""
    try:
        with open(f"/proc/{pid or 'self'}/statm", "rb") as statm:
            return int(statm.read().split()[1]) * _PAGE
    except OSError:
        return 0


def process_state() -> ProcessState:
    """As of now; some 20 µs. Without /proc the memory is the most there ever was."""
    times = os.times()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    resident = resident_bytes() or usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    files: int | None = None
    with contextlib.suppress(OSError):
        files = len(os.listdir("/proc/self/fd"))
    return ProcessState(times.user + times.system, resident, files, _STARTED)
