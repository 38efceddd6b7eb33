"""A program as Spark SQL understands it: what its tables are, and each view's query."""

from __future__ import annotations

from typing import NamedTuple

from strandline.snapshot.views.sql.programs import program_of, source_of
from strandline.snapshot.views.sql.statements import Table, statements
from strandline.snapshot.views.sql.text import Text
from strandline.statemachine.views.identity import digest
from strandline.statemachine.views.plan import Source, operators
from strandline.statemachine.views.types import Type

Columns = tuple[tuple[str, Type], ...]


class SparkTable(NamedTuple):
    """A table: what it reads, the columns of its topic's JSON values, and the names of its primary key's.

    A table whose mode is `append` has no key.
    """

    name: str
    source: Source
    columns: Columns
    key: tuple[str, ...]

    @property
    def topic(self) -> str:
        """The name of the topic that it reads."""
        return self.source.topic


class SparkView(NamedTuple):
    """A view: its query for Spark, its columns, and what its topic is known by; None for a local view.

    `topics` are those of the tables that its rows come from.
    """

    name: str
    query: str
    columns: Columns
    key: tuple[str, ...]
    sink: str | None
    topics: frozenset[str]


def in_spark(sql: str) -> tuple[list[SparkTable], list[SparkView]]:
    """Give a program's tables and views, in their order; raises Refused."""
    views = {view.name: view for view in program_of(sql).views}
    tables: list[SparkTable] = []
    found: list[SparkView] = []
    for each in statements(Text(sql)):
        if isinstance(each, Table):
            key = tuple(each.columns[position][0] for position in each.key)
            tables.append(SparkTable(each.name, source_of(each), each.columns, key))
            continue
        view = views[each.name]
        sink = view.sink
        names = () if sink is None else tuple(sink.names[position] for position in sink.key)
        of = None if sink is None else digest(sink)
        query = each.query.sql(dialect="spark")
        topics = frozenset(one.topic for one in operators(view.root) if isinstance(one, Source))
        found.append(SparkView(view.name, query, view.columns, names, of, topics))
    return tables, found
