"""Spines: all rows of a state as a tuple of runs, the largest first.

A spine is a value. A change makes another one, so a fork, a checkpoint or a reader that has one keeps what it
had, and what is shared cannot be written to. Small runs are merged when they come in; a large merge takes
longer than a step may and is told of as `due`: the circuit makes it between steps or in a thread, and
installs it by `replaced`, which does nothing when the spine no longer has the two runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from strandline.snapshot.views import exact, hashing
from strandline.snapshot.views.errors import ViewInvariant
from strandline.snapshot.views.run import (
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


@dataclass(frozen=True, slots=True)
class Merge:
    """Two neighbouring runs of a spine that shall become one."""

    first: Run
    second: Run

    def made(self) -> Run:
        """Make the merged run; takes time in proportion to its rows."""
        return merged(self.first, self.second)


@dataclass(frozen=True, slots=True, eq=False)
class Spine:
    """Runs whose sizes fall by at least half from one to the next, but for merges that are due."""

    layout: Layout
    runs: tuple[Run, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def with_run(self, run: Run) -> Spine:
        """Give the spine with a run's rows added."""
        if not len(run):
            return self
        runs = [*self.runs, run]
        while len(runs) > 1 and _crowded(runs[-2], runs[-1]) and len(runs[-2]) + len(runs[-1]) <= INLINE_ROWS:
            second, first = runs.pop(), runs.pop()
            if len(one := merged(first, second)):
                runs.append(one)
        return Spine(self.layout, tuple(runs))

    def due(self) -> Merge | None:
        """Give the merge that is due, the smallest of them; None when there is none."""
        for first, second in zip(self.runs[-2::-1], self.runs[:0:-1], strict=True):
            if _crowded(first, second):
                return Merge(first, second)
        return None

    def replaced(self, merge: Merge, made: Run) -> Spine:
        """Give the spine with a merge's runs replaced; itself when they are no longer neighbours in it."""
        for at, (first, second) in enumerate(zip(self.runs, self.runs[1:], strict=False)):
            if first is merge.first and second is merge.second:
                between = (made,) if len(made) else ()
                return Spine(self.layout, (*self.runs[:at], *between, *self.runs[at + 2 :]))
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
        for run in self.runs:
            mine, its = pairs(*extents(run, hashes))
            if not len(mine):
                continue
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


def _crowded(first: Run, second: Run) -> bool:
    return len(first) <= RATIO * len(second)
