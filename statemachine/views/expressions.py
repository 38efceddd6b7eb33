"""Expressions over the columns of a row: columns go by position, so names and aliases are no part of them.

Each function has one meaning, that of Spark's ANSI mode: an overflow or a division by zero is an error.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from strandline.statemachine.views.types import Type

Value = bool | int | float | str | None


class Function(enum.Enum):
    """A function, with the word that stands for it in an expression's canonical form."""

    ADD = "add"
    SUBTRACT = "subtract"
    MULTIPLY = "multiply"
    DIVIDE = "divide"
    REMAINDER = "remainder"
    NEGATE = "negate"
    ABS = "abs"
    EQUAL = "equal"
    LESS = "less"
    LESS_OR_EQUAL = "less_or_equal"
    AND = "and"
    OR = "or"
    NOT = "not"
    IS_NULL = "is_null"
    CASE = "case"
    """Condition, value, condition, value, …, and last the value otherwise."""
    CAST = "cast"
    UPPER = "upper"
    LOWER = "lower"
    LENGTH = "length"
    CONCAT = "concat"
    DATE_TRUNC = "date_trunc"
    """A literal unit, one of TRUNCATED_TO, and a TIMESTAMP."""
    DATE_PART = "date_part"
    """A literal part, one of PARTS, and a DATE or TIMESTAMP."""
    WINDOW_START = "window_start"
    """A literal number of microseconds, and a TIMESTAMP: the start of its window of that length."""
    WINDOW_END = "window_end"
    LIKE = "like"
    """A text and a literal pattern, with % and _ and \\ before those that are meant as they are."""
    SPLIT_PART = "split_part"
    """A text, and literals: a delimiter, and the number of a part, from 1; empty if it is not there."""
    SUBSTRING = "substring"
    """A text, and literals: the number of its first character, from 1, and the number of characters."""


TRUNCATED_TO: Final = ("minute", "hour", "day", "week", "month", "year")
PARTS: Final = ("year", "month", "day", "hour", "minute")
COMMUTATIVE: Final = frozenset((Function.ADD, Function.MULTIPLY, Function.EQUAL, Function.AND, Function.OR))
"""Functions whose operands are put in one order, that of their canonical forms."""
_FAILING: Final = frozenset((
    Function.ADD, Function.SUBTRACT, Function.MULTIPLY, Function.DIVIDE, Function.REMAINDER, Function.NEGATE,
    Function.ABS, Function.CAST,
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    """The column at a position."""

    position: int
    type: Type


@dataclass(frozen=True, slots=True)
class Literal:
    """A value; None is null. Days since 1970 for a DATE, microseconds for a TIMESTAMP."""

    value: Value
    type: Type


@dataclass(frozen=True, slots=True)
class Call:
    """A function of expressions."""

    function: Function
    arguments: tuple[Expression, ...]
    type: Type


Expression = Column | Literal | Call


def may_fail(expression: Expression) -> bool:
    """Tell whether some row can make the expression an error."""
    match expression:
        case Call(function, arguments, _):
            return function in _FAILING or any(map(may_fail, arguments))
        case _:
            return False


def columns_of(expression: Expression) -> Iterator[int]:
    """Yield the position of every column in the expression, as often as it is there."""
    match expression:
        case Column(position, _):
            yield position
        case Call(_, arguments, _):
            for argument in arguments:
                yield from columns_of(argument)
        case Literal():
            pass


def moved(expression: Expression, places: Mapping[int, Expression]) -> Expression:
    """Put other expressions in the place of columns. Raises KeyError for a column without one."""
    match expression:
        case Column(position, _):
            return places[position]
        case Call(function, arguments, kind):
            return Call(function, tuple(moved(argument, places) for argument in arguments), kind)
        case Literal():
            return expression


def canonical_text(expression: Expression) -> str:
    """Write the expression in its one form. Operands of commutative functions are sorted by theirs.

    Operands of AND and OR that may fail stand behind the others: a guard goes first, wherever it was written.
    """
    match expression:
        case Column(position, kind):
            return f"(column {position} {kind.value})"
        case Literal(value, kind):
            return f"(literal {value!r} {kind.value})"
        case Call(function, arguments, kind):
            inner = [canonical_text(argument) for argument in ordered(function, arguments)]
            return f"({function.value} {kind.value} {' '.join(inner)})"


def ordered(function: Function, arguments: tuple[Expression, ...]) -> tuple[Expression, ...]:
    """Give the operands in the order in which they are written and worked out."""
    if function not in COMMUTATIVE:
        return arguments
    return tuple(sorted(arguments, key=lambda each: (may_fail(each), canonical_text(each))))
