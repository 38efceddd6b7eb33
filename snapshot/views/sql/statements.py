"""Statements of a program: `CREATE TABLE` of a topic, `CREATE VIEW` and `CREATE LOCAL VIEW` of a query.

The heads of statements have options that no dialect has there, so they are read here, token by token; queries
and types are read by sqlglot's parser for Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from strandline.snapshot.views.sql.text import Text
from strandline.statemachine.views.refusals import Code, Refused
from strandline.statemachine.views.types import Type

_DIALECT: Final = sqlglot.Dialect.get_or_raise("spark")
_TYPES: Final = {**{kind.value: kind for kind in Type}, "INTEGER": Type.INT, "LONG": Type.BIGINT}
_DEFAULTS: Final = {"format": "json", "mode": "append", "on_error": "stop", "from": "earliest"}
_CHOICES: Final = {
    "format": ("json",),
    "mode": ("append", "upsert"),
    "on_error": ("stop", "skip"),
    "from": ("earliest",),
}
_NO_ITEM: Final = (TokenType.COMMA, TokenType.FROM, TokenType.R_PAREN)
MOST_PARTITIONS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Table:
    """A topic as a table. `options` are those of _DEFAULTS; `key` has the positions of the primary key."""

    name: str
    at: int
    topic: str
    options: dict[str, str]
    columns: tuple[tuple[str, Type], ...]
    key: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ViewText:
    """A view with its query, not yet understood. A view without a topic is local."""

    name: str
    at: int
    topic: str | None
    partitions: int
    query: exp.Expr


Statement = Table | ViewText


def statements(text: Text) -> Iterator[Statement]:
    """Yield the statements of a program in their order; raises Refused."""
    try:
        tokens = _DIALECT.tokenize(text.sql)
    except TokenError as error:
        raise text.refused(Code.SYNTAX, "text", str(error), "mend the text", None) from None
    start = 0
    for end, token in enumerate([*tokens, None]):
        if token is None or token.token_type is TokenType.SEMICOLON:
            if end > start:
                yield _Head(text, tokens[start:end]).statement()
            start = end + 1


class _Head:
    """The tokens of one statement, read from the front."""

    def __init__(self, text: Text, tokens: Sequence[Token]) -> None:
        self._text = text
        self._tokens = tokens
        self._next = 0

    def statement(self) -> Statement:
        """Read it."""
        self._take("CREATE")
        local = self._is("LOCAL")
        if local:
            self._next += 1
        if not local and self._is("TABLE"):
            self._next += 1
            return self._table()
        self._take("VIEW")
        return self._view(local)

    def _table(self) -> Table:
        name, at = self._name("a table")
        self._take("(")
        columns: dict[str, Type] = {}
        key: list[str] = []
        while True:
            if self._is("PRIMARY KEY") or self._is("PRIMARY"):
                key += self._key_list()
            else:
                column, place = self._name("a column")
                if column.lower() in (each.lower() for each in columns):
                    raise self._refused(
                        Code.NAME_TAKEN, column, "is a column already", "name it otherwise", place
                    )
                columns[column] = self._type()
                key += [column] * self._constraints()
            if not self._is(","):
                break
            self._next += 1
        self._take(")")
        options = self._options() if self._is("OPTIONS") else {}
        self._end()
        topic = options.pop("topic", (name, at))[0]
        return Table(
            name,
            at,
            topic,
            self._table_options(options, key, at),
            tuple(columns.items()),
            self._key(key, columns, at),
        )

    def _key_list(self) -> list[str]:
        self._next += 1 if self._is("PRIMARY KEY") else 2
        self._take("(")
        names = [self._name("a column")[0]]
        while self._is(","):
            self._next += 1
            names.append(self._name("a column")[0])
        self._take(")")
        return names

    def _constraints(self) -> int:
        """Read NOT NULL and PRIMARY KEY; 1 if the column is the key."""
        key = 0
        while True:
            if self._is("NOT"):
                self._next += 1
                self._take("NULL")
            elif self._is("PRIMARY KEY"):
                self._next += 1
                key = 1
            else:
                return key

    def _key(self, key: list[str], columns: dict[str, Type], at: int) -> tuple[int, ...]:
        known = [name.lower() for name in columns]
        for name in key:
            if name.lower() not in known:
                raise self._refused(
                    Code.UNKNOWN_NAME, name, "is not a column of the table", "correct the primary key", at
                )
        return tuple(dict.fromkeys(known.index(name.lower()) for name in key))

    def _table_options(self, options: dict[str, tuple[str, int]], key: list[str], at: int) -> dict[str, str]:
        for name, (value, place) in options.items():
            if name not in _DEFAULTS:
                known = ", ".join(["topic", *_DEFAULTS])
                raise self._refused(
                    Code.UNKNOWN_NAME, name, "is not an option of a table", f"it has {known}", place
                )
            if value not in _CHOICES[name]:
                raise self._text.unsupported(f"{name} '{value}'", place, f"use {' or '.join(_CHOICES[name])}")
        given = _DEFAULTS | {name: value for name, (value, _) in options.items()}
        if (given["mode"] == "upsert") != bool(key):
            cause = "a table has a primary key if and only if its mode is upsert"
            cure = "add mode 'upsert', or PRIMARY KEY to a column" if key else "add PRIMARY KEY to a column"
            raise self._refused(Code.NO_KEY, "table", cause, cure, at)
        return given

    def _view(self, local: bool) -> ViewText:
        name, at = self._name("a view")
        options = self._options() if self._is("OPTIONS") else {}
        self._take("AS")
        for option, (_, place) in options.items():
            if local or option not in ("topic", "partitions"):
                cure = "a view has topic and partitions, a local view has none"
                raise self._refused(Code.UNKNOWN_NAME, option, "is not an option of this view", cure, place)
        topic = None if local else options.get("topic", (name, at))[0]
        number, place = options.get("partitions", ("1", at))
        if not number.isdecimal() or not 1 <= int(number) <= MOST_PARTITIONS:
            cause = f"partitions are a number from 1 to {MOST_PARTITIONS}"
            raise self._refused(Code.UNKNOWN_NAME, number, cause, "correct the number", place)
        return ViewText(name, at, topic, int(number), self._query())

    def _query(self) -> exp.Expr:
        rest = list(self._tokens[self._next :])
        if not rest:
            raise self._expected("a query")
        for one, following in pairwise(rest):
            # sqlglot reads over a comma that nothing follows.
            if one.token_type is TokenType.COMMA and following.token_type in _NO_ITEM:
                cause, cure = "something should stand after the comma", "leave the comma out"
                raise self._refused(Code.SYNTAX, following.text, cause, cure, following.start)
        try:
            parsed = _DIALECT.parser().parse(rest, self._text.sql)
        except ParseError as error:
            first = error.errors[0]
            offset = _offset_of(self._text.sql, first.get("line"), first.get("col"), first.get("highlight"))
            raise self._refused(
                Code.SYNTAX, first.get("highlight") or "query", first.get("description") or str(error),
                "mend the query", offset if offset is not None else rest[0].start,
            ) from None  # fmt: skip
        (query,) = parsed
        if not isinstance(query, exp.Query):
            raise self._refused(
                Code.SYNTAX, rest[0].text, "is not a query", "write AS SELECT …", rest[0].start
            )
        return query

    def _options(self) -> dict[str, tuple[str, int]]:
        """Read names with values, and the offset of each."""
        self._take("OPTIONS")
        self._take("(")
        found: dict[str, tuple[str, int]] = {}
        while True:
            name, at = self._name("an option")
            if name in found:
                raise self._refused(Code.NAME_TAKEN, name, "is given twice", "leave one out", at)
            value = self._peek()
            if value is None or value.token_type not in (TokenType.STRING, TokenType.NUMBER):
                raise self._expected("a text in quotes, or a number")
            found[name] = (value.text, value.start)
            self._next += 1
            if not self._is(","):
                break
            self._next += 1
        self._take(")")
        return found

    def _type(self) -> Type:
        token = self._peek()
        if token is None or (kind := _TYPES.get(token.text.upper())) is None:
            known = ", ".join(kind.value for kind in Type)
            shown = token.text if token else "the end"
            raise self._refused(
                Code.UNKNOWN_NAME,
                shown,
                "is not a type of columns",
                f"use one of {known}",
                token.start if token else None,
            )
        self._next += 1
        return kind

    def _name(self, what: str) -> tuple[str, int]:
        token = self._peek()
        word = token is not None and (token.token_type is TokenType.IDENTIFIER or token.text.isidentifier())
        if token is None or not word or token.token_type is TokenType.STRING:
            raise self._expected(what)
        self._next += 1
        return token.text, token.start

    def _peek(self) -> Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _is(self, word: str) -> bool:
        token = self._peek()
        return token is not None and token.token_type is not TokenType.STRING and token.text.upper() == word

    def _take(self, word: str) -> None:
        if not self._is(word):
            raise self._expected(word)
        self._next += 1

    def _end(self) -> None:
        if self._peek() is not None:
            raise self._expected("a semicolon")

    def _expected(self, what: str) -> Refused:
        token = self._peek()
        at = token.start if token else self._tokens[-1].end + 1
        cure = "a program has CREATE TABLE, CREATE VIEW and CREATE LOCAL VIEW (docs/views.md)"
        return self._refused(
            Code.SYNTAX, token.text if token else "the end", f"{what} should stand here", cure, at
        )

    def _refused(self, code: Code, subject: str, cause: str, cure: str, at: int | None) -> Refused:
        return self._text.refused(code, subject, cause, cure, at)


def _offset_of(sql: str, line: int | None, column: int | None, highlight: str | None) -> int | None:
    """sqlglot gives the line and the column of a token's end."""
    if line is None or column is None:
        return None
    start = sum(len(each) + 1 for each in sql.split("\n")[: line - 1])
    return max(start, start + column - len(highlight or " "))
