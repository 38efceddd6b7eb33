"""Functions of texts and times."""

from __future__ import annotations

import re
from typing import Final, Protocol

from sqlglot import exp

from strandline.snapshot.views.sql.text import Text
from strandline.statemachine.views.expressions import (
    PARTS,
    TRUNCATED_TO,
    Call,
    Expression,
    Function,
    Literal,
)
from strandline.statemachine.views.types import Type

_OF_TEXT: Final[dict[type[exp.Expr], tuple[Function, Type]]] = {
    exp.Upper: (Function.UPPER, Type.STRING),
    exp.Lower: (Function.LOWER, Type.STRING),
    exp.Length: (Function.LENGTH, Type.INT),
}
_PARTS: Final[dict[type[exp.Expr], str]] = {
    exp.Year: "year", exp.Month: "month", exp.Day: "day", exp.Hour: "hour", exp.Minute: "minute",
}  # fmt: skip
_TIMES: Final = (Type.DATE, Type.TIMESTAMP)
_UNITS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_LENGTH: Final = re.compile(r"(?:interval )?(\d{1,9}) (second|minute|hour|day|week)s?", re.IGNORECASE)
_MICROSECONDS: Final = 1_000_000
_TO_THE_END: Final = (1 << 31) - 1


class Operands(Protocol):
    """The part of a query that understands operands."""

    def of_types(self, node: exp.Expr, operand: exp.Expr, kinds: tuple[Type, ...]) -> Expression:
        """Understand an operand of some types; raises Refused."""
        ...


def function_of(text: Text, operands: Operands, node: exp.Expr) -> Expression | None:
    """Understand a function of texts or times; None for what is none; raises Refused."""
    if type(node) in _OF_TEXT:
        function, kind = _OF_TEXT[type(node)]
        return Call(function, (operands.of_types(node, node.this, (Type.STRING,)),), kind)
    if type(node) in _PARTS:
        return _part(operands, node, _PARTS[type(node)], node.this)
    match node:
        case exp.Concat() | exp.DPipe():
            parts = node.expressions if isinstance(node, exp.Concat) else [node.this, node.expression]
            values = tuple(operands.of_types(node, each, (Type.STRING,)) for each in parts)
            return Call(Function.CONCAT, values, Type.STRING)
        case exp.Like():
            return _like(text, operands, node)
        case exp.Substring():
            return _substring(text, operands, node)
        case exp.SplitPart():
            return _split_part(text, operands, node)
        case exp.Extract():
            part = node.this.name.lower()
            if part not in PARTS:
                raise text.unsupported(f"EXTRACT of {part}", node, f"use one of {', '.join(PARTS)}")
            return _part(operands, node, part, node.expression)
        case exp.TimestampTrunc():
            return _truncated(text, operands, node)
        case exp.Dot(this=exp.Anonymous(this=str(name)) as window) if name.lower() == "window":
            return _window(text, operands, window, node.expression.name.lower())
    return None


def _part(operands: Operands, node: exp.Expr, part: str, of: exp.Expr) -> Expression:
    # sqlglot puts a conversion to a date around the operand of YEAR and the like.
    of = of.this if isinstance(of, exp.TsOrDsToDate) else of
    kinds = _TIMES if part in ("year", "month", "day") else (Type.TIMESTAMP,)
    value = operands.of_types(node, of, kinds)
    return Call(Function.DATE_PART, (Literal(part, Type.STRING), value), Type.INT)


def _like(text: Text, operands: Operands, node: exp.Like) -> Expression:
    pattern = node.expression
    if not isinstance(pattern, exp.Literal) or not pattern.is_string:
        raise text.unsupported(
            "LIKE without a literal pattern", node, "write the pattern as a text in quotes"
        )
    value = operands.of_types(node, node.this, (Type.STRING,))
    found = Call(Function.LIKE, (value, Literal(str(pattern.this), Type.STRING)), Type.BOOLEAN)
    return Call(Function.NOT, (found,), Type.BOOLEAN) if node.args.get("negate") else found


def _substring(text: Text, operands: Operands, node: exp.Substring) -> Expression:
    value = operands.of_types(node, node.this, (Type.STRING,))
    places = []
    for name, default in (("start", 1), ("length", _TO_THE_END)):
        place = node.args.get(name)
        if place is None:
            places.append(default)
        elif isinstance(place, exp.Literal) and not place.is_string and str(place.this).isdecimal():
            places.append(min(int(place.this), _TO_THE_END))
        else:
            places.append(-1)
    if places[0] < 1 or places[1] < 0:
        cure = "write the first character's number, from 1, and a number of characters"
        raise text.unsupported(node.sql("spark"), node, cure)
    return Call(Function.SUBSTRING, (value, *(Literal(each, Type.INT) for each in places)), Type.STRING)


def _split_part(text: Text, operands: Operands, node: exp.SplitPart) -> Expression:
    value = operands.of_types(node, node.this, (Type.STRING,))
    match node.args.get("delimiter"), node.args.get("part_index"):
        case exp.Literal(is_string=True) as by, exp.Literal(is_string=False) as part if (
            by.this and str(part.this).isdecimal()
        ):
            number = min(int(part.this), _TO_THE_END)
        case _:
            number = 0
    if not number:
        cure = "write the delimiter in quotes, and the number of a part, from 1"
        raise text.unsupported(node.sql("spark")[:60], node, cure)
    arguments = (value, Literal(str(by.this), Type.STRING), Literal(number, Type.INT))
    return Call(Function.SPLIT_PART, arguments, Type.STRING)


def _truncated(text: Text, operands: Operands, node: exp.TimestampTrunc) -> Expression:
    unit = node.unit.name.lower() if node.unit else ""
    if unit not in TRUNCATED_TO or node.args.get("zone"):
        cure = f"use one of {', '.join(TRUNCATED_TO)}"
        raise text.unsupported(f"date_trunc to {unit}", node, cure)
    value = operands.of_types(node, node.this, (Type.TIMESTAMP,))
    return Call(Function.DATE_TRUNC, (Literal(unit, Type.STRING), value), Type.TIMESTAMP)


def _window(text: Text, operands: Operands, node: exp.Anonymous, end: str) -> Expression:
    """A tumbling window's start or end: `window(ts, '10 seconds').start`."""
    match node.expressions:
        case [moment, exp.Literal(is_string=True) as length]:
            found = _LENGTH.fullmatch(str(length.this).strip())
        case _:
            found = None
    if found is None or end not in ("start", "end") or not int(found[1]):
        cure = "write window(TIMESTAMP, 'NUMBER seconds').start or .end, or minutes, hours, days, weeks"
        raise text.unsupported("this window", node, cure)
    value = operands.of_types(node, moment, (Type.TIMESTAMP,))
    size = Literal(int(found[1]) * _UNITS[found[2].lower()] * _MICROSECONDS, Type.BIGINT)
    function = Function.WINDOW_START if end == "start" else Function.WINDOW_END
    return Call(function, (size, value), Type.TIMESTAMP)
