"""Programs: the statements of a file, each understood over those before it."""

from __future__ import annotations

from sqlglot import exp

from strandline.snapshot.views.sql.outputs import OutColumn, Output
from strandline.snapshot.views.sql.queries import Catalog, Queries
from strandline.snapshot.views.sql.statements import Table, ViewText, statements
from strandline.snapshot.views.sql.text import Text
from strandline.statemachine.views.plan import Plan, Sink, Source, Upsert, operators
from strandline.statemachine.views.program import Program, View
from strandline.statemachine.views.refusals import Code
from strandline.statemachine.views.rewrites import pruned
from strandline.statemachine.views.types import Type

META = (("_partition", Type.INT), ("_offset", Type.BIGINT), ("_timestamp", Type.TIMESTAMP))
"""Columns of each record of an append table: its place and its time. The place is the key of its row."""


def program_of(sql: str) -> Program:
    """Understand a program; raises Refused with the first thing that it cannot be."""
    text = Text(sql)
    try:
        return _program(text)
    except RecursionError:
        cause, cure = "its brackets or operators are nested too deep", "write parts of it as views"
        raise text.refused(Code.SYNTAX, "text", cause, cure, None) from None


def _program(text: Text) -> Program:
    every = [*statements(text)]
    catalog: Catalog = {}
    of_views: dict[str, frozenset[Plan]] = {}
    views: list[View] = []
    for at, each in enumerate(every):
        name = each.name.lower()
        if name in catalog:
            cause, cure = "is declared already", "give one of them another name"
            raise text.refused(Code.NAME_TAKEN, each.name, cause, cure, each.at)
        if isinstance(each, Table):
            catalog[name] = _table(each)
            continue
        read = _tables(each.query)
        _check_order(text, read, catalog, {other.name.lower() for other in every[at:]})
        # A view that this one reads is kept as it is; any other has no part in what becomes of this one.
        fixed = frozenset[Plan]().union(*(of_views[other] for other in read if other in of_views))
        output = Queries(text, catalog).output(each.query)
        view = _view(text, each, output, fixed)
        columns = tuple(OutColumn(column, kind) for column, kind in view.columns)
        catalog[name] = Output(view.rows, columns, output.key)
        of_views[name] = fixed | {*operators(view.rows)}
        views.append(view)
    return Program(tuple(views))


def _tables(query: exp.Expr) -> dict[str, exp.Table]:
    """The names that a query reads, but for those of its own WITH."""
    own = {each.alias.lower() for each in query.find_all(exp.CTE)}
    return {each.name.lower(): each for each in query.find_all(exp.Table) if each.name.lower() not in own}


def _check_order(text: Text, read: dict[str, exp.Table], catalog: Catalog, later: set[str]) -> None:
    for name, node in read.items():
        if name not in catalog and name in later:
            cause, cure = "is this view, or declared after it", "declare it before; a view cannot read itself"
            raise text.refused(Code.RECURSIVE_VIEW, node.name, cause, cure, node)


def source_of(table: Table) -> Source:
    """Give all that can be read of a table's topic."""
    options = tuple(sorted((name, value) for name, value in table.options.items() if name != "mode"))
    mode = table.options["mode"]
    columns = table.columns if mode == "upsert" else (*table.columns, *META)
    return Source(table.topic, mode, options, columns)


def _table(table: Table) -> Output:
    source = source_of(table)
    columns = tuple(OutColumn(name, kind) for name, kind in table.columns)
    if source.mode == "upsert":
        return Output(Upsert(source, table.key), columns, table.key)
    hidden = tuple(OutColumn(name, kind, hidden=True) for name, kind in META)
    key = (len(columns), len(columns) + 1)
    return Output(source, (*columns, *hidden), key)


def _view(text: Text, each: ViewText, output: Output, fixed: frozenset[Plan]) -> View:
    shown = tuple((column.name, column.type) for column in output.columns)
    rows = pruned(output.plan, fixed)
    if each.topic is None:
        return View(each.name, shown, rows, None, None)
    if output.key is None:
        cause = "its rows have no key by which its topic could be compacted"
        cure = (
            "select all columns of GROUP BY, or DISTINCT, or the primary key, or _partition and _offset; "
            "of a FULL JOIN a column of one side's key must never be null (WHERE … IS NOT NULL); "
            "a LOCAL VIEW needs no key"
        )
        raise text.refused(Code.NO_KEY, each.name, cause, cure, each.at)
    names = tuple(name for name, _ in shown)
    return View(each.name, shown, rows, each.topic, Sink(rows, names, output.key, each.partitions))
