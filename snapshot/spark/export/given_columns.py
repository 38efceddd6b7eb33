"""Columns of JSON values as a user gives them, in Spark SQL's words: `orders: id bigint, at timestamp`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from strandline.snapshot.spark.export.errors import ExportError
from strandline.snapshot.spark.export.json_columns import SCALARS, Fields, column_name, is_column_name
from strandline.snapshot.spark.json_schema import MOST_FIELDS, Kind

TYPES: Final = {**{name: name for name in SCALARS}, "LONG": "BIGINT"}
"""Names of types that have no others inside, and what they are called in a plan."""
_CURE: Final = "give TOPIC: FIELD TYPE, FIELD TYPE with types as in 'orders: id bigint, tags array<string>'"
_TOKEN: Final = re.compile(r"\s*(?:`((?:[^`]|``)*)`|([,<>:])|([^\s,<>:`]+))")


def given_columns(texts: Iterable[str]) -> dict[str, Fields]:
    """The columns of topics, each given as `TOPIC: FIELD TYPE, ...`; raises ExportError."""
    found: dict[str, Fields] = {}
    for text in texts:
        topic, colon, columns = text.partition(":")
        topic = topic.strip()
        if not colon or not re.fullmatch(r"[a-zA-Z0-9._-]+", topic):
            raise ExportError(f"columns {text!r} begin with no topic", _CURE)
        if topic in found:
            raise ExportError(
                f"columns of topic {topic!r} are given twice", "give them once, with all of them"
            )
        found[topic] = _Parser(topic, columns).fields()
    return found


class _Parser:
    """Reads the columns of one topic."""

    def __init__(self, topic: str, text: str) -> None:
        self._topic = topic
        self._tokens = [*self._split(text.strip())]
        self._at = 0

    def _split(self, text: str) -> Iterator[tuple[str, bool]]:
        """The words and signs, and whether each is a sign."""
        at = 0
        while at < len(text):
            token = _TOKEN.match(text, at)
            if token is None:
                raise self._wrong(f"a backquote is open at {text[at:]!r}")
            quoted, sign, word = token.groups()
            if quoted is not None:
                yield quoted.replace("``", "`"), False
            else:
                yield sign or word, sign is not None
            at = token.end()

    def fields(self) -> dict[str, Kind]:
        """All columns, in their order."""
        found = self._fields(column_name)
        if self._at < len(self._tokens):
            raise self._wrong(f"{self._tokens[self._at][0]!r} stands where a comma was expected")
        if len(found) > MOST_FIELDS:
            raise self._wrong(f"there are {len(found)}, and {MOST_FIELDS} are the most")
        return found

    def _fields(self, name_of: Callable[[str], str]) -> dict[str, Kind]:
        """Fields with a comma between them; `name_of` gives the names that may not be the same."""
        found: dict[str, Kind] = {}
        names: set[str] = set()
        while True:
            field = self._word("a field")
            self._sign(":")
            name = name_of(field).lower()
            if not is_column_name(field):
                raise self._wrong(f"{field!r} cannot be the name of a column")
            if name in names:
                raise self._wrong(f"{field!r} is there twice, or in another case")
            names.add(name)
            found[field] = self._type()
            if not self._sign(","):
                return found

    def _type(self) -> Kind:
        name = self._word("a type").upper()
        if name in TYPES:
            return TYPES[name]
        if name not in ("ARRAY", "STRUCT"):
            known = ", ".join(sorted(name.lower() for name in TYPES))
            raise self._wrong(f"{name.lower()!r} is no type (there are {known}, array<...>, struct<...>)")
        self._expect("<")
        if name == "ARRAY":
            element = self._type()
            self._expect(">")
            return [element]
        fields = self._fields(str)
        self._expect(">")
        return fields

    def _word(self, what: str) -> str:
        if self._at == len(self._tokens) or self._tokens[self._at][1]:
            there = self._tokens[self._at][0] if self._at < len(self._tokens) else "the end"
            raise self._wrong(f"{there!r} stands where {what} was expected")
        self._at += 1
        return self._tokens[self._at - 1][0]

    def _sign(self, sign: str) -> bool:
        """Whether a sign comes next, which is passed then."""
        found = self._at < len(self._tokens) and self._tokens[self._at] == (sign, True)
        self._at += found
        return found

    def _expect(self, sign: str) -> None:
        if not self._sign(sign):
            raise self._wrong(f"{sign!r} is missing")

    def _wrong(self, why: str) -> ExportError:
        return ExportError(f"columns of topic {self._topic!r}: {why}", _CURE)
