"""Work of a Python worker of Spark that it does once, before its first task."""

from __future__ import annotations

import gc
import importlib
import os
from functools import cache
from typing import Any

from pyspark import TaskContext


@cache
def begin() -> None:
    """Keep what is loaded by now out of garbage collections; only in a worker, and once.

    A worker collects after each task. To look through all modules takes it 30 to 50 ms, longer than many a
    micro-batch is read, and modules are never garbage.
    """
    if TaskContext.get() is not None:
        gc.freeze()


def end_without_a_word(module: str) -> None:
    """Let workers that this process forks end in silence where Spark needs no more of what they have.

    It closes their connection then: it has the rows of a LIMIT, the query was given up, or the worker had
    nothing to do for a minute. About what a worker has not written yet Spark's own daemon prints a stack
    trace on the terminal. `module` is the one whose `main` is their work.
    """
    worker = importlib.import_module(module)
    theirs = worker.main

    def main(infile: Any, outfile: Any) -> None:
        try:
            theirs(infile, outfile)
        finally:
            try:
                outfile.flush()
            except (BrokenPipeError, ConnectionResetError):
                os._exit(1)

    worker.main = main  # type: ignore[attr-defined]
