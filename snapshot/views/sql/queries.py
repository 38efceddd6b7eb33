"""Queries as plans: FROM and WHERE, then groups, then the columns that were asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sqlglot import exp

from strandline.snapshot.views.sql.groups import grouped_output
from strandline.snapshot.views.sql.joins import Joined, joined
from strandline.snapshot.views.sql.outputs import OutColumn, Output, key_among, named
from strandline.snapshot.views.sql.scalars import Scalars, cast
from strandline.snapshot.views.sql.text import Text
from strandline.statemachine.views.expressions import (
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
        output = grouped_output(self._text, node, items, source) if grouped else self._plain(items, source)
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
        columns = named(self._text, items, [each.type for each in over])
        plan = mapped(source.plan, source.condition, tuple(moved(each, source.places) for each in over))
        return Output(plan, columns, key_among(source.key, over))


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
