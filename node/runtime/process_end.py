"""The end of a node's process: with the process that started it, or within a time whatever still hangs."""

from __future__ import annotations

import os
import select
import threading
from typing import Final, NoReturn

PARENT_GONE: Final = 3
"""The exit code of a node that ended with its parent."""


def end_within(seconds: float, code: int) -> None:
    """End the process by then, whatever it still waits for: a thread may hang in a disk for ever."""
    last = threading.Timer(seconds, os._exit, (code,))
    last.daemon = True
    last.start()


def end_with(pid: int) -> None:
    """End this process once `pid`, its parent, is gone: at once, as `kill -9` would, and also where it hangs.

    A thread waits for the parent's pidfd (pidfd_open(2)), which a child that the parent forked does not hold
    open, as it would a pipe; and which speaks for the process, where PR_SET_PDEATHSIG goes by its thread.
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        _leave()
    if os.getppid() != pid:  # it was gone before, and the number may be another's
        _leave()
    threading.Thread(target=_wait, args=(handle,), name="parent", daemon=True).start()


def _wait(handle: int) -> NoReturn:
    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    waiting.poll()
    _leave()


def _leave() -> NoReturn:
    os._exit(PARENT_GONE)
