"""Accumulators of a linear aggregate: the numbers that a group keeps, and the results they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from strandline.snapshot.views import exact
from strandline.snapshot.views.errors import ViewStopped
from strandline.snapshot.views.zset import Positions, Weights, ZSet
from strandline.statemachine.views.aggregates import Aggregate, AggregateFunction
from strandline.statemachine.views.types import WHOLE, Type

Totals = dict[int, list[int]]
"""By the input column of DOUBLEs: each group's exact sum, in units of `exact.LOWEST_BIN`."""
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


class Accumulators:
    """The accumulators that some aggregates need together. The first sum of a group is its number of rows."""

    def __init__(self, aggregates: Sequence[Aggregate]) -> None:
        self.aggregates = tuple(aggregates)
        self._slots: dict[int, Slots] = {}
        self.sums = 1
        wide: list[int] = []
        for column in dict.fromkeys(each.column for each in aggregates if each.column is not None):
            summed = {
                each.of
                for each in aggregates
                if each.column == column and each.function is not AggregateFunction.COUNT
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

    def contributions(self, delta: ZSet) -> tuple[Weights, ...]:
        """Give what each row adds to its group's sums."""
        sums: list[Weights] = [delta.weights]
        for column, slots in self._slots.items():
            values = delta.rows.to_series(column)
            there = delta.weights
            if values.null_count():
                there, values = np.where(values.is_null().to_numpy(), 0, there), values.fill_null(0)
            sums.append(there)
            if slots.whole >= 0:
                sums += exact.split(values.to_numpy().astype(np.int64), there)
            if slots.special >= 0:
                doubles = values.to_numpy()
                for special in (np.isnan(doubles), doubles == np.inf, doubles == -np.inf):
                    sums.append(np.where(special, delta.weights, 0))
        return tuple(sums)

    def results(self, sums: tuple[Weights, ...], totals: Totals) -> list[pl.Series]:
        """Give the results of groups that have rows; raises ViewStopped where a sum is beyond BIGINT."""
        return [self._result(each, sums, totals) for each in self.aggregates]

    def _result(self, aggregate: Aggregate, sums: tuple[Weights, ...], totals: Totals) -> pl.Series:
        if aggregate.column is None:
            return pl.Series(sums[0])
        slots = self._slots[aggregate.column]
        counts = sums[slots.count]
        if aggregate.function is AggregateFunction.COUNT:
            return pl.Series(counts)
        average = aggregate.function is AggregateFunction.AVG
        if slots.special >= 0:
            special = sums[slots.special : slots.special + 3]
            numbers = _double_results(totals[aggregate.column], counts, special, average)
        elif average:
            numbers = _whole_averages(sums[slots.whole], sums[slots.whole + 1], counts)
        else:
            numbers = _whole_sums(sums[slots.whole], sums[slots.whole + 1])
        nothing = counts == 0
        return numbers.set(pl.Series(nothing), None) if nothing.any() else numbers


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
