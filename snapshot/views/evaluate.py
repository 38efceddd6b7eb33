"""Expressions over polars columns, under ANSI rules: without an answer they raise ViewStopped."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np
import polars as pl

from strandline.snapshot.views.errors import ViewStopped
from strandline.statemachine.views.expressions import (
    Call,
    Column,
    Expression,
    Function,
    Literal,
    may_fail,
    ordered,
)
from strandline.statemachine.views.types import WHOLE, Type

DTYPES: Final[dict[Type, pl.DataType]] = {
    Type.BOOLEAN: pl.Boolean(),
    Type.INT: pl.Int32(),
    Type.BIGINT: pl.Int64(),
    Type.DOUBLE: pl.Float64(),
    Type.STRING: pl.String(),
    Type.DATE: pl.Date(),
    Type.TIMESTAMP: pl.Datetime("us", "UTC"),
}
_EVERY: Final = {"minute": "1m", "hour": "1h", "day": "1d", "week": "1w", "month": "1mo", "year": "1y"}
_BEYOND_BIGINT: Final = 2.0**63
TIMES: Final = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The microseconds of the years 1 to 9999, which Python's times have."""
_COMPARISONS: Final = (Function.EQUAL, Function.LESS, Function.LESS_OR_EQUAL)


def evaluate(expression: Expression, rows: pl.DataFrame) -> pl.Series:
    """Work an expression out for each row; raises ViewStopped where it has no value."""
    match expression:
        case Column(position, _):
            return rows.to_series(position)
        case Literal():
            return literal(expression, rows.height)
        case Call(Function.CASE, arguments, kind):
            return _case(arguments, kind, rows)
        case Call(Function.AND | Function.OR as function, arguments, _):
            return _logic(function, ordered(function, arguments), rows)
        case Call(function, arguments, kind) if function in _COMPARISONS and rows.height:
            literals = [isinstance(each, Literal) for each in arguments]
            # A column is compared with a single value as it is; it need not be there for each row.
            times = 1 if sum(literals) == 1 else rows.height
            sides = [
                literal(each, times) if isinstance(each, Literal) else evaluate(each, rows)
                for each in arguments
            ]
            return _FUNCTIONS[function](sides, kind)
        case Call(function, arguments, kind):
            return _FUNCTIONS[function]([evaluate(each, rows) for each in arguments], kind)


def literal(value: Literal, times: int) -> pl.Series:
    """Give a literal's value a number of times."""
    return pl.repeat(value.value, times, dtype=_physical(value.type), eager=True).cast(DTYPES[value.type])


def _physical(kind: Type) -> pl.DataType:
    """The type that a literal's value has."""
    return {Type.DATE: pl.Int32(), Type.TIMESTAMP: pl.Int64()}.get(kind, DTYPES[kind])


def _case(arguments: tuple[Expression, ...], kind: Type, rows: pl.DataFrame) -> pl.Series:
    """Each value is worked out for the rows of its condition only: for others it might be an error."""
    left = np.arange(rows.height)
    parts: list[tuple[np.ndarray[tuple[int], np.dtype[np.intp]], pl.Series]] = []
    for condition, value in zip(arguments[:-1:2], arguments[1::2], strict=True):
        among = rows[left.astype(np.uint32)]
        hit = evaluate(condition, among).fill_null(False).to_numpy()
        parts.append((left[hit], evaluate(value, among.filter(pl.Series(hit)))))
        left = left[~hit]
    parts.append((left, evaluate(arguments[-1], rows[left.astype(np.uint32)])))
    order = np.concatenate([places for places, _ in parts])
    values = pl.concat([part.cast(DTYPES[kind]) for _, part in parts], rechunk=True)
    return values.gather(np.argsort(order, kind="stable").astype(np.uint32))


def _logic(function: Function, arguments: tuple[Expression, ...], rows: pl.DataFrame) -> pl.Series:
    """SQL's three values. What may fail is worked out only for the rows that the others leave undecided."""
    decided = function is Function.OR
    result = pl.repeat(not decided, rows.height, dtype=pl.Boolean, eager=True)
    for argument in arguments:
        if may_fail(argument):
            open_ = result.ne_missing(decided)
            places = open_.arg_true()
            among = evaluate(argument, rows.filter(open_))
            value = pl.repeat(not decided, rows.height, dtype=pl.Boolean, eager=True).scatter(places, among)
        else:
            value = evaluate(argument, rows)
        result = (result | value) if decided else (result & value)
    return result


def _arithmetic(
    work: Callable[[pl.Series, pl.Series], pl.Series],
) -> Callable[[list[pl.Series], Type], pl.Series]:
    def worked(arguments: list[pl.Series], kind: Type) -> pl.Series:
        left, right = arguments
        if kind is Type.DOUBLE:
            return work(left, right)
        # 128 bits hold every product of two BIGINTs.
        return _narrowed(work(left.cast(pl.Int128), right.cast(pl.Int128)), kind)

    return worked


def _narrowed(wide: pl.Series, kind: Type) -> pl.Series:
    narrow = wide.cast(DTYPES[kind], strict=False)
    if narrow.null_count() != wide.null_count():
        raise ViewStopped(f"a result is beyond the range of {kind.value}")
    return narrow


def _divide(arguments: list[pl.Series], kind: Type) -> pl.Series:
    _check_divisor(*arguments)
    return arguments[0] / arguments[1]


def _remainder(arguments: list[pl.Series], kind: Type) -> pl.Series:
    """The remainder has the sign of the dividend, as in Java."""
    _check_divisor(*arguments)
    left, right = arguments
    if kind is Type.DOUBLE:
        return pl.Series(np.fmod(left.fill_null(0).to_numpy(), right.fill_null(1).to_numpy())).set(
            left.is_null() | right.is_null(), None
        )
    pair = pl.DataFrame([left.cast(pl.Int128).alias("left"), right.cast(pl.Int128).alias("right")])
    size = _absolute("left") % _absolute("right")
    signed = pl.when(pl.col("left") < 0).then(0 - size).otherwise(size)
    return _narrowed(pair.select(signed).to_series(), kind)


def _absolute(name: str) -> pl.Expr:
    # polars has abs and negate for no column of 128 bits.
    number = pl.col(name)
    return pl.when(number < 0).then(0 - number).otherwise(number)


def _check_divisor(left: pl.Series, right: pl.Series) -> None:
    if bool(((right == 0) & left.is_not_null()).any()):
        raise ViewStopped("a division by zero; guard it with CASE WHEN or a condition")


def _unary(work: pl.Expr) -> Callable[[list[pl.Series], Type], pl.Series]:
    """`work` is an expression over the column "of"."""

    def worked(arguments: list[pl.Series], kind: Type) -> pl.Series:
        column = arguments[0] if kind is Type.DOUBLE else arguments[0].cast(pl.Int128)
        result = column.to_frame("of").select(work).to_series()
        return result if kind is Type.DOUBLE else _narrowed(result, kind)

    return worked


def _cast(arguments: list[pl.Series], kind: Type) -> pl.Series:
    (column,) = arguments
    if column.dtype == pl.Float64 and kind in WHOLE:
        cut = column.to_numpy()
        with np.errstate(invalid="ignore"):
            outside = ~((cut >= -_BEYOND_BIGINT) & (cut < _BEYOND_BIGINT)) & column.is_not_null().to_numpy()
        if outside.any():
            raise ViewStopped(f"a number is beyond the range of {kind.value}")
        return _narrowed(column.cast(pl.Int128), kind)
    if kind in WHOLE:
        return _narrowed(column, kind)
    return column.cast(DTYPES[kind])


def _truncated(arguments: list[pl.Series], kind: Type) -> pl.Series:
    unit, column = arguments
    return column.dt.truncate(_EVERY[unit[0]]) if len(column) else column


def _window(arguments: list[pl.Series], kind: Type, behind: int) -> pl.Series:
    lengths, column = arguments
    moments = column.to_physical()
    if not len(moments):
        return column
    length = int(lengths[0])
    # The remainder of numpy and polars has the sign of the divisor, so times before 1970 are in their
    # windows too.
    edges = moments - moments % length + behind * length
    if has_dates(edges):
        return edges.cast(DTYPES[kind])
    raise ViewStopped("the start or end of a window is beyond the years 1 to 9999; guard it with a condition")


def has_dates(microseconds: pl.Series) -> bool:
    """Tell whether all times since 1970 are in years that dates are written with."""
    return bool(microseconds.is_between(*TIMES).all())


def _like(arguments: list[pl.Series], kind: Type) -> pl.Series:
    column, patterns = arguments
    if not len(column):
        return pl.Series([], dtype=pl.Boolean)
    # An escaped character, a wildcard, or any other character.
    parts = re.findall(r"\\.|.", patterns[0], re.DOTALL)
    wild = {"%": ".*", "_": "."}
    pattern = "".join(wild.get(part) or re.escape(part[-1]) for part in parts)
    return column.str.contains(f"(?s)^{pattern}$")


def _substring(arguments: list[pl.Series], kind: Type) -> pl.Series:
    column, first, length = arguments
    return column.str.slice(int(first[0]) - 1, int(length[0])) if len(column) else column


def _split_part(arguments: list[pl.Series], kind: Type) -> pl.Series:
    column, delimiters, numbers = arguments
    if not len(column):
        return column
    parts = column.str.split(delimiters[0]).list.get(int(numbers[0]) - 1, null_on_oob=True)
    return parts.fill_null("").set(column.is_null(), None)


_PARTS: Final[dict[str, Callable[[pl.Series], pl.Series]]] = {
    "year": lambda column: column.dt.year(),
    "month": lambda column: column.dt.month(),
    "day": lambda column: column.dt.day(),
    "hour": lambda column: column.dt.hour(),
    "minute": lambda column: column.dt.minute(),
}


def _date_part(arguments: list[pl.Series], kind: Type) -> pl.Series:
    part, column = arguments
    return _PARTS[part[0]](column).cast(pl.Int32) if len(column) else pl.Series([], dtype=pl.Int32)


_FUNCTIONS: Final[dict[Function, Callable[[list[pl.Series], Type], pl.Series]]] = {
    Function.ADD: _arithmetic(lambda left, right: left + right),
    Function.SUBTRACT: _arithmetic(lambda left, right: left - right),
    Function.MULTIPLY: _arithmetic(lambda left, right: left * right),
    Function.DIVIDE: _divide,
    Function.REMAINDER: _remainder,
    Function.NEGATE: _unary(0 - pl.col("of")),
    Function.ABS: _unary(_absolute("of")),
    Function.EQUAL: lambda each, _: each[0] == each[1],
    Function.LESS: lambda each, _: each[0] < each[1],
    Function.LESS_OR_EQUAL: lambda each, _: each[0] <= each[1],
    Function.NOT: lambda each, _: ~each[0],
    Function.IS_NULL: lambda each, _: each[0].is_null(),
    Function.CAST: _cast,
    Function.UPPER: lambda each, _: each[0].str.to_uppercase(),
    Function.LOWER: lambda each, _: each[0].str.to_lowercase(),
    Function.LENGTH: lambda each, _: each[0].str.len_chars().cast(pl.Int32),
    Function.CONCAT: lambda each, _: pl.select(pl.concat_str(each)).to_series(),
    Function.DATE_TRUNC: _truncated,
    Function.DATE_PART: _date_part,
    Function.WINDOW_START: lambda each, kind: _window(each, kind, 0),
    Function.WINDOW_END: lambda each, kind: _window(each, kind, 1),
    Function.LIKE: _like,
    Function.SPLIT_PART: _split_part,
    Function.SUBSTRING: _substring,
}
