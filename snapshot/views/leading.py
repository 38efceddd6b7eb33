"""The first rows of groups in an ordered spine, without reading all rows of the groups.

A run has the rows of a group in their order, so the first few of each run are looked at. Rows that one run
adds and another retracts cancel out; where too few are left, more of each run is looked at. What is known
of a group ends at the lowest row up to which some run was looked at: behind it that run could retract what
another adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from strandline.snapshot.views.errors import ViewInvariant
from strandline.snapshot.views.hashing import Hashes
from strandline.snapshot.views.run import Places, Run, extents, pairs
from strandline.snapshot.views.spine import Spine
from strandline.snapshot.views.zset import Weights, chosen, equal_rows, frame

FIRST_LOOK: Final = 4
"""The rows beyond those that are wanted which are looked at first: few retractions are of the first rows."""
WIDER: Final = 8
_ALL: Final = np.uint64((1 << 64) - 1)


@dataclass(frozen=True, slots=True)
class Order:
    """A column by which rows are ordered, null lowest and NaN highest."""

    column: int
    descending: bool = False


class Leading(NamedTuple):
    """Rows, the place of each one's group in what was asked for, and how often it is among the wanted ones.

    They are in the order of the groups, and of the rows within each.
    """

    group: Places
    rows: pl.DataFrame
    times: Weights


def leading(spine: Spine, groups: Run, orders: Sequence[Order], wanted: int) -> Leading:
    """Give the first rows of groups, `wanted` of each at most, equal ones as often as they are there.

    The first of `orders` is of the column that the spine is ordered by; rows that all orders leave equal
    stand in the order of all their columns. Raises ViewInvariant for a row that was retracted more often
    than added.
    """
    last = orders[0].descending
    found = [_Extent(run, *extents(run, groups.hashes)) for run in spine.runs]
    open_ = np.flatnonzero(sum((each.counts for each in found), np.zeros(len(groups), np.intp)))
    look = wanted + FIRST_LOOK
    parts: list[Leading] = []
    while len(open_):
        known = _known(spine, groups, found, open_, look, last=last)
        first = _first(known.rows, known.weights, known.group, orders, wanted)
        enough = np.bincount(first.group, first.times, len(open_)) >= wanted
        done = enough | known.complete
        kept = done[first.group]
        parts.append(Leading(open_[first.group[kept]], first.rows.filter(pl.Series(kept)), first.times[kept]))
        open_ = open_[~done]
        look *= WIDER
    return _in_order(spine, parts)


class _Extent(NamedTuple):
    """The rows of a run that have the hashes of the groups."""

    run: Run
    starts: Places
    counts: Places


class _Known(NamedTuple):
    """Rows up to which all runs were looked at, and the groups of which there are no others."""

    group: Places
    rows: pl.DataFrame
    weights: Weights
    complete: npt.NDArray[np.bool_]


def _known(
    spine: Spine, groups: Run, found: list[_Extent], open_: Places, look: int, *, last: bool
) -> _Known:
    """Look at the first rows of each run, the last ones for a descending order."""
    mine: list[Places] = []
    ties: list[Hashes] = []
    rows: list[pl.DataFrame] = []
    weights: list[Weights] = []
    limits = np.zeros(len(open_), np.uint64) if last else np.full(len(open_), _ALL)
    complete = np.ones(len(open_), np.bool_)
    for run, all_starts, all_counts in found:
        if run.ties is None:
            raise ViewInvariant("a spine without an order has no first rows")
        counts = all_counts[open_]
        taken = np.minimum(counts, look)
        starts = all_starts[open_] + (counts - taken if last else 0)
        cut = np.flatnonzero(taken < counts)
        complete[cut] = False
        edge = run.ties[starts[cut] + (0 if last else taken[cut] - 1)]
        limits[cut] = np.maximum(limits[cut], edge) if last else np.minimum(limits[cut], edge)
        group, place = pairs(starts, taken)
        equal = equal_rows(groups.rows, open_[group], chosen(run.rows, spine.layout.key), place)
        group, place = group[equal], place[equal]
        mine.append(group)
        ties.append(run.ties[place])
        rows.append(run.rows[place.astype(np.uint32)])
        weights.append(run.sums[0][place])
    group, tie = np.concatenate(mine), np.concatenate(ties)
    inside = complete[group] | (tie > limits[group] if last else tie < limits[group])
    whole = pl.concat(rows, rechunk=True).filter(pl.Series(inside))
    return _Known(group[inside], whole, np.concatenate(weights)[inside], complete)


def _first(
    rows: pl.DataFrame, weights: Weights, group: Places, orders: Sequence[Order], wanted: int
) -> Leading:
    """Put equal rows together, and take the first of each group."""
    names = rows.columns
    by = [*(f"c{each.column}" for each in orders), *names]
    down = [*(each.descending for each in orders), *([False] * len(names))]
    whole = (
        rows.with_columns(g=pl.Series(group), w=pl.Series(weights))
        .group_by("g", *names)
        .agg(pl.col("w").sum())
        .filter(pl.col("w") != 0)
        .sort("g", *by, descending=[False, *down], nulls_last=[False, *down])
    )
    if whole.height and int(whole["w"].min()) < 0:  # type: ignore[arg-type]
        raise ViewInvariant("a row was retracted more often than it was added")
    whole = whole.with_columns(before=pl.col("w").cum_sum().over("g") - pl.col("w"))
    whole = whole.filter(pl.col("before") < wanted)
    times = np.minimum(whole["w"].to_numpy(), wanted - whole["before"].to_numpy())
    return Leading(whole["g"].to_numpy().astype(np.intp), whole.select(names), times)


def _in_order(spine: Spine, parts: list[Leading]) -> Leading:
    if not parts:
        nothing = frame([pl.Series([], dtype=kind) for kind in spine.layout.schema])
        return Leading(np.empty(0, np.intp), nothing, np.empty(0, np.int64))
    group = np.concatenate([part.group for part in parts])
    order = np.argsort(group, kind="stable")
    rows = pl.concat([part.rows for part in parts], rechunk=True)[order.astype(np.uint32)]
    return Leading(group[order], rows, np.concatenate([part.times for part in parts])[order])
