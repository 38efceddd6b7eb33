"""Programs that are drawn at random: what stands in them is typed, and most of it is understood.

Their text is Spark's and, but for a few words (`for_duckdb`), DuckDB's too. No expression has an error that
one engine meets and the other does not.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from strandline.statemachine.views.types import Type as T

X = TypeVar("X")
Columns = dict[str, T]
Scope = Sequence[tuple[str, Mapping[str, T]]]
"""Names of relations, with their columns."""


class Table(NamedTuple):
    """A table, or a query that can stand for one; without a key its rows cannot be a topic's."""

    text: str
    columns: Columns
    key: tuple[str, ...] | None


TEXT: Final = """
CREATE TABLE t (k STRING, x BIGINT, d DOUBLE, i INT, b BOOLEAN, ts TIMESTAMP);
CREATE TABLE u (k STRING, x BIGINT, d DOUBLE, i INT);
CREATE TABLE p (k STRING PRIMARY KEY, x BIGINT, i INT, s STRING) OPTIONS (mode 'upsert');
CREATE TABLE q (k STRING NOT NULL, i INT NOT NULL, x BIGINT, d DOUBLE, PRIMARY KEY (k, i))
  OPTIONS (mode 'upsert');
"""
_PLACE: Final[Columns] = {"_partition": T.INT, "_offset": T.BIGINT}
TABLES: Final = {
    "t": Table(
        "t",
        {"k": T.STRING, "x": T.BIGINT, "d": T.DOUBLE, "i": T.INT, "b": T.BOOLEAN, "ts": T.TIMESTAMP} | _PLACE,
        (*_PLACE,),
    ),
    "u": Table("u", {"k": T.STRING, "x": T.BIGINT, "d": T.DOUBLE, "i": T.INT} | _PLACE, (*_PLACE,)),
    "p": Table("p", {"k": T.STRING, "x": T.BIGINT, "i": T.INT, "s": T.STRING}, ("k",)),
    "q": Table("q", {"k": T.STRING, "i": T.INT, "x": T.BIGINT, "d": T.DOUBLE}, ("k", "i")),
}
_UNITS: Final = ("minute", "hour", "day", "week", "month", "year")
_KINDS: Final = (T.STRING, T.BIGINT, T.INT, T.DOUBLE, T.BOOLEAN)
_ORDERS: Final = ("ASC NULLS FIRST", "DESC NULLS LAST", "ASC NULLS LAST", "DESC NULLS FIRST")


@dataclass(frozen=True)
class View:
    """A view of a program, with its query as a table."""

    name: str
    query: Table
    local: bool

    @property
    def statement(self) -> str:
        return f"CREATE {'LOCAL ' if self.local else ''}VIEW {self.name} AS {self.query.text};"


def for_duckdb(query: str) -> str:
    return re.sub(r"(-?\d+\.\d+)D", r"CAST(\1 AS DOUBLE)", query).replace("AS STRING", "AS VARCHAR")


class Draw:
    """Draws one program after the other."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._names = self._deeper = 0  # names that are taken; queries that may stand in FROM yet
        self._views: dict[str, Table] = {}
        self._condition = ""

    def views(self) -> list[View]:
        """Give one to three views, the later ones over earlier ones at times."""
        found: list[View] = []
        for number in range(self._one_of(1, 1, 2, 3)):
            self._deeper, self._condition = self._one_of(0, 1, 1, 2), ""
            name, query = f"v{number}", self._query()
            found.append(View(name, query, local=query.key is None or self._may(0.2)))
            self._views[name] = Table(name, query.columns, query.key)
        return found

    # Chance.

    def _may(self, likely: float) -> bool:
        return self._chance.random() < likely

    def _one_of(self, *of: X) -> X:
        return self._chance.choice(of)

    def _name(self) -> str:
        self._names += 1
        return f"a{self._names}"

    # Expressions.

    def _literal(self, kind: T) -> str:
        match kind:
            case T.STRING:
                return self._one_of("'a'", "'b'", "'c'", "'ab'", "''")
            case T.DOUBLE:
                return self._one_of("0.0D", "1.5D", "-2.0D", "2.5D")
            case T.BOOLEAN:
                return self._one_of("true", "false")
            case T.TIMESTAMP:
                return self._one_of("TIMESTAMP '1969-12-31 23:59:59'", "TIMESTAMP '2026-02-28 12:30:00'")
            case _:
                return str(self._chance.randrange(-3, 5))

    def _columns(self, scope: Scope, kind: T) -> list[str]:
        return [f"{name}.{column}" for name, columns in scope for column, of in columns.items() if of is kind]

    def _expression(self, scope: Scope, kind: T, depth: int = 2) -> str:
        columns = self._columns(scope, kind)
        if depth == 0 or self._may(0.45):
            return self._one_of(*columns) if columns and self._may(0.85) else self._literal(kind)

        def inner(of: T) -> str:
            return self._expression(scope, of, depth - 1)

        def where() -> str:
            return self.condition(scope, depth - 1)

        match kind:
            case T.STRING:
                ways: list[Callable[[], str]] = [
                    lambda: f"{self._one_of('upper', 'lower')}({inner(kind)})",
                    lambda: f"({inner(kind)} || {inner(kind)})",
                    lambda: f"substring({inner(kind)}, {self._one_of(1, 2)}, {self._one_of(0, 1, 2)})",
                    lambda: f"split_part({inner(kind)}, 'b', {self._one_of(1, 2)})",
                    lambda: f"CAST({inner(T.INT)} AS STRING)",
                    lambda: f"CASE WHEN {where()} THEN {inner(kind)} END",
                ]
            case T.DOUBLE:
                ways = [
                    lambda: (
                        f"({inner(kind)} {self._one_of('+', '-', '*')} {inner(self._one_of(kind, T.INT))})"
                    ),
                    lambda: f"({inner(T.BIGINT)} / {self._one_of(2, 4, -2)})",
                    lambda: f"abs({inner(kind)})",
                    lambda: (
                        f"CASE {inner(T.INT)} WHEN {self._literal(T.INT)} THEN {inner(kind)}"
                        f" ELSE {inner(T.INT)} END"
                    ),
                ]
            case T.TIMESTAMP:
                ways = [lambda: f"date_trunc('{self._one_of(*_UNITS)}', {inner(kind)})"]
            case T.BOOLEAN:
                return self.condition(scope, depth)
            case _:
                ways = [
                    lambda: f"({inner(kind)} {self._one_of('+', '-', '*')} {inner(kind)})",
                    lambda: f"({inner(kind)} % {self._one_of(2, 3, -2, -3)})",
                    lambda: f"{self._one_of('abs', '- ')}({inner(kind)})",
                    lambda: f"if({where()}, {inner(kind)}, {inner(kind)})",
                ]
                if kind is T.INT:
                    ways.append(lambda: f"length({inner(T.STRING)})")
                if kind is T.INT and self._columns(scope, T.TIMESTAMP):
                    part = self._one_of("year", "month", "day", "hour", "minute")
                    ways.append(lambda: f"{part}({inner(T.TIMESTAMP)})")
        ways += [
            lambda: f"coalesce({inner(kind)}, {inner(kind)})",
            lambda: f"CASE WHEN {where()} THEN {inner(kind)} ELSE {inner(kind)} END",
        ]
        return self._one_of(*ways)()

    def condition(self, scope: Scope, depth: int = 2) -> str:
        """Give a condition over some relations."""
        if depth > 0 and self._may(0.4):
            first = self.condition(scope, depth - 1)
            word = self._one_of("AND", "OR", "NOT")
            return (
                f"(NOT {first})" if word == "NOT" else f"({first} {word} {self.condition(scope, depth - 1)})"
            )
        kind = self._one_of(T.STRING, T.STRING, T.BIGINT, T.INT, T.DOUBLE)

        def one() -> str:
            return self._expression(scope, kind, max(0, depth - 1))

        some = f"{self._literal(kind)}, {self._literal(kind)}"
        pattern = self._one_of("a%", "%b", "_", "%", "a_", "%a%")
        return self._one_of(
            f"({one()} {self._one_of('=', '<>', '<', '<=', '>', '>=')} {one()})",
            f"({one()} IS {self._one_of('', 'NOT ')}NULL)",
            f"({one()} {self._one_of('', 'NOT ')}IN ({some}))",
            f"({one()} BETWEEN {some.replace(', ', ' AND ')})",
            f"({self._expression(scope, T.STRING, 0)} {self._one_of('', 'NOT ')}LIKE '{pattern}')",
        )

    # FROM and WHERE.

    def _relation(self) -> Table:
        if self._views and self._may(0.4):
            return self._one_of(*self._views.values())
        if self._deeper <= 0 or self._may(0.62):
            return self._one_of(*TABLES.values())
        self._deeper -= 1
        query = self._query()
        return Table(f"({query.text})", query.columns, query.key)

    def _from(self) -> tuple[str, list[tuple[str, Columns]], list[str] | None]:
        """Give relations that are joined: their text, their columns, and those that are the key."""
        first, name = self._relation(), self._name()
        text, scope = f"{first.text} {name}", [(name, first.columns)]
        key = None if first.key is None else [f"{name}.{each}" for each in first.key]
        for _ in range(self._one_of(0, 0, 0, 1, 1, 1, 2)):
            other, name = self._relation(), self._name()
            its = [(name, other.columns)]
            side = self._one_of("", "", "LEFT ", "LEFT ", "RIGHT ", "FULL ")
            conditions = self._equalities(scope, its)
            if not conditions:
                continue
            if side in ("", "LEFT ") and self._may(0.4):
                conditions.append(self.condition(its if side else [*scope, *its], 1))
            if not side and self._condition and self._may(0.3):
                conditions.append(self._condition)
            if not side:
                self._condition = conditions[-1]
            self._chance.shuffle(conditions)
            text += f" {side}JOIN {other.text} {name} ON {' AND '.join(conditions)}"
            scope += its
            key = (
                None if key is None or other.key is None else [*key, *(f"{name}.{one}" for one in other.key)]
            )
        return text, scope, key

    def _equalities(self, scope: Scope, its: Scope) -> list[str]:
        found = []
        for _ in range(self._one_of(1, 1, 2)):
            kind = self._one_of(T.STRING, T.STRING, T.BIGINT, T.INT)
            ours, theirs = self._columns(scope, kind), self._columns(its, kind)
            if ours and theirs:
                left = self._one_of(*ours) if self._may(0.85) else self._expression(scope, kind, 1)
                found.append(f"{left} = {self._one_of(*theirs)}")
        return found  # a left side that is a literal is refused

    def _where(self, scope: Scope) -> str:
        parts = [self.condition(scope) for _ in range(self._one_of(0, 0, 1, 1, 2))]
        if self._may(0.25):
            table, name, kind = self._one_of(*TABLES.values()), self._name(), self._one_of(T.STRING, T.INT)
            inner = [(name, table.columns)]
            ours, theirs = self._columns(scope, kind), self._one_of(*self._columns(inner, kind))
            more = f" AND {self.condition(inner, 1)}" if self._may(0.5) else ""
            if ours:
                mine, some = self._one_of(*ours), f"FROM {table.text} {name} WHERE"
                parts.append(
                    self._one_of(
                        f"EXISTS (SELECT 1 {some} {theirs} = {mine}{more})",
                        f"NOT EXISTS (SELECT 1 {some} {theirs} = {mine}{more})",
                        f"{mine} IN (SELECT {theirs} {some} true = true{more})",
                    )
                )
        self._chance.shuffle(parts)
        return f" WHERE {' AND '.join(parts)}" if parts else ""

    # Queries.

    def _query(self) -> Table:
        source, scope, key = self._from()
        rest = f"FROM {source}{self._where(scope)}"
        kind = self._chance.random()
        if key and kind < 0.45:
            return self._plain(scope, key, rest)
        if key and kind < 0.58:
            return self._first(scope, key, rest)
        if kind < 0.65:
            columns = {f"c{at}": self._one_of(*_KINDS[:3]) for at in range(self._one_of(1, 2))}
            items = [f"{self._expression(scope, of, 1)} AS {each}" for each, of in columns.items()]
            return Table(f"SELECT DISTINCT {', '.join(items)} {rest}", columns, (*columns,))
        if kind < 0.7:
            of = self._one_of(*_KINDS[:3])
            second, other, _ = self._from()
            text = f"SELECT {self._expression(scope, of, 1)} AS c0 {rest} UNION "
            text += f"SELECT {self._expression(other, of, 1)} AS c0 FROM {second}{self._where(other)}"
            return Table(text, {"c0": of}, ("c0",))
        return self._grouped(scope, rest)

    def _keyed(self, scope: Scope, key: list[str]) -> tuple[list[str], Columns]:
        types = {f"{name}.{column}": kind for name, columns in scope for column, kind in columns.items()}
        columns = {f"y{at}": types[each] for at, each in enumerate(key)}
        return [f"{each} AS y{at}" for at, each in enumerate(key)], columns

    def _plain(self, scope: Scope, key: list[str], rest: str) -> Table:
        items, columns = self._keyed(scope, key)
        of_key = (*columns,)
        for at in range(self._one_of(1, 2, 3)):
            columns[f"c{at}"] = self._one_of(*_KINDS)
            items.append(f"{self._expression(scope, columns[f'c{at}'])} AS c{at}")
        return Table(f"SELECT {', '.join(items)} {rest}", columns, of_key)

    def _first(self, scope: Scope, key: list[str], rest: str) -> Table:
        """The first rows of groups, or of all."""
        items, columns = self._keyed(scope, key)
        of_key = (*columns,)
        columns["c0"] = self._one_of(*_KINDS)
        items.append(f"{self._expression(scope, columns['c0'], 1)} AS c0")
        ties, order = ", ".join(f"{each} NULLS FIRST" for each in of_key), self._one_of(*_ORDERS)
        if self._may(0.4):
            text = (
                f"SELECT {', '.join(items)} {rest} ORDER BY c0 {order}, {ties} LIMIT {self._one_of(1, 2, 5)}"
            )
            return Table(text, columns, of_key)
        of = self._columns(scope, self._one_of(T.STRING, T.INT, T.BOOLEAN))
        groups = f"PARTITION BY {self._one_of(*of)} " if of and self._may(0.8) else ""
        by = self._one_of(*self._columns(scope, self._one_of(*_KINDS)), *key)
        all_of = ", ".join((f"{by} {order}", *(f"{each} NULLS FIRST" for each in key)))
        window = f"row_number() OVER ({groups}ORDER BY {all_of})"
        text = f"SELECT {', '.join(columns)}, r FROM (SELECT {', '.join(items)}, {window} AS r {rest}) zz"
        return Table(f"{text} WHERE r <= {self._one_of(1, 1, 2, 3)}", {**columns, "r": T.INT}, of_key)

    def _grouped(self, scope: Scope, rest: str) -> Table:
        columns: Columns = {}
        groups, items = [], []
        for at in range(self._one_of(0, 1, 1, 1, 2)):
            kind = self._one_of(T.STRING, T.STRING, T.BIGINT, T.INT, T.BOOLEAN)
            over = self._expression(scope, kind, 1)
            if "." in over:  # a number would be the place of a column
                columns[f"g{at}"] = kind
                groups.append(over)
                items.append(f"{over} AS g{at}")
        of_key = (*columns,)
        for at in range(self._one_of(1, 2, 3)):
            aggregate, columns[f"m{at}"] = self._aggregate(scope)
            items.append(f"{aggregate} AS m{at}")
        by = f" GROUP BY {', '.join(groups)}" if groups else ""
        if self._may(0.3):
            aggregate, kind = self._aggregate(scope)
            by += f" HAVING {aggregate} {self._one_of('>', '<', '>=', '<>')} {self._literal(kind)}"
        return Table(f"SELECT {', '.join(items)} {rest}{by}", columns, of_key)

    def _aggregate(self, scope: Scope) -> tuple[str, T]:
        filtered = f" FILTER (WHERE {self.condition(scope, 1)})" if self._may(0.25) else ""
        name = self._one_of("count", "sum", "avg", "min", "max")
        distinct = "DISTINCT " if self._may(0.25) else ""
        if name == "count" and self._may(0.4):
            return f"count(*){filtered}", T.BIGINT
        kind = self._one_of(
            *(_KINDS[1:4] if name == "avg" else (T.BIGINT, T.DOUBLE) if name == "sum" else _KINDS[:4])
        )
        result = {"count": T.BIGINT, "avg": T.DOUBLE}.get(name, kind)
        return f"{name}({distinct}{self._expression(scope, kind, 1)}){filtered}", result
