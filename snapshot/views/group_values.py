"""The values of a column by group, for what no sum can tell: which are there, and the lowest and the highest.

A spine has rows of group and value with the number of times that it is there. For DISTINCT it is asked
whether a value is there before and after a step; for MIN and MAX it has a group's values in their order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from strandline.snapshot.views import hashing
from strandline.snapshot.views.accumulators import Extreme, Stream
from strandline.snapshot.views.errors import ViewInvariant
from strandline.snapshot.views.leading import Order, leading
from strandline.snapshot.views.run import Layout, Run, run_of
from strandline.snapshot.views.spine import Spine
from strandline.snapshot.views.zset import Schema, ZSet, filtered, frame


@dataclass(frozen=True, slots=True)
class GroupValues:
    """The values of one column. `ordered`: for MIN and MAX; otherwise for DISTINCT."""

    column: int
    layout: Layout

    @classmethod
    def of(cls, keys: Schema, column: int, kind: pl.DataType, *, ordered: bool) -> GroupValues:
        """Give those of a column of some type, for groups with keys of some types."""
        width = len(keys)
        key = tuple(range(width if ordered else width + 1))
        return cls(column, Layout((*keys, kind), key, order=width if ordered else None))

    def change(self, delta: ZSet, keys: pl.DataFrame) -> Run:
        """Give a step's change of the values; what is null is none."""
        values = delta.rows.to_series(self.column)
        rows = ZSet(frame([*keys.get_columns(), values]), delta.weights)
        if values.null_count():
            rows = filtered(rows, values.is_not_null().to_numpy())
        return run_of(self.layout, rows.rows, (rows.weights,))

    def digest(self, change: Run) -> int:
        """Give what a change adds to the operator's digest; of two columns it differs for the same values."""
        number = pl.repeat(self.column, len(change), dtype=pl.Int64, eager=True)
        rows = frame([*change.rows.get_columns(), number])
        return hashing.digest(hashing.row_hashes(rows), change.sums[0])

    def appeared(self, before: Spine, change: Run) -> Stream:
        """Give the values that a step makes appear (+1) and disappear (-1).

        Raises ViewInvariant for a value that was retracted more often than it was added.
        """
        (old,) = before.sums_of(change.hashes, change.rows)
        new = old + change.sums[0]
        if len(new) and int(new.min()) < 0:
            raise ViewInvariant("a value was retracted more often than it was added")
        weights = (new > 0).astype(np.int64) - (old > 0)
        *keys, values = change.rows.get_columns()
        return Stream(frame(keys), {~self.column: values}, weights, rows=False)

    def extreme(self, spine: Spine, groups: Run, extreme: Extreme) -> pl.Series:
        """Give the lowest or highest value of each group; null for one without values."""
        place = len(self.layout.schema) - 1
        first = leading(spine, groups, [Order(place, extreme.highest)], 1)
        at = np.full(len(groups), -1, np.int64)
        at[first.group] = np.arange(len(first.group))
        missing = at < 0
        if not len(first.group):
            return pl.Series([None] * len(groups), dtype=self.layout.schema[place])
        values = first.rows.to_series(place)[np.maximum(at, 0).astype(np.uint32)]
        return values.set(pl.Series(missing), None) if missing.any() else values
