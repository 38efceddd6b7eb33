"""Rewrites of one view's plan, in a fixed order: another view never changes what comes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from strandline.statemachine.views.expressions import (
    Call,
    Column,
    Expression,
    Function,
    columns_of,
    may_fail,
    moved,
    ordered,
)
from strandline.statemachine.views.plan import (
    Arrange,
    Constant,
    Join,
    LinearAggregate,
    Map,
    Negate,
    Plan,
    Positions,
    Sink,
    Source,
    TopK,
    Union,
    Upsert,
)
from strandline.statemachine.views.types import Type

Moves = dict[int, int]
"""The new positions of the columns of an operator's output."""


def conjuncts(condition: Expression) -> list[Expression]:
    """Take a condition apart at its ANDs."""
    match condition:
        case Call(Function.AND, arguments, _):
            return [each for argument in arguments for each in conjuncts(argument)]
        case _:
            return [condition]


def conjunction(parts: Iterable[Expression]) -> Expression | None:
    """Put conditions together by AND, in their one order, each once; None when there is none."""
    flat = dict.fromkeys(each for part in parts for each in conjuncts(part))
    match ordered(Function.AND, tuple(flat)):
        case ():
            return None
        case (one,):
            return one
        case several:
            return Call(Function.AND, several, Type.BOOLEAN)


def all_columns(plan: Plan) -> tuple[Expression, ...]:
    """Give each column of an operator's output as an expression over it."""
    return tuple(Column(position, kind) for position, kind in enumerate(plan.types))


def mapped(plan: Plan, condition: Expression | None, columns: tuple[Expression, ...]) -> Plan:
    """Make a Map, as one with a Map below it where no error can come of that; none that changes nothing."""
    condition = None if condition is None else conjunction([condition])
    if condition is None and columns == all_columns(plan):
        return plan
    if not isinstance(plan, Map):
        return Map(plan, condition, columns)
    places = dict(enumerate(plan.columns))
    over = None if condition is None else moved(condition, places)
    if over is not None and plan.condition is not None and may_fail(over):
        return Map(plan, condition, columns)
    both = conjunction(each for each in (plan.condition, over) if each is not None)
    return mapped(plan.input, both, tuple(moved(column, places) for column in columns))


def pruned(plan: Plan, fixed: frozenset[Plan]) -> Plan:
    """Leave out the columns that no operator above uses. `fixed` operators are another view's and stay."""
    return _pruned(plan, tuple(range(len(plan.types))), fixed)[0]


def _pruned(plan: Plan, needed: Positions, fixed: frozenset[Plan]) -> tuple[Plan, Moves]:
    if plan in fixed:
        return plan, {position: position for position in range(len(plan.types))}
    match plan:
        case Source() if plan.skips:
            return _chosen(plan, needed)
        case Source():
            return _source(plan, needed)
        case Constant(values):
            return Constant(tuple(values[position] for position in needed)), _numbered(needed)
        case Upsert(source) if source.skips:
            return _chosen(plan, needed)
        case Upsert(source, key):
            below, moves = _source(source, _together(needed, key))
            return Upsert(below, _moved(key, moves)), moves
        case Arrange(below, key):
            made, moves = _pruned(below, _together(needed, key), fixed)
            return Arrange(made, _moved(key, moves)), moves
        case Map():
            return _map(plan, needed, fixed)
        case Join():
            return _join(plan, needed, fixed)
        case LinearAggregate():
            return _aggregate(plan, needed, fixed)
        case TopK():
            return _top(plan, needed, fixed)
        case Negate(below):
            made, moves = _pruned(below, needed, fixed)
            return Negate(made), moves
        case Union(inputs):
            parts = []
            for each in inputs:
                made, moves = _pruned(each, needed, fixed)
                chosen = tuple(Column(moves[position], each.types[position]) for position in needed)
                parts.append(mapped(made, None, chosen))
            return Union(tuple(parts)), _numbered(needed)
        case Sink(below, names, key, partitions):
            made, _ = _pruned(below, tuple(range(len(below.types))), fixed)
            return Sink(made, names, key, partitions), _numbered(needed)


def _source(plan: Source, needed: Positions) -> tuple[Source, Moves]:
    columns = tuple(plan.columns[position] for position in needed)
    return Source(plan.topic, plan.mode, plan.options, columns), _numbered(needed)


def _chosen(plan: Source | Upsert, needed: Positions) -> tuple[Plan, Moves]:
    """Read all columns of a table that skips records, and choose some.

    What is skipped depends on all columns. Two operators that read other columns would not skip the same.
    """
    return mapped(
        plan, None, tuple(Column(position, plan.types[position]) for position in needed)
    ), _numbered(needed)


def _map(plan: Map, needed: Positions, fixed: frozenset[Plan]) -> tuple[Plan, Moves]:
    kept = [plan.columns[position] for position in needed]
    used = {
        place for each in (*kept, *([plan.condition] if plan.condition else [])) for place in columns_of(each)
    }
    made, moves = _pruned(plan.input, tuple(sorted(used)) or (0,), fixed)
    places = _places(moves, plan.input)
    condition = moved(plan.condition, places) if plan.condition else None
    columns = tuple(moved(each, places) for each in kept)
    if isinstance(plan.input, Source | Upsert) and isinstance(made, Map):
        return mapped(made, condition, columns), _numbered(needed)
    if condition is None and columns == all_columns(made):
        return made, _numbered(needed)
    return Map(made, condition, columns), _numbered(needed)


def _join(plan: Join, needed: Positions, fixed: frozenset[Plan]) -> tuple[Plan, Moves]:
    width = len(plan.left.types)
    left, left_moves = _pruned(plan.left, tuple(place for place in needed if place < width), fixed)
    right_needed = tuple(place - width for place in needed if place >= width)
    right, right_moves = _pruned(plan.right, right_needed, fixed)
    if not isinstance(left, Arrange) or not isinstance(right, Arrange):
        raise TypeError("an arrangement is pruned to an arrangement")
    new = len(left.types)
    moves = left_moves | {place + width: to + new for place, to in right_moves.items()}
    return Join(left, right), moves


def _aggregate(plan: LinearAggregate, needed: Positions, fixed: frozenset[Plan]) -> tuple[Plan, Moves]:
    keys = len(plan.keys)
    kept = [place - keys for place in needed if place >= keys]
    aggregates = [plan.aggregates[place] for place in kept]
    used = {each.column for each in aggregates if each.column is not None}
    made, moves = _pruned(plan.input, _together(plan.keys, tuple(used)), fixed)
    changed = tuple(
        replace(each, column=None if each.column is None else moves[each.column]) for each in aggregates
    )
    own = {place: place for place in range(keys)}
    own |= {place + keys: keys + number for number, place in enumerate(kept)}
    return LinearAggregate(made, _moved(plan.keys, moves), changed), own


def _top(plan: TopK, needed: Positions, fixed: frozenset[Plan]) -> tuple[Plan, Moves]:
    # All columns order the rows that are equal otherwise, so none can go: which rows are first would change.
    width = len(plan.input.types)
    made, moves = _pruned(plan.input, tuple(range(width)), fixed)
    orders = tuple((moves[column], highest) for column, highest in plan.orders)
    return TopK(made, _moved(plan.keys, moves), orders, plan.limit, plan.ranked), {
        **moves,
        **({width: len(made.types)} if plan.ranked else {}),
    }


def _together(first: Positions, second: Positions) -> Positions:
    return tuple(sorted({*first, *second}))


def _moved(positions: Positions, moves: Mapping[int, int]) -> Positions:
    return tuple(moves[position] for position in positions)


def _numbered(needed: Positions) -> Moves:
    return {position: number for number, position in enumerate(needed)}


def _places(moves: Moves, below: Plan) -> dict[int, Expression]:
    return {position: Column(to, below.types[position]) for position, to in moves.items()}
