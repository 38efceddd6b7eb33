"""row_number() with a bound, and ORDER BY with LIMIT: the first rows of groups, or of all rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from strandline.snapshot.views.sql.outputs import OutColumn, Output, Ranking, key_among, named
from strandline.snapshot.views.sql.scalars import Scalars
from strandline.snapshot.views.sql.text import Text
from strandline.statemachine.views.expressions import Call, Column, Expression, Function, Literal
from strandline.statemachine.views.plan import TopK
from strandline.statemachine.views.refusals import Code
from strandline.statemachine.views.rewrites import all_columns, mapped
from strandline.statemachine.views.types import Type

MOST_ROWS: Final = 10_000
"""The bound on the first rows that are asked for: each change of a group looks at that many of it."""
_ALL: Final = Literal(0, Type.INT)
_CURE: Final = f"select from this query WHERE the number <= k, k from 1 to {MOST_ROWS}"
_WINDOW: Final = frozenset(("this", "partition_by", "order", "over"))


def has_rank(items: Iterable[exp.Expr]) -> bool:
    """Tell whether a window function is among the columns that were asked for."""
    return any(each.find(exp.Window) for each in items)


def ranked(text: Text, items: list[exp.Expr], rows: Output, scalars: Scalars) -> Output:
    """Understand columns with one row_number() among them; `rows` has the columns of FROM. Raises Refused."""
    windows = [at for at, each in enumerate(items) if each.find(exp.Window)]
    place = windows[0]
    window = items[place].unalias()
    if len(windows) > 1 or not isinstance(window, exp.Window) or not isinstance(window.this, exp.RowNumber):
        cure = "use one row_number() OVER (PARTITION BY … ORDER BY …), as a column of its own"
        raise text.unsupported(items[windows[-1]].sql("spark")[:60], items[windows[-1]], cure)
    text.check_arguments(window, _WINDOW, "OVER")
    others = [each for at, each in enumerate(items) if at != place]
    over = [scalars.of(each) for each in others]
    keys = [scalars.of(each) for each in window.args.get("partition_by") or []] or [_ALL]
    orders = _orders(text, window, window.args.get("order"), scalars)
    extra = [each for each in dict.fromkeys((*keys, *(each for each, _ in orders))) if each not in over]
    columns = [*over, *extra]
    kinds = [each.type for each in over]
    shown = named(text, items, [*kinds[:place], Type.INT, *kinds[place:]])
    hidden = tuple(OutColumn("", each.type, hidden=True) for each in extra)
    ranking = Ranking(
        place,
        tuple(columns.index(each) for each in keys),
        tuple((columns.index(each), highest) for each, highest in orders),
    )

    def moved(position: int) -> int:
        return position if position < place else position + 1

    own = key_among(None if rows.key is None else frozenset(rows.key), over)
    key = tuple(map(moved, own)) if own is not None else None
    if key is None and all(each in over for each in keys if each is not _ALL):
        # No two rows of a group have one number.
        key = tuple(sorted((place, *(moved(over.index(each)) for each in keys if each is not _ALL))))
    return Output(mapped(rows.plan, None, tuple(columns)), (*shown, *hidden), key, ranking)


def bounded(text: Text, output: Output, start: int, pool: dict[Expression, None], at: exp.Expr) -> Output:
    """Give the rows of a query whose row_number() one of some conditions bounds; raises Refused.

    The query's columns have numbers from `start` in the conditions. A condition that says no more than the
    bound is taken out.
    """
    ranking = output.ranking
    if ranking is None:
        return output
    number = start + ranking.column
    limit, single = 0, False
    for each in [*pool]:
        match each:
            case Call(
                Function.LESS | Function.LESS_OR_EQUAL | Function.EQUAL as function,
                (Column(position), Literal(int(value))),
            ) if position == number:
                limit = value - (function is Function.LESS)
                single = function is Function.EQUAL or limit == 1
                if function is not Function.EQUAL or limit == 1:
                    del pool[each]
                break
    if not 1 <= limit <= MOST_ROWS:
        raise text.unsupported("row_number() without a bound", at, _CURE)
    width = len(output.plan.types)
    plan = TopK(output.plan, ranking.keys, ranking.orders, limit, ranked=True)
    every = all_columns(plan)
    columns = (*every[: ranking.column], every[width], *every[ranking.column : width])
    key = output.key
    if single and all(not output.columns[_place(ranking, position)].hidden for position in ranking.keys):
        # A group has one row with that number.
        key = tuple(sorted(_place(ranking, position) for position in ranking.keys))
    return Output(mapped(plan, None, columns), output.columns, key)


def _place(ranking: Ranking, position: int) -> int:
    """The place among the output's columns of one of the plan's."""
    return position if position < ranking.column else position + 1


def check_no_rank(text: Text, output: Output, at: exp.Expr) -> Output:
    """Raise Refused for a row_number() that nothing bounds."""
    if output.ranking is not None:
        raise text.unsupported("row_number() without a bound", at, _CURE)
    return output


def limited(text: Text, node: exp.Select, output: Output) -> Output:
    """Understand ORDER BY and LIMIT over the columns that were asked for; raises Refused."""
    order, limit = node.args.get("order"), node.args.get("limit")
    if order is None and limit is None:
        return output
    number = limit.expression if limit is not None else None
    if order is None or not isinstance(number, exp.Literal) or number.is_string:
        what = "LIMIT without ORDER BY" if order is None else "ORDER BY without LIMIT"
        cure = "a view is a table: order what you select from it, or write ORDER BY … LIMIT k"
        raise text.unsupported(what, node, cure)
    if not 1 <= int(number.this) <= MOST_ROWS:
        raise text.unsupported(f"LIMIT {number.this}", node, f"use a number from 1 to {MOST_ROWS}")
    names = [each.name.lower() for each in output.columns]

    def resolve(part: exp.Expr) -> Expression | None:
        if isinstance(part, exp.Literal) and not part.is_string and part.parent is not None:
            place = int(part.this) - 1 if isinstance(part.parent, exp.Ordered) else -1
            return Column(place, output.columns[place].type) if 0 <= place < len(names) else None
        if not isinstance(part, exp.Column):
            return None
        if part.name.lower() not in names:
            cause, cure = "is not a selected column", "select it, or order by one that is"
            raise text.refused(Code.UNKNOWN_NAME, part.sql("spark"), cause, cure, part)
        place = names.index(part.name.lower())
        return Column(place, output.columns[place].type)

    orders = _orders(text, node, order, Scalars(text, resolve))
    every = all_columns(output.plan)
    columns = [*every, *(each for each in dict.fromkeys(each for each, _ in orders) if each not in every)]
    below = mapped(output.plan, None, (*columns, _ALL))
    by = tuple((columns.index(each), highest) for each, highest in orders)
    plan = TopK(below, (len(columns),), by, int(number.this), ranked=False)
    return replace(output, plan=mapped(plan, None, every))


def _orders(
    text: Text, at: exp.Expr, order: exp.Expr | None, scalars: Scalars
) -> list[tuple[Expression, bool]]:
    """The expressions of ORDER BY, and whether the highest stands first: null is the lowest value."""
    if order is None:
        raise text.unsupported("row_number() without ORDER BY", at, "add ORDER BY to OVER")
    found: list[tuple[Expression, bool]] = []
    for each in order.expressions:
        value, highest = scalars.of(each.this), bool(each.args.get("desc"))
        first = bool(each.args.get("nulls_first"))
        if first is highest:
            found.append((Call(Function.IS_NULL, (value,), Type.BOOLEAN), first))
        found.append((value, highest))
    return _once(found)


def _once(orders: Sequence[tuple[Expression, bool]]) -> list[tuple[Expression, bool]]:
    seen: dict[Expression, bool] = {}
    for value, highest in orders:
        seen.setdefault(value, highest)
    return [*seen.items()]
