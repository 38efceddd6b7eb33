"""Accumulators of a linear aggregate: the numbers that a group keeps, and the results they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import polars as pl

from strandline.snapshot.views import exact
from strandline.snapshot.views.errors import ViewStopped
from strandline.snapshot.views.zset import Positions, Weights
from strandline.statemachine.views.aggregates import EXTREMES, Aggregate, AggregateFunction
from strandline.statemachine.views.types import WHOLE, Type

Totals = dict[int, list[int]]
"""By the place of a column of DOUBLEs: each group's exact sum, in units of `exact.LOWEST_BIN`."""


class Extreme(NamedTuple):
    """The lowest or the highest value of an input column."""

    column: int
    highest: bool


Extremes = Mapping[Extreme, pl.Series]
"""Each group's extreme values, null where it has no value."""
_BIGINT_HIGH: Final = 1 << 31
_EXACT_HIGH: Final = 1 << 20
"""Whole numbers whose high part is below this are below 2⁵², and exact as DOUBLEs."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The places of one input column's accumulators among a group's sums; -1 where it has none.

    Of a DOUBLE the finite values are in bins of their own, and NaN, ∞ and -∞ are counted at `special` and
    after it.
    """

    count: int
    whole: int
    special: int


@dataclass(frozen=True, slots=True)
class Stream:
    """Rows that add to groups: the groups' keys, columns of values by their place, and weights."""

    keys: pl.DataFrame
    columns: Mapping[int, pl.Series]
    """By the input's column; the distinct values of column n are those of ~n."""
    weights: Weights
    rows: bool
    """Whether they count as rows of the group: the distinct values of a column do not."""


class Accumulators:
    """The accumulators that some aggregates need together. The first sum of a group is its number of rows.

    What MIN and MAX need is no sum: `extremes` has it, by column, and whether the highest is asked for.
    """

    def __init__(self, aggregates: Sequence[Aggregate]) -> None:
        self.aggregates = tuple(aggregates)
        self._slots: dict[int, Slots] = {}
        self.sums = 1
        wide: list[int] = []
        summing = [each for each in aggregates if each.column is not None and each.function not in EXTREMES]
        for column in dict.fromkeys(map(_place, summing)):
            summed = {
                each.of
                for each in summing
                if _place(each) == column and each.function is not AggregateFunction.COUNT
            }
            count, self.sums = self.sums, self.sums + 1
            whole = special = -1
            if summed & set(WHOLE):
                whole, self.sums = self.sums, self.sums + 2
                wide.append(whole)
            elif Type.DOUBLE in summed:
                special, self.sums = self.sums, self.sums + 3
            self._slots[column] = Slots(count, whole, special)
        self.wide: Positions = tuple(wide)
        self.doubles = tuple(column for column, slots in self._slots.items() if slots.special >= 0)
        self.plain = tuple(column for column in self._slots if column >= 0)
        self.distinct = tuple(~column for column in self._slots if column < 0)
        self.extremes = tuple(
            dict.fromkeys(_extreme(each) for each in aggregates if each.function in EXTREMES)
        )

    def contributions(self, stream: Stream) -> tuple[Weights, ...]:
        """Give what each row adds to its group's sums."""
        nothing = np.zeros(len(stream.weights), np.int64)
        sums: list[Weights] = [stream.weights if stream.rows else nothing]
        for column, slots in self._slots.items():
            if column not in stream.columns:
                sums += [nothing] * (1 + 2 * (slots.whole >= 0) + 3 * (slots.special >= 0))
                continue
            values = stream.columns[column]
            there = stream.weights
            if values.null_count():
                there, values = np.where(values.is_null().to_numpy(), 0, there), values.fill_null(0)
            sums.append(there)
            if slots.whole >= 0:
                sums += exact.split(values.to_numpy().astype(np.int64), there)
            if slots.special >= 0:
                doubles = values.to_numpy()
                for special in (np.isnan(doubles), doubles == np.inf, doubles == -np.inf):
                    sums.append(np.where(special, stream.weights, 0))
        return tuple(sums)

    def results(self, sums: tuple[Weights, ...], totals: Totals, extremes: Extremes) -> list[pl.Series]:
        """Give the results of groups that have rows; raises ViewStopped where a sum is beyond BIGINT."""
        return [
            extremes[_extreme(each)] if each.function in EXTREMES else self._result(each, sums, totals)
            for each in self.aggregates
        ]

    def _result(self, aggregate: Aggregate, sums: tuple[Weights, ...], totals: Totals) -> pl.Series:
        if aggregate.column is None:
            return pl.Series(sums[0])
        place = _place(aggregate)
        slots = self._slots[place]
        counts = sums[slots.count]
        if aggregate.function is AggregateFunction.COUNT:
            return pl.Series(counts)
        average = aggregate.function is AggregateFunction.AVG
        if slots.special >= 0:
            special = sums[slots.special : slots.special + 3]
            numbers = _double_results(totals[place], counts, special, average)
        elif average:
            numbers = _whole_averages(sums[slots.whole], sums[slots.whole + 1], counts)
        else:
            numbers = _whole_sums(sums[slots.whole], sums[slots.whole + 1])
        nothing = counts == 0
        return numbers.set(pl.Series(nothing), None) if nothing.any() else numbers


def _place(aggregate: Aggregate) -> int:
    column = aggregate.column
    assert column is not None
    return ~column if aggregate.distinct else column


def _extreme(aggregate: Aggregate) -> Extreme:
    assert aggregate.column is not None
    return Extreme(aggregate.column, aggregate.function is AggregateFunction.MAX)


def _whole_sums(high: Weights, low: Weights) -> pl.Series:
    if len(high) and (int(high.max()) >= _BIGINT_HIGH or int(high.min()) < -_BIGINT_HIGH):
        raise ViewStopped("a SUM is beyond the range of BIGINT")
    return pl.Series((high << exact.BIN_BITS) + low)


def _whole_averages(high: Weights, low: Weights, counts: Weights) -> pl.Series:
    if not len(high) or int(np.abs(high).max()) < _EXACT_HIGH:
        return pl.Series(((high << exact.BIN_BITS) + low) / np.maximum(counts, 1))
    pairs = zip(exact.totals(high, low), counts.tolist(), strict=True)
    return pl.Series([exact.ratio(total, count or 1) for total, count in pairs], dtype=pl.Float64)


def _double_results(
    totals: list[int], counts: Weights, special: tuple[Weights, ...], average: bool
) -> pl.Series:
    divisors = counts.tolist() if average else [1] * len(totals)
    numbers = np.array(
        [exact.rounded(total, divisor or 1) for total, divisor in zip(totals, divisors, strict=True)],
        np.float64,
    )
    nans, ups, downs = (each > 0 for each in special)
    numbers[ups] = np.inf
    numbers[downs] = -np.inf
    numbers[nans | (ups & downs)] = np.nan
    return pl.Series(numbers)
