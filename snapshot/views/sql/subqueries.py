"""IN and EXISTS of a query: rows with, or without, a match among the rows of another query."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from sqlglot import exp

from strandline.snapshot.views.sql.joins import Joined
from strandline.snapshot.views.sql.matches import Part, arranged, distinct_keys, matched, unmatched
from strandline.snapshot.views.sql.outputs import Output
from strandline.snapshot.views.sql.scalars import Scalars, cast
from strandline.snapshot.views.sql.text import Text
from strandline.statemachine.views.expressions import Column, Expression, Literal
from strandline.statemachine.views.refusals import Code, Refused
from strandline.statemachine.views.rewrites import all_columns, mapped
from strandline.statemachine.views.types import NUMERIC, Type


class Subquery(NamedTuple):
    """A query in a condition. `value` is the left side of IN, None of EXISTS.

    `anti`: the rows without a match are wanted.
    """

    node: exp.Expr
    query: exp.Select
    value: exp.Expr | None
    anti: bool


def conditions(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the parts of a condition, taken apart at its ANDs."""
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.And):
        yield from conditions(node.this)
        yield from conditions(node.expression)
    else:
        yield node


def subquery(text: Text, condition: exp.Expr) -> Subquery | None:
    """Give the query of a condition that is an IN or EXISTS; raises Refused for NOT IN."""
    inner, anti = condition, False
    while isinstance(inner, exp.Not | exp.Paren):
        anti ^= isinstance(inner, exp.Not)
        inner = inner.this
    match inner:
        case exp.Exists(this=exp.Select() as query):
            return Subquery(inner, query, None, anti)
        case exp.In() if isinstance(of := _query(inner), exp.Select):
            if anti:
                cure = "write NOT EXISTS (SELECT 1 FROM … WHERE an equality): it does not depend on nulls"
                raise text.unsupported("NOT IN a query", inner, cure)
            return Subquery(inner, of, inner.this, anti)
    return None


def _query(node: exp.In) -> exp.Expr | None:
    query = node.args.get("query")
    return query.this if isinstance(query, exp.Subquery) else query


def filtered(
    text: Text,
    source: Joined,
    found: Subquery,
    output_of: Callable[[exp.Expr], Output],
    source_of: Callable[[exp.Select], Joined],
) -> Joined:
    """Give the rows of a query's FROM and WHERE that have a match in a subquery, or none; raises Refused.

    `output_of` understands a query, `source_of` the FROM of one.
    """
    outer = Scalars(text, source.resolve)
    query, pairs = _taken_apart(text, found, source_of)
    if found.value is not None:
        if len(query.expressions) != 1:
            raise text.unsupported("IN of a query of several columns", found.node, "select one column")
        pairs.insert(0, (found.value, query.expressions[0].unalias()))
    grouped = query.args.get("group") or query.args.get("having") or query.find(exp.AggFunc)
    correlated = len(pairs) > (found.value is not None)
    if grouped and (correlated or found.value is None):
        cure = "make a view of its groups, and an equality with that"
        raise text.unsupported("a correlated query with groups", found.node, cure)
    limited = query.args.get("limit")
    if limited and correlated:
        # It would be the limit of all rows, and not of those for one row outside.
        cure = "EXISTS needs no LIMIT; else make a view of the rows, and an equality with that"
        raise text.unsupported("a correlated query with LIMIT", found.node, cure)
    ours: list[Expression] = [outer.of(mine) for mine, _ in pairs] or [Literal(1, Type.INT)]
    names = [exp.alias_(theirs.copy(), f"k{at}") for at, (_, theirs) in enumerate(pairs)]
    query.set("expressions", names or [exp.alias_(exp.Literal.number(1), "k0")])
    if not limited:
        query.set("distinct", None)  # how often a row is there does not count
    inner = output_of(query)
    theirs = all_columns(inner.plan)[: len(ours)]
    kinds = [_common(text, found, mine.type, its.type) for mine, its in zip(ours, theirs, strict=True)]
    right = mapped(inner.plan, None, tuple(map(cast, theirs, kinds)))
    keys = {at: Column(at, kind) for at, kind in enumerate(kinds)}
    side = distinct_keys(arranged(Part(right, dict(keys), None), [*keys.values()]))
    plan = mapped(source.plan, source.condition, all_columns(source.plan))
    own = Part(plan, source.places, source.key)
    left = arranged(own, [*map(cast, ours, kinds)], nulls=found.anti)
    rows = unmatched(left, side) if found.anti else matched(left, side)
    return replace(source, plan=mapped(rows, None, all_columns(source.plan)), condition=None)


def _common(text: Text, found: Subquery, one: Type, other: Type) -> Type:
    if one is other:
        return one
    if {one, other} <= {*NUMERIC}:
        return Type.DOUBLE if Type.DOUBLE in (one, other) else Type.BIGINT
    cause = f"{one.value} and {other.value} do not go together"
    raise text.refused(Code.WRONG_TYPE, "the subquery", cause, "cast one of them", found.node)


def _taken_apart(
    text: Text, found: Subquery, source_of: Callable[[exp.Select], Joined]
) -> tuple[exp.Select, list[tuple[exp.Expr, exp.Expr]]]:
    """The query without its equalities with columns from outside, and these: the outer side first."""
    query = found.query.copy()
    where = query.args.get("where")
    if where is None:
        return query, []
    query.set("where", None)
    inner = source_of(query)
    kept: list[exp.Expr] = []
    pairs: list[tuple[exp.Expr, exp.Expr]] = []
    for each in conditions(where.this):
        if subquery(text, each) is not None or not _outside(inner, each):
            kept.append(each)
            continue
        sides = [each.this, each.expression] if isinstance(each, exp.EQ) else []
        outside = [_only_outside(inner, side) for side in sides]
        if outside == [True, False] and not _outside(inner, sides[1]):
            pairs.append((sides[0], sides[1]))
        elif outside == [False, True] and not _outside(inner, sides[0]):
            pairs.append((sides[1], sides[0]))
        else:
            cure = "correlate a subquery by equalities of its columns and of the outer query's"
            raise text.unsupported(f"the correlated condition {each.sql('spark')[:60]}", found.node, cure)
    if kept:
        query.set("where", exp.Where(this=exp.and_(*kept, copy=False)))
    return query, pairs


def _outside(inner: Joined, node: exp.Expr) -> bool:
    """Whether a part has a column that the query does not have."""
    return any(not _there(inner, column) for column in node.find_all(exp.Column))


def _only_outside(inner: Joined, node: exp.Expr) -> bool:
    columns = [*node.find_all(exp.Column)]
    return bool(columns) and not any(_there(inner, column) for column in columns)


def _there(inner: Joined, column: exp.Column) -> bool:
    try:
        return inner.resolve(column) is not None
    except Refused as refused:
        if refused.code is Code.UNKNOWN_NAME:
            return False
        raise
