"""Refusals of programs: a closed list of codes, each with what it means and the cure."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

SUBJECT_CHARACTERS: Final = 80
"""Shown of what is refused: a file that is no program may be one word of a million letters."""


class Code(enum.Enum):
    """A reason to refuse a program; the value is what it means, as docs/views.md has it."""

    SYNTAX = "the text is no SQL, or no statement of a program"
    UNKNOWN_NAME = "a table, a column, a type or an option is not there"
    NAME_TAKEN = "two tables, views or columns of one have the same name"
    AMBIGUOUS_NAME = "a column could be of several tables"
    WRONG_TYPE = "an operator or a function has arguments of types that it does not take"
    UNSUPPORTED_SQL = "a part of SQL that views do not have"
    NOT_DETERMINISTIC = "a function whose value depends on more than the row"
    RECURSIVE_VIEW = "a view depends on itself, or on one that is declared after it"
    NO_KEY = "the rows of a view have no key by which its topic could be compacted"


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a program's text; lines and columns count from 1."""

    line: int
    column: int


class Refused(Exception):
    """A program is refused, before anything of it exists; `str()` is one line with place and cause."""

    def __init__(self, code: Code, subject: str, cause: str, cure: str, place: Place | None) -> None:
        if len(subject) > SUBJECT_CHARACTERS:
            subject = f"{subject[:SUBJECT_CHARACTERS]}…"
        where = "" if place is None else f"line {place.line}, column {place.column}: "
        super().__init__(f"{where}{code.name} {subject}: {cause}")
        self.code = code
        self.subject = subject
        self.cause = cause
        self.cure = cure
        self.place = place

    def as_dict(self) -> dict[str, str | int | None]:
        """Give the refusal as a JSON object's fields."""
        return {
            "code": self.code.name,
            "subject": self.subject,
            "cause": self.cause,
            "cure": self.cure,
            "line": self.place.line if self.place else None,
            "column": self.place.column if self.place else None,
        }
