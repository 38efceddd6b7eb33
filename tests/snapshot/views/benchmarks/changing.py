"""Tables of a known benchmark that grow, change and shrink, as a view's circuit and DuckDB see them."""

from __future__ import annotations

import contextlib
import datetime as dt
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Final

import duckdb
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]

from strandline.snapshot.views.building import circuit_of
from strandline.snapshot.views.errors import ViewError
from strandline.snapshot.views.evaluate import DTYPES
from strandline.snapshot.views.sink import Phase, Sink
from strandline.snapshot.views.sql.programs import program_of
from strandline.snapshot.views.zset import ZSet, zset
from strandline.statemachine.views.identity import digest
from strandline.statemachine.views.plan import Source
from strandline.statemachine.views.program import Program
from strandline.statemachine.views.types import Type
from tests.snapshot.views.circuits import Topic, follow
from tests.snapshot.views.deltas import Row
from tests.snapshot.views.sql.answers import check

Columns = dict[str, Type]
STEPS: Final = 4
Log = dict[str, tuple[list[Row], list[int]]]
"""By table: rows, and 1 for a row that is set, -1 for a key that is deleted."""


class Changing(ABC):
    """The tables of one benchmark. Each has a primary key, so that each of its rows can change and go."""

    tables: ClassVar[dict[str, tuple[Columns, int]]]
    """By name: the columns, and how many of them, from the first, are the primary key."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rows: dict[str, dict[Row, Row]] = {name: {} for name in self.tables}

    @abstractmethod
    def new(self, table: str) -> Row:
        """Make a row of a table that fits to the rows of the others."""

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """Give the number of rows of each table that a step sets, tables that others refer to before them."""

    def step(self) -> Log:
        """Set new rows, change some that are there, delete some."""
        log: Log = {name: ([], []) for name in self.tables}
        for name, count in self.counts().items():
            width = self.tables[name][1]
            for _ in range(count):
                there = [*self.rows[name]]
                row, chance = self.new(name), self.random.random()
                if there and chance < 0.25:
                    row = (*self.random.choice(there), *row[width:])
                if there and chance > 0.9:
                    self.take(log, name, self.random.choice(there), None)
                else:
                    self.take(log, name, row[:width], row)
        return log

    def end(self) -> Log:
        """Delete everything."""
        log: Log = {name: ([], []) for name in self.tables}
        for name, rows in self.rows.items():
            for key in [*rows]:
                self.take(log, name, key, None)
        return log

    def take(self, log: Log, table: str, key: Row, row: Row | None) -> None:
        """Set a row, or delete that of a key."""
        self.rows[table].pop(key, None)
        if row is not None:
            self.rows[table][key] = row
        nothing = (*key, *[None] * (len(self.tables[table][0]) - len(key)))
        log[table][0].append(nothing if row is None else row)
        log[table][1].append(-1 if row is None else 1)

    def pick(self, table: str, column: int = 0) -> Any:
        """Give a value of a column of some row, or of none that is there."""
        there = [*self.rows[table].values()]
        return self.random.choice(there)[column] if there and self.random.random() < 0.95 else -1

    def declarations(self) -> str:
        """Give CREATE TABLE for each table."""
        texts = []
        for name, (columns, width) in self.tables.items():
            shown = ", ".join(f"{column} {kind.value}" for column, kind in columns.items())
            key = ", ".join([*columns][:width])
            texts.append(f"CREATE TABLE {name} ({shown}, PRIMARY KEY ({key})) OPTIONS (mode 'upsert');")
        return "\n".join(texts)

    def ask(self, query: str) -> list[Row]:
        """Give DuckDB's answer over the rows that are there."""
        with duckdb.connect(config={"threads": 1}) as database:
            for name, (columns, _) in self.tables.items():
                schema = {column: DTYPES[kind] for column, kind in columns.items()}
                frame = pl.DataFrame([*self.rows[name].values()], schema=schema, orient="row")
                # DuckDB's times without a zone are compared as they are written, ours are UTC.
                frame = frame.with_columns(pl.col(pl.Datetime).dt.replace_time_zone(None))
                table = frame.to_arrow()
                database.register(name, pa.Table.from_batches(table.to_batches(), table.schema))
            return database.execute(in_duckdb(query)).fetchall()


def in_duckdb(query: str) -> str:
    """Write Spark's literals of DOUBLE, windows and conditional as DuckDB has them."""
    query = re.sub(r"(\d+\.\d+)D\b", r"\1::DOUBLE", query)
    bucket = r"time_bucket(INTERVAL '\2', \1)"
    query = re.sub(r"window\(([\w.]+), '([^']+)'\)\.start", bucket, query)
    return re.sub(r"window\(([\w.]+), '([^']+)'\)\.end", rf"({bucket} + INTERVAL '\2')", query)


def deltas(program: Program, world: Changing, log: Log) -> Iterator[tuple[str, ZSet]]:
    """The records as each source of a program takes them."""
    for name, plan in program.operators().items():
        if isinstance(plan, Source):
            rows, weights = log[plan.topic]
            names = [*world.tables[plan.topic][0]]
            places = [names.index(column) for column, _ in plan.columns]
            chosen = [[row[place] for place in places] for row in rows]
            yield name, zset(tuple(DTYPES[kind] for _, kind in plan.columns), chosen, weights)


def local_views(views: str) -> list[str]:
    """Take views apart, each as "name AS SELECT …"."""
    return [each for each in views.split(";") if each.strip()]


def check_query(world: Changing, views: str, query: str) -> int:
    """Compare a query's view with DuckDB's answer after each step, and when nothing is left.

    `views` are views that it reads, as SQL without CREATE VIEW: "name AS SELECT …". Gives the rows seen.
    """
    local = local_views(views)
    declared = "".join(f"CREATE LOCAL VIEW {each};\n" for each in local)
    program = program_of(f"{world.declarations()}\n{declared}CREATE VIEW v AS {query};")
    asked = "".join(f"CREATE VIEW {each};\n" for each in local)
    circuit = circuit_of(program)
    sink = program.views[-1].sink
    assert sink is not None
    name, topic, seen = digest(sink), Topic(sink.key), 0
    operator = circuit.operators[name]
    assert isinstance(operator, Sink)
    with contextlib.suppress(ViewError):
        (content,) = circuit.contents(name)
        operator.move(Phase.DUMPING)
        topic.take(operator.dump(content))
    follow(circuit)
    for number in range(STEPS + 1):
        log = world.step() if number < STEPS else world.end()
        for changes in circuit.step(dict(deltas(program, world, log))).values():
            topic.take(changes)
        wanted = world.ask(f"{asked}{query}")
        check([*topic.rows.values()], wanted)
        seen += len(wanted) if number < STEPS else 0
    return seen


START: Final = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
