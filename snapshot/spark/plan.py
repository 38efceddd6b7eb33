"""Plans the Spark tasks of a read, from the partitions' states that it sees.

A level-zero object holds batches of many partitions, so tasks are cut along objects rather than partitions:
each object is read by one task or two, whatever the number of partitions. A task costs tens of milliseconds
in Python, so there are few of them, and each reads in windows that bound its memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from strandline.snapshot.spark.options import ReadOptions
from strandline.snapshot.spark.pieces import PieceKind, Rows, Window
from strandline.snapshot.spark.views import PartitionView, partition_views
from strandline.snapshot.storage import Storage
from strandline.statemachine.object_names import OBJECT_ID_BYTES

WINDOW_BYTES: Final = 16 * 1024 * 1024
"""Most stored bytes that a task fetches and decodes at a time; also what a task should have at least."""
TASKS_PER_CORE: Final = 3
"""Most tasks of a core, unless they are of TASK_BYTES: what one core is behind, others take over."""
ROUND_WINDOWS: Final = 4
"""Windows of each task from which on cores have several: of less, tasks cost more than evenness saves."""
TASK_BYTES: Final = 512 * 1024 * 1024
"""Stored bytes that a task should have at most, a second or two of work: a cluster may have more cores than
the planner knows of."""

_HASH: Final = np.uint64(0x9E3779B97F4A7C15) ** np.arange(1, 1 + OBJECT_ID_BYTES // 4, dtype=np.uint64)
"""Powers of an odd number, so that every word of an id counts."""


def plan(storage: Storage, options: ReadOptions, parallelism: int) -> list[tuple[Window, ...]]:
    """The windows of each task; raises SourceError. `parallelism` is the number of cores there are."""
    views = partition_views(storage, options)
    return pack(views, parallelism, options.min_partitions, storage.window_bytes)


def pack(
    views: Sequence[PartitionView],
    parallelism: int,
    min_partitions: int | None,
    window_bytes: int,
    shared_bytes: int = WINDOW_BYTES,
) -> list[tuple[Window, ...]]:
    """Cut all pieces into tasks of about equal bytes, along objects; equal arguments give equal tasks.

    `window_bytes`: what a task reads at a time, WINDOW_BYTES at most. `shared_bytes`: least bytes of a task
    as long as there are cores without one.
    """
    owner = np.repeat(np.arange(len(views)), [view.rows.size for view in views])
    if not owner.size:
        return [()]
    rows = np.concatenate([view.rows for view in views])
    number = np.concatenate([np.arange(view.rows.size) for view in views])
    order = _along_objects(views, rows, owner, number)
    after = np.cumsum(rows["length"][order], dtype=np.int64)
    total = int(after[-1])
    rounds = min(max(total // (ROUND_WINDOWS * WINDOW_BYTES * parallelism), 1), TASKS_PER_CORE)
    tasks = min(-(-total // WINDOW_BYTES), rounds * parallelism)
    tasks = max(tasks, min(-(-total // shared_bytes), parallelism))
    tasks = min(max(tasks, -(-total // TASK_BYTES), min_partitions or 1), owner.size)
    packed = []
    shares = np.searchsorted(after, np.arange(1, tasks) * (total / tasks)) + 1
    for start, stop in pairwise(np.unique([0, *shares, order.size]).tolist()):
        windows = _windows(after, start, stop, min(window_bytes, WINDOW_BYTES))
        packed.append(tuple(_window(views, owner, number, order[window]) for window in windows))
    return packed


def in_order(views: Sequence[PartitionView]) -> tuple[Window, ...]:
    """All pieces as one task that reads partition by partition and by offset, with more requests for it."""
    owner = np.repeat(np.arange(len(views)), [view.rows.size for view in views])
    if not owner.size:
        return ()
    number = np.concatenate([np.arange(view.rows.size) for view in views])
    after = np.cumsum(np.concatenate([view.rows["length"] for view in views]), dtype=np.int64)
    order = np.arange(owner.size)
    windows = _windows(after, 0, order.size, WINDOW_BYTES)
    return tuple(_window(views, owner, number, order[window]) for window in windows)


def _along_objects(views: Sequence[PartitionView], rows: Rows, owner: Any, number: Any) -> Any:
    """An order in which the batches of an object are together, and objects about as old as each other.

    An object's place is how far into their partitions its batches lie; inline batches have their own.
    """
    sizes = np.array([max(view.rows.size, 1) for view in views])
    progress = number / sizes[owner]
    # Ids are compared by a hash, ten times faster; two objects that share one would only be placed together.
    words = np.frombuffer(rows["identity"].tobytes(), "<u4").reshape(-1, OBJECT_ID_BYTES // 4)
    _, objects = np.unique((words * _HASH).sum(axis=1), return_inverse=True)
    place = np.ones(objects.max() + 1)
    np.minimum.at(place, objects, progress)
    inline = rows["kind"] == PieceKind.INLINE
    return np.lexsort(
        (number, owner, np.where(inline, -1, objects), np.where(inline, progress, place[objects]))
    )


def _windows(after: Any, start: int, stop: int, most_bytes: int) -> Iterator[slice]:
    """Runs of up to so many bytes, at least one piece each; `after` are the bytes up to and with each."""
    begin = start
    while begin < stop:
        before = int(after[begin - 1]) if begin else 0
        most = int(np.searchsorted(after, before + most_bytes, "right"))
        end = min(max(most, begin + 1), stop)
        yield slice(begin, end)
        begin = end


def _window(views: Sequence[PartitionView], owner: Any, number: Any, chosen: Any) -> Window:
    """Some pieces, by partition and in offset order within each."""
    chosen = chosen[np.argsort(owner[chosen], kind="stable")]
    begins = np.flatnonzero(np.diff(owner[chosen])) + 1  # of each partition's but the first
    return tuple(views[owner[part[0]]].slice(number[part]) for part in np.split(chosen, begins))
