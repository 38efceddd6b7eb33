"""Work of a Python worker of Spark that it does once, before its first task."""

from __future__ import annotations

import gc
from functools import cache

from pyspark import TaskContext


@cache
def begin() -> None:
    """Keep what is loaded by now out of garbage collections; only in a worker, and once.

    A worker collects after each task. To look through all modules takes it 30 to 50 ms, longer than many a
    micro-batch is read, and modules are never garbage.
    """
    if TaskContext.get() is not None:
        gc.freeze()
