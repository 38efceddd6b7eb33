"""The memory of processes of views, by the system's account, while a cluster runs them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

import psutil

from strandline.node.views.view_process import PROGRAM
from tests.programs.bench.processor import tree

LOOK_SECONDS: Final = 0.25


class Taken(NamedTuple):
    """Bytes of a process in memory: without mapped files, which the system takes back by itself, and with."""

    own: int
    all: int


def taken(process: int) -> Taken:
    """What a process has now; raises psutil.NoSuchProcess."""
    found = psutil.Process(process).memory_info()
    return Taken(found.rss - found.shared, found.rss)


class Memory:
    """Looks at all processes of views below some nodes, in a thread."""

    def __init__(self, nodes: Callable[[], Iterable[int]]) -> None:
        self.most = Taken(0, 0)
        """Of one process, each of both at any time."""
        self._nodes = nodes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            for one in tree(self._nodes()):
                with suppress(psutil.NoSuchProcess):
                    if PROGRAM[-1] in one.cmdline():
                        now = taken(one.pid)
                        self.most = Taken(max(self.most.own, now.own), max(self.most.all, now.all))

    def close(self) -> None:
        """End the looks."""
        self._stop.set()
        self._thread.join()
