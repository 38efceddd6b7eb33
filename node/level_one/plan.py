"""Decides which partitions' batches are reconciled next, and how they are cut into objects.

One object in level zero holds batches of many partitions, so partitions that are reconciled together share
the reading of it. But a job takes memory for all its batches, so it has a bound, and within it no partition
may keep the others waiting. Functions on numbers only: the state and the clock are the reconciler's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from strandline.node.config.node_config import LevelOneSection
from strandline.statemachine.controller.settings import Configs
from strandline.statemachine.controller.topic_config import CLEANUP_POLICY, RETENTION_BYTES, RETENTION_MS
from strandline.statemachine.partition.extent import Extent
from strandline.statemachine.partition.extents import Extents

MAX_SHARES: Final = 128
"""Partitions in one job; each is at least one object."""
MAX_JOB_EXTENTS: Final = 65_536
"""Batches in one job, for those that are so small that their bytes do not bound it."""
MAX_MARKS: Final = 32
LEAST_OBJECT_BYTES: Final = 64 * 1024
"""Objects are not kept smaller than this, however little a topic retains."""


class FirstSeen:
    """Since when offsets have been in level zero, as a replica saw them come; to a sixteenth of `period`.

    Batches carry their producers' time, which may be any. Every replica watches, so a new leader knows.
    """

    __slots__ = ("_gap", "_marks")

    def __init__(self, period: float) -> None:
        """`period` in seconds: the age that matters."""
        self._gap = period / 16
        self._marks: deque[tuple[int, float]] = deque()
        """(end offset, time at which it was seen), both growing."""

    def note(self, first_offset: int, end_offset: int, now: float) -> None:
        """Level zero holds `[first_offset, end_offset)` now."""
        marks = self._marks
        while marks and marks[0][0] <= first_offset:
            marks.popleft()
        seen = marks[-1][0] if marks else first_offset
        if end_offset <= seen:
            return
        if marks and now - marks[-1][1] < self._gap:
            # They count as seen with those before: a little too old rather than too young.
            marks[-1] = (end_offset, marks[-1][1])
        else:
            marks.append((end_offset, now))
        if len(marks) > MAX_MARKS:
            self._marks = deque(_halved(list(marks)))

    def age(self, first_offset: int, now: float) -> float:
        """Seconds since `first_offset`, the oldest that is left, was seen; 0 while it was not."""
        return next((now - since for end_offset, since in self._marks if end_offset > first_offset), 0.0)


def _halved(marks: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Every two marks become one, of the later offset and the earlier time."""
    return [(marks[min(at + 1, len(marks) - 1)][0], marks[at][1]) for at in range(0, len(marks), 2)]


class Candidate(NamedTuple):
    """A partition that is led here and has batches in level zero only."""

    group: int
    bytes: int
    age: float
    """Seconds since the oldest of them was first seen."""


class Share(NamedTuple):
    """A partition's part of a job: up to this many bytes, from the oldest on."""

    group: int
    bytes: int


def choose(candidates: Iterable[Candidate], config: LevelOneSection) -> list[Share]:
    """The next job; empty while nothing is due.

    A partition is due when it has the bytes of an object, or when its oldest batch was seen long enough ago.
    One that is due by size gives whole objects; one that is due by age gives everything, so that it names no
    old level-zero object any more. With the latter go those whose time has half come: their batches lie in
    the same objects. The oldest come first, each with up to one object, then the rest of the job is filled.
    """
    waiting = sorted(candidates, key=lambda one: (-one.age, -one.bytes, one.group))
    aged = any(one.age >= config.reconcile_seconds for one in waiting)
    oldest_apart = config.reconcile_seconds / 2 if aged else config.reconcile_seconds
    wanted: dict[int, int] = {}
    for one in waiting:
        if one.age >= oldest_apart:
            wanted[one.group] = one.bytes
        elif one.bytes >= config.target_bytes:
            wanted[one.group] = one.bytes - one.bytes % config.target_bytes
    left = config.job_bytes
    given: dict[int, int] = {}
    for group, want in wanted.items():
        want = min(want, config.target_bytes)
        # Cut short it would be a small object without need, and the next job begins with it.
        if want <= left and len(given) < MAX_SHARES:
            given[group] = want
            left -= want
    for group in given:
        more = wanted[group] - given[group]
        if more > left:
            more = left - left % config.target_bytes
        given[group] += more
        left -= more
    return [Share(group, size) for group, size in given.items()]


def page(extents: Extents, at: int, max_bytes: int, max_count: int) -> Sequence[Extent]:
    """Up to this many extents that begin at offset `at`, as long as they fit; the first whatever its length.

    Empty when no extent begins there (any more). A batch has a record at least, so offsets bound the count.
    """
    found = extents.between(at, at + max_count, max_bytes)
    return found if found and found[0].base_offset == at else []


def cut(extents: Iterable[Extent], object_bytes: int) -> list[list[Extent]]:
    """Extents in order, in lots that fill an object each; a lot is larger only when it is a single batch."""
    lots: list[list[Extent]] = []
    room = 0
    for extent in extents:
        if not lots or extent.length > room:
            lots.append([])
            room = object_bytes
        lots[-1].append(extent)
        room -= extent.length
    return lots


class Grain(NamedTuple):
    """Maximum size of a partition's objects: retention removes whole objects."""

    bytes: int
    span_ms: int | None
    """Between the newest timestamps of merged objects; None for any."""


def grain(configs: Configs, config: LevelOneSection) -> Grain:
    """The size that a topic's retention allows: a `merge_count`-th of what it keeps, in bytes and in time."""
    size, span = config.target_bytes, None
    if "delete" in CLEANUP_POLICY.of(configs):
        keep_bytes, keep_ms = RETENTION_BYTES.of(configs), RETENTION_MS.of(configs)
        if keep_bytes >= 0:
            size = min(size, max(keep_bytes // config.merge_count, LEAST_OBJECT_BYTES))
        if keep_ms >= 0:
            span = keep_ms // config.merge_count
    return Grain(size, span)
