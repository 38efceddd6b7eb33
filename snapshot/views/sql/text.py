"""The text of a program: places in it, and refusals that name them."""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from strandline.statemachine.views.refusals import Code, Place, Refused

NOT_YET: Final = "leave it out: it is not built yet"


class Text:
    """A program's text. sqlglot gives the offset of a name; other parts are placed by their first name."""

    def __init__(self, sql: str) -> None:
        self.sql = sql

    def place(self, offset: int) -> Place:
        """Give the line and column of an offset."""
        before = self.sql[:offset]
        return Place(before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1)

    def refused(self, code: Code, subject: str, cause: str, cure: str, at: exp.Expr | int | None) -> Refused:
        """Make a refusal at an offset, or at a part of a statement."""
        offset = _offset(at) if isinstance(at, exp.Expr) else at
        return Refused(code, subject, cause, cure, None if offset is None else self.place(offset))

    def unsupported(self, what: str, at: exp.Expr | int | None, cure: str = NOT_YET) -> Refused:
        """Make the refusal of a part of SQL that views do not have."""
        return self.refused(Code.UNSUPPORTED_SQL, what, "views do not have it", cure, at)

    def check_arguments(self, node: exp.Expr, allowed: frozenset[str], what: str) -> None:
        """Raise Refused where a node has a part that is not among those that are understood."""
        for name, value in node.args.items():
            if value and name not in allowed:
                shown = name.strip("_").replace("_", " ").upper()
                at = value[0] if isinstance(value, list) else value
                raise self.unsupported(f"{shown} of {what}", at if isinstance(at, exp.Expr) else node)


def _offset(node: exp.Expr) -> int | None:
    starts = [found.meta["start"] for found in node.walk() if "start" in found.meta]
    return min(starts, default=None)
