"""FROM, JOIN and WHERE: relations put together by the equalities of their columns.

The columns of all relations have one numbering, in the order of the text, and conditions are understood over
it before anything is joined. So it does not matter whether a condition stands in ON or in WHERE, nor in what
order.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from strandline.snapshot.views.sql.matches import Numbers, Part, arranged, outer
from strandline.snapshot.views.sql.outputs import Output
from strandline.snapshot.views.sql.ranks import bounded
from strandline.snapshot.views.sql.relations import Known, Relation, known_columns, resolved, same
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
from strandline.statemachine.views.nulls import never_null
from strandline.statemachine.views.plan import Join, Plan
from strandline.statemachine.views.refusals import Code
from strandline.statemachine.views.rewrites import all_columns, conjunction, conjuncts, mapped


@dataclass(frozen=True, slots=True)
class Joined:
    """The rows of FROM and WHERE. `condition` is what is left to be true, `places` where the columns are."""

    plan: Plan
    condition: Expression | None
    places: dict[int, Expression]
    key: Numbers | None
    text: Text
    known: tuple[Known, ...]

    def resolve(self, node: exp.Expr) -> Expression | None:
        """Give the column that a name stands for; None for what is no name; raises Refused."""
        return resolved(self.text, self.known, node)

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


def joined(text: Text, relations: Sequence[Relation], where: Sequence[exp.Expr], at: exp.Expr) -> Joined:
    """Join relations by the conditions of their ON and USING, and of WHERE; raises Refused."""
    names = [each.name for each in relations]
    for name in names:
        if names.count(name) > 1:
            cause, cure = "is the name of two tables of this query", "give one an alias"
            raise text.refused(Code.NAME_TAKEN, name, cause, cure, at)
    known, starts = known_columns(relations)
    scalars = Scalars(text, lambda node: resolved(text, known, node))
    work = _Work(text, at, relations, starts)
    for node in where:
        work.add(conjuncts(scalars.condition(node)), 0)
    for number, each in enumerate(relations):
        parts = [] if each.on is None else conjuncts(scalars.condition(each.on))
        parts += [same(text, known, names, number, column) for column in each.using]
        if each.side:
            work.outer[number] = dict.fromkeys(parts)
        else:
            work.add(parts, number)
    made = work.joined()
    left = conjunction((*work.pool, *work.later))
    return Joined(
        made.plan, None if left is None else moved(left, made.places), made.places, made.key, text, known
    )


class _Work:
    """The joins of one query, in their order, and the conditions that are left."""

    def __init__(self, text: Text, at: exp.Expr, relations: Sequence[Relation], starts: list[int]) -> None:
        self._text = text
        self._at = at
        self._relations = relations
        self._starts = starts
        self._nullable: Numbers = frozenset()
        """Columns that some outer join may leave null: conditions on them wait for it."""
        for number, each in enumerate(relations):
            if each.side:
                before = range(number) if each.side in ("RIGHT", "FULL") else ()
                own = (number,) if each.side in ("LEFT", "FULL") else ()
                for one in (*before, *own):
                    columns = range(starts[one], starts[one] + len(relations[one].output.columns))
                    self._nullable |= {*columns}
        self.pool: dict[Expression, None] = {}
        """Conditions that may be worked out as soon as their columns are there."""
        self._of: dict[Expression, int] = {}
        """The join from which on a condition of an inner ON counts."""
        self._again: dict[int, list[Expression]] = {}
        """Conditions of an inner ON that an earlier one has, too, and that an outer join may undo."""
        self.later: dict[Expression, None] = {}
        """Conditions of WHERE on what an outer join may leave null: they come last."""
        self.outer: dict[int, dict[Expression, None]] = {}
        """The conditions of outer joins."""

    def add(self, parts: Sequence[Expression], number: int) -> None:
        """Add conditions of WHERE (0) or of an inner join."""
        for each in parts:
            columns = {*columns_of(each)}
            # What has no column is of all rows, also of those that an outer join adds.
            waits = bool(self._nullable & columns if columns else self._nullable)
            if not number and waits:
                self.later[each] = None
            elif waits and each in self.pool:
                self._again.setdefault(number, []).append(each)
            else:
                self.pool[each] = None
                self._of.setdefault(each, number)

    def joined(self) -> Part:
        """Join all relations."""
        made: Part | None = None
        for number, (each, start) in enumerate(zip(self._relations, self._starts, strict=True)):
            conditions = self.outer.get(number, self.pool)
            bounds = self._bounds(number)
            left = dict(bounds)
            output = bounded(self._text, each.output, start, left, self._at)
            for used in bounds.keys() - left.keys():
                del conditions[used]
            part = _relation(output, start, conditions, self._free(number))
            if made is None:
                made = part
            elif each.side:
                made = self._outer(made, part, each, conditions)
            else:
                made = self._inner(made, part, each)
        if made is None:
            raise self._text.unsupported("SELECT without FROM", self._at, "select from a table")
        return made

    def _bounds(self, number: int) -> dict[Expression, None]:
        """The conditions without which no row of a relation comes into the result, nor matches another."""
        side = self._relations[number].side
        if side == "LEFT":
            return self.outer[number]
        if side:
            return {}  # all rows of a RIGHT or FULL JOIN's right side stay
        behind = [
            at for at, each in enumerate(self._relations) if at > number and each.side in ("RIGHT", "FULL")
        ]
        # Such a join would give rows that were left out before it with nulls.
        return {each: None for each in self.pool if not behind or self._of[each] < behind[0]}

    def _free(self, number: int) -> _Free:
        """Whether a relation's own conditions may be worked out before it is joined."""
        if number in self.outer:
            # Those of a LEFT JOIN's ON choose among its right side's rows.
            return _Free.SAFE if self._relations[number].side == "LEFT" else _Free.NOTHING
        columns = range(
            self._starts[number], self._starts[number] + len(self._relations[number].output.columns)
        )
        if self._nullable & {*columns}:
            return _Free.NOTHING
        return _Free.ALL if len(self._relations) == 1 else _Free.SAFE

    def _inner(self, made: Part, part: Part, relation: Relation) -> Part:
        number = self._relations.index(relation)
        for each in self._again.get(number, ()):
            self.pool[each], self._of[each] = None, number
        usable = {
            each: None
            for each in self.pool
            if self._of[each] <= number or not self._nullable & {*columns_of(each)}
        }
        all_usable = {*usable}
        pairs = _equalities(usable, made.numbers, part.numbers)
        for each in all_usable - usable.keys():
            del self.pool[each]
        if not pairs:
            raise self._no_equality(relation)
        return _join(made, part, pairs)

    def _outer(self, made: Part, part: Part, relation: Relation, conditions: dict[Expression, None]) -> Part:
        if relation.side != "LEFT":
            made = self._flushed(made, self._relations.index(relation))
        pairs = _equalities(conditions, made.numbers, part.numbers)
        if not pairs:
            raise self._no_equality(relation)
        if conditions:
            cure = (
                "an outer JOIN takes equalities of both sides, and a LEFT JOIN conditions on its right side"
            )
            raise self._text.unsupported(f"a condition of the {relation.side} JOIN", self._at, cure)
        return _outer_join(made, part, pairs, relation.side)

    def _flushed(self, made: Part, number: int) -> Part:
        """Apply what inner joins before have left, since the rows that follow are not theirs."""
        own = [each for each in self.pool if self._of[each] < number and {*columns_of(each)} <= made.numbers]
        for each in own:
            del self.pool[each]
        condition = conjunction(moved(each, made.places) for each in own)
        return Part(mapped(made.plan, condition, all_columns(made.plan)), made.places, made.key)

    def _no_equality(self, relation: Relation) -> Exception:
        name = relation.name
        cure = f"add an equality of a column of {name} and one of a table before it"
        return self._text.unsupported(f"the JOIN of {name} without an equality", self._at, cure)


class _Free(enum.Enum):
    """The conditions of one relation that are worked out before it is joined."""

    NOTHING = enum.auto()
    SAFE = enum.auto()
    """Those that cannot fail: another table might leave out the rows for which they do."""
    ALL = enum.auto()


def _relation(output: Output, start: int, pool: dict[Expression, None], free: _Free) -> Part:
    """Take the conditions of one relation out of the pool."""
    plan = output.plan
    numbers = range(start, start + len(plan.types))
    own = [
        each
        for each in pool
        if free is _Free.ALL
        or (
            free is _Free.SAFE
            and {*columns_of(each)} <= {*numbers}
            and not may_fail(each)
            and [*columns_of(each)]
        )
    ]
    for each in own:
        del pool[each]
    here: dict[int, Expression] = {
        number: Column(number - start, plan.types[number - start]) for number in numbers
    }
    condition = conjunction(moved(each, here) for each in own)
    key = None if output.key is None else frozenset(position + start for position in output.key)
    return Part(mapped(plan, condition, all_columns(plan)), here, key)


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


def _columns_of_sides(pairs: list[tuple[Expression, Expression]]) -> tuple[Numbers, Numbers]:
    left, right = (
        frozenset(side.position for side in sides if isinstance(side, Column))
        for sides in zip(*pairs, strict=True)
    )
    return left, right


def _places(left: Part, right: Part, width: int) -> dict[int, Expression]:
    places = dict(left.places)
    for number, place in right.places.items():
        if isinstance(place, Column):
            places[number] = Column(place.position + width, place.type)
    return places


def _join(left: Part, right: Part, pairs: list[tuple[Expression, Expression]]) -> Part:
    ours, theirs = arranged(left, [pair[0] for pair in pairs]), arranged(right, [pair[1] for pair in pairs])
    columns = _columns_of_sides(pairs)
    # A row that meets at most one other needs no more than its own key.
    if right.key is not None and right.key <= columns[1]:
        key = left.key
    elif left.key is not None and left.key <= columns[0]:
        key = right.key
    else:
        key = None if left.key is None or right.key is None else left.key | right.key
    return Part(Join(ours, theirs), _places(left, right, len(ours.types)), key)


def _outer_join(left: Part, right: Part, pairs: list[tuple[Expression, Expression]], side: str) -> Part:
    if side == "RIGHT":
        return _outer_join(right, left, [(theirs, ours) for ours, theirs in pairs], "LEFT")
    full = side == "FULL"
    ours = arranged(left, [pair[0] for pair in pairs], nulls=True)
    theirs = arranged(right, [pair[1] for pair in pairs], nulls=full)
    single = right.key is not None and right.key <= _columns_of_sides(pairs)[1]
    if single and not full:
        key = left.key
    elif left.key is None or right.key is None or (full and not _is_told(left) and not _is_told(right)):
        key = None
    else:
        key = left.key | right.key
    plan = outer(ours, theirs, all_left=True, all_right=full)
    return Part(plan, _places(left, right, len(ours.types)), key)


def _is_told(part: Part) -> bool:
    """Whether a row of a side can be told by its key from one that is not there, which has nulls alone.

    If those of neither side can, two rows of a FULL JOIN without a match could have one key.
    """
    there = never_null(part.plan)
    places = (part.places[number] for number in part.key or ())
    return any(isinstance(each, Column) and each.position in there for each in places)
