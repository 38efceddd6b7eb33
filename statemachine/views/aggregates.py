"""Aggregates of groups, by what a retraction needs: its own row alone, or the other rows of the group too."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from strandline.statemachine.views.types import Type


class AggregateFunction(enum.Enum):
    """An aggregate function."""

    COUNT = "count"
    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"


EXTREMES: Final = (AggregateFunction.MIN, AggregateFunction.MAX)
"""Functions for which the values of a group are kept in their order."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A function of a column's values that are not null; COUNT without a column counts rows.

    `distinct`: each value counts once, however often it is there.
    """

    function: AggregateFunction
    column: int | None = None
    of: Type | None = None
    distinct: bool = False

    @property
    def result(self) -> Type:
        """The type of the result, as Spark has it: BIGINT for counts and whole sums, else DOUBLE."""
        if self.function is AggregateFunction.COUNT:
            return Type.BIGINT
        if self.function in EXTREMES and self.of is not None:
            return self.of
        return (
            Type.DOUBLE if self.function is AggregateFunction.AVG or self.of is Type.DOUBLE else Type.BIGINT
        )
