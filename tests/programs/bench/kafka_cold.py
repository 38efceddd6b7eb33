"""Writes more than a node's own caches hold, and reads it back once all has come to rest where it is kept.

First as writing has left it: whatever the system kept in memory, it keeps. Then once more with nothing of the
cluster's files in memory, so that all comes from the disk.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from tests.programs.bench.kafka_measure import Amount, Peer, Servers, fill, read_back
from tests.programs.bench.measures import Result

_LIFTED_SECONDS = 70.0
"""Seconds until what was written is in level one: `level_one.reconcile_seconds`, and some for the work."""
_QUIET_CORES = 0.25
"""Less than this, for two seconds, is a cluster that works no more on what was written."""
_QUIET_SECONDS = 120.0
_LOOK_SECONDS = 0.5


class Kept(Peer, Protocol):
    """A cluster whose files can be found."""

    folder: Path
    """All its files lie here."""


def cold(peer: Kept, amount: Amount, *, size: int = 1000) -> Result:
    """Write a topic, wait, read it from its beginning, twice; every offset must come once and in order."""
    servers = Servers(peer)
    with _most_memory(servers) as memory:
        name, count, filled = fill(peer, replace(amount, megabytes=amount.cold_megabytes), size=size)
    result = Result(problems=filled.problems)
    written = filled.figures
    result.figures |= {"rate_written": written["rate"], "cpu_gb_written": written["cpu_gb"]}
    result.figures["rss_written"] = max(memory)
    if amount.cold_megabytes >= 100:
        _rest(servers)
    result.figures["rss_filled"] = servers.memory()
    for kind in ("", "_disk"):
        if kind:
            forget(peer.folder)
        processor = servers.processor()
        rate, problems = read_back(peer, name, amount.partitions, count, size)
        used = servers.processor() - processor
        result.figures[f"rate{kind}"] = rate
        result.figures[f"cpu_gb{kind}"] = used / (max(count, 1) * size / 1e9)
        result.problems += problems
    result.figures["rss"] = servers.memory()
    return result


def forget(folder: Path) -> None:
    """Have the system forget the contents of all files of a folder."""
    os.sync()  # what is not written yet cannot be forgotten
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def _most_memory(servers: Servers) -> Iterator[list[float]]:
    """Look at the servers' memory twice a second meanwhile; the bytes of each look, the last at the end."""
    seen: list[float] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            seen.append(servers.memory())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        over.set()
        looking.join()
        seen.append(servers.memory())


def _rest(servers: Servers) -> None:
    time.sleep(_LIFTED_SECONDS)
    deadline = time.monotonic() + _QUIET_SECONDS
    while time.monotonic() < deadline:
        before = servers.processor()
        time.sleep(2.0)
        if servers.processor() - before < 2.0 * _QUIET_CORES:
            return
