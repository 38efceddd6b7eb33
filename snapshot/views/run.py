"""Runs: immutable rows in the order of their keys' hashes, the unit that views keep their state in.

A row has columns, some of which are its key, and numbers that add up when equal rows meet: its weight, and
in aggregates the accumulators. Rows are ordered by the hash of the key, then by the hash of the row or,
where the layout says so, by the value of a column, and where even those are equal and the rows are not, by
hashes and values: the order is a function of the rows alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from strandline.snapshot.views import exact, hashing
from strandline.snapshot.views.hashing import Hashes, RowHashes
from strandline.snapshot.views.zset import (
    Positions,
    Schema,
    Weights,
    chosen,
    empty,
    equal_rows,
    gathered,
    own_text,
)

Places = npt.NDArray[np.intp]
HASHES: Final = 1 << 64


class HashRange(NamedTuple):
    """Hashes from `first` to `last`, both included."""

    first: int
    last: int


ALL_HASHES: Final = HashRange(0, HASHES - 1)


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a run's rows, which of them are the key, and the numbers that add up.

    `wide` has the positions in `sums` of numbers that two columns hold: high part first (`exact.py`).
    `order` is the column by which the rows of a key are ordered, which is then no column of the key; None:
    by no value.
    """

    schema: Schema
    key: Positions
    sums: int = 1
    wide: Positions = ()
    order: int | None = None

    @property
    def key_is_row(self) -> bool:
        """Whether the hash of the key is the hash of the whole row."""
        return self.key == tuple(range(len(self.schema)))


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Run:
    """Rows without repetition, none with all sums zero. Its arrays cannot be written to.

    `ties` are hashes of whole rows or, in a layout with an order, `hashing.order_of` its column; None where
    the key is the whole row.
    """

    layout: Layout
    hashes: Hashes
    ties: Hashes | None
    rows: pl.DataFrame
    sums: tuple[Weights, ...]

    def __post_init__(self) -> None:
        for array in (self.hashes, *self.sums, *(() if self.ties is None else (self.ties,))):
            array.flags.writeable = False

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def bytes(self) -> int:
        """Bytes in memory, about."""
        arrays = (self.hashes, *self.sums, *(() if self.ties is None else (self.ties,)))
        return int(sum(array.nbytes for array in arrays) + self.rows.estimated_size())

    def row_hashes(self) -> RowHashes:
        """Give the hashes of whole rows, of which the run has one half most often."""
        if self.ties is None:
            (high,) = hashing.halves(self.rows, (hashing.HIGH,))
            return RowHashes(self.hashes, high)
        if self.layout.order is None:
            (low,) = hashing.halves(self.rows, (hashing.LOW,))
            return RowHashes(low, self.ties)
        return hashing.row_hashes(self.rows)

    def within(self, hash_range: HashRange) -> Run:
        """Give the part whose keys' hashes lie in a range, without copying it."""
        start = int(np.searchsorted(self.hashes, np.uint64(hash_range.first), "left"))
        stop = int(np.searchsorted(self.hashes, np.uint64(hash_range.last), "right"))
        ties = None if self.ties is None else self.ties[start:stop]
        sums = tuple(each[start:stop] for each in self.sums)
        return Run(self.layout, self.hashes[start:stop], ties, self.rows[start:stop], sums)


def empty_run(layout: Layout) -> Run:
    """Make the run without rows."""
    nothing = np.empty(0, np.uint64)
    sums = tuple(np.empty(0, np.int64) for _ in range(layout.sums))
    return Run(
        layout, nothing, None if layout.key_is_row else nothing.copy(), empty(layout.schema).rows, sums
    )


def run_of(layout: Layout, rows: pl.DataFrame, sums: tuple[Weights, ...]) -> Run:
    """Sort and consolidate rows in any order."""
    if layout.key_is_row:
        hashes, ties = hashing.key_hash(rows), None
    else:
        # A frame without columns has no rows.
        none = not layout.key
        hashes = np.zeros(rows.height, np.uint64) if none else hashing.key_hash(chosen(rows, layout.key))
        ties = (
            hashing.halves(rows, (hashing.HIGH,))[0]
            if layout.order is None
            else hashing.order_of(rows.to_series(layout.order))
        )
    # Equal hashes may stand in any order: what follows orders them by the rows alone.
    return _consolidated(layout, hashes, ties, rows, sums, np.argsort(hashes))


def is_ordered(run: Run) -> bool:
    """Whether a run has its rows in their order, each once, under their hashes: else look-ups miss some."""
    right = run_of(run.layout, run.rows, run.sums)
    found, wanted = ((one.hashes, *one.sums) for one in (run, right))
    ties = (run.ties is None) == (right.ties is None) and (
        run.ties is None or right.ties is None or np.array_equal(run.ties, right.ties)
    )
    return ties and all(map(np.array_equal, found, wanted))


def merged(first: Run, second: Run) -> Run:
    """Put two runs together; equal rows become one, and what adds up to nothing goes."""
    if not len(first) or not len(second):
        return first if len(first) else second
    # Both are sorted: each row of the second goes behind those of the first that are not above it.
    places = np.searchsorted(first.hashes, second.hashes, "right") + np.arange(len(second))
    order = np.empty(len(first) + len(second), np.intp)
    of_first = np.ones(len(order), np.bool_)
    of_first[places] = False
    order[places] = np.arange(len(first), len(order))
    order[of_first] = np.arange(len(first))
    ties = None if first.ties is None or second.ties is None else np.concatenate([first.ties, second.ties])
    sums = tuple(np.concatenate(pair) for pair in zip(first.sums, second.sums, strict=True))
    return _consolidated(
        first.layout,
        np.concatenate([first.hashes, second.hashes]),
        ties,
        pl.concat([first.rows, second.rows], rechunk=True),
        sums,
        order,
    )


def group(hashes: Hashes, rows: pl.DataFrame, order: Places) -> tuple[Places, npt.NDArray[np.bool_]]:
    """Order rows so that equal ones are neighbours; and whether each but the last equals the next.

    `order` has the rows by hash. Equal rows stay in that order.
    """
    return _neighbours(hashes, None, rows, order, ordered=False)


def extents(probed: Run, hashes: Hashes) -> tuple[Places, Places]:
    """Give, for each hash, the first place in the run that has it and the number of such places."""
    starts = np.searchsorted(probed.hashes, hashes, "left")
    if not len(probed):
        return starts, np.zeros(len(hashes), np.intp)
    last = len(probed) - 1
    hit = probed.hashes[np.minimum(starts, last)] == hashes
    following = probed.hashes[np.minimum(starts + 1, last)] == hashes
    if bool((hit & following & (starts < last)).any()):
        return starts, np.searchsorted(probed.hashes, hashes, "right") - starts
    # No hash comes twice, so the second search, as dear as the first, would find nothing new.
    return starts, hit.astype(np.intp)


def pairs(starts: Places, counts: Places) -> tuple[Places, Places]:
    """Give all pairs of a place in the hashes and a place in the run, by their extents."""
    mine = np.repeat(np.arange(len(starts)), counts)
    offsets = np.cumsum(counts) - counts
    return mine, np.arange(int(counts.sum())) + np.repeat(starts - offsets, counts)


def _consolidated(
    layout: Layout,
    hashes: Hashes,
    ties: Hashes | None,
    rows: pl.DataFrame,
    sums: tuple[Weights, ...],
    order: Places,
) -> Run:
    order, same = _neighbours(hashes, ties, rows, order, ordered=layout.order is not None)
    if same.any():
        starts = np.flatnonzero(np.concatenate([[True], ~same]))
        sums = tuple(np.add.reduceat(each[order], starts) for each in sums)
        order = order[starts]
    else:
        sums = tuple(each[order] for each in sums)
    sums = exact.carried(sums, layout.wide)
    kept = np.zeros(len(order), np.bool_)
    for each in sums:
        kept |= each != 0
    if not kept.all():
        order = order[kept]
        sums = tuple(each[kept] for each in sums)
    rows = own_text(gathered(rows, order))
    return Run(layout, hashes[order], None if ties is None else ties[order], rows, sums)


def _neighbours(
    hashes: Hashes, ties: Hashes | None, rows: pl.DataFrame, order: Places, *, ordered: bool
) -> tuple[Places, npt.NDArray[np.bool_]]:
    if not len(order):
        return order, np.empty(0, np.bool_)
    by_hash = hashes[order]
    same = by_hash[1:] == by_hash[:-1]
    if ties is not None:
        order, same = _resorted(order, same, (ties, hashes))
        if ordered and same.any():
            # Rows that are equal in their order may differ in other columns, or behind the first 8 bytes.
            finer = np.zeros(len(hashes), np.uint64)
            among = order[_tied(same)]
            (finer[among],) = hashing.halves(gathered(rows, among), (hashing.HIGH,))
            order, same = _resorted(order, same, (finer, ties, hashes))
    at = np.flatnonzero(same)
    if len(at):
        equal = equal_rows(rows, order[at], rows, order[at + 1])
        if not equal.all():
            order = _untangled(rows, order, same, at[~equal])
            equal = equal_rows(rows, order[at], rows, order[at + 1])
        same[at] = equal
    return order, same


def _tied(same: npt.NDArray[np.bool_]) -> Places:
    """The places that are equal to a neighbour."""
    return np.flatnonzero(np.concatenate([same, [False]]) | np.concatenate([[False], same]))


def _resorted(
    order: Places, same: npt.NDArray[np.bool_], by: tuple[Hashes, ...]
) -> tuple[Places, npt.NDArray[np.bool_]]:
    """Sort neighbours that were equal so far by the first of some numbers, the others being as they are."""
    if not same.any():
        return order, same
    places = _tied(same)
    among = order[places]
    order = order.copy()
    order[places] = among[np.lexsort([each[among] for each in by])]
    first = by[0][order]
    return order, same & (first[1:] == first[:-1])


def _untangled(rows: pl.DataFrame, order: Places, same: npt.NDArray[np.bool_], unequal: Places) -> Places:
    """Order the rows of each collision by their values, so that equal ones are neighbours."""
    order = order.copy()
    breaks = np.flatnonzero(~same)
    done = -1
    for place in unequal.tolist():
        if place <= done:
            continue
        before, after = np.searchsorted(breaks, place, "left"), np.searchsorted(breaks, place, "right")
        start = int(breaks[before - 1]) + 1 if before else 0
        stop = int(breaks[after]) + 1 if after < len(breaks) else len(order)
        members = order[start:stop]
        values = gathered(rows, members).rows()
        by_value = sorted(range(len(members)), key=lambda at: repr(values[at]))
        order[start:stop] = members[by_value]
        done = stop - 1
    return order
