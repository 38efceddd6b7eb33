"""The plan of a view: a tree of operators over columns that go by position.

These are the operators that the kernels have (`snapshot/views/`). A tree is a value: equal parts of two views
are one operator, which both share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from strandline.statemachine.views.aggregates import Aggregate
from strandline.statemachine.views.expressions import Expression, Literal
from strandline.statemachine.views.types import Type

Positions = tuple[int, ...]


@dataclass(frozen=True)
class Source:
    """The columns of a topic's records that a view uses, with what decides how records become rows."""

    topic: str
    mode: str
    """`append`: each record is a row. `upsert`: each record sets or deletes the row of its key."""
    options: tuple[tuple[str, str], ...]
    """Format, `from`, `on_error`, by name and sorted."""
    columns: tuple[tuple[str, Type], ...]

    @property
    def skips(self) -> bool:
        """Whether records that are no rows are skipped."""
        return dict(self.options).get("on_error") == "skip"

    @cached_property
    def types(self) -> tuple[Type, ...]:
        """The types of the output's columns."""
        return tuple(kind for _, kind in self.columns)

    @property
    def inputs(self) -> tuple[Plan, ...]:
        """The operators whose output this one takes: none."""
        return ()


@dataclass(frozen=True)
class Constant:
    """One row that is there from the beginning, before any record."""

    values: tuple[Literal, ...]

    @cached_property
    def types(self) -> tuple[Type, ...]:
        """The types of the output's columns."""
        return tuple(value.type for value in self.values)

    @property
    def inputs(self) -> tuple[Plan, ...]:
        """The operators whose output this one takes: none."""
        return ()


class _OneInput:
    """An operator with one input."""

    input: Plan

    @property
    def inputs(self) -> tuple[Plan, ...]:
        """The operators whose output this one takes."""
        return (self.input,)


class _SameColumns(_OneInput):
    """One whose output has the columns of its input."""

    @cached_property
    def types(self) -> tuple[Type, ...]:
        """The types of the output's columns."""
        return self.input.types


@dataclass(frozen=True)
class Upsert(_SameColumns):
    """The last row of each key of a source."""

    input: Source
    key: Positions


@dataclass(frozen=True)
class Map(_OneInput):
    """The rows for which a condition is true, as other columns."""

    input: Plan
    condition: Expression | None
    columns: tuple[Expression, ...]

    @cached_property
    def types(self) -> tuple[Type, ...]:
        """The types of the output's columns."""
        return tuple(column.type for column in self.columns)


@dataclass(frozen=True)
class Arrange(_SameColumns):
    """The rows of the input, kept by a key."""

    input: Plan
    key: Positions


@dataclass(frozen=True)
class Join:
    """Pairs of rows with equal keys: the left's columns, then the right's."""

    left: Arrange
    right: Arrange

    @cached_property
    def types(self) -> tuple[Type, ...]:
        """The types of the output's columns."""
        return (*self.left.types, *self.right.types)

    @property
    def inputs(self) -> tuple[Plan, ...]:
        """The operators whose output this one takes."""
        return (self.left, self.right)


@dataclass(frozen=True)
class LinearAggregate(_OneInput):
    """A row for each group: its keys, then its aggregates. Without aggregates it is DISTINCT."""

    input: Plan
    keys: Positions
    aggregates: tuple[Aggregate, ...]

    @cached_property
    def types(self) -> tuple[Type, ...]:
        """The types of the output's columns."""
        keys = (self.input.types[position] for position in self.keys)
        return (*keys, *(aggregate.result for aggregate in self.aggregates))


@dataclass(frozen=True)
class TopK(_OneInput):
    """The first rows of each group in an order.

    With `ranked` the place of each, from 1, is one more column.
    """

    input: Plan
    keys: Positions
    orders: tuple[tuple[int, bool], ...]
    """Columns, and whether the highest stands first; null is the lowest. All columns order what is equal."""
    limit: int
    ranked: bool

    @cached_property
    def types(self) -> tuple[Type, ...]:
        """The types of the output's columns."""
        return (*self.input.types, Type.INT) if self.ranked else self.input.types


@dataclass(frozen=True)
class Negate(_SameColumns):
    """The rows of the input, taken away: with Union it is the difference of two inputs."""

    input: Plan


@dataclass(frozen=True)
class Union:
    """The rows of all inputs."""

    inputs: tuple[Plan, ...]

    @cached_property
    def types(self) -> tuple[Type, ...]:
        """The types of the output's columns."""
        return self.inputs[0].types


@dataclass(frozen=True)
class Sink(_SameColumns):
    """A view's topic: its rows as values with names, under a key. The topic's own name is no part of it."""

    input: Plan
    names: tuple[str, ...]
    key: Positions
    partitions: int


Plan = Source | Constant | Upsert | Map | Arrange | Join | LinearAggregate | TopK | Negate | Union | Sink


def operators(plan: Plan) -> Iterator[Plan]:
    """Yield a plan's operators, inputs before those that take them; shared ones once."""
    seen: set[Plan] = set()

    def below(one: Plan) -> Iterator[Plan]:
        if one not in seen:
            seen.add(one)
            for each in one.inputs:
                yield from below(each)
            yield one

    yield from below(plan)
