"""Spines: all rows of a state as a tuple of runs, the largest first.

A spine is a value. A change makes another one, so a fork, a checkpoint or a reader that has one keeps what it
had, and what is shared cannot be written to. Small runs are merged when they come in; a large merge takes
longer than a step may and is told of as `due`: the circuit makes it between steps or in a thread, and
installs it by `replaced`, which does nothing when the spine no longer has the runs.

A large merge gives several runs, each for a range of hashes, one after the other: so it takes memory for one
of them at a time, however large the state is. Such runs are one level of the spine, as one run is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import polars as pl

from strandline.snapshot.views import exact, hashing
from strandline.snapshot.views.errors import ViewInvariant
from strandline.snapshot.views.run import (
    HASHES,
    HashRange,
    Layout,
    Places,
    Run,
    empty_run,
    extents,
    merged,
    pairs,
)
from strandline.snapshot.views.zset import Weights, ZSet, chosen, concatenated, equal_rows

INLINE_ROWS: Final = 1 << 18
"""The rows of the two runs up to which a merge is made within the step: 10 to 30 ms."""
RATIO: Final = 2
PIECE_ROWS: Final = 3 << 18
"""The rows of which a merge makes one run, about: some 40 MB of a state of a few numbers."""
LEAST_PIECE_ROWS: Final = 1 << 19
"""Runs of fewer rows are levels of their own."""
_STRIDE: Final = 6
"""A piece ends at a hash that is one of so many in it."""

Level = tuple[Run, ...]
"""Runs of ascending hashes that no two have in common."""


def as_it_is(run: Run) -> Run:
    """Keep a run in memory."""
    return run


@dataclass(frozen=True, slots=True)
class Merge:
    """Two neighbouring levels of a spine that shall become one."""

    first: Level
    second: Level

    def made(self, keep: Callable[[Run], Run] = as_it_is) -> Level:
        """Make the merged runs; takes time in proportion to their rows.

        `keep` gives a run in the place of each one, before the next one is made: one that takes less memory.
        """
        made = []
        for hash_range in self._ranges():
            one = merged(_within(self.first, hash_range), _within(self.second, hash_range))
            if len(one):
                made.append(keep(one))
        return tuple(made)

    def _ranges(self) -> list[HashRange]:
        """Ranges of hashes that have PIECE_ROWS of the rows each, about."""
        runs = [*self.first, *self.second]
        ends = np.unique(np.concatenate([run.hashes[:: max(1, PIECE_ROWS // _STRIDE)] for run in runs]))
        below = sum(np.searchsorted(run.hashes, ends, "right") for run in runs)
        ranges, first, done = [], 0, 0
        for end, rows in zip(ends.tolist(), np.asarray(below).tolist(), strict=True):
            if rows - done >= PIECE_ROWS and sum(map(len, runs)) - rows >= LEAST_PIECE_ROWS:
                ranges.append(HashRange(first, end))
                first, done = end + 1, rows
        return [*ranges, HashRange(first, HASHES - 1)]


@dataclass(frozen=True, slots=True, eq=False)
class Spine:
    """Levels whose sizes fall by at least half from one to the next, but for merges that are due."""

    layout: Layout
    runs: tuple[Run, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    @property
    def levels(self) -> list[Level]:
        """The runs by level.

        Two levels of long runs whose hashes happen to lie apart count as one, which costs nothing.
        """
        levels: list[Level] = []
        for run in self.runs:
            if levels and _goes_on(levels[-1][-1], run):
                levels[-1] = (*levels[-1], run)
            else:
                levels.append((run,))
        return levels

    def with_run(self, run: Run) -> Spine:
        """Give the spine with a run's rows added."""
        if not len(run):
            return self
        runs = [*self.runs, run]
        while len(runs) > 1 and _crowded(runs[-2:-1], runs[-1:]) and _rows(runs[-2:]) <= INLINE_ROWS:
            second, first = runs.pop(), runs.pop()
            if len(one := merged(first, second)):
                runs.append(one)
        return Spine(self.layout, tuple(runs))

    def due(self) -> Merge | None:
        """Give the merge that is due, the smallest of them; None when there is none."""
        for first, second in reversed([*pairwise(self.levels)]):
            if _crowded(first, second):
                return Merge(first, second)
        return None

    def replaced(self, merge: Merge, made: Level) -> Spine:
        """Give the spine with a merge's runs replaced; itself when they are no longer neighbours in it."""
        gone = (*merge.first, *merge.second)
        for at in range(len(self.runs) - len(gone) + 1):
            there = self.runs[at : at + len(gone)]
            if all(one is other for one, other in zip(there, gone, strict=True)):
                return Spine(self.layout, (*self.runs[:at], *made, *self.runs[at + len(gone) :]))
        return self

    def consolidated(self, hash_range: HashRange) -> Run:
        """Give the rows of a range of hashes as one run."""
        whole = empty_run(self.layout)
        for run in reversed(self.runs):
            whole = merged(run.within(hash_range), whole)
        return whole

    def found(self, hashes: hashing.Hashes, keys: pl.DataFrame) -> Iterator[tuple[Places, Run, Places]]:
        """Yield, run by run, the pairs of a place in `keys` and a place in the run that have equal keys.

        Null equals null. Equal hashes of different keys are told apart by the keys.
        """
        ascending = bool((hashes[1:] >= hashes[:-1]).all())
        for run in self.runs:
            first, last = _place(run, hashes) if ascending else (0, len(hashes))
            mine, its = pairs(*extents(run, hashes[first:last]))
            if not len(mine):
                continue
            mine = mine + first
            stored = run.rows if self.layout.key_is_row else chosen(run.rows, self.layout.key)
            equal = equal_rows(keys, mine, stored, its)
            if not equal.all():
                mine, its = mine[equal], its[equal]
            if len(mine):
                yield mine, run, its

    def sums_of(self, hashes: hashing.Hashes, keys: pl.DataFrame) -> tuple[Weights, ...]:
        """Give the sums of each key, zero where there is none. The key is the whole row."""
        sums = tuple(np.zeros(len(hashes), np.int64) for _ in range(self.layout.sums))
        for mine, run, its in self.found(hashes, keys):
            # Within one run a key is there once, so no place comes twice.
            for total, each in zip(sums, run.sums, strict=True):
                total[mine] += each[its]
        return exact.carried(sums, self.layout.wide)

    def rows_of(self, hashes: hashing.Hashes, keys: pl.DataFrame) -> ZSet | None:
        """Give all rows that have one of the keys, with their weights, run after run;

        None when there is none.
        """
        parts = [
            ZSet(run.rows[its.astype(np.uint32)], run.sums[0][its])
            for _, run, its in self.found(hashes, keys)
        ]
        return concatenated(parts) if parts else None


def contents(spine: Spine, hash_range: HashRange) -> Run:
    """Give the rows of a range as one run; raises ViewInvariant where a weight is negative."""
    run = spine.consolidated(hash_range)
    if len(run) and int(run.sums[0].min()) < 0:
        raise ViewInvariant("a row was retracted more often than it was added")
    return run


def _rows(runs: Sequence[Run]) -> int:
    return sum(map(len, runs))


def _crowded(first: Sequence[Run], second: Sequence[Run]) -> bool:
    return _rows(first) <= RATIO * _rows(second)


def _goes_on(first: Run, second: Run) -> bool:
    """Whether a run can be of the level of the one before."""
    long = min(len(first), len(second)) >= LEAST_PIECE_ROWS
    return long and bool(first.hashes[-1] < second.hashes[0])


def _within(level: Level, hash_range: HashRange) -> Run:
    """The rows of a range as one run: their order is that of the hashes, and of the runs."""
    parts = [part for run in level if len(part := run.within(hash_range))]
    whole = parts[0] if parts else empty_run(level[0].layout)
    for part in parts[1:]:
        whole = merged(whole, part)
    return whole


def _place(run: Run, hashes: hashing.Hashes) -> tuple[int, int]:
    """The part of ascending hashes that a run may have."""
    if not len(run):
        return 0, 0
    first = int(np.searchsorted(hashes, run.hashes[0], "left"))
    return first, int(np.searchsorted(hashes, run.hashes[-1], "right"))
