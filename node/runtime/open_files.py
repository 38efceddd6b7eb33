"""Lets a node's process have as many files open as the system allows it.

A local log keeps a file open for each of its segments. Many systems start a process with a limit of 1,024,
which it may raise by itself; at that limit a node could neither open a log nor accept a client.
"""

from __future__ import annotations

import contextlib
import resource
from typing import Final

MOST: Final = 1 << 20
"""The limit where the system has none: the highest of any process in Linux (fs.nr_open)."""


def allow_open_files() -> int:
    """Raise the limit of this process as far as it may; the limit that holds then, in files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
