"""Queries as plans: FROM and WHERE, then groups, then the columns that were asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sqlglot import exp

from strandline.snapshot.views.sql.groups import grouped_output
from strandline.snapshot.views.sql.joins import Joined, joined
from strandline.snapshot.views.sql.outputs import OutColumn, Output, key_among, named
from strandline.snapshot.views.sql.ranks import check_no_rank, has_rank, limited, ranked
from strandline.snapshot.views.sql.relations import Relation
from strandline.snapshot.views.sql.scalars import Scalars, cast
from strandline.snapshot.views.sql.subqueries import conditions, filtered, subquery
from strandline.snapshot.views.sql.text import Text
from strandline.statemachine.views.expressions import Column, Expression, moved
from strandline.statemachine.views.plan import LinearAggregate, Plan, Union
from strandline.statemachine.views.refusals import Code
from strandline.statemachine.views.rewrites import all_columns, mapped
from strandline.statemachine.views.types import NUMERIC, Type

Catalog = dict[str, Output]
"""Tables, views and WITH's queries, by name in small letters."""

_SELECT: Final = frozenset(
    (
        "expressions",
        "from_",
        "joins",
        "where",
        "group",
        "having",
        "distinct",
        "with_",
        "kind",
        "order",
        "limit",
    )
)
_UNION: Final = frozenset(("this", "expression", "distinct", "with_"))


class Queries:
    """Understands queries over a catalog; raises Refused."""

    def __init__(self, text: Text, catalog: Catalog) -> None:
        self._text = text
        self._catalog = catalog

    def output(self, node: exp.Expr) -> Output:
        """Understand a query."""
        return check_no_rank(self._text, self._rows(node), node)

    def _rows(self, node: exp.Expr) -> Output:
        """Understand a query whose row_number() the query around it may bound."""
        if isinstance(node, exp.Subquery):
            self._text.check_arguments(node, frozenset(("this", "alias")), "a query in brackets")
            return self._rows(node.this)
        if with_ := node.args.get("with_"):
            return self._with(with_)._rows(_without_with(node))
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
            inner._catalog[each.alias.lower()] = inner._rows(each.this)
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
        source = self._source(node)
        items = self._items(node, source)
        grouped = node.args.get("group") or node.args.get("having")
        if grouped and has_rank(items):
            cure = "select from the groups in another query, with row_number() there"
            raise self._text.unsupported("a window function over groups", node, cure)
        grouped = grouped or (not has_rank(items) and any(each.find(exp.AggFunc) for each in items))
        output = grouped_output(self._text, node, items, source) if grouped else self._plain(items, source)
        if distinct := node.args.get("distinct"):
            self._text.check_arguments(distinct, frozenset(), "DISTINCT")
            plan, key = _distinct(check_no_rank(self._text, output, node).plan)
            output = replace(output, plan=plan, key=key)
        return limited(self._text, node, output)

    def _source(self, node: exp.Select) -> Joined:
        """The rows of FROM for which WHERE is true."""
        where = node.args.get("where")
        parts = [] if where is None else [*conditions(where.this)]
        queries = {at: found for at, part in enumerate(parts) if (found := subquery(self._text, part))}
        plain = [part for at, part in enumerate(parts) if at not in queries]
        source = joined(self._text, self._relations(node), plain, node)
        for found in queries.values():
            source = filtered(
                self._text,
                source,
                found,
                self.output,
                lambda query: joined(self._text, self._relations(query), [], query),
            )
        return source

    def _relations(self, node: exp.Select) -> list[Relation]:
        name, output = self._relation(node.args["from_"].this)
        parts = [Relation(name, output, "", None, ())]
        for join in node.args.get("joins") or []:
            self._text.check_arguments(join, frozenset(("this", "on", "using", "kind", "side")), "JOIN")
            side, kind = join.args.get("side") or "", join.args.get("kind") or "INNER"
            if kind not in ("INNER", "CROSS", "OUTER"):
                cure = "use WHERE EXISTS or NOT EXISTS, or an inner or outer JOIN"
                raise self._text.unsupported(f"{side} {kind} JOIN".strip(), join, cure)
            using = tuple(join.args.get("using") or ())
            if using and side in ("RIGHT", "FULL"):
                raise self._text.unsupported(f"USING of a {side} JOIN", join, "use ON")
            name, output = self._relation(join.this)
            parts.append(Relation(name, output, side, join.args.get("on"), using))
        return parts

    def _relation(self, node: exp.Expr) -> tuple[str, Output]:
        alias = node.args.get("alias")
        if alias is not None:
            self._text.check_arguments(alias, frozenset(("this",)), "an alias")
        if isinstance(node, exp.Subquery):
            return node.alias.lower(), self._rows(node.this)
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
        if has_rank(items):
            return self._ranked(items, source)
        over = [scalars.of(each) for each in items]
        columns = named(self._text, items, [each.type for each in over])
        plan = mapped(source.plan, source.condition, tuple(moved(each, source.places) for each in over))
        return Output(plan, columns, key_among(source.key, over))

    def _ranked(self, items: list[exp.Expr], source: Joined) -> Output:
        numbers = sorted(source.places)
        plan = mapped(source.plan, source.condition, tuple(source.places[number] for number in numbers))
        columns = tuple(OutColumn("", kind) for kind in plan.types)
        key = None if source.key is None else tuple(numbers.index(number) for number in sorted(source.key))

        def resolve(part: exp.Expr) -> Expression | None:
            found = source.resolve(part)
            places = {number: Column(at, plan.types[at]) for at, number in enumerate(numbers)}
            return None if found is None else moved(found, places)

        return ranked(self._text, items, Output(plan, columns, key), Scalars(self._text, resolve))


def _without_with(node: exp.Expr) -> exp.Expr:
    copy = node.copy()
    copy.set("with_", None)
    return copy


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
