"""Rows with and without a match on another side, made of joins: what semi-joins and outer joins are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strandline.statemachine.views.expressions import Call, Column, Expression, Function, Literal, moved
from strandline.statemachine.views.plan import Arrange, Join, LinearAggregate, Negate, Plan, Union
from strandline.statemachine.views.rewrites import all_columns, conjunction, mapped
from strandline.statemachine.views.types import Type

Numbers = frozenset[int]


@dataclass(frozen=True, slots=True)
class Part:
    """Some relations, put together: where each numbered column is, and which of them are a key."""

    plan: Plan
    places: dict[int, Expression]
    key: Numbers | None

    @property
    def numbers(self) -> Numbers:
        """The numbers of its columns."""
        return frozenset(self.places)


def arranged(part: Part, keys: Sequence[Expression], *, nulls: bool = False) -> Arrange:
    """Keep a side's rows by its keys; those with a null, which is equal to nothing, only with `nulls`."""
    columns = [*all_columns(part.plan)]
    over = [moved(key, part.places) for key in keys]
    columns += [each for each in dict.fromkeys(over) if each not in columns]
    there = None if nulls else conjunction(map(_not_null, over))
    plan = mapped(part.plan, there, tuple(columns))
    return Arrange(plan, tuple(columns.index(each) for each in over))


def distinct_keys(side: Arrange) -> Arrange:
    """Keep each key of a side once, without those that have a null."""
    keys = tuple(Column(position, side.types[position]) for position in side.key)
    every = tuple(range(len(keys)))
    return Arrange(LinearAggregate(mapped(side, conjunction(map(_not_null, keys)), keys), every, ()), every)


def matched(side: Arrange, keys: Arrange) -> Plan:
    """Give the rows of a side whose key is among some keys."""
    return mapped(Join(side, keys), None, all_columns(side))


def unmatched(side: Arrange, keys: Arrange) -> Plan:
    """Give the rows of a side, which has all of them, whose key is not among some keys."""
    return Union((side, Negate(matched(side, keys))))


def outer(left: Arrange, right: Arrange, *, all_left: bool, all_right: bool) -> Plan:
    """Join two sides; rows without a match stand with nulls, of the sides that say so."""
    parts: list[Plan] = [Join(left, right)]
    if all_left:
        nulls = tuple(Literal(None, kind) for kind in right.types)
        parts.append(mapped(unmatched(left, distinct_keys(right)), None, (*all_columns(left), *nulls)))
    if all_right:
        nulls = tuple(Literal(None, kind) for kind in left.types)
        parts.append(mapped(unmatched(right, distinct_keys(left)), None, (*nulls, *all_columns(right))))
    return parts[0] if len(parts) == 1 else Union(tuple(parts))


def _not_null(value: Expression) -> Expression:
    return Call(Function.NOT, (Call(Function.IS_NULL, (value,), Type.BOOLEAN),), Type.BOOLEAN)
