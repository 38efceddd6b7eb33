"""FROM, JOIN and WHERE: relations put together by the equalities of their columns.

The columns of all relations have one numbering, in the order of the text, and conditions are understood over
it before anything is joined. So it does not matter whether a condition stands in ON or in WHERE, nor in what
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from strandline.snapshot.views.sql.outputs import Output
from strandline.snapshot.views.sql.scalars import Scalars
from strandline.snapshot.views.sql.text import Text
from strandline.statemachine.views.expressions import (
    Call,
    Column,
    Expression,
    Function,
    canonical_text,
    columns_of,
    may_fail,
    moved,
)
from strandline.statemachine.views.plan import Arrange, Join, Plan
from strandline.statemachine.views.refusals import Code
from strandline.statemachine.views.rewrites import all_columns, conjunction, conjuncts, mapped
from strandline.statemachine.views.types import Type

Numbers = frozenset[int]
Named = list[tuple[str, Output]]
"""Relations with the names by which a query knows them."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A column that can be named. `second` ones are those that USING has joined to an earlier one."""

    table: str
    name: str
    number: int
    type: Type
    hidden: bool
    second: bool


@dataclass(frozen=True, slots=True)
class Joined:
    """The rows of FROM and WHERE. `condition` is what is left to be true, `places` where the columns are."""

    plan: Plan
    condition: Expression | None
    places: dict[int, Expression]
    key: Numbers | None
    text: Text
    known: tuple[_Known, ...]

    def resolve(self, node: exp.Expr) -> Expression | None:
        """Give the column that a name stands for; None for what is no name; raises Refused."""
        return _resolved(self.text, self.known, node)

    def has(self, name: str) -> bool:
        """Tell whether a relation has a column of this name."""
        return any(each.name.lower() == name.lower() for each in self.known)

    def shown(self, table: str | None) -> list[tuple[str, str]]:
        """Give the relation and name of each column of `*`, or of one relation's."""
        return [
            (each.table, each.name)
            for each in self.known
            if not each.hidden and (each.table == table if table is not None else not each.second)
        ]


def joined(
    text: Text,
    relations: Named,
    conditions: Sequence[exp.Expr],
    using: Sequence[tuple[int, list[exp.Expr]]],
    at: exp.Expr,
) -> Joined:
    """Join relations by all conditions; `using` has names by the number of the relation. Raises Refused."""
    names = [name for name, _ in relations]
    for name in names:
        if names.count(name) > 1:
            cause, cure = "is the name of two tables of this query", "give one an alias"
            raise text.refused(Code.NAME_TAKEN, name, cause, cure, at)
    known, starts = _known(relations, using)
    scalars = Scalars(text, lambda node: _resolved(text, known, node))
    parts = [each for node in conditions for each in conjuncts(scalars.condition(node))]
    for number, columns in using:
        parts += [_same(text, known, names, number, column) for column in columns]
    pool = dict.fromkeys(parts)
    made: _Part | None = None
    for (name, output), start in zip(relations, starts, strict=True):
        part = _relation(output, start, pool, alone=len(relations) == 1)
        if made is None:
            made = part
            continue
        pairs = _equalities(pool, made.numbers, part.numbers)
        if not pairs:
            cure = f"add an equality of a column of {name} and one of a table before it"
            raise text.unsupported(f"the JOIN of {name} without an equality", at, cure)
        made = _join(made, part, pairs)
    if made is None:
        raise text.unsupported("SELECT without FROM", at, "select from a table")
    left = conjunction(pool)
    return Joined(
        made.plan, None if left is None else moved(left, made.places), made.places, made.key, text, known
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """Some relations, put together: where each numbered column is, and which of them are a key."""

    plan: Plan
    places: dict[int, Expression]
    key: Numbers | None

    @property
    def numbers(self) -> Numbers:
        return frozenset(self.places)


def _known(
    relations: Named, using: Sequence[tuple[int, list[exp.Expr]]]
) -> tuple[tuple[_Known, ...], list[int]]:
    joined_names = {(number, column.name.lower()) for number, columns in using for column in columns}
    known: list[_Known] = []
    starts: list[int] = []
    for at, (table, output) in enumerate(relations):
        starts.append(len(known))
        known += [
            _Known(
                table,
                each.name,
                len(known) + place,
                each.type,
                each.hidden,
                (at, each.name.lower()) in joined_names,
            )
            for place, each in enumerate(output.columns)
        ]
    return tuple(known), starts


def _resolved(text: Text, known: Sequence[_Known], node: exp.Expr) -> Expression | None:
    if not isinstance(node, exp.Column):
        return None
    if isinstance(node.this, exp.Star):
        raise text.unsupported("* within an expression", node, "name the columns")
    name, table = node.name.lower(), node.table.lower()
    found = [each for each in known if each.name.lower() == name and each.table == (table or each.table)]
    if len(found) > 1 and not table:
        found = [each for each in found if not each.second]
    if not found:
        cause, cure = "is not a column here", "correct the name"
        raise text.refused(Code.UNKNOWN_NAME, node.sql("spark"), cause, cure, node)
    if len(found) > 1:
        tables = " and ".join(each.table for each in found)
        raise text.refused(
            Code.AMBIGUOUS_NAME, name, f"is a column of {tables}", "name the table before it", node
        )
    return Column(found[0].number, found[0].type)


def _same(text: Text, known: Sequence[_Known], names: list[str], number: int, column: exp.Expr) -> Expression:
    """The equality that USING stands for."""
    name = column.name
    before = [each for each in known if each.table in names[:number]]
    scope = Scalars(text, lambda node: _resolved(text, before if not node.args.get("table") else known, node))
    return scope.condition(
        exp.EQ(this=exp.column(column.copy()), expression=exp.column(name, table=names[number]))
    )


def _relation(output: Output, start: int, pool: dict[Expression, None], *, alone: bool) -> _Part:
    """Take the conditions of one relation out of the pool; those that may fail only if there is no other."""
    plan = output.plan
    numbers = range(start, start + len(plan.types))
    own = [
        each
        for each in pool
        if alone or ({*columns_of(each)} <= {*numbers} and not may_fail(each) and [*columns_of(each)])
    ]
    for each in own:
        del pool[each]
    here: dict[int, Expression] = {
        number: Column(number - start, plan.types[number - start]) for number in numbers
    }
    condition = conjunction(moved(each, here) for each in own)
    key = None if output.key is None else frozenset(position + start for position in output.key)
    return _Part(mapped(plan, condition, all_columns(plan)), here, key)


def _equalities(
    pool: dict[Expression, None], left: Numbers, right: Numbers
) -> list[tuple[Expression, Expression]]:
    """Take the equalities of two sides out of the pool, in the order of their texts."""
    pairs = []
    for each in [*pool]:
        match each:
            case Call(Function.EQUAL, (one, other), _):
                first, second = {*columns_of(one)}, {*columns_of(other)}
                if first and second and first <= left and second <= right:
                    pairs.append((one, other))
                elif first and second and first <= right and second <= left:
                    pairs.append((other, one))
                else:
                    continue
                del pool[each]
    return sorted(pairs, key=lambda pair: (canonical_text(pair[0]), canonical_text(pair[1])))


def _join(left: _Part, right: _Part, pairs: list[tuple[Expression, Expression]]) -> _Part:
    ours, theirs = _arranged(left, [pair[0] for pair in pairs]), _arranged(right, [pair[1] for pair in pairs])
    width = len(ours.types)
    places = dict(left.places)
    for number, place in right.places.items():
        if isinstance(place, Column):
            places[number] = Column(place.position + width, place.type)
    columns = [
        frozenset(side.position for side in sides if isinstance(side, Column))
        for sides in zip(*pairs, strict=True)
    ]
    # A row that meets at most one other needs no more than its own key.
    if right.key is not None and right.key <= columns[1]:
        key = left.key
    elif left.key is not None and left.key <= columns[0]:
        key = right.key
    else:
        key = None if left.key is None or right.key is None else left.key | right.key
    return _Part(Join(ours, theirs), places, key)


def _arranged(part: _Part, keys: list[Expression]) -> Arrange:
    """Keep a side's rows by its keys; a null is equal to nothing, so such rows are not kept at all."""
    columns = [*all_columns(part.plan)]
    over = [moved(key, part.places) for key in keys]
    columns += [each for each in dict.fromkeys(over) if each not in columns]
    there = conjunction(
        Call(Function.NOT, (Call(Function.IS_NULL, (each,), Type.BOOLEAN),), Type.BOOLEAN) for each in over
    )
    plan = mapped(part.plan, there, tuple(columns))
    return Arrange(plan, tuple(columns.index(each) for each in over))
