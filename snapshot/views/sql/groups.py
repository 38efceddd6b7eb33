"""GROUP BY, HAVING and aggregates as plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sqlglot import exp

from strandline.snapshot.views.sql.joins import Joined
from strandline.snapshot.views.sql.outputs import Output, key_among, named
from strandline.snapshot.views.sql.scalars import Scalars
from strandline.snapshot.views.sql.text import Text
from strandline.statemachine.views.aggregates import EXTREMES, Aggregate, AggregateFunction
from strandline.statemachine.views.expressions import (
    Call,
    Column,
    Expression,
    Function,
    Literal,
    canonical_text,
    moved,
)
from strandline.statemachine.views.plan import Constant, LinearAggregate, Plan, Union
from strandline.statemachine.views.refusals import Code
from strandline.statemachine.views.rewrites import mapped
from strandline.statemachine.views.types import NUMERIC, Type

_FUNCTIONS: Final[dict[type[exp.Expr], AggregateFunction]] = {
    exp.Count: AggregateFunction.COUNT,
    exp.Sum: AggregateFunction.SUM,
    exp.Avg: AggregateFunction.AVG,
    exp.Min: AggregateFunction.MIN,
    exp.Max: AggregateFunction.MAX,
}
_ALL: Final = Literal(0, Type.INT)
"""The group of all rows, where nothing is grouped by."""
_THERE: Final = Literal(1, Type.INT)


class _Call(NamedTuple):
    """An aggregate as it was written, its argument over the columns of FROM; None for COUNT(*)."""

    function: AggregateFunction
    of: Expression | None
    distinct: bool

    @property
    def order(self) -> tuple[str, str, bool]:
        """The order of aggregates: it is the same for any order of SELECT."""
        return self.function.value, canonical_text(self.of) if self.of else "", self.distinct


def grouped_output(text: Text, node: exp.Select, items: list[exp.Expr], source: Joined) -> Output:
    """Understand a query with groups or aggregates; raises Refused."""
    scalars = Scalars(text, source.resolve)
    # The order of groups is that of their texts, whatever that of GROUP BY is.
    groups = sorted(_groups(text, node, items, source, scalars), key=canonical_text)
    having = node.args["having"].this if node.args.get("having") else None
    wanted = [*items, *([having] if having is not None else [])]
    calls = {_call(text, call, scalars): None for each in wanted for call in each.find_all(exp.AggFunc)}
    plan, results = _aggregated(source, groups, sorted(calls, key=lambda call: call.order))

    def resolve(part: exp.Expr) -> Expression | None:
        if isinstance(part, exp.AggFunc | exp.Filter):
            return results[_call(text, part, scalars)]
        if part.find(exp.AggFunc):
            return None
        found = scalars.of(part)
        if found in groups:
            return Column(groups.index(found), found.type)
        if isinstance(part, exp.Column):
            cause, cure = "is neither grouped nor aggregated", "add it to GROUP BY, or aggregate it"
            raise text.refused(Code.WRONG_TYPE, part.sql("spark"), cause, cure, part)
        return None

    over = Scalars(text, resolve)
    selected = [over.of(each) for each in items]
    condition = None if having is None else over.condition(having)
    columns = named(text, items, [each.type for each in selected])
    key = key_among(frozenset(range(len(groups))), selected)
    return Output(mapped(plan, condition, tuple(selected)), columns, key)


def _aggregated(
    source: Joined, groups: list[Expression], calls: Sequence[_Call]
) -> tuple[Plan, dict[_Call, Expression]]:
    """The plan of groups, and where each aggregate's result is."""
    arguments = [*dict.fromkeys((*groups, *(call.of for call in calls if call.of is not None)))]
    if groups:
        below = mapped(source.plan, source.condition, tuple(moved(each, source.places) for each in arguments))
        rows = None
    else:
        # One row more keeps the group of all rows there when there are none: its columns are null, so that no
        # aggregate sees it, and rows are counted by a column that it does not have either.
        moved_ = (moved(each, source.places) for each in arguments)
        columns = (_ALL, _THERE, *moved_)
        arguments = [_ALL, _THERE, *arguments]
        own = mapped(source.plan, source.condition, columns)
        below = Union((own, Constant((_ALL, *(Literal(None, each.type) for each in columns[1:])))))
        rows = 1
    aggregates = tuple(
        Aggregate(call.function, rows, None if rows is None else Type.INT)
        if call.of is None
        # A literal may stand before the arguments, too.
        else Aggregate(call.function, _last(arguments, call.of), call.of.type, call.distinct)
        for call in calls
    )
    keys = len(groups) or 1
    plan = LinearAggregate(below, tuple(range(keys)), aggregates)
    results: dict[_Call, Expression] = {
        call: Column(keys + at, aggregates[at].result) for at, call in enumerate(calls)
    }
    return plan, results


def _last(arguments: Sequence[Expression], wanted: Expression) -> int:
    return max(place for place, each in enumerate(arguments) if each == wanted)


def _groups(
    text: Text, node: exp.Select, items: list[exp.Expr], source: Joined, scalars: Scalars
) -> list[Expression]:
    group = node.args.get("group")
    if group is None or not group.expressions:
        return []
    text.check_arguments(group, frozenset(("expressions",)), "GROUP BY")
    aliases = {each.alias.lower(): each.this for each in items if isinstance(each, exp.Alias)}
    found: dict[Expression, None] = {}
    for each in group.expressions:
        what = each
        if isinstance(each, exp.Literal) and not each.is_string:
            if not 1 <= int(each.this) <= len(items):
                cause, cure = "is not the number of a selected column", "correct the number"
                raise text.refused(Code.UNKNOWN_NAME, str(each.this), cause, cure, node)
            what = items[int(each.this) - 1]
        elif isinstance(each, exp.Column) and not each.table and not source.has(each.name):
            what = aliases.get(each.name.lower(), each)
        if what.find(exp.AggFunc):
            raise text.unsupported("an aggregate in GROUP BY", node, "group by what is not aggregated")
        found[scalars.of(what)] = None
    return [*found]


def _call(text: Text, call: exp.Expr, scalars: Scalars) -> _Call:
    """The function and its argument, in which FILTER has become a CASE."""
    within = call.parent if isinstance(call.parent, exp.Filter) else call
    condition = within.expression.this if isinstance(within, exp.Filter) else None
    inner = within.this if isinstance(within, exp.Filter) else within
    function = _FUNCTIONS.get(type(inner))
    if function is None:
        raise text.unsupported(inner.key.upper(), inner)
    argument, distinct = inner.this, isinstance(inner.this, exp.Distinct)
    if distinct:
        argument = argument.expressions[0] if len(argument.expressions) == 1 else None
    if argument is None or inner.expressions:
        cure = "use COUNT, SUM, AVG, MIN and MAX of one argument"
        raise text.unsupported(inner.sql("spark"), inner, cure)
    if argument.find(exp.AggFunc):
        raise text.unsupported("an aggregate of an aggregate", inner, "group twice, by a view")
    star = isinstance(argument, exp.Star)
    if star and distinct:
        raise text.unsupported(
            inner.sql("spark"), inner, "name a column, or count what SELECT DISTINCT gives"
        )
    of = None if star else scalars.of(argument)
    if (
        isinstance(of, Literal)
        and of.value is not None
        and function is AggregateFunction.COUNT
        and not distinct
    ):
        of = None
    if of is None and function is not AggregateFunction.COUNT:
        raise text.unsupported(inner.sql("spark"), inner, "name a column")
    if (
        function in (AggregateFunction.SUM, AggregateFunction.AVG)
        and of is not None
        and of.type not in NUMERIC
    ):
        cause = f"{function.value.upper()} is of numbers"
        raise text.refused(Code.WRONG_TYPE, inner.sql("spark"), cause, "cast it", inner)
    if condition is not None:
        value = of or Literal(1, Type.INT)
        arguments = (scalars.condition(condition), value, Literal(None, value.type))
        of = Call(Function.CASE, arguments, value.type)
    # The lowest of distinct values is the lowest of all.
    return _Call(function, of, distinct and function not in EXTREMES)
