"""Scalar expressions of SQL as expressions over positions, with types as Spark's ANSI mode gives them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Final

from sqlglot import exp

from strandline.snapshot.views.sql.functions import function_of
from strandline.snapshot.views.sql.text import Text
from strandline.statemachine.views.expressions import Call, Expression, Function, Literal
from strandline.statemachine.views.refusals import Code, Refused
from strandline.statemachine.views.types import NUMERIC, WHOLE, Type

Resolve = Callable[[exp.Expr], Expression | None]
"""Gives the meaning of a part that does not follow from its operands: a column, an aggregate."""

_ARITHMETIC: Final[dict[type[exp.Expr], Function]] = {
    exp.Add: Function.ADD,
    exp.Sub: Function.SUBTRACT,
    exp.Mul: Function.MULTIPLY,
    exp.Div: Function.DIVIDE,
    exp.Mod: Function.REMAINDER,
}
_COMPARISONS: Final[dict[type[exp.Expr], tuple[Function, bool, bool]]] = {
    exp.EQ: (Function.EQUAL, False, False),
    exp.NEQ: (Function.EQUAL, False, True),
    exp.LT: (Function.LESS, False, False),
    exp.LTE: (Function.LESS_OR_EQUAL, False, False),
    exp.GT: (Function.LESS, True, False),
    exp.GTE: (Function.LESS_OR_EQUAL, True, False),
}
"""By SQL's comparison: ours, whether its operands change places, and whether its answer is turned round."""
_CASTS: Final = {
    exp.DType.INT: Type.INT,
    exp.DType.BIGINT: Type.BIGINT,
    exp.DType.DOUBLE: Type.DOUBLE,
    exp.DType.TEXT: Type.STRING,
    exp.DType.DATE: Type.DATE,
    exp.DType.TIMESTAMPTZ: Type.TIMESTAMP,
    exp.DType.TIMESTAMP: Type.TIMESTAMP,
}
_CHANGES: Final = {
    "now",
    "rand",
    "random",
    "randn",
    "uuid",
    "current_timestamp",
    "current_date",
    "unix_timestamp",
}
_CHANGING: Final = (exp.Rand, exp.Randn, exp.Uuid, exp.CurrentTimestamp, exp.CurrentDate, exp.CurrentUser)
_CASTABLE: Final = "cast between numbers, a whole number to STRING, or a TIMESTAMP to DATE"
_INT_BOUND: Final = 1 << 31
_BIGINT_BOUND: Final = 1 << 63
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Scalars:
    """Understands the expressions of one query."""

    def __init__(self, text: Text, resolve: Resolve) -> None:
        self._text = text
        self._resolve = resolve

    def condition(self, node: exp.Expr) -> Expression:
        """Understand a condition; raises Refused, also when it is no BOOLEAN."""
        result = self.of(node)
        if result.type is not Type.BOOLEAN:
            raise self._wrong(node, f"a condition is {result.type.value}")
        return result

    def of(self, node: exp.Expr) -> Expression:
        """Understand an expression; raises Refused."""
        if (found := self._resolve(node)) is not None:
            return found
        match node:
            case exp.Paren() | exp.Alias():
                return self.of(node.this)
            case exp.Literal() | exp.Boolean() | exp.Null():
                return self._literal(node)
            case exp.Neg(this=exp.Literal(is_string=False) as number):
                return self._number(node, f"-{number.this}")
            case exp.And() | exp.Or():
                return self._logic(node)
            case exp.Not():
                return Call(Function.NOT, (self.condition(node.this),), Type.BOOLEAN)
            case exp.Is():
                return self._is(node)
            case exp.Cast():
                return self._cast(node)
            case exp.Case() | exp.If():
                return self._case(node)
            case _:
                return self._operator(node)

    def _operator(self, node: exp.Expr) -> Expression:
        kind = type(node)
        if kind in _ARITHMETIC:
            return self._arithmetic(node)
        if kind in _COMPARISONS:
            return self._comparison(node, node.this, node.expression)
        match node:
            case exp.Between():
                self._text.check_arguments(node, frozenset(("this", "low", "high")), "BETWEEN")
                low = exp.GTE(this=node.this, expression=node.args["low"])
                return self._logic(
                    exp.And(this=low, expression=exp.LTE(this=node.this, expression=node.args["high"]))
                )
            case exp.In():
                return self._in(node)
            case exp.Neg() | exp.Abs():
                value = self.of_types(node, node.this, NUMERIC)
                return Call(
                    Function.NEGATE if isinstance(node, exp.Neg) else Function.ABS, (value,), value.type
                )
            case exp.Coalesce():
                return self._coalesce([self.of(each) for each in (node.this, *node.expressions)], node)
            case _:
                found = function_of(self._text, self, node)
        if found is None:
            raise self._unknown(node)
        return found

    def _unknown(self, node: exp.Expr) -> Refused:
        name = node.name.lower() if isinstance(node, exp.Anonymous) else node.key
        if isinstance(node, _CHANGING) or name in _CHANGES:
            cause = "its value depends on more than the row, and a view is a function of its records"
            return self._text.refused(
                Code.NOT_DETERMINISTIC, name, cause, "write its value into the records", node
            )
        shown = node.sql("spark")
        return self._text.unsupported(shown if len(shown) < 60 else f"{shown[:57]}…", node)

    def _literal(self, node: exp.Expr) -> Literal:
        if isinstance(node, exp.Null):
            return Literal(None, Type.STRING)
        if isinstance(node, exp.Boolean):
            return Literal(bool(node.this), Type.BOOLEAN)
        return Literal(str(node.this), Type.STRING) if node.is_string else self._number(node, str(node.this))

    def _number(self, node: exp.Expr, digits: str) -> Literal:
        try:
            value = int(digits)
        except ValueError:
            cure = "write a DOUBLE, 1.5D, or a whole number"
            raise self._text.unsupported(f"the DECIMAL {digits}", node, cure) from None
        if -_INT_BOUND <= value < _INT_BOUND:
            return Literal(value, Type.INT)
        if -_BIGINT_BOUND <= value < _BIGINT_BOUND:
            return Literal(value, Type.BIGINT)
        raise self._wrong(node, f"{digits} is beyond BIGINT")

    def _logic(self, node: exp.Expr) -> Expression:
        function = Function.AND if isinstance(node, exp.And) else Function.OR
        flat: list[Expression] = []
        for side in (self.condition(node.this), self.condition(node.expression)):
            same = isinstance(side, Call) and side.function is function
            flat += side.arguments if same and isinstance(side, Call) else [side]
        return Call(function, tuple(flat), Type.BOOLEAN)

    def _is(self, node: exp.Is) -> Expression:
        if not isinstance(node.expression, exp.Null):
            raise self._unknown(node)
        return Call(Function.IS_NULL, (self.of(node.this),), Type.BOOLEAN)

    def _arithmetic(self, node: exp.Expr) -> Expression:
        function = _ARITHMETIC[type(node)]
        sides = [self.of_types(node, each, NUMERIC) for each in (node.this, node.expression)]
        kind = Type.DOUBLE if function is Function.DIVIDE else self._common(node, sides)
        return Call(function, tuple(cast(each, kind) for each in sides), kind)

    def _comparison(self, node: exp.Expr, left: exp.Expr, right: exp.Expr) -> Expression:
        function, swapped, turned = _COMPARISONS[type(node)]
        sides = [self.of(left), self.of(right)]
        kind = self._common(node, sides)
        pair = [cast(each, kind) for each in sides]
        result = Call(function, tuple(pair[::-1] if swapped else pair), Type.BOOLEAN)
        return Call(Function.NOT, (result,), Type.BOOLEAN) if turned else result

    def _in(self, node: exp.In) -> Expression:
        self._text.check_arguments(node, frozenset(("this", "expressions")), "IN")
        equal = [exp.EQ(this=node.this, expression=each) for each in node.expressions]
        tests = tuple(self._comparison(each, each.this, each.expression) for each in equal)
        return tests[0] if len(tests) == 1 else Call(Function.OR, tests, Type.BOOLEAN)

    def _case(self, node: exp.Case | exp.If) -> Expression:
        branches = node.args.get("ifs") or [node]
        subject = node.this if isinstance(node, exp.Case) else None
        conditions = [
            self.condition(each.this if subject is None else exp.EQ(this=subject, expression=each.this))
            for each in branches
        ]
        default = node.args.get("default" if isinstance(node, exp.Case) else "false") or exp.Null()
        values = [self.of(each) for each in (*(each.args["true"] for each in branches), default)]
        kind = self._common(node, values)
        values = [cast(each, kind) for each in values]
        pairs = [each for pair in zip(conditions, values[:-1], strict=True) for each in pair]
        return Call(Function.CASE, (*pairs, values[-1]), kind)

    def _coalesce(self, values: list[Expression], node: exp.Expr) -> Expression:
        kind = self._common(node, values)
        result = cast(values[-1], kind)
        for value in values[-2::-1]:
            there = Call(Function.NOT, (Call(Function.IS_NULL, (value,), Type.BOOLEAN),), Type.BOOLEAN)
            result = Call(Function.CASE, (there, cast(value, kind), result), kind)
        return result

    def _cast(self, node: exp.Cast) -> Expression:
        kind = _CASTS.get(node.to.this)
        if kind is None or node.args.get("format") or node.args.get("safe"):
            raise self._unknown(node)
        if isinstance(node.this, exp.Literal):
            return self._written(node, kind)
        value = self.of(node.this)
        if value.type is kind:
            return value
        ways: tuple[Type, ...] = (*WHOLE, Type.DOUBLE) if kind in NUMERIC else ()
        ways = WHOLE if kind is Type.STRING else (Type.TIMESTAMP,) if kind is Type.DATE else ways
        if value.type not in ways:
            cause = f"a {value.type.value} is not cast to {kind.value}"
            raise self._text.refused(Code.WRONG_TYPE, "CAST", cause, _CASTABLE, node)
        return Call(Function.CAST, (value,), kind)

    def _written(self, node: exp.Cast, kind: Type) -> Literal:
        """A literal of a type: 1.5D, DATE '2026-01-31', TIMESTAMP '2026-01-31 12:00:00', which is UTC."""
        written = str(node.this.this)
        try:
            match kind:
                case Type.DOUBLE:
                    return Literal(float(written), kind)
                case Type.INT | Type.BIGINT:
                    number = self._number(node, written)
                    if kind is Type.BIGINT or number.type is Type.INT:
                        return Literal(number.value, kind)
                case Type.STRING:
                    return Literal(written, kind)
                case Type.DATE:
                    return Literal(dt.date.fromisoformat(written).toordinal() - _EPOCH.toordinal(), kind)
                case Type.TIMESTAMP:
                    moment = dt.datetime.fromisoformat(written)
                    moment = moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment
                    return Literal((moment - _EPOCH) // dt.timedelta(microseconds=1), kind)
                case Type.BOOLEAN:
                    pass
        except ValueError:
            pass
        raise self._wrong(node, f"{written!r} is no {kind.value}")

    def of_types(self, node: exp.Expr, operand: exp.Expr, kinds: tuple[Type, ...]) -> Expression:
        """Understand an operand of some types; raises Refused, also for other types."""
        value = self.of(operand)
        if value.type not in kinds:
            wanted = " or ".join(kind.value for kind in kinds)
            raise self._wrong(node, f"{wanted} is wanted, and {operand.sql('spark')} is {value.type.value}")
        return value

    def _common(self, node: exp.Expr, values: list[Expression]) -> Type:
        kinds = {value.type for value in values if not is_null(value)} or {values[0].type}
        if len(kinds) == 1:
            return kinds.pop()
        if kinds <= {*NUMERIC}:
            return Type.DOUBLE if Type.DOUBLE in kinds else Type.BIGINT
        raise self._wrong(node, f"{' and '.join(sorted(kind.value for kind in kinds))} do not go together")

    def _wrong(self, node: exp.Expr, cause: str) -> Refused:
        shown = node.sql("spark")
        return self._text.refused(
            Code.WRONG_TYPE,
            shown if len(shown) < 60 else f"{shown[:57]}…",
            cause,
            "cast one of them, or correct it",
            node,
        )


def is_null(value: Expression) -> bool:
    """Tell whether an expression is the literal NULL, which has every type."""
    return isinstance(value, Literal) and value.value is None


def cast(value: Expression, kind: Type) -> Expression:
    """Widen a number, give NULL a type, leave all others."""
    if value.type is kind:
        return value
    if isinstance(value, Literal) and (value.value is None or kind is not Type.DOUBLE):
        return Literal(value.value, kind)
    if isinstance(value, Literal) and isinstance(value.value, int):
        return Literal(float(value.value), kind)
    return Call(Function.CAST, (value,), kind)
