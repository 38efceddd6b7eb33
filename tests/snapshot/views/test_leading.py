"""The first rows of groups in ordered spines, against a sort of everything that is there."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, defaultdict
from typing import Any, Final

import numpy as np
import polars as pl
import pytest

from strandline.snapshot.views import hashing, leading
from strandline.snapshot.views.leading import Order
from strandline.snapshot.views.run import Layout, run_of
from strandline.snapshot.views.spine import Spine
from strandline.snapshot.views.zset import Schema, zset
from tests.snapshot.views.collisions import four_bit_hashes
from tests.snapshot.views.deltas import Row, plain

ROWS: Final[Schema] = (pl.Int64(), pl.String(), pl.Float64())
TEXTS: Final = [None, "", "strandli", "strandline", "strandlines", "strandline\0", "Ärger", "a", "zebra"]
NUMBERS: Final = [None, -math.inf, -1e300, -1.5, 0.0, 5e-324, 2.0, math.inf, math.nan]


def order(column: int) -> Layout:
    return Layout(ROWS, (0,), order=column)


def key(value: Any) -> tuple[Any, ...]:
    """Null lowest, NaN highest, texts by their bytes."""
    if value is None or value == "NaN":
        return (0,) if value is None else (2,)
    return (1, value.encode() if isinstance(value, str) else value)


def sorted_rows(rows: Counter[Row], orders: list[Order]) -> list[Row]:
    every = sorted(rows.elements(), key=lambda row: [key(value) for value in row])
    for each in reversed(orders):
        every.sort(key=lambda row, each=each: key(row[each.column]), reverse=each.descending)  # type: ignore[misc]
    return every


@pytest.mark.parametrize("collide", [False, True])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("column", [1, 2])
def test_the_first_rows_of_each_group_through_any_retractions(
    column: int, descending: bool, collide: bool
) -> None:
    pick = random.Random(column)
    layout, orders = order(column), [Order(column, descending), Order(3 - column, not descending)]
    with four_bit_hashes(collide):
        made = Spine(layout)
        there: Counter[Row] = Counter()
        for _ in range(30):
            added = [(pick.randrange(4), pick.choice(TEXTS), pick.choice(NUMBERS)) for _ in range(30)]
            there.update(tuple(map(plain, row)) for row in added)
            # The first ones go: those that the runs before have in front.
            gone = sorted_rows(there, orders)[: pick.randrange(40)]
            there.subtract(gone)
            there = +there
            back = [tuple(math.nan if value == "NaN" else value for value in row) for row in gone]
            delta = zset(ROWS, [*added, *back], [1] * len(added) + [-1] * len(back))
            made = made.with_run(run_of(layout, delta.rows, (delta.weights,)))
            groups = run_of(Layout((pl.Int64(),), (0,)), zset((pl.Int64(),), [(n,) for n in range(5)]).rows,
                            (np.ones(5, np.int64),))  # fmt: skip
            for wanted in (1, 3, 100):
                first = leading.leading(made, groups, orders, wanted)
                numbers = groups.rows.to_series(0).to_list()
                found: defaultdict[int, list[Row]] = defaultdict(list)
                for group, row, times in zip(
                    first.group.tolist(), first.rows.rows(), first.times.tolist(), strict=True
                ):
                    found[numbers[group]] += [tuple(map(plain, row))] * times
                for number in numbers:
                    own = Counter({row: times for row, times in there.items() if row[0] == number})
                    assert found[number] == sorted_rows(own, orders)[:wanted]


def test_few_rows_are_looked_at_where_few_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million rows of a group would cost a million looks at each step otherwise."""
    delta = zset(ROWS, [(1, "text", float(number)) for number in range(100_000)])
    made = Spine(order(2)).with_run(run_of(order(2), delta.rows, (delta.weights,)))
    groups = run_of(Layout((pl.Int64(),), (0,)), zset((pl.Int64(),), [(1,)]).rows, (np.ones(1, np.int64),))
    seen: list[int] = []
    known = leading._known

    def watched(*args: Any, **options: Any) -> Any:
        result = known(*args, **options)
        seen.append(len(result.group))
        return result

    monkeypatch.setattr(leading, "_known", watched)
    assert leading.leading(made, groups, [Order(2)], 1).rows.rows() == [(1, "text", 0.0)]
    assert leading.leading(made, groups, [Order(2, descending=True)], 1).rows.rows() == [
        (1, "text", 99_999.0)
    ]
    assert sum(seen) < 20


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pl.Int64(), [-(2**63), -5, -1, 0, 1, 2**40, 2**63 - 1]),
        (pl.Int32(), [-(2**31), -1, 0, 7, 2**31 - 1]),
        (pl.Boolean(), [False, True]),
        (pl.Float64(), [-math.inf, -1e308, -1.0, -5e-324, 0.0, 5e-324, 1.0, math.inf, math.nan]),
        (pl.String(), ["", "\0", "a", "a\0", "ab", "strandli", "é", "\U0001f600"]),
    ],
)
def test_orders_are_those_of_the_values(kind: pl.DataType, values: list[Any]) -> None:
    numbers = hashing.order_of(pl.Series([None, *values], dtype=kind)).tolist()
    assert all(low <= high for low, high in itertools.pairwise(numbers))
    if kind != pl.String():
        assert len({*numbers[1:]}) == len(values)
