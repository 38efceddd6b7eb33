"""Outputs of tables, views and queries: a plan with names for its columns."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.statemachine.views.plan import Plan
from strandline.statemachine.views.types import Type


@dataclass(frozen=True, slots=True)
class OutColumn:
    """A column's name as it was written. A hidden one can be named and is no part of `*`."""

    name: str
    type: Type
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """A plan, its columns' names, and the positions of a key: no two rows have the same;

    None if there is none.
    """

    plan: Plan
    columns: tuple[OutColumn, ...]
    key: tuple[int, ...] | None

    def shown(self) -> list[OutColumn]:
        """Give the columns of `*`."""
        return [column for column in self.columns if not column.hidden]
