"""Decides which small neighbouring level-one objects become one.

A partition with little traffic gets a small object every time its batches have waited long enough. Objects
have size classes, each `count` times as large as the one before. A merge takes a run of neighbours of one
class and below, with `count` of that class in it, so that every record in it comes into a higher class: a
record is written again at most once a class, and there are as many classes as the logarithm of the size.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Final

from strandline.node.level_one.plan import Grain
from strandline.snapshot.object_frame import HEADER
from strandline.statemachine.partition.level_one import LevelOneExtent

MAX_SOURCES: Final = 2_048
"""Objects that become one at a time; more than any `merge_count`."""


def next_merge(objects: Sequence[LevelOneExtent], count: int, grain: Grain) -> Sequence[LevelOneExtent]:
    """The first run to merge, of the smallest class that has one; empty when there is none.

    `objects` are neighbours in offset order. The merged object keeps within `grain`.
    """
    bounds = _bounds(count, grain.bytes)
    classes = [bisect_right(bounds, _payload(one)) for one in objects]
    for size_class in range(len(bounds)):
        if classes.count(size_class) >= count:
            run = _run(objects, classes, size_class, count, grain)
            if run:
                return run
    return ()


def _payload(one: LevelOneExtent) -> int:
    """Bytes of its batches; a merged object has the sum of its parts."""
    return one.size - one.index_bytes - HEADER.size


def _bounds(count: int, most: int) -> list[int]:
    """Lower bound of each size class but the first; there is no class above `most`."""
    bounds = [count]
    while bounds[-1] * count <= most:
        bounds.append(bounds[-1] * count)
    return bounds


def _run(
    objects: Sequence[LevelOneExtent],
    classes: Sequence[int],
    size_class: int,
    count: int,
    grain: Grain,
) -> Sequence[LevelOneExtent]:
    """The first run of objects up to a class, with `count` of it: what it gives is of the next class."""
    window: deque[int] = deque()
    size = members = 0
    for number, one in enumerate(objects):
        if classes[number] > size_class:
            window.clear()
            size = members = 0
            continue
        window.append(number)
        size += one.size
        members += classes[number] == size_class
        while window and (
            size > grain.bytes or len(window) > MAX_SOURCES or _spans(objects[window[0]], one, grain)
        ):
            first = window.popleft()
            size -= objects[first].size
            members -= classes[first] == size_class
        if members >= count:
            return objects[window[0] : window[-1] + 1]
    return ()


def _spans(first: LevelOneExtent, last: LevelOneExtent, grain: Grain) -> bool:
    """Whether the two are too far apart in time to go together."""
    return grain.span_ms is not None and abs(last.max_timestamp - first.max_timestamp) > grain.span_ms
