"""A timer that a thread can wait for without waking up before it rings (Linux's timerfd).

A thread that waits with a timeout wakes at its end, if only to see that it was put off. Another thread puts
this timer off, and its waiter sleeps on.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Final

_CLOCK_MONOTONIC: Final = 1  # time.h


class _Spec(ctypes.Structure):
    """struct itimerspec: the interval, which is not used, and the time to the first ring."""

    _fields_ = (
        ("interval", ctypes.c_long * 2),
        ("seconds", ctypes.c_long),
        ("nanoseconds", ctypes.c_long),
    )


class KernelTimer:
    """Rings once, some time after it was last set. `wait` is for one thread, `set` for any."""

    def __init__(self) -> None:
        """Make one that is not set. Raises OSError where the system has none."""
        if not sys.platform.startswith("linux"):
            raise OSError("this system has no timerfd")
        library = ctypes.CDLL(None, use_errno=True)
        self._descriptor: int = library.timerfd_create(_CLOCK_MONOTONIC, os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._set = library.timerfd_settime
        self._spec = _Spec()

    def set(self, seconds: float) -> None:
        """Ring that much later, above 0, and not when it was to ring before."""
        whole = int(seconds)
        self._spec.seconds = whole
        self._spec.nanoseconds = max(1, int((seconds - whole) * 1e9))
        self._set(self._descriptor, 0, ctypes.byref(self._spec), None)

    def wait(self) -> None:
        """Sleep until it rings."""
        os.read(self._descriptor, 8)

    def close(self) -> None:
        """Give it back to the system; no thread waits for it or sets it any more."""
        os.close(self._descriptor)
