"""A process that stands back lets others have the processor first, for good or until it steps forward."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
import time
from typing import Final

AUTOGROUP_TRIES: Final = 8
AUTOGROUP_SECONDS: Final = 0.15
"""Linux takes one change of an autogroup in a tenth of a second, of all that are not root's."""
SLICE_NANOSECONDS: Final = 3_500_000
"""Of the processor that such a process asks for at a time: little more than Linux' default, 1.4 to 3 ms by
the number of processors. Slices of 100 ms did harm (docs/measurements.md)."""
SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}
"""The system call's number; Python and older C libraries have no function for it."""
SCHED_ATTR: Final = struct.Struct("=IIQiIQQQ")
"""sched_setattr(2): size, policy, flags, niceness, priority, runtime, deadline, period."""


def stand_back_for_good(niceness: int) -> None:
    """Stand back until the process ends, also within its session, by `niceness`: that is never taken back."""
    os.nice(niceness)
    stand_back(0)


def stand_back(niceness: int) -> None:
    """Let every other process of the machine have the processor first, not only those of this node's session.

    Linux' autogroups share a processor out by session, and a niceness then counts within the session alone
    (sched(7)): beside two nodes in sessions of their own, a nice worker of a third took as much as each. So
    the process has a session of its own, which is nicer than the process by `niceness`. SCHED_BATCH: when it
    wakes up, it does not take the processor from what runs. Longer slices: what wakes up takes it from the
    process at once.
    """
    with contextlib.suppress(OSError):  # the first process of a session, of a test
        os.setsid()
    if hasattr(os, "SCHED_BATCH"):
        _schedule(os.SCHED_BATCH, SLICE_NANOSECONDS)
    _be_a_session(min(19, os.nice(0) + niceness))


def step_forward() -> None:
    """Be scheduled as any process again, after `stand_back`."""
    if hasattr(os, "SCHED_BATCH"):
        _schedule(os.SCHED_OTHER, 0)
    _be_a_session(os.nice(0))


def _schedule(policy: int, slice_nanoseconds: int) -> None:
    """Schedule all threads so, and with them those that they begin later.

    A process keeps the processor for its slice, however nice it is, unless what wakes up has a shorter one. A
    produce request wakes a thread ten times on its way, and would wait each time. The share of the processor
    stays what the niceness gives. Linux' Documentation/scheduler/sched-eevdf.rst; kernels before 6.12 ignore
    the slice. A refusal changes nothing.
    """
    asked = SCHED_ATTR.pack(SCHED_ATTR.size, policy, 0, os.nice(0), 0, slice_nanoseconds, 0, 0)
    number = SCHED_SETATTR.get(platform.machine())
    library = ctypes.CDLL(None)
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(int(thread), policy, os.sched_param(0))
        if number is not None:
            library.syscall(ctypes.c_long(number), int(thread), asked, 0)


def _be_a_session(niceness: int) -> None:
    """Share the processor out to this session as to one process of a niceness, where there are autogroups."""
    for _ in range(AUTOGROUP_TRIES):
        try:
            with open("/proc/self/autogroup", "w") as file:
                file.write(str(niceness))
        except BlockingIOError:
            time.sleep(AUTOGROUP_SECONDS)
        except OSError:
            return  # no autogroups here
        else:
            return
