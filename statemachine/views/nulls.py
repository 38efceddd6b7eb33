"""Columns that are never null: what a key needs to tell a row from one that is not there."""

from __future__ import annotations

from functools import cache
from typing import Final

from strandline.statemachine.views.aggregates import AggregateFunction
from strandline.statemachine.views.expressions import Call, Column, Expression, Function, Literal
from strandline.statemachine.views.plan import (
    Arrange,
    Constant,
    Join,
    LinearAggregate,
    Map,
    Negate,
    Plan,
    Sink,
    Source,
    TopK,
    Union,
    Upsert,
)
from strandline.statemachine.views.rewrites import conjuncts

Numbers = frozenset[int]

_OF_RECORDS: Final = ("_partition", "_offset", "_timestamp")
_NOT_STRICT: Final = (Function.AND, Function.OR, Function.CASE, Function.IS_NULL)
"""Functions that may have a value although an argument is null."""


@cache
def never_null(plan: Plan) -> Numbers:
    """Give positions of columns that are null in no row; there may be others."""
    match plan:
        case Source(_, mode, _, columns):
            return frozenset(
                at for at, (name, _) in enumerate(columns) if mode == "append" and name in _OF_RECORDS
            )
        case Constant(values):
            return frozenset(at for at, each in enumerate(values) if each.value is not None)
        case Upsert(_, key):
            return frozenset(key)  # a record whose key has a null is none that can be read
        case Map(below, condition, columns):
            known = never_null(below) | (_true(condition) if condition else frozenset())
            return frozenset(at for at, each in enumerate(columns) if _is_there(each, known))
        case Join(left, right):
            width = len(left.types)
            theirs = never_null(right) | {*right.key}  # null is equal to nothing
            return never_null(left) | {*left.key} | {at + width for at in theirs}
        case LinearAggregate(below, keys, aggregates):
            known = never_null(below)
            there = {at for at, key in enumerate(keys) if key in known}
            there |= {
                len(keys) + at
                for at, each in enumerate(aggregates)
                if each.function is AggregateFunction.COUNT or each.column in known
            }
            return frozenset(there)
        case TopK(below, _, _, _, ranked):
            return never_null(below) | ({len(below.types)} if ranked else set())
        case Union(inputs):
            return frozenset.intersection(*map(never_null, inputs))
        case Arrange(below, _) | Negate(below) | Sink(below, _, _, _):
            return never_null(below)


def _is_there(expression: Expression, known: Numbers) -> bool:
    """Whether an expression is never null over rows of which some columns are not."""
    match expression:
        case Literal(value, _):
            return value is not None
        case Column(position, _):
            return position in known
        case Call(Function.IS_NULL, _, _):
            return True
        case Call(Function.CASE, arguments, _):
            branches = zip(arguments[:-1:2], arguments[1::2], strict=True)
            return _is_there(arguments[-1], known) and all(
                _is_there(value, known | _true(condition)) for condition, value in branches
            )
        case Call(_, arguments, _):
            return all(_is_there(each, known) for each in arguments)


def _true(condition: Expression) -> Numbers:
    """The columns that are not null in a row for which a condition is true."""
    found: set[int] = set()
    for each in conjuncts(condition):
        match each:
            case Call(Function.NOT, (Call(Function.IS_NULL, (value,), _),), _):
                found |= _needed(value)
            case _:
                found |= _needed(each)
    return frozenset(found)


def _needed(expression: Expression) -> Numbers:
    """The columns of which a null makes an expression null."""
    match expression:
        case Column(position, _):
            return frozenset((position,))
        case Call(function, arguments, _) if function not in _NOT_STRICT:
            return frozenset[int]().union(*map(_needed, arguments))
        case _:
            return frozenset()
