"""Expressions under ANSI rules: nulls, errors, and that an error of a row that is not asked for is none."""

from __future__ import annotations

import datetime as dt
import math
import operator
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.snapshot.views.errors import ViewStopped
from strandline.snapshot.views.evaluate import DTYPES, evaluate, literal
from strandline.snapshot.views.zset import frame
from strandline.statemachine.views.expressions import Call, Column, Expression, Function, Literal
from strandline.statemachine.views.types import Type
from tests.snapshot.views.deltas import FEW
from tests.snapshot.views.json_values import VALUES

F, T = Function, Type


def call(function: Function, kind: Type, *arguments: Expression) -> Call:
    return Call(function, arguments, kind)


def of(kind: Type, *values: Any) -> pl.Series:
    return pl.Series(values, dtype=DTYPES[kind])


def worked(expression: Expression, *columns: pl.Series) -> list[Any]:
    return evaluate(expression, frame(columns)).to_list()


A, B = Column(0, T.BIGINT), Column(1, T.BIGINT)
X, Y = Column(0, T.DOUBLE), Column(1, T.DOUBLE)
S = Column(0, T.STRING)
P, Q = Column(0, T.BOOLEAN), Column(1, T.BOOLEAN)
LARGEST = 2**63 - 1
WHOLES = st.one_of(st.none(), st.integers(-(2**63), LARGEST), st.integers(-3, 3))


WORK: dict[Function, Callable[[int, int], int]] = {
    F.ADD: operator.add,
    F.SUBTRACT: operator.sub,
    F.MULTIPLY: operator.mul,
    F.REMAINDER: lambda left, right: (abs(left) % abs(right)) * (-1 if left < 0 else 1),
}


@FEW
@given(st.lists(st.tuples(WHOLES, WHOLES), max_size=5), st.sampled_from([*WORK]))
def test_whole_numbers_never_wrap(pairs: list[tuple[int | None, int | None]], function: Function) -> None:
    wanted: list[int | None] = []
    stops = False
    for left, right in pairs:
        if left is None or right is None:
            wanted.append(None)
        elif function is F.REMAINDER and right == 0:
            stops = True
        else:
            exact = WORK[function](left, right)
            stops |= not -(2**63) <= exact <= LARGEST
            wanted.append(exact)
    columns = [of(T.BIGINT, *(pair[side] for pair in pairs)) for side in (0, 1)]
    if stops:
        with pytest.raises(ViewStopped, match=r"beyond the range of BIGINT|division by zero"):
            worked(call(function, T.BIGINT, A, B), *columns)
    else:
        assert worked(call(function, T.BIGINT, A, B), *columns) == wanted


def test_division_and_remainder() -> None:
    divided = call(F.DIVIDE, T.DOUBLE, X, Y)
    assert worked(divided, of(T.DOUBLE, 1.0, None, 3.0), of(T.DOUBLE, 4.0, 0.0, None)) == [0.25, None, None]
    with pytest.raises(ViewStopped, match="division by zero"):
        worked(divided, of(T.DOUBLE, 1.0), of(T.DOUBLE, 0.0))
    doubles = worked(call(F.REMAINDER, T.DOUBLE, X, Y), of(T.DOUBLE, -5.5, None), of(T.DOUBLE, 2.0, 1.0))
    assert doubles == [-1.5, None]


def test_int_has_its_own_range() -> None:
    one = Column(0, T.INT)
    with pytest.raises(ViewStopped, match="range of INT"):
        worked(call(F.ADD, T.INT, one, one), of(T.INT, 2**30))
    with pytest.raises(ViewStopped, match="range of INT"):
        worked(call(F.NEGATE, T.INT, one), of(T.INT, -(2**31)))
    assert worked(call(F.ABS, T.INT, one), of(T.INT, -7, None)) == [7, None]


def test_logic_has_three_values() -> None:
    three = [True, False, None]
    left, right = of(T.BOOLEAN, *(a for a in three for _ in three)), of(T.BOOLEAN, *(three * 3))
    assert worked(call(F.AND, T.BOOLEAN, P, Q), left, right) == [
        True, False, None, False, False, False, None, False, None,
    ]  # fmt: skip
    assert worked(call(F.OR, T.BOOLEAN, P, Q), left, right) == [
        True, True, True, True, False, None, True, None, None,
    ]  # fmt: skip
    assert worked(call(F.NOT, T.BOOLEAN, P), of(T.BOOLEAN, *three)) == [False, True, None]


def test_a_guard_keeps_an_error_away_in_either_order() -> None:
    zero = Literal(0.0, T.DOUBLE)
    large = call(
        F.LESS, T.BOOLEAN, Literal(1.0, T.DOUBLE), call(F.DIVIDE, T.DOUBLE, Literal(1.0, T.DOUBLE), X)
    )
    is_zero = call(F.EQUAL, T.BOOLEAN, X, zero)
    guard = call(F.NOT, T.BOOLEAN, is_zero)
    column = of(T.DOUBLE, 0.0, 0.5, 2.0, None)
    for conjuncts in ((guard, large), (large, guard)):
        assert worked(call(F.AND, T.BOOLEAN, *conjuncts), column) == [False, True, False, None]
    for disjuncts in ((is_zero, large), (large, is_zero)):
        assert worked(call(F.OR, T.BOOLEAN, *disjuncts), column) == [True, True, False, None]


def test_a_case_works_out_only_what_is_asked() -> None:
    divided = call(F.DIVIDE, T.DOUBLE, Literal(1.0, T.DOUBLE), X)
    guard = call(F.EQUAL, T.BOOLEAN, X, Literal(0.0, T.DOUBLE))
    whole = call(F.CASE, T.DOUBLE, guard, Literal(None, T.DOUBLE), divided)
    assert worked(whole, of(T.DOUBLE, 4.0, 0.0, None, 2.0)) == [0.25, None, None, 0.5]
    assert worked(whole, of(T.DOUBLE)) == []


def test_nan_is_the_largest_and_equal_to_itself() -> None:
    nan, one = of(T.DOUBLE, math.nan, math.nan, 1.0), of(T.DOUBLE, math.nan, math.inf, math.nan)
    assert worked(call(F.EQUAL, T.BOOLEAN, X, Y), nan, one) == [True, False, False]
    assert worked(call(F.LESS, T.BOOLEAN, X, Y), nan, one) == [False, False, True]


def test_casts() -> None:
    to_whole = call(F.CAST, T.BIGINT, X)
    assert worked(to_whole, of(T.DOUBLE, 1.9, -1.9, None, -(2.0**63))) == [1, -1, None, -(2**63)]
    for beyond in (math.nan, math.inf, 1e300, 9.3e18, 2.0**63, -9.3e18):
        with pytest.raises(ViewStopped, match="beyond the range of BIGINT"):
            worked(to_whole, of(T.DOUBLE, beyond))
    with pytest.raises(ViewStopped, match="beyond the range of INT"):
        worked(call(F.CAST, T.INT, A), of(T.BIGINT, 2**31))
    assert worked(call(F.CAST, T.DOUBLE, A), of(T.BIGINT, 3, None)) == [3.0, None]
    assert worked(call(F.CAST, T.STRING, A), of(T.BIGINT, -3, None)) == ["-3", None]


def test_texts() -> None:
    column = of(T.STRING, "Straße", "", None)
    assert worked(call(F.UPPER, T.STRING, S), column) == ["STRASSE", "", None]
    assert worked(call(F.LOWER, T.STRING, S), column) == ["straße", "", None]
    assert worked(call(F.LENGTH, T.INT, S), column) == [6, 0, None]
    assert worked(call(F.CONCAT, T.STRING, S, Literal("!", T.STRING), S), column) == [
        "Straße!Straße",
        "!",
        None,
    ]


def test_times() -> None:
    column = of(T.TIMESTAMP, dt.datetime(2026, 2, 5, 14, 35, 7, 9, tzinfo=dt.UTC), None)
    wanted = {"minute": (2, 5, 14, 35), "hour": (2, 5, 14, 0), "day": (2, 5, 0, 0), "month": (2, 1, 0, 0)}
    for unit, (month, day, hour, minute) in {**wanted, "week": (2, 2, 0, 0), "year": (1, 1, 0, 0)}.items():
        cut = call(F.DATE_TRUNC, T.TIMESTAMP, Literal(unit, T.STRING), Column(0, T.TIMESTAMP))
        assert worked(cut, column) == [dt.datetime(2026, month, day, hour, minute, tzinfo=dt.UTC), None]
    assert worked(Literal(1, T.DATE), column) == [dt.date(1970, 1, 2)] * 2


def test_a_window_ends_in_a_year_that_is_written_with_four_digits() -> None:
    """A time beyond is no text of a record: the process ended without a reason, and the next one too."""
    week, moment = Literal(7 * 86_400_000_000, T.BIGINT), Column(0, T.TIMESTAMP)
    first, last = dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, 23, tzinfo=dt.UTC)
    for function, beyond in ((F.WINDOW_START, first), (F.WINDOW_END, last)):
        with pytest.raises(ViewStopped, match="beyond the years 1 to 9999"):
            worked(
                call(function, T.TIMESTAMP, week, moment), of(T.TIMESTAMP, last - dt.timedelta(30), beyond)
            )
    start = call(F.WINDOW_START, T.TIMESTAMP, week, moment)
    assert worked(start, of(T.TIMESTAMP, last, None)) == [dt.datetime(9999, 12, 30, tzinfo=dt.UTC), None]


@FEW
@given(
    st.data(), st.sampled_from([*Type]), st.sampled_from([F.EQUAL, F.LESS, F.LESS_OR_EQUAL]), st.booleans()
)
def test_a_literal_compares_as_a_column_of_it(
    data: st.DataObject, kind: Type, function: Function, first: bool
) -> None:
    values = data.draw(st.lists(st.none() | VALUES[kind], max_size=4))
    column = of(kind, *values)
    one = data.draw(st.sampled_from([None, *column.to_physical().to_list()]))
    value = Literal(one, kind)
    beside = literal(value, len(values))
    sides = (Column(0, kind), value) if not first else (value, Column(0, kind))
    columns = (Column(0, kind), Column(1, kind)) if not first else (Column(1, kind), Column(0, kind))
    found = evaluate(Call(function, sides, T.BOOLEAN), frame([column, beside]))
    assert found.to_list() == evaluate(Call(function, columns, T.BOOLEAN), frame([column, beside])).to_list()
    both = evaluate(Call(function, (value, value), T.BOOLEAN), frame([column]))
    assert len(both) == len(values)
