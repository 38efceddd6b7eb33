"""Relations of FROM, and the columns that can be named there, with one numbering for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from strandline.snapshot.views.sql.outputs import Output
from strandline.snapshot.views.sql.scalars import Scalars
from strandline.snapshot.views.sql.text import Text
from strandline.statemachine.views.expressions import Column, Expression
from strandline.statemachine.views.refusals import Code
from strandline.statemachine.views.types import Type


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation of FROM with the name by which a query knows it, and how it is joined to those before it.

    `side` is LEFT, RIGHT, FULL, or empty for an inner join.
    """

    name: str
    output: Output
    side: str
    on: exp.Expr | None
    using: tuple[exp.Expr, ...]


@dataclass(frozen=True, slots=True)
class Known:
    """A column that can be named. `second` ones are those that USING has joined to an earlier one."""

    table: str
    name: str
    number: int
    type: Type
    hidden: bool
    second: bool


def known_columns(relations: Sequence[Relation]) -> tuple[tuple[Known, ...], list[int]]:
    """Give the columns of all relations, and the number of each one's first."""
    joined_names = {
        (number, column.name.lower()) for number, each in enumerate(relations) for column in each.using
    }
    known: list[Known] = []
    starts: list[int] = []
    for at, relation in enumerate(relations):
        table = relation.name
        starts.append(len(known))
        known += [
            Known(
                table,
                each.name,
                len(known) + place,
                each.type,
                each.hidden,
                (at, each.name.lower()) in joined_names,
            )
            for place, each in enumerate(relation.output.columns)
        ]
    return tuple(known), starts


def resolved(text: Text, known: Sequence[Known], node: exp.Expr) -> Expression | None:
    """Give the column that a name stands for; None for what is no name; raises Refused."""
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


def same(text: Text, known: Sequence[Known], names: list[str], number: int, column: exp.Expr) -> Expression:
    """Give the equality that USING stands for; raises Refused."""
    name = column.name
    before = [each for each in known if each.table in names[:number]]
    scope = Scalars(text, lambda node: resolved(text, before if not node.args.get("table") else known, node))
    return scope.condition(
        exp.EQ(this=exp.column(column.copy()), expression=exp.column(name, table=names[number]))
    )
