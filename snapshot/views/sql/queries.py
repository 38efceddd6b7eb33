"""Queries as plans: FROM and WHERE, then groups, then the columns that were asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sqlglot import exp

from strandline.snapshot.views.sql.joins import Joined, joined
from strandline.snapshot.views.sql.outputs import OutColumn, Output
from strandline.snapshot.views.sql.scalars import Resolve, Scalars, cast
from strandline.snapshot.views.sql.text import Text
from strandline.statemachine.views.aggregates import Aggregate, AggregateFunction
from strandline.statemachine.views.expressions import (
    Call,
    Column,
    Expression,
    Function,
    Literal,
    canonical_text,
    moved,
)
from strandline.statemachine.views.plan import LinearAggregate, Plan, Union
from strandline.statemachine.views.refusals import Code
from strandline.statemachine.views.rewrites import all_columns, mapped
from strandline.statemachine.views.types import NUMERIC, Type

Catalog = dict[str, Output]
"""Tables, views and WITH's queries, by name in small letters."""

_SELECT: Final = frozenset(
    ("expressions", "from_", "joins", "where", "group", "having", "distinct", "with_", "kind")
)
_UNION: Final = frozenset(("this", "expression", "distinct", "with_"))
_FUNCTIONS: Final[dict[type[exp.Expr], AggregateFunction]] = {
    exp.Count: AggregateFunction.COUNT,
    exp.Sum: AggregateFunction.SUM,
    exp.Avg: AggregateFunction.AVG,
}


class Queries:
    """Understands queries over a catalog; raises Refused."""

    def __init__(self, text: Text, catalog: Catalog) -> None:
        self._text = text
        self._catalog = catalog

    def output(self, node: exp.Expr) -> Output:
        """Understand a query."""
        if isinstance(node, exp.Subquery):
            self._text.check_arguments(node, frozenset(("this", "alias")), "a query in brackets")
            return self.output(node.this)
        if with_ := node.args.get("with_"):
            return self._with(with_).output(_without_with(node))
        match node:
            case exp.Select():
                return self._select(node)
            case exp.Union():
                return self._union(node)
            case _:
                raise self._text.unsupported(node.key.upper(), node)

    def _with(self, with_: exp.With) -> Queries:
        if with_.args.get("recursive"):
            cause, cure = "a recursive query has no kernel", "write out the steps as views"
            raise self._text.refused(Code.RECURSIVE_VIEW, "WITH RECURSIVE", cause, cure, with_)
        inner = Queries(self._text, dict(self._catalog))
        for each in with_.expressions:
            self._text.check_arguments(each.args["alias"], frozenset(("this",)), "a WITH query's name")
            inner._catalog[each.alias.lower()] = inner.output(each.this)
        return inner

    def _union(self, node: exp.Union) -> Output:
        self._text.check_arguments(node, _UNION, "UNION")
        sides = [self.output(node.this), self.output(node.expression)]
        first, second = (side.shown() for side in sides)
        if len(first) != len(second):
            cause = f"its sides have {len(first)} and {len(second)} columns"
            raise self._text.refused(Code.WRONG_TYPE, "UNION", cause, "select as many columns", node)
        kinds = []
        for one, other in zip(first, second, strict=True):
            if one.type is not other.type and not {one.type, other.type} <= {*NUMERIC}:
                cause = f"{one.name} is {one.type.value} on one side and {other.type.value} on the other"
                raise self._text.refused(Code.WRONG_TYPE, "UNION", cause, "cast one of them", node)
            both = {one.type, other.type}
            kinds.append(one.type if len(both) == 1 else Type.DOUBLE if Type.DOUBLE in both else Type.BIGINT)
        parts = [_as_types(side, kinds) for side in sides]
        plan: Plan = Union(tuple(each for part in parts for each in _flat(part)))
        columns = tuple(OutColumn(each.name, kind) for each, kind in zip(first, kinds, strict=True))
        key = None
        if node.args.get("distinct"):
            plan, key = _distinct(plan)
        return Output(plan, columns, key)

    def _select(self, node: exp.Select) -> Output:
        self._text.check_arguments(node, _SELECT, "SELECT")
        if "from_" not in node.args or node.args["from_"] is None:
            raise self._text.unsupported("SELECT without FROM", node, "select from a table")
        source = self._from(node)
        items = self._items(node, source)
        grouped = (
            node.args.get("group") or node.args.get("having") or any(each.find(exp.AggFunc) for each in items)
        )
        output = self._grouped(node, items, source) if grouped else self._plain(items, source)
        if distinct := node.args.get("distinct"):
            self._text.check_arguments(distinct, frozenset(), "DISTINCT")
            plan, key = _distinct(output.plan)
            output = replace(output, plan=plan, key=key)
        return output

    def _from(self, node: exp.Select) -> Joined:
        parts: list[tuple[str, Output]] = [self._relation(node.args["from_"].this)]
        conditions: list[exp.Expr] = []
        using: list[tuple[int, list[exp.Expr]]] = []
        for join in node.args.get("joins") or []:
            self._text.check_arguments(join, frozenset(("this", "on", "using", "kind", "side")), "JOIN")
            side, kind = join.args.get("side") or "", join.args.get("kind") or "INNER"
            if side or kind not in ("INNER", "CROSS"):
                raise self._text.unsupported(
                    f"{side or kind} JOIN", join, "use an inner JOIN: others are not built yet"
                )
            parts.append(self._relation(join.this))
            if on := join.args.get("on"):
                conditions.append(on)
            if names := join.args.get("using"):
                using.append((len(parts) - 1, names))
        if where := node.args.get("where"):
            conditions.append(where.this)
        return joined(self._text, parts, conditions, using, node)

    def _relation(self, node: exp.Expr) -> tuple[str, Output]:
        alias = node.args.get("alias")
        if alias is not None:
            self._text.check_arguments(alias, frozenset(("this",)), "an alias")
        if isinstance(node, exp.Subquery):
            return node.alias.lower(), self.output(node.this)
        if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
            raise self._text.unsupported(node.sql("spark"), node)
        self._text.check_arguments(node, frozenset(("this", "alias")), "a table")
        found = self._catalog.get(node.name.lower())
        if found is None:
            cause, cure = "is not a table or view of the program", "declare it before, or correct the name"
            raise self._text.refused(Code.UNKNOWN_NAME, node.name, cause, cure, node)
        return (node.alias or node.name).lower(), found

    def _items(self, node: exp.Select, source: Joined) -> list[exp.Expr]:
        """The expressions that were asked for, stars written out."""
        items: list[exp.Expr] = []
        for each in node.expressions:
            star = isinstance(each, exp.Star) or (
                isinstance(each, exp.Column) and isinstance(each.this, exp.Star)
            )
            if not star:
                items.append(each)
                continue
            self._text.check_arguments(each if isinstance(each, exp.Star) else each.this, frozenset(), "*")
            table = each.table.lower() if isinstance(each, exp.Column) else None
            names = source.shown(table)
            if not names:
                cause, cure = "is not a table of this query", "correct the name"
                raise self._text.refused(Code.UNKNOWN_NAME, str(table), cause, cure, each)
            items += [exp.column(name, table=of) for of, name in names]
        return items

    def _plain(self, items: list[exp.Expr], source: Joined) -> Output:
        scalars = Scalars(self._text, source.resolve)
        over = [scalars.of(each) for each in items]
        columns = self._named(items, [each.type for each in over])
        plan = mapped(source.plan, source.condition, tuple(moved(each, source.places) for each in over))
        return Output(plan, columns, _key_among(source.key, over))

    def _grouped(self, node: exp.Select, items: list[exp.Expr], source: Joined) -> Output:
        scalars = Scalars(self._text, source.resolve)
        groups = self._groups(node, items, source, scalars)
        having = node.args["having"].this if node.args.get("having") else None
        wanted = [*items, *([having] if having is not None else [])]
        calls: dict[tuple[AggregateFunction, Expression | None], None] = {}
        for each in wanted:
            for call in each.find_all(exp.AggFunc):
                calls[self._aggregate(call, scalars)] = None
        # Their order is that of their texts: it is the same for any order of SELECT and GROUP BY.
        groups = sorted(groups, key=canonical_text)
        ordered = sorted(calls, key=lambda call: (call[0].value, canonical_text(call[1]) if call[1] else ""))
        arguments = [*dict.fromkeys((*groups, *(of for _, of in ordered if of is not None)))]
        below = mapped(source.plan, source.condition, tuple(moved(each, source.places) for each in arguments))
        aggregates = tuple(
            Aggregate(function) if of is None else Aggregate(function, arguments.index(of), of.type)
            for function, of in ordered
        )
        plan = LinearAggregate(below, tuple(range(len(groups))), aggregates)
        results = {call: Column(len(groups) + at, aggregates[at].result) for at, call in enumerate(ordered)}

        def resolve(part: exp.Expr) -> Expression | None:
            if isinstance(part, exp.AggFunc | exp.Filter):
                return results[self._aggregate(part, scalars)]
            if part.find(exp.AggFunc):
                return None
            found = scalars.of(part)
            if found in groups:
                return Column(groups.index(found), found.type)
            if isinstance(part, exp.Column):
                cause, cure = "is neither grouped nor aggregated", "add it to GROUP BY, or aggregate it"
                raise self._text.refused(Code.WRONG_TYPE, part.sql("spark"), cause, cure, part)
            return None

        return self._of_groups(plan, items, having, resolve)

    def _of_groups(
        self, plan: LinearAggregate, items: list[exp.Expr], having: exp.Expr | None, resolve: Resolve
    ) -> Output:
        over = Scalars(self._text, resolve)
        selected = [over.of(each) for each in items]
        condition = None if having is None else over.condition(having)
        columns = self._named(items, [each.type for each in selected])
        return Output(
            mapped(plan, condition, tuple(selected)), columns, _key_among(frozenset(plan.keys), selected)
        )

    def _groups(
        self, node: exp.Select, items: list[exp.Expr], source: Joined, scalars: Scalars
    ) -> list[Expression]:
        group = node.args.get("group")
        if group is None or not group.expressions:
            cure = "group by a column; a view of one row for all records is not built yet"
            raise self._text.unsupported("an aggregate without GROUP BY", node, cure)
        self._text.check_arguments(group, frozenset(("expressions",)), "GROUP BY")
        aliases = {each.alias.lower(): each.this for each in items if isinstance(each, exp.Alias)}
        found: dict[Expression, None] = {}
        for each in group.expressions:
            what = each
            if isinstance(each, exp.Literal) and not each.is_string:
                if not 1 <= int(each.this) <= len(items):
                    cause, cure = "is not the number of a selected column", "correct the number"
                    raise self._text.refused(Code.UNKNOWN_NAME, str(each.this), cause, cure, node)
                what = items[int(each.this) - 1]
            elif isinstance(each, exp.Column) and not each.table and not source.has(each.name):
                what = aliases.get(each.name.lower(), each)
            if what.find(exp.AggFunc):
                raise self._text.unsupported(
                    "an aggregate in GROUP BY", node, "group by what is not aggregated"
                )
            found[scalars.of(what)] = None
        return [*found]

    def _aggregate(self, call: exp.Expr, scalars: Scalars) -> tuple[AggregateFunction, Expression | None]:
        """The function and its argument, in which FILTER has become a CASE."""
        within = call.parent if isinstance(call.parent, exp.Filter) else call
        condition = within.expression.this if isinstance(within, exp.Filter) else None
        inner = within.this if isinstance(within, exp.Filter) else within
        function = _FUNCTIONS.get(type(inner))
        if function is None:
            raise self._text.unsupported(inner.key.upper(), inner)
        if isinstance(inner.this, exp.Distinct) or inner.expressions:
            raise self._text.unsupported(inner.sql("spark"), inner, "use COUNT, SUM and AVG of one argument")
        if inner.this.find(exp.AggFunc):
            raise self._text.unsupported("an aggregate of an aggregate", inner, "group twice, by a view")
        star = isinstance(inner.this, exp.Star)
        of = None if star else scalars.of(inner.this)
        if isinstance(of, Literal) and of.value is not None and function is AggregateFunction.COUNT:
            of = None
        if function is not AggregateFunction.COUNT and (of is None or of.type not in NUMERIC):
            cause = f"{function.value.upper()} is of numbers"
            raise self._text.refused(Code.WRONG_TYPE, inner.sql("spark"), cause, "cast it", inner)
        if condition is not None:
            value = of or Literal(1, Type.INT)
            arguments = (scalars.condition(condition), value, Literal(None, value.type))
            of = Call(Function.CASE, arguments, value.type)
        return function, of

    def _named(self, items: list[exp.Expr], kinds: list[Type]) -> tuple[OutColumn, ...]:
        columns: dict[str, OutColumn] = {}
        for number, (item, kind) in enumerate(zip(items, kinds, strict=True), 1):
            name = item.alias_or_name
            if not name:
                cause, cure = "has no name", "add AS and a name"
                raise self._text.refused(Code.UNKNOWN_NAME, f"column {number}", cause, cure, item)
            if name.lower() in columns:
                cause, cure = "is the name of two columns", "add AS and another name"
                raise self._text.refused(Code.NAME_TAKEN, name, cause, cure, item)
            columns[name.lower()] = OutColumn(name, kind)
        return tuple(columns.values())


def _without_with(node: exp.Expr) -> exp.Expr:
    copy = node.copy()
    copy.set("with_", None)
    return copy


def _key_among(key: frozenset[int] | None, columns: list[Expression]) -> tuple[int, ...] | None:
    """The places of a key's columns among others that were made of them; None when one is missing."""
    if key is None:
        return None
    found = {
        each.position: place for place, each in reversed([*enumerate(columns)]) if isinstance(each, Column)
    }
    return tuple(sorted(found[position] for position in key)) if key <= found.keys() else None


def _distinct(plan: Plan) -> tuple[Plan, tuple[int, ...]]:
    every = tuple(range(len(plan.types)))
    return LinearAggregate(plan, every, ()), every


def _as_types(side: Output, kinds: list[Type]) -> Plan:
    shown = [number for number, column in enumerate(side.columns) if not column.hidden]
    every = all_columns(side.plan)
    return mapped(
        side.plan, None, tuple(cast(every[at], kind) for at, kind in zip(shown, kinds, strict=True))
    )


def _flat(plan: Plan) -> tuple[Plan, ...]:
    return plan.inputs if isinstance(plan, Union) else (plan,)
