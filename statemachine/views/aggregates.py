"""Linear aggregates: those that a retraction undoes without looking at other rows."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from strandline.statemachine.views.types import Type


class AggregateFunction(enum.Enum):
    """An aggregate function."""

    COUNT = "count"
    SUM = "sum"
    AVG = "avg"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A function of a column's values that are not null; COUNT without a column counts rows."""

    function: AggregateFunction
    column: int | None = None
    of: Type | None = None

    @property
    def result(self) -> Type:
        """The type of the result, as Spark has it: BIGINT for counts and whole sums, else DOUBLE."""
        if self.function is AggregateFunction.COUNT:
            return Type.BIGINT
        return (
            Type.DOUBLE if self.function is AggregateFunction.AVG or self.of is Type.DOUBLE else Type.BIGINT
        )
