"""Outputs of tables, views and queries: a plan with names for its columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from strandline.snapshot.views.sql.text import Text
from strandline.statemachine.views.expressions import Column, Expression
from strandline.statemachine.views.plan import Plan
from strandline.statemachine.views.refusals import Code
from strandline.statemachine.views.types import Type


@dataclass(frozen=True, slots=True)
class OutColumn:
    """A column's name as it was written. A hidden one can be named and is no part of `*`."""

    name: str
    type: Type
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Ranking:
    """A row_number() without a bound yet: its place among the columns, and what decides it in the plan."""

    column: int
    keys: tuple[int, ...]
    orders: tuple[tuple[int, bool], ...]


@dataclass(frozen=True, slots=True)
class Output:
    """A plan, its columns' names, and the positions of a key: no two rows have the same;

    None if there is none. A key without columns is that of a single row. With a `ranking` the plan lacks the
    ranking's column: only a query that bounds it can have the rows.
    """

    plan: Plan
    columns: tuple[OutColumn, ...]
    key: tuple[int, ...] | None
    ranking: Ranking | None = None

    def shown(self) -> list[OutColumn]:
        """Give the columns of `*`."""
        return [column for column in self.columns if not column.hidden]


def named(text: Text, items: Sequence[exp.Expr], kinds: Sequence[Type]) -> tuple[OutColumn, ...]:
    """Name the columns that were asked for; raises Refused for one without a name, and for two of one."""
    columns: dict[str, OutColumn] = {}
    for number, (item, kind) in enumerate(zip(items, kinds, strict=True), 1):
        name = item.alias_or_name
        if not name:
            cause, cure = "has no name", "add AS and a name"
            raise text.refused(Code.UNKNOWN_NAME, f"column {number}", cause, cure, item)
        if name.lower() in columns:
            cause, cure = "is the name of two columns", "add AS and another name"
            raise text.refused(Code.NAME_TAKEN, name, cause, cure, item)
        columns[name.lower()] = OutColumn(name, kind)
    return tuple(columns.values())


def key_among(key: frozenset[int] | None, columns: Sequence[Expression]) -> tuple[int, ...] | None:
    """Give the places of a key's columns among others that were made of them; None when one is missing."""
    if key is None:
        return None
    found = {
        each.position: place for place, each in reversed([*enumerate(columns)]) if isinstance(each, Column)
    }
    return tuple(sorted(found[position] for position in key)) if key <= found.keys() else None
